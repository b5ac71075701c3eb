//! One case: which program under which MPI, what is cut when. Drawn from (seed, index) alone, never from the machine.

use super::draw::Draw;
use super::fault::{self, Kind};
use super::job::Launcher;
use super::program::{Launch, PROGRAMS, Program};
use anyhow::{Context, Error, Result};
use rerail_lab::schedule::{Action, Schedule};
use rerail_lab::topology::{RailPlan, Topology};
use std::collections::BTreeSet;
use std::fmt;
use xtask::mpi::Mpi;

/// What is planned for the rails of a case.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Planned {
    /// Cuts, each rail of each counted.
    pub cuts: usize,
    /// Rails whose wires are to harm frames.
    pub wires: BTreeSet<String>,
}

/// A case, complete.
pub struct Case {
    /// The campaign's seed.
    pub seed: u64,
    /// Its place in the campaign.
    pub index: u64,
    /// What runs.
    pub program: &'static Program,
    /// With which MPI.
    pub mpi: Mpi,
    /// What starts it.
    pub launcher: Launcher,
    /// What is cut.
    pub kind: Kind,
    /// How the program is started.
    pub launch: Launch,
    /// The rates of the rails.
    pub rails: [&'static str; 2],
    /// What the lab does.
    pub schedule: String,
    /// What the program is to announce.
    pub phases: Vec<String>,
    /// For how many seconds, all in all, every rail is cut or may be.
    pub outage_s: f64,
}

impl Case {
    /// Draws case `index` of campaign `seed`.
    ///
    /// Every combination of program, MPI and kind of cut comes once before any comes again; their order is the seed's, other
    /// in each round.
    pub fn draw(seed: u64, index: u64) -> Case {
        let mut combinations: Vec<(&'static Program, Mpi, Kind)> = Vec::new();
        for program in PROGRAMS {
            for &mpi in program.mpis {
                combinations.extend(Kind::ALL.map(|kind| (program, mpi, kind)));
            }
        }
        let (round, place) = (index / combinations.len() as u64, index as usize % combinations.len());
        let mut order = Draw::new(seed, u64::MAX - round);
        for last in (1..combinations.len()).rev() {
            combinations.swap(last, order.below(last + 1));
        }
        let (program, mpi, kind) = combinations[place];
        let mut draw = Draw::new(seed, index);
        let mut rails = draw.one_of(&[
            ["1gbit", "1gbit"],
            ["1gbit", "1gbit"],
            ["unshaped", "unshaped"],
            ["1gbit", "200mbit"],
        ]);
        if kind.needs_wires() {
            rails = rails.map(|rate| match rate {
                "200mbit" => "wire:200mbit",
                "unshaped" => "wire:unshaped",
                _ => "wire:1gbit",
            });
        }
        let launch = (program.launch)(&mut draw, mpi, kind.program_s());
        let fault = fault::draw(&mut draw, kind, launch.seconds);
        let launcher = draw.one_of(&Launcher::ALL);
        let launcher = if launcher.starts(mpi) { launcher } else { Launcher::Own };
        Case {
            seed,
            index,
            program,
            mpi,
            launcher,
            kind,
            launch,
            rails,
            schedule: fault.schedule,
            phases: fault.phases,
            outage_s: fault.outage_s,
        }
    }

    /// What is to happen to the rails, as the lab will read it.
    pub fn planned(&self) -> Result<Planned> {
        let rails = self.rails.map(|rail| rail.parse::<RailPlan>());
        let rails = rails.into_iter().collect::<Result<Vec<_>, _>>().map_err(Error::msg)?;
        let topology = Topology { nodes: 2, rails, congctl: None, rdma: None, fabric: None };
        let schedule = Schedule::parse(&self.schedule, &topology)
            .with_context(|| format!("the lab does not understand `{}`", self.schedule))?;
        let mut planned = Planned::default();
        for item in &schedule.items {
            let rails = item.action.targets(&topology)?;
            match &item.action {
                Action::Cut { .. } => planned.cuts += rails.len(),
                Action::Wire { faults, .. } if faults.to_string() != "clean" => {
                    planned.wires.extend(rails.into_iter().map(|rail| rail.to_string()));
                }
                _ => {}
            }
        }
        Ok(planned)
    }

    /// The command that repeats it.
    pub fn replay(&self) -> String {
        format!("cargo xtask campaign --case {}:{}", self.seed, self.index)
    }
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}:{} {} on {}{}, {} ranks, {}+{}: {}: {}",
            self.seed,
            self.index,
            self.program.name,
            self.mpi.name(),
            if self.launcher == Launcher::Rerail { " by rerail launch" } else { "" },
            self.launch.ranks,
            self.rails[0],
            self.rails[1],
            self.kind.name(),
            self.schedule
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn a_case_is_its_seed_and_index_and_nothing_else() {
        for index in 0..300 {
            assert_eq!(Case::draw(5, index).to_string(), Case::draw(5, index).to_string());
            assert_eq!(Case::draw(5, index).launch.arguments, Case::draw(5, index).launch.arguments);
        }
        assert_ne!(Case::draw(5, 0).to_string(), Case::draw(6, 0).to_string());
    }

    #[test]
    fn the_lab_understands_every_schedule_and_each_has_a_fault() {
        for index in 0..600 {
            let case = Case::draw(9, index);
            let planned = case.planned().unwrap_or_else(|why| panic!("{case}: {why:#}"));
            assert_eq!(planned.cuts > 0, !matches!(case.kind, Kind::Lossy | Kind::LossyAll), "{case}");
            assert_eq!(
                planned.wires.len(),
                [0, 1, 2][match case.kind {
                    Kind::LossyAll => 2,
                    kind => usize::from(kind.needs_wires()),
                }],
                "{case}"
            );
            if case.kind == Kind::Ten {
                assert!((10..=20).contains(&planned.cuts), "{case}");
            }
        }
    }

    #[test]
    fn both_launchers_come_and_each_starts_only_what_it_knows() {
        let cases = || (0..200).map(|index| Case::draw(4, index));
        assert!(cases().all(|case| case.launcher.starts(case.mpi)));
        for launcher in Launcher::ALL {
            assert!(cases().filter(|case| case.launcher == launcher).count() > 60, "{launcher:?}");
        }
    }

    #[test]
    fn every_combination_comes_once_before_any_comes_again() {
        let all: usize = PROGRAMS.iter().map(|program| program.mpis.len() * Kind::ALL.len()).sum();
        for round in 0..2 {
            let seen: HashSet<_> = (0..all as u64)
                .map(|index| Case::draw(3, round * all as u64 + index))
                .map(|case| (case.program.name, case.mpi.name(), case.kind.name()))
                .collect();
            assert_eq!(seen.len(), all);
        }
    }
}
