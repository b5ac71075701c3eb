//! Automatic path migration, for every kind of rail and in software: the three modules of APM §3.1.
//!
//! A *carrier* is what a queue pair is in the paper: traffic to a peer that stays one thing while its path changes. It has a path in
//! use and an alternate. *Specification* (§3.1.1) is `specify`: the rail that the user named, or the best of the others.
//! *Loading* (§3.1.2) is REARM: the alternate connects and answers a query. *Migration* (§3.1.3) is `move_carrier`: on a fault,
//! on request, or back home; allowed only from ARMED, as in the paper. Afterwards the next alternate is specified and loaded.
//!
//! Under the policies that stripe, every path is the home of a carrier, and two carriers may share a path while another is broken;
//! under `binding` and `primary-standby` there is one. Paths that no carrier uses are in standby: connected, kept warm by probes,
//! without traffic. Each side of a peering arranges its own sending; the other need not know.
//!
//! Invariants: a carrier's alternate is never its path; ARMED means that the alternate could carry at once; while anything is
//! connected, something carries (a standby path is taken out of standby when no carrier's path is in service).
//!
//! Differs from the paper: an alternate need not be healthy when the fault comes (§6 names that as APM's limitation): any path
//! that works is specified, loaded and migrated to in one step. Recovered paths come back by themselves.

use crate::types::Time;

/// Path migration state of a carrier (APM §2.2, figure 2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Migration {
    /// No alternate is specified: at the beginning, and after each migration.
    Migrated,
    /// An alternate is specified and being loaded.
    Rearm,
    /// The alternate is connected and has answered: it can take over at once.
    Armed,
}

/// What can happen to a carrier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MigrationEvent {
    /// An alternate is specified, and its loading requested.
    Load,
    /// The alternate is loaded (the paper's event ARMED).
    Loaded,
    /// The alternate broke: it is loaded again.
    Lost,
    /// The alternate is given up: another one is wanted, or there is none any more.
    Withdraw,
    /// The traffic moves to the alternate (the paper's event MIGRATED).
    Migrate,
}

/// Why traffic moved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MigrationCause {
    /// The path broke.
    Fault,
    /// The user wanted it.
    Request,
    /// The path that the policy prefers works again, or the user took a request back.
    Return,
}

impl MigrationCause {
    /// Name in logs and event files.
    pub fn name(self) -> &'static str {
        match self {
            MigrationCause::Fault => "fault",
            MigrationCause::Request => "request",
            MigrationCause::Return => "return",
        }
    }
}

/// All states.
#[cfg(test)]
const STATES: [Migration; 3] = [Migration::Migrated, Migration::Rearm, Migration::Armed];

/// All events.
#[cfg(test)]
const EVENTS: [MigrationEvent; 5] = [
    MigrationEvent::Load,
    MigrationEvent::Loaded,
    MigrationEvent::Lost,
    MigrationEvent::Withdraw,
    MigrationEvent::Migrate,
];

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MigrationStep {
    /// State before.
    pub from: Migration,
    /// Event.
    pub event: MigrationEvent,
    /// State after.
    pub to: Migration,
}

const fn t(from: Migration, event: MigrationEvent, to: Migration) -> MigrationStep {
    MigrationStep { from, event, to }
}

/// Every step there is; what is not here does not happen.
pub const MIGRATION_STEPS: &[MigrationStep] = {
    use Migration::*;
    use MigrationEvent::*;
    &[
        t(Migrated, Load, Rearm),
        t(Rearm, Loaded, Armed),
        t(Rearm, Withdraw, Migrated),
        t(Armed, Lost, Rearm),
        t(Armed, Withdraw, Migrated),
        t(Armed, Migrate, Migrated),
    ]
};

impl Migration {
    /// State after `event`; `None` when it cannot happen here.
    pub fn after(self, event: MigrationEvent) -> Option<Migration> {
        MIGRATION_STEPS.iter().find(|t| t.from == self && t.event == event).map(|t| t.to)
    }

    /// Name in logs, as in the paper.
    pub fn name(self) -> &'static str {
        match self {
            Migration::Migrated => "MIGRATED",
            Migration::Rearm => "REARM",
            Migration::Armed => "ARMED",
        }
    }
}

/// Traffic to a peer that stays one thing while its path changes. Paths are places in the peer's list.
#[derive(Debug, Clone)]
pub(crate) struct Carrier {
    /// Path that the policy gives it.
    home: usize,
    /// Path in use.
    path: usize,
    alternate: Alternate,
    since: Time,
    /// The user moved it here: it stays until this path breaks, or the user takes the request back.
    pinned: bool,
}

/// The path that a carrier would migrate to, with its part of the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Alternate {
    None,
    Rearm(usize),
    Armed(usize),
}

/// The methods that move a carrier return the row of [`MIGRATION_STEPS`]. They panic where the table has none.
impl Carrier {
    pub fn new(home: usize, now: Time) -> Self {
        Self { home, path: home, alternate: Alternate::None, since: now, pinned: false }
    }

    /// Path that the policy gives it.
    pub fn home(&self) -> usize {
        self.home
    }

    /// Path in use.
    pub fn path(&self) -> usize {
        self.path
    }

    /// Path that is specified as the next one.
    pub fn alternate(&self) -> Option<usize> {
        match self.alternate {
            Alternate::None => None,
            Alternate::Rearm(path) | Alternate::Armed(path) => Some(path),
        }
    }

    pub fn state(&self) -> Migration {
        match self.alternate {
            Alternate::None => Migration::Migrated,
            Alternate::Rearm(_) => Migration::Rearm,
            Alternate::Armed(_) => Migration::Armed,
        }
    }

    /// Since when it is in this state.
    pub fn since(&self) -> Time {
        self.since
    }

    /// The user moved it to its path.
    pub fn is_pinned(&self) -> bool {
        self.pinned
    }

    /// An alternate is specified, and is to be loaded.
    pub fn load(&mut self, alternate: usize, now: Time) -> usize {
        assert_ne!(alternate, self.path, "a carrier's alternate is another path");
        self.step(MigrationEvent::Load, Alternate::Rearm(alternate), now)
    }

    /// The alternate could carry at once.
    pub fn loaded(&mut self, now: Time) -> usize {
        self.step(MigrationEvent::Loaded, self.alternate().map_or(Alternate::None, Alternate::Armed), now)
    }

    /// The alternate broke: it is loaded again.
    pub fn lose(&mut self, now: Time) -> usize {
        self.step(MigrationEvent::Lost, self.alternate().map_or(Alternate::None, Alternate::Rearm), now)
    }

    /// The alternate is given up.
    pub fn withdraw(&mut self, now: Time) -> usize {
        self.step(MigrationEvent::Withdraw, Alternate::None, now)
    }

    /// The traffic moves to the alternate. It stays there only if the user wanted it.
    pub fn migrate(&mut self, cause: MigrationCause, now: Time) -> usize {
        let to = self.alternate();
        let row = self.step(MigrationEvent::Migrate, Alternate::None, now);
        self.path = to.expect("an armed carrier has an alternate");
        self.pinned = cause == MigrationCause::Request;
        row
    }

    /// The user takes the request back that moved it.
    pub fn release(&mut self) {
        self.pinned = false;
    }

    fn step(&mut self, event: MigrationEvent, alternate: Alternate, now: Time) -> usize {
        let from = self.state();
        let row = MIGRATION_STEPS
            .iter()
            .position(|t| t.from == from && t.event == event)
            .unwrap_or_else(|| panic!("{event:?} does not happen to a carrier that is {from:?}"));
        (self.alternate, self.since) = (alternate, now);
        assert_eq!(self.state(), MIGRATION_STEPS[row].to, "every step is one of the table");
        row
    }
}

/// What came of a request to migrate.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MigrationReport {
    /// Carriers that moved.
    pub moved: usize,
    /// Peers to which they go.
    pub peers: usize,
    /// Peers for which it could not be done, and the first reason.
    pub refused: usize,
    /// See `refused`.
    pub why: Option<MigrateError>,
}

/// Why traffic cannot be moved.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MigrateError {
    /// No rail of the process has this name.
    #[error("there is no rail \"{name}\": the rails of this process are {rails}")]
    NoSuchRail {
        /// The name in the request.
        name: String,
        /// What there is.
        rails: String,
    },
    /// From and to are the same.
    #[error("\"{0}\" is named twice: say from which rail to which other")]
    SameRail(String),
    /// Nothing to move.
    #[error("rail \"{0}\" carries nothing now: `rerail paths` shows which do")]
    Unused(String),
    /// The peer cannot be reached over the rail.
    #[error("no path leads from rail \"{rail}\" to peer {peer:08x}")]
    NoPath {
        /// Wanted rail.
        rail: String,
        /// Public name of the peer's token.
        peer: u32,
    },
    /// The path is not in a state to carry anything.
    #[error(
        "the path over rail \"{rail}\" to peer {peer:08x} is {health}: it can be migrated to when it is up or in standby"
    )]
    NotReady {
        /// Wanted rail.
        rail: String,
        /// Public name of the peer's token.
        peer: u32,
        /// Its state.
        health: &'static str,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_stands_twice_and_every_state_can_be_reached_and_left() {
        for (i, a) in MIGRATION_STEPS.iter().enumerate() {
            assert!(
                !MIGRATION_STEPS[i + 1..].iter().any(|b| a.from == b.from && a.event == b.event),
                "{a:?}"
            );
            assert_ne!(a.from, a.to);
        }
        for s in STATES {
            assert!(MIGRATION_STEPS.iter().any(|t| t.to == s) && MIGRATION_STEPS.iter().any(|t| t.from == s));
        }
    }

    #[test]
    fn a_carrier_moves_by_the_table_and_stays_only_where_the_user_put_it() {
        let at = |ns| Time::from_ns(ns);
        let row = |from, event| MIGRATION_STEPS.iter().position(|t| t.from == from && t.event == event);
        let mut c = Carrier::new(0, at(1));
        assert_eq!(Some(c.load(2, at(2))), row(Migration::Migrated, MigrationEvent::Load));
        assert_eq!((c.alternate(), c.state(), c.since()), (Some(2), Migration::Rearm, at(2)));
        c.loaded(at(3));
        assert_eq!(Some(c.lose(at(4))), row(Migration::Armed, MigrationEvent::Lost));
        assert_eq!((c.alternate(), c.state()), (Some(2), Migration::Rearm));
        c.loaded(at(5));
        assert_eq!(
            Some(c.migrate(MigrationCause::Request, at(6))),
            row(Migration::Armed, MigrationEvent::Migrate)
        );
        assert_eq!((c.path(), c.home(), c.alternate(), c.is_pinned()), (2, 0, None, true));
        c.load(1, at(7));
        c.withdraw(at(8));
        assert_eq!((c.alternate(), c.state()), (None, Migration::Migrated));
        c.load(1, at(9));
        c.loaded(at(9));
        c.migrate(MigrationCause::Fault, at(9));
        assert_eq!((c.path(), c.is_pinned()), (1, false), "its path broke: the request is over");
    }

    #[test]
    #[should_panic(expected = "Migrate does not happen to a carrier that is Rearm")]
    fn a_carrier_does_not_migrate_to_what_is_not_armed() {
        let mut c = Carrier::new(0, Time::ORIGIN);
        c.load(1, Time::ORIGIN);
        c.migrate(MigrationCause::Fault, Time::ORIGIN);
    }

    #[test]
    #[should_panic(expected = "a carrier's alternate is another path")]
    fn a_carrier_is_no_alternate_of_its_own_path() {
        Carrier::new(1, Time::ORIGIN).load(1, Time::ORIGIN);
    }

    #[test]
    fn table_of_every_state_and_event() {
        let mut out = String::new();
        for s in STATES {
            for e in EVENTS {
                let after = s.after(e).map_or("-", Migration::name);
                out.push_str(&format!("{:<8} {:<8} {after}\n", s.name(), format!("{e:?}")));
            }
        }
        insta::assert_snapshot!(out);
    }
}
