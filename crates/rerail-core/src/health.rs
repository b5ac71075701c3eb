//! The state machine of a path: one table, every state × event.
//!
//! Idle → Connecting → Up ⇄ Suspect → Draining → Down → Recovering → Probation → Up, and Standby (connected, armed, no
//! traffic). The states' data (since when, retry when) belongs to the path; the table says only what follows what.
//! Source: MN-uDAPL §4.2.3 and figure 7 (end point states), APM §2.2; differs: Suspect and Probation are ours.

/// State of a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Health {
    /// Known, never used.
    Idle,
    /// First handshake under way.
    Connecting,
    /// In service.
    Up,
    /// In service, but evidence gathers against it: new traffic avoids it.
    Suspect,
    /// Out of service; the old streams are being closed, and memory must not be reused for it yet.
    Draining,
    /// Out of service, fenced; waits for the time to try again.
    Down,
    /// A handshake for a new epoch is under way.
    Recovering,
    /// The new epoch is agreed; it must answer some queries before it carries traffic.
    Probation,
    /// Connected and healthy, but kept without traffic.
    Standby,
}

/// What can happen to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HealthEvent {
    /// The peer is wanted, or the time to try again has come, or the link is back.
    Connect,
    /// Both sides have answered in a new epoch.
    Agreed,
    /// Enough queries were answered in the new epoch.
    Proven,
    /// Evidence gathers.
    Doubt,
    /// The path answered after all.
    Clear,
    /// Out of service: link down, transport error, query lost, peer's verdict, newer epoch.
    Fail,
    /// The old streams are closed: nothing of the old epoch can touch memory any more.
    Fenced,
    /// A handshake ran out of time.
    GiveUp,
    /// The policy wants no traffic on it.
    Park,
    /// The policy wants it back.
    Unpark,
}

/// All states.
#[cfg(test)]
pub(crate) const STATES: [Health; 9] = [
    Health::Idle,
    Health::Connecting,
    Health::Up,
    Health::Suspect,
    Health::Draining,
    Health::Down,
    Health::Recovering,
    Health::Probation,
    Health::Standby,
];

/// All events.
#[cfg(test)]
pub(crate) const EVENTS: [HealthEvent; 10] = [
    HealthEvent::Connect,
    HealthEvent::Agreed,
    HealthEvent::Proven,
    HealthEvent::Doubt,
    HealthEvent::Clear,
    HealthEvent::Fail,
    HealthEvent::Fenced,
    HealthEvent::GiveUp,
    HealthEvent::Park,
    HealthEvent::Unpark,
];

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Transition {
    /// State before.
    pub from: Health,
    /// Event.
    pub event: HealthEvent,
    /// State after.
    pub to: Health,
}

const fn t(from: Health, event: HealthEvent, to: Health) -> Transition {
    Transition { from, event, to }
}

/// Every transition there is; what is not here does not change the state.
pub const TRANSITIONS: &[Transition] = {
    use Health::*;
    use HealthEvent::*;
    &[
        t(Idle, Connect, Connecting),
        // the peer connected first
        t(Idle, Agreed, Up),
        t(Connecting, Agreed, Up),
        t(Connecting, GiveUp, Down),
        t(Connecting, Fail, Down),
        t(Up, Doubt, Suspect),
        t(Up, Fail, Draining),
        t(Up, Park, Standby),
        t(Suspect, Clear, Up),
        t(Suspect, Fail, Draining),
        t(Draining, Fenced, Down),
        t(Down, Connect, Recovering),
        // the peer recovered first
        t(Down, Agreed, Probation),
        t(Recovering, Agreed, Probation),
        t(Recovering, GiveUp, Down),
        t(Recovering, Fail, Down),
        t(Probation, Proven, Up),
        t(Probation, Fail, Draining),
        t(Standby, Unpark, Up),
        t(Standby, Doubt, Suspect),
        t(Standby, Fail, Draining),
    ]
};

impl Health {
    /// State after `event`; `None` when the event changes nothing here.
    pub fn after(self, event: HealthEvent) -> Option<Health> {
        TRANSITIONS.iter().find(|t| t.from == self && t.event == event).map(|t| t.to)
    }

    /// Whether new traffic may be given to the path when nothing better is there.
    pub fn carries(self) -> bool {
        matches!(self, Health::Up | Health::Suspect)
    }

    /// Whether an epoch is agreed and alive.
    pub fn connected(self) -> bool {
        matches!(self, Health::Up | Health::Suspect | Health::Probation | Health::Standby)
    }

    /// Name in logs.
    pub fn name(self) -> &'static str {
        match self {
            Health::Idle => "idle",
            Health::Connecting => "connecting",
            Health::Up => "up",
            Health::Suspect => "suspect",
            Health::Draining => "draining",
            Health::Down => "down",
            Health::Recovering => "recovering",
            Health::Probation => "probation",
            Health::Standby => "standby",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_row_stands_twice_and_every_state_can_be_reached_and_left() {
        for (i, a) in TRANSITIONS.iter().enumerate() {
            assert!(!TRANSITIONS[i + 1..].iter().any(|b| a.from == b.from && a.event == b.event), "{a:?}");
            assert_ne!(a.from, a.to);
        }
        for s in STATES {
            assert!(s == Health::Idle || TRANSITIONS.iter().any(|t| t.to == s), "{s:?}");
            assert!(TRANSITIONS.iter().any(|t| t.from == s), "{s:?}");
        }
    }

    #[test]
    fn table_of_every_state_and_event() {
        let mut out = String::new();
        for s in STATES {
            for e in EVENTS {
                let after = s.after(e).map_or("-", Health::name);
                out.push_str(&format!("{:<10} {:<8} {after}\n", s.name(), format!("{e:?}")));
            }
        }
        insta::assert_snapshot!(out);
    }
}
