//! Input from people and strangers: wrong options, and garbage on the ports.

use super::data::RIGHT;
use super::{Campaign, provider_events};
use anyhow::Result;
use std::time::Duration;

pub fn options(campaign: &mut Campaign) -> Result<()> {
    let program = campaign.program("latency");
    for (option, value) in [
        ("FI_RERAIL_RAILS", "nosuch"),
        ("FI_RERAIL_STRIPE_THRESHOLD", "abc"),
        ("FI_RERAIL_POLICY", "fastest"),
        ("FI_RERAIL_ALTERNATE", "rail0>nosuch"),
        ("FI_RERAIL_WEIGHTS", "rail0=0"),
        ("FI_RERAIL_FAULTS", "nosuch"),
    ] {
        // the sentence may name only the part that is wrong
        let wrong = value.rsplit('>').next().unwrap_or(value);
        let mut run =
            campaign.new_run(&option.to_lowercase(), &[&program, "--iterations", "10"]).env(option, value);
        run.patience = Duration::from_secs(30);
        let ran = run.run()?;
        let what = format!("{option}={value} is answered with a sentence that names it");
        let all = format!("{}\n{}", ran.stdout, ran.stderr);
        let sentence = all.lines().find(|line| {
            !line.starts_with("rerail lab:")
                && (line.contains(value) || line.contains(wrong))
                && (line.contains(option) || line.to_lowercase().contains("rerail"))
        });
        // The value appears in MPI's own dump of its arguments too, so the sentence has to be one about us.
        let holds = !ran.hung && sentence.is_some() && !all.contains("panicked");
        campaign.check(
            &what,
            holds,
            format!("no line names them (exit code {:?}): {}", ran.code, ran.stderr.trim()),
        );
    }
    Ok(())
}

/// Connections that say nothing, from each of the two nodes: 10,000 in all.
const STRAYS: u64 = 5000;

pub fn garbage(campaign: &mut Campaign) -> Result<()> {
    let seconds = campaign.by_scale("6", "15", "60");
    let repeats = campaign.by_scale(1, 1, 3);
    for repeat in 0..repeats {
        let tool = campaign.tool("junk.py");
        let program = campaign.program("checked");
        let seed = (campaign.seed + repeat).to_string();
        let arguments = [
            "python3",
            &tool,
            &program,
            "--seconds",
            seconds,
            "--max",
            "1MiB",
            "--seed",
            &seed,
            "--watchdog",
            "60",
        ];
        let mut run = campaign
            .new_run(&repeat.to_string(), &arguments)
            .env("RERAIL_JUNK_SEED", &seed)
            .env("RERAIL_STRAYS", STRAYS);
        let report = run.dir.join("junk");
        run.env.push(("RERAIL_JUNK_REPORT".into(), report.to_string_lossy().into_owned()));
        run.patience = Duration::from_secs(180);
        let ran = run.run()?;
        campaign.check_run("garbage on the ports: every byte right", &run, &ran, RIGHT);
        let reports: Vec<String> = (0..2)
            .filter_map(|rank| std::fs::read_to_string(report.with_extension(rank.to_string())).ok())
            .collect();
        let sent: u64 = reports.iter().filter_map(|text| text.lines().next()?.parse::<u64>().ok()).sum();
        // MPICH's own transport has no UDP port; Rerail has, and must be tried there.
        let right_sort =
            !campaign.provider || reports.iter().any(|text| text.contains("datagrams with a forged sender"));
        let detail = format!("{sent} pieces: {}", reports.join("; ").replace('\n', " "));
        campaign.check("garbage was really sent", sent > 100 && right_sort, detail.clone());
        let strays: u64 = reports.iter().map(|text| before(text, " idle connections")).sum();
        let most = 2 * STRAYS;
        let made = format!("{strays} of {most}: {detail}");
        // without the provider there is no port of ours to fill
        let enough = !campaign.provider || strays * 10 >= most * 9;
        campaign.check("thousands of silent connections were really made", enough, made);
        campaign.figure("silent connections", strays as f64, "connections", super::Target::None);
        if campaign.has_events("garbage takes no path out of use") {
            let lost: Vec<String> =
                provider_events(&ran.events, "path_down", "all").map(|e| e.words()).collect();
            campaign.check("garbage takes no path out of use", lost.is_empty(), lost.join("; "));
            // every process tells what it counted when it closes
            let counted: u64 = provider_events(&ran.events, "closed", "all")
                .map(|e| ["strangers", "replays", "corrupt"].iter().map(|f| e.number(f)).sum::<u64>())
                .sum();
            campaign.check("garbage is counted", counted > 0, "the counters say nothing of it".to_owned());
            campaign.figure("garbage counted", counted as f64, "pieces", super::Target::None);
        }
    }
    Ok(())
}

/// The number before `what` in a report of junk.py.
fn before(text: &str, what: &str) -> u64 {
    let number = text.split(what).next().filter(|head| head.len() < text.len());
    number.and_then(|head| head.rsplit([' ', '\n']).next()?.parse().ok()).unwrap_or(0)
}
