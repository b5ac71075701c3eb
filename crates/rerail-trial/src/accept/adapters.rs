//! Jobs over RDMA adapters, which guests have in software: plain, with every kind of cut that a guest can have every few seconds, with a node
//! that pauses and one that loses its power.
//!
//! Guests run in emulation, so nothing is measured here. Each run boots its own.

use super::{Campaign, Scale, data};
use crate::campaign::mpi4py;
use crate::lab::{Ran, Run};
use crate::record::Event;
use anyhow::Result;
use std::time::Duration;
use xtask::mpi::Mpi;

/// What MPIs say when an operation has failed.
const ERRORS: [&str; 2] = ["MPI_ERRORS_ARE_FATAL", "Fatal error in"];
/// Cuts that guests can have.
const CUTS: [&str; 4] = ["down", "dark", "dark-in", "dark-out"];
/// What booting may take, and the end.
const AROUND: Duration = Duration::from_secs(240);
/// A cut, and the time until the next.
const CUT_S: (f64, f64) = (2.0, 1.5);
/// After this long a partition is final, where a node loses its power.
const PARTITION_S: u64 = 8;
/// Of a stream of large messages, what adapters must have written in a few seconds. The first messages go as copies, until there are streams
/// and keys, and emulation is slow.
const PLACED_PERCENT: u64 = 90;
/// How many messages IMB sends of each size.
const IMB_LENGTH: [&str; 6] = ["-iter", "20", "-iter_policy", "off", "-msglog", "4:17"];
/// mpi4py's tests of messages between two. Those of one-sided operations take a quarter of an hour there, because a round trip takes 3 ms.
const MPI4PY: [&str; 3] = ["test_p2p_buf", "test_p2p_buf_matched", "test_p2p_obj"];

/// Cuts of all kinds, of both rails in turn, for so many seconds.
fn cuts(seconds: f64) -> String {
    let (cut, whole) = CUT_S;
    let count = (seconds / (cut + whole)) as usize;
    let items = (0..count).map(|i| {
        let (at, kind) = (1.0 + i as f64 * (cut + whole), CUTS[i % CUTS.len()]);
        // a cut of one direction is that of one node
        let node = if kind == "down" { "" } else { [" node 0", " node 1"][i / CUTS.len() % 2] };
        format!("{at:.1}s cut rail{} {kind}{node}; {:.1}s heal rail{}", i % 2, at + cut, i % 2)
    });
    items.collect::<Vec<_>>().join("; ")
}

/// One MPI's programs, over one lab's adapters.
struct Over<'a> {
    campaign: &'a mut Campaign,
    device: &'static str,
    kinds: &'static str,
}

impl Over<'_> {
    fn new_run(&mut self, name: &str, arguments: &[&str], seconds: f64) -> Run {
        let name = format!("{name}-{}", self.kinds.replace(',', "-"));
        let mut run = self.campaign.new_run(&name, arguments).env("FI_RERAIL_KINDS", self.kinds);
        run.rails = vec!["unshaped", "unshaped"];
        run.rdma = Some(self.device);
        run.patience = AROUND + Duration::from_secs_f64(3.0 * seconds);
        run
    }

    fn check(&mut self, what: &str, run: &Run, says: &str) -> Result<Ran> {
        let ran = run.run()?;
        self.campaign.check_run(&format!("{what}, {} between guests", self.kinds), run, &ran, says);
        Ok(ran)
    }

    /// The random program, plain and with cuts; for so many seconds.
    fn checked(&mut self, seconds: f64) -> Result<()> {
        let program = self.campaign.program("checked");
        for (name, schedule, seconds) in
            [("plain", String::new(), seconds / 3.0), ("cuts", cuts(seconds - 3.0), seconds)]
        {
            let (length, seed) = (seconds.to_string(), self.campaign.seed.to_string());
            let arguments =
                [&program, "--seconds", &length, "--seed", &seed, "--max", "256KiB", "--watchdog", "60"];
            let mut run = self.new_run(&format!("checked-{name}"), &arguments, seconds);
            run.schedule = schedule;
            self.check(&format!("checked, {name}"), &run, data::RIGHT)?;
        }
        Ok(())
    }

    /// Large messages are written by the adapter, and copied by no processor.
    fn placed(&mut self) -> Result<()> {
        let program = self.campaign.program("stream");
        let arguments = [&program, "--seconds", "8", "--size", "1MiB", "--window", "4", "--gap-ms", "10000"];
        let run = self.new_run("placed", &arguments, 8.0);
        let ran = self.check("stream of 1 MiB", &run, "")?;
        let counted = |name| -> u64 {
            ran.events.iter().filter(|e| e.name() == "closed").map(|e| e.number(name)).sum()
        };
        let (placed, received) = (counted("bytes_placed"), counted("bytes_received"));
        let detail = format!("adapters wrote {placed} of {received} bytes; files in {}", run.dir.display());
        let what = format!("large messages are not copied, {} between guests", self.kinds);
        self.campaign.check(&what, received > 0 && placed * 100 >= received * PLACED_PERCENT, detail);
        Ok(())
    }

    fn onesided(&mut self, seconds: f64) -> Result<()> {
        let (program, length) = (self.campaign.program("onesided"), seconds.to_string());
        let mut run = self.new_run("onesided", &[&program, "--seconds", &length], seconds);
        run.schedule = cuts(seconds - 3.0);
        self.check("onesided, cuts", &run, data::RIGHT).map(drop)
    }

    /// The mixtures of MN-uDAPL figures 15 to 22: a rail fails at the first message, one in the middle, and then both.
    fn nas(&mut self, seconds: f64) -> Result<()> {
        let program = self.campaign.program("nas");
        let third = seconds / 3.0;
        let plans = [
            ("at the first message", format!("0ms cut rail0 dark node 1; {:.1}s heal rail0", 2.0 * third)),
            ("in the middle", format!("{third:.1}s cut rail0 down; {:.1}s heal rail0", 2.0 * third)),
            ("both, and back", format!("{third:.1}s cut all down; {:.1}s heal all", third + 2.0)),
        ];
        for kernel in ["is", "mg"] {
            for (when, schedule) in &plans {
                let length = seconds.to_string();
                let name = format!("{kernel}-{}", when.replace([' ', ','], "-"));
                let mut run = self.new_run(&name, &[&program, kernel, "--seconds", &length], seconds);
                run.schedule.clone_from(schedule);
                self.check(&format!("nas {kernel}, a rail fails {when}"), &run, data::RIGHT)?;
            }
        }
        Ok(())
    }

    /// IMB's programs follow MPICH's ABI.
    fn imb(&mut self) -> Result<()> {
        if matches!(self.campaign.mpi, Mpi::Open5 | Mpi::Open4) {
            return Ok(());
        }
        let library = self.campaign.mpi.prefix().join("lib");
        let parts: [(&str, &[&str]); 2] = [
            ("IMB-MPI1", &["PingPong", "Sendrecv", "Exchange", "Allreduce", "Bcast", "Barrier"]),
            ("IMB-RMA", &["Unidir_put", "Unidir_get", "Bidir_put", "Accumulate", "Fetch_and_op"]),
        ];
        for (part, benchmarks) in parts {
            let program = Mpi::Intel.prefix().join("bin").join(part);
            let program = program.to_string_lossy();
            let arguments = [&[&*program][..], benchmarks, &["-npmin", "2"], &IMB_LENGTH].concat();
            for (name, schedule) in [("plain", String::new()), ("cuts", cuts(600.0))] {
                let mut run = self.new_run(&format!("{part}-{name}"), &arguments, 60.0);
                run = run.env("LD_LIBRARY_PATH", library.display());
                run.schedule = schedule;
                (run.on_start, run.unending) = (false, true);
                self.check(&format!("{part}, {name}"), &run, "All processes entering MPI_Finalize")?;
            }
        }
        Ok(())
    }

    fn mpi4py(&mut self) -> Result<()> {
        mpi4py::setup()?;
        let mpi = self.campaign.mpi;
        let modules = MPI4PY.map(String::from);
        let arguments = mpi4py::arguments(mpi, &modules, &mpi4py::known(mpi, 2));
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        for (name, schedule) in [("plain", String::new()), ("cuts", cuts(600.0))] {
            let mut run = self.new_run(&format!("mpi4py-{name}"), &arguments, 120.0);
            let (variable, path) = mpi4py::results_in(&run.dir);
            run = run.env(&variable, path);
            for (name, value) in mpi4py::settings(mpi) {
                run = run.env(name, value);
            }
            run.schedule = schedule;
            (run.on_start, run.unending) = (false, true);
            self.check(&format!("mpi4py, {} files, {name}", MPI4PY.len()), &run, mpi4py::WELL)?;
        }
        Ok(())
    }

    /// A node stands still for ten seconds, and the job with it.
    fn paused(&mut self) -> Result<()> {
        let program = self.campaign.program("checked");
        let mut run = self.new_run(
            "paused",
            &[&program, "--seconds", "18", "--max", "256KiB", "--watchdog", "60"],
            18.0,
        );
        run.schedule = "2s pause node 1; 12s resume node 1".into();
        self.check("checked, a node pauses for 10 s", &run, data::RIGHT).map(drop)
    }

    /// A node loses its power: its peers learn that, and do not wait for ever.
    fn killed(&mut self) -> Result<()> {
        let program = self.campaign.program("checked");
        let mut run = self.new_run("killed", &[&program, "--seconds", "60", "--max", "256KiB"], 60.0);
        run = run.env("FI_RERAIL_PARTITION_TIMEOUT", PARTITION_S);
        run.schedule = "3s kill node 1".into();
        run.patience = AROUND;
        let ran = run.run()?;
        // A launcher may wait for its daemon on the dead node, and be ended here: then the lab has no time to collect events, and what the
        // MPI says must do.
        let event = |e: &Event| !e.is_lab() && e.name() == "peer_lost" && e.text("host") == "n0";
        let lost = ran.events.iter().any(event) || ERRORS.iter().any(|words| ran.stderr.contains(words));
        // without that an error could be any
        let died = ran.events.iter().any(|e| e.is_lab() && e.name() == "node");
        let what = format!("a node is killed, {} between guests: its peer gives it up", self.kinds);
        let detail =
            format!("node 0 reports nothing, exit code {:?}; files in {}", ran.code, run.dir.display());
        if self.campaign.check(&what, died && lost, detail) && ran.hung {
            println!(
                "  (the launcher of {} waits for its daemon on the dead node)",
                self.campaign.mpi.name()
            );
        }
        Ok(())
    }
}

fn is_short(campaign: &Campaign) -> bool {
    let short = campaign.scale == Scale::Quick;
    if short {
        println!("  (not in the short form: a test of the command `rerail` runs a job between guests)");
    }
    short
}

/// The case: a job uses rails of these kinds, over a lab's devices.
pub fn mixture(campaign: &mut Campaign, device: &'static str, kinds: &'static str) -> Result<()> {
    if is_short(campaign) {
        return Ok(());
    }
    let seconds = campaign.by_scale(0.0, 18.0, 90.0);
    let long = campaign.scale == Scale::Long;
    let alone = !kinds.contains(',');
    let mut over = Over { campaign, device, kinds };
    over.checked(seconds)?;
    if alone || long {
        over.placed()?;
        over.onesided(seconds)?;
        over.paused()?;
        over.killed()?;
        over.imb()?;
    }
    if !alone || long {
        over.mpi4py()?;
    }
    Ok(())
}

/// The case: the mixture of the MN-uDAPL paper.
pub fn kernels(campaign: &mut Campaign) -> Result<()> {
    if is_short(campaign) {
        return Ok(());
    }
    let seconds = campaign.by_scale(0.0, 18.0, 90.0);
    Over { campaign, device: "roce", kinds: "ip,roce" }.nas(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_cut_is_there_and_each_is_healed() {
        let text = cuts(30.0);
        assert!(CUTS.iter().all(|kind| text.contains(&format!(" {kind}"))), "{text}");
        assert_eq!(text.matches("cut rail").count(), text.matches("heal rail").count());
        assert!(
            text.starts_with("1.0s cut rail0 down; 3.0s heal rail0; 4.5s cut rail1 dark node 0;"),
            "{text}"
        );
    }
}
