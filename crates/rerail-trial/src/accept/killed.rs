//! A process is killed: the transport reports it to the others, whatever the rails look like at that moment.

use super::{Campaign, Target};
use anyhow::Result;
use xtask::mpi::Mpi;

/// How the process dies, what the rails do meanwhile, and which event of the lab the seconds are counted from.
struct Case {
    name: &'static str,
    how: &'static str,
    schedule: &'static str,
    from_heal: bool,
}

const CASES: [Case; 4] = [
    Case { name: "all rails work", how: "kill", schedule: "", from_heal: false },
    Case { name: "a child of it lives on", how: "fork", schedule: "", from_heal: false },
    Case { name: "one rail is dark", how: "kill", schedule: "200ms cut rail0 dark", from_heal: false },
    Case {
        name: "every rail is dark for seconds",
        how: "kill",
        schedule: "200ms cut all dark; 4s heal all",
        from_heal: true,
    },
];

/// One run for each case. The launcher's own cleaning up is off.
pub fn killed(campaign: &mut Campaign) -> Result<()> {
    for Case { name, how, schedule, from_heal } in CASES {
        if campaign.by_scale(from_heal, false, false) && campaign.mpi != Mpi::Mpich {
            continue;
        }
        let program = campaign.program("death");
        let mut run = campaign.new_run(&name.replace(' ', "-"), &[&program, "--how", how]);
        run.nodes = 3;
        run.schedule = schedule.to_owned();
        run.mpi_arguments = vec![match campaign.mpi {
            Mpi::Mpich | Mpi::Intel => "-disable-auto-cleanup",
            Mpi::Open5 | Mpi::Open4 => "--enable-recovery",
        }];
        run.patience = std::time::Duration::from_secs(60);
        let ran = run.run()?;
        let dies = ran.stdout.lines().find_map(|l| l.split_once(" dies at ")?.1.trim().parse::<i64>().ok());
        let died: Vec<_> = ran.events.iter().filter(|e| !e.is_lab() && e.name() == "peer_died").collect();
        let given_up: Vec<String> = ran
            .events
            .iter()
            .filter(|e| !e.is_lab() && matches!(e.name(), "peer_lost" | "peer_gave_up"))
            .map(|e| e.words())
            .collect();
        let problem = if ran.hung {
            Some("it hung".to_owned())
        } else if dies.is_none() {
            Some("no process was killed".to_owned())
        } else if died.is_empty() {
            Some("no survivor reports peer_died".to_owned())
        } else if ran.stdout.contains("no rank sent") {
            Some("a receive completed without a message".to_owned())
        } else if !given_up.is_empty() {
            Some(format!("others were given up too: {}", given_up.join("; ")))
        } else {
            None
        };
        let what = format!("a rank is killed while {name}: the others are told");
        let holds = problem.is_none();
        campaign.check(
            &what,
            holds,
            format!("{}; files in {}", problem.unwrap_or_default(), run.dir.display()),
        );
        let healed = ran.events.iter().find(|e| e.is_lab() && e.name() == "heal").map(|e| e.at_ns);
        let known = if from_heal { healed.max(dies) } else { dies };
        if let (true, Some(known), Some(last)) = (holds, known, died.iter().map(|e| e.at_ns).max()) {
            let since = if from_heal { "the repair" } else { "its end" };
            campaign.figure(
                &format!("{name}: told after {since}"),
                (last - known) as f64 / 1e9,
                "s",
                Target::AtMost(5.0),
            );
        }
    }
    Ok(())
}
