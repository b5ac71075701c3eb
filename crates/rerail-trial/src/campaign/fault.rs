//! The kinds of cut of the campaign, and the schedules of the lab that make them.
//!
//! Moments count from the program's first message or from another phase that the preloaded library tests/mpi/phase.c
//! announces; a cut at `+0s` of a phase is in place before the call that the phase is named after begins.

use super::draw::Draw;
use std::fmt::Write as _;

/// A kind of cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// An interface goes down, and up again.
    Down,
    /// Silence both ways.
    Dark,
    /// One node hears nothing.
    DarkIn,
    /// One node is not heard.
    DarkOut,
    /// Connections are reset.
    Reset,
    /// One rail breaks and heals many times, quickly.
    Flap,
    /// Both rails in turns, so that there is always one, but never the same for long.
    Alternately,
    /// All rails at once.
    Blackout,
    /// One rail, or both, is cut before the first message leaves, and healed later.
    FirstMessage,
    /// A cut within the first milliseconds after the first message: while connections are being made.
    Connecting,
    /// A blackout that begins in MPI_Init.
    Init,
    /// A blackout that begins in a collective.
    Collective,
    /// A blackout that begins in MPI_Finalize.
    Finalize,
    /// Ten cuts of all sorts.
    Ten,
    /// One rail loses, corrupts, doubles and reorders from the launch on.
    Lossy,
    /// Both rails do.
    LossyAll,
    /// One rail does, and the good one is cut meanwhile.
    LossyCut,
}

/// What is to happen in a case.
pub struct Fault {
    /// The lab's schedule.
    pub schedule: String,
    /// The phases that it counts from.
    pub phases: Vec<String>,
    /// How long things are cut, all in all, in seconds.
    pub outage_s: f64,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Kind; 17] = [
        Kind::Down,
        Kind::Dark,
        Kind::DarkIn,
        Kind::DarkOut,
        Kind::Reset,
        Kind::Flap,
        Kind::Alternately,
        Kind::Blackout,
        Kind::FirstMessage,
        Kind::Connecting,
        Kind::Init,
        Kind::Collective,
        Kind::Finalize,
        Kind::Ten,
        Kind::Lossy,
        Kind::LossyAll,
        Kind::LossyCut,
    ];

    /// Its name in commands and tables.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Down => "down",
            Kind::Dark => "dark",
            Kind::DarkIn => "dark-in",
            Kind::DarkOut => "dark-out",
            Kind::Reset => "reset",
            Kind::Flap => "flap",
            Kind::Alternately => "alternately",
            Kind::Blackout => "blackout",
            Kind::FirstMessage => "first-message",
            Kind::Connecting => "connecting",
            Kind::Init => "init",
            Kind::Collective => "collective",
            Kind::Finalize => "finalize",
            Kind::Ten => "ten",
            Kind::Lossy => "lossy",
            Kind::LossyAll => "lossy-all",
            Kind::LossyCut => "lossy-cut",
        }
    }

    /// Whether the rails must be wires.
    pub fn needs_wires(self) -> bool {
        matches!(self, Kind::Lossy | Kind::LossyAll | Kind::LossyCut)
    }

    /// For how many seconds a program should run that is to meet it.
    pub fn program_s(self) -> f64 {
        match self {
            Kind::Ten => 12.0,
            Kind::Flap | Kind::Alternately => 8.0,
            Kind::Init | Kind::Finalize | Kind::Connecting | Kind::FirstMessage => 2.0,
            Kind::Lossy | Kind::LossyAll => 4.0,
            _ => 5.0,
        }
    }
}

/// How much longer a program of fixed length may take on rails that lose, in seconds.
const LOSSY_SLOWER_S: f64 = 20.0;

/// The faults of a wire, up to twice as bad as the acceptance list has them.
fn wire_faults(draw: &mut Draw) -> String {
    let (loss, corrupt, dup) = (draw.between(0.05, 2.0), draw.between(0.01, 0.2), draw.between(0.0, 2.0));
    let (reorder, by) = (draw.between(0.0, 2.0), draw.between(0.2, 4.0));
    let seed = draw.below(1_000_000);
    format!("loss={loss:.2}%,corrupt={corrupt:.3}%,dup={dup:.2}%,reorder={reorder:.2}%/{by:.1}ms,seed={seed}")
}

/// The lab's words for breaking one rail.
const SORTS: [&str; 5] = ["down", "dark", "dark-in", "dark-out", "reset"];

/// A sort of cut, at a node if it happens at one.
fn sort_and_node(draw: &mut Draw, sort: &str) -> String {
    match sort {
        "dark" | "reset" => sort.into(),
        _ => format!("{sort} node {}", draw.below(2)),
    }
}

fn one_cut(draw: &mut Draw, rail: &str, sort: &str, phase: &str, at: f64, length: f64) -> String {
    let what = sort_and_node(draw, sort);
    format!("{phase}+{at:.3}s cut {rail} {what}; {phase}+{:.3}s heal {rail}", at + length)
}

/// Draws the schedule of a kind, for a program that runs `seconds` after its first message.
pub fn draw(draw: &mut Draw, kind: Kind, seconds: f64) -> Fault {
    let rail = draw.one_of(&["rail0", "rail1"]);
    let mut phase = "message-1".to_string();
    let mut outage_s;
    // Late enough to fall anywhere, early enough to fall into the program.
    let at = draw.between(0.0, seconds * 0.8);
    let schedule = match kind {
        Kind::Down | Kind::Dark | Kind::DarkIn | Kind::DarkOut | Kind::Reset => {
            outage_s = draw.between(0.1, 2.5);
            one_cut(draw, rail, kind.name(), &phase, at, outage_s)
        }
        Kind::Flap | Kind::Alternately => {
            // in turns one rail heals shortly before the other breaks
            let (rail, periods, downs, counts) = match kind {
                Kind::Flap => (rail, (0.15, 0.6), (0.2, 0.7), 10),
                _ => ("alternating", (0.3, 1.2), (0.6, 0.95), 6),
            };
            let sort = draw.one_of(&SORTS);
            let what = sort_and_node(draw, sort);
            let period = draw.between(periods.0, periods.1);
            let down = period * draw.between(downs.0, downs.1);
            let count = 3 + draw.below(counts);
            outage_s = period * count as f64;
            let begin = at * 0.5;
            format!("{phase}+{begin:.3}s flap {rail} {what} for {down:.3}s every {period:.3}s times {count}")
        }
        Kind::Blackout => {
            outage_s = draw.between(0.2, 4.0);
            let sort = draw.one_of(&["down", "dark", "dark-in", "dark-out"]);
            one_cut(draw, "all", sort, &phase, at, outage_s)
        }
        Kind::FirstMessage => {
            outage_s = draw.between(0.2, 2.5);
            let (rail, sort) = (draw.one_of(&["rail0", "rail1", "all"]), draw.one_of(&SORTS));
            one_cut(draw, rail, sort, &phase, 0.0, outage_s)
        }
        Kind::Connecting => {
            outage_s = draw.between(0.2, 2.5);
            let (rail, sort) = (draw.one_of(&["rail0", "rail1", "all"]), draw.one_of(&SORTS));
            let at = draw.between(0.0, 0.03);
            one_cut(draw, rail, sort, &phase, at, outage_s)
        }
        Kind::Init => {
            phase = "init".into();
            outage_s = draw.between(0.5, 4.0);
            let sort = draw.one_of(&["down", "dark", "dark-in", "dark-out"]);
            let at = draw.one_of(&[0.0, 0.005, 0.02, 0.05]);
            one_cut(draw, "all", sort, &phase, at, outage_s)
        }
        Kind::Collective => {
            phase = format!("collective-{}", 1 + draw.below(20));
            outage_s = draw.between(0.2, 4.0);
            let sort = draw.one_of(&["down", "dark", "dark-in", "dark-out"]);
            let at = draw.one_of(&[0.0, 0.001, 0.005]);
            one_cut(draw, "all", sort, &phase, at, outage_s)
        }
        Kind::Finalize => {
            phase = "finalize".into();
            outage_s = draw.between(0.2, 4.0);
            let sort = draw.one_of(&["down", "dark", "dark-in", "dark-out"]);
            let at = draw.one_of(&[0.0, 0.0, 0.001, 0.005]);
            one_cut(draw, "all", sort, &phase, at, outage_s)
        }
        Kind::Lossy | Kind::LossyAll | Kind::LossyCut => {
            outage_s = LOSSY_SLOWER_S;
            let bad = if kind == Kind::LossyAll { "all" } else { rail };
            let mut text = format!("0s wire {bad} {}", wire_faults(draw));
            if kind == Kind::LossyCut {
                let good = if rail == "rail0" { "rail1" } else { "rail0" };
                let (sort, length) = (draw.one_of(&SORTS), draw.between(0.1, 1.5));
                let cut = one_cut(draw, good, sort, &phase, at, length);
                write!(text, "; {cut}").expect("a String");
            } else if draw.below(2) == 0 {
                // the bad ones become good again, and are to be used again
                write!(text, "; {phase}+{at:.3}s wire {bad} clean").expect("a String");
            }
            text
        }
        Kind::Ten => {
            outage_s = 0.0;
            let mut text = String::new();
            for turn in 0..10 {
                // A tenth of the time for each, so that a heal does not undo the next cut.
                let share = seconds * 0.9 / 10.0;
                let length = share * draw.between(0.2, 0.7);
                let at = share * f64::from(turn) + draw.between(0.0, share - length);
                let (rail, sort) =
                    (draw.one_of(&["rail0", "rail1", "rail0", "rail1", "all"]), draw.one_of(&SORTS));
                let separator = if turn > 0 { "; " } else { "" };
                let cut = one_cut(draw, rail, sort, &phase, at, length);
                write!(text, "{separator}{cut}").expect("a String");
                outage_s += length;
            }
            text
        }
    };
    Fault { schedule, phases: vec![phase], outage_s }
}

/// How often [`unceasing`] cuts.
const UNCEASING_S: f64 = 2.0;

/// Cuts of all sorts, one every two seconds, from the first message on for `seconds`: for programs whose length is not known.
pub fn unceasing(draw: &mut Draw, seconds: f64) -> String {
    let turns = (seconds / UNCEASING_S) as u32;
    let cuts = (0..turns).map(|turn| {
        let length = draw.between(0.1, 0.7) * UNCEASING_S;
        let at = UNCEASING_S * f64::from(turn) + draw.between(0.0, UNCEASING_S - length);
        let (rail, sort) = (draw.one_of(&["rail0", "rail1", "rail0", "rail1", "all"]), draw.one_of(&SORTS));
        one_cut(draw, rail, sort, "message-1", at, length)
    });
    cuts.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unceasing_cuts_heal_before_the_next() {
        let text = unceasing(&mut Draw::new(3, 0), 60.0);
        let moments: Vec<f64> = text
            .split("; ")
            .map(|part| part["message-1+".len()..].split('s').next().unwrap().parse().unwrap())
            .collect();
        assert_eq!(moments.len(), 60, "30 cuts, each with its heal");
        assert!(moments.is_sorted(), "{moments:?}");
    }
}
