//! The project's commands: `cargo xtask build | setup | demo | test | check | accept | campaign | swarm | fuzz | fabtests | bench`.
//!
//! One file per command. What several share: [`workspace`] (where things are, how a command is run), [`mpi`] (the MPIs), [`programs`] (the C
//! programs), [`lab`] (a run of `rerail lab run`), [`record`] (what a run left behind, and the figures in it).

mod accept;
mod bench;
mod build;
mod campaign;
mod check;
mod demo;
mod fabtests;
mod fuzz;
mod lab;
mod licence;
mod mpi;
mod programs;
mod record;
mod setup;
mod svg;
mod swarm;
mod test;
mod workspace;

use std::process::ExitCode;

const USAGE: &str = "\
usage: cargo xtask COMMAND

  build                    the provider (librerail-fi.so) and the command `rerail`, in target/release
  setup                    what the other commands need: tools, MPI wheels, the MPI programs of tests/mpi
  demo                     an MPI program streams while rails break and are repaired; bandwidth, events, a picture
  test                     all tests of the workspace, then a short acceptance campaign and a short fault campaign in the lab
  check                    formatting, lints, documentation, licences, crate edges, stray paths
  accept [OPTIONS]         the acceptance campaign with its figures
      --mpi NAME           mpich (default), openmpi, intel, openmpi4 (Debian's, with libfabric 1.17) or all
      --only NAME          only the cases whose name contains NAME; may be repeated
      --long               everything, many repetitions (about an hour)
      --quick              what `test` runs (all of it on MPICH, a part on the others)
      --no-provider        the MPI's own TCP in place of Rerail: tests the harness, not Rerail
      --seed N             the seed of random data and of the moments of faults
      --list               the names of the cases
";

fn usage() -> String {
    [USAGE, campaign::USAGE, swarm::USAGE, fuzz::USAGE, fabtests::USAGE, bench::USAGE].concat()
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let rest = arguments.get(1..).unwrap_or_default();
    let result = match arguments.first().map(String::as_str) {
        Some("build") => build::run(),
        Some("setup") => setup::run(),
        Some("demo") => demo::run(rest),
        Some("test") => test::run(),
        Some("check") => check::run(),
        Some("accept") => accept::run(rest),
        Some("campaign") => campaign::run(rest),
        Some("swarm") => swarm::run(rest),
        Some("fuzz") => fuzz::run(rest),
        Some("fabtests") => fabtests::run(rest),
        Some("bench") => bench::run(rest),
        Some("help" | "--help" | "-h") => {
            print!("{}", usage());
            return ExitCode::SUCCESS;
        }
        other => {
            if let Some(name) = other {
                eprintln!("xtask: there is no command `{name}`\n");
            }
            eprint!("{}", usage());
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
