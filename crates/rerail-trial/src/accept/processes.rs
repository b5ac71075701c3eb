//! What processes do besides talking: they fork, and they lose each other for good.

use super::Campaign;
use super::data::RIGHT;
use anyhow::Result;
use std::time::Duration;

/// Children in the middle of traffic: none speaks in its parent's name, hangs, or holds the job up.
pub fn forks(campaign: &mut Campaign) -> Result<()> {
    let rounds = campaign.by_scale("20", "60", "300");
    let program = campaign.program("fork");
    let mut run = campaign.new_run("undisturbed", &[&program, "--rounds", rounds]);
    run.per_node = 2;
    let ran = run.run()?;
    campaign.check_run(
        "programs are started and processes forked in the middle of traffic",
        &run,
        &ran,
        RIGHT,
    );
    if campaign.has_events("no child says goodbye") {
        let before_the_end = ran.events.iter().filter(|e| e.name() == "path_down").count();
        campaign.check("no path is given up over it", before_the_end == 0, "there were events path_down");
    }
    // longer than the schedule on a quiet machine too
    let rounds = campaign.by_scale("100", "100", "300");
    let mut run = campaign.new_run("cut", &[&program, "--rounds", rounds]);
    run.per_node = 2;
    run.schedule = "200ms cut rail1 dark; 600ms heal rail1".into();
    let ran = run.run()?;
    campaign.check_run("the same while a rail goes dark and comes back", &run, &ran, RIGHT);
    Ok(())
}

/// Every rail dark for longer than the deadline: one clear error on every MPI, and no hang.
pub fn deadline(campaign: &mut Campaign) -> Result<()> {
    let kinds: &[&str] =
        campaign.by_scale(&["dark"], &["dark", "down"], &["dark", "down", "dark-in", "dark-out"]);
    for kind in kinds {
        let (program, keep) = (campaign.program("stream"), campaign.tool("keep.sh"));
        let mut run = campaign.new_run(kind, &[]).env("FI_RERAIL_PARTITION_TIMEOUT", 3);
        // Hydra may end the other ranks, and itself, before it has handed on what the failing one wrote: each keeps it in a file.
        let kept = run.dir.join("rank").to_string_lossy().into_owned();
        run.program = ["sh", &keep, &kept, &program, "--seconds", "40"].map(String::from).to_vec();
        run.schedule = format!("1s cut all {kind}");
        run.patience = Duration::from_secs(60);
        let ran = run.run()?;
        let what =
            format!("every rail {kind} for longer than the deadline: the job ends by itself, in an error");
        let ended = !ran.hung && ran.code.is_some_and(|code| code != 0);
        campaign.check(
            &what,
            ended,
            format!("hung: {}, exit code {:?}; files in {}", ran.hung, ran.code, run.dir.display()),
        );
        let lost = ran.events.iter().filter(|event| event.name() == "peer_lost").count();
        campaign.check("the events say why", lost > 0, "there is no event peer_lost");
        let ranks = (0..run.nodes).filter_map(|rank| std::fs::read_to_string(format!("{kept}.{rank}")).ok());
        let said = ranks.fold(format!("{}{}", ran.stdout, ran.stderr), |all, rank| all + &rank);
        campaign.check(
            "the MPI's own message names the failed call or the unreachable peer",
            ["No route to host", "MPI_ERR", "unreachable"].iter().any(|words| said.contains(words)),
            format!("nothing of it in what launcher and ranks wrote; files in {}", run.dir.display()),
        );
        let crashed = ["SIGSEGV", "Segmentation fault", "signal: 11", "Assertion"]
            .iter()
            .any(|word| said.contains(word));
        campaign.check("and nothing crashes over it", !crashed, "the output speaks of a crash");
    }
    Ok(())
}
