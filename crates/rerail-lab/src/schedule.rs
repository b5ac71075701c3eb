//! What happens to the rails, and when: `2s cut rail1 down; 5s heal rail1; 8s shape all 200mbit; 9s wire rail0 loss=1%`.
//!
//! Items are separated by `;` or line ends; `#` starts a comment. An error names line and column.
//!
//! A time counts from the program's launch or start, or, written `PHASE+TIME`, from the moment at which a program announces
//! that phase (see [`crate::launch::PHASES_ENV`]). `flap RAIL KIND for DOWN every PERIOD times N` stands for N cuts, each with its heal;
//! with the rail `alternating` the rails take turns.

use crate::LabError;
use crate::cut::CutKind;
use crate::link::LinkState;
use crate::rate::Rate;
use crate::topology::{Target, Topology};
use crate::wire::faults::Faults;
use rerail_fault::chance::parse_span;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// One thing done to a rail, to a link of its fabric (`rail0/leaf0-spine1`), or to a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "lowercase")]
pub enum Action {
    /// Breaks it.
    Cut {
        /// The rail's name, or `all`; with `/` and a link's, or a switch's, the links inside.
        rail: String,
        /// How.
        kind: CutKind,
        /// At which node.
        node: Option<usize>,
    },
    /// Undoes every cut.
    Heal {
        /// The rail's name, or `all`.
        rail: String,
    },
    /// Changes the rate.
    Shape {
        /// The rail's name, or `all`.
        rail: String,
        /// The new rate, per direction.
        rate: Rate,
    },
    /// Changes the faults of a wire.
    Wire {
        /// The rail's name, or `all`, which means all that are wires.
        rail: String,
        /// All its faults from now on.
        faults: Faults,
    },
    /// Does something to a whole node that is a guest.
    Node {
        /// Its number.
        node: usize,
        /// What.
        what: Power,
    },
}

/// What can be done to a whole node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Power {
    /// It stops, and knows nothing of it.
    Pause,
    /// It goes on.
    Resume,
    /// Its power is cut.
    Kill,
    /// Its power is back, and it boots, without the programs that it had.
    Boot,
}

impl Power {
    const ALL: [Power; 4] = [Power::Pause, Power::Resume, Power::Kill, Power::Boot];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Power::Pause => "pause",
            Power::Resume => "resume",
            Power::Kill => "kill",
            Power::Boot => "boot",
        }
    }
}

impl fmt::Display for Power {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Action {
    /// The rail's name, or `all`; `None` if it is about a node.
    pub fn rail(&self) -> Option<&str> {
        match self {
            Action::Cut { rail, .. }
            | Action::Heal { rail }
            | Action::Shape { rail, .. }
            | Action::Wire { rail, .. } => Some(rail),
            Action::Node { .. } => None,
        }
    }

    /// Checks that the rail and the node exist, and that this lab can do it.
    pub fn check(&self, topology: &Topology) -> Result<(), LabError> {
        let targets = self.targets(topology)?;
        let node = match self {
            Action::Cut { node, .. } => *node,
            Action::Wire { faults, .. } => faults.from,
            Action::Node { node, .. } => Some(*node),
            Action::Heal { .. } | Action::Shape { .. } => None,
        };
        let refused = |why: String| Err(LabError::Input(why));
        match self {
            Action::Node { what, .. } if topology.rdma.is_none() => {
                return refused(format!(
                    "nodes of this lab have no power to `{what}`: start it with --rdma roce or iwarp, which makes them guests"
                ));
            }
            Action::Cut { kind: CutKind::Reset, .. } if topology.rdma.is_some() => {
                return refused(
                    "connections of a guest cannot be reset from outside: choose down, dark, dark-in, dark-out or routes"
                        .into(),
                );
            }
            Action::Cut { kind, node, .. }
                if targets.iter().any(|target| matches!(target, Target::Link(_))) =>
            {
                LinkState::default().cut(*kind)?;
                if node.is_some() {
                    return refused("a link of a fabric is at no node: leave out `node N`".into());
                }
            }
            _ => {}
        }
        node.map_or(Ok(()), |node| topology.node_numbered(node).map(drop))
    }

    /// What it is about: rails, or links of their fabrics.
    pub fn targets(&self, topology: &Topology) -> Result<Vec<Target>, LabError> {
        match self {
            Action::Wire { rail, .. } => {
                Ok(topology.wires_named(rail)?.into_iter().map(Target::Rail).collect())
            }
            _ => self.rail().map_or(Ok(Vec::new()), |rail| topology.targets_named(rail)),
        }
    }

    /// Reads `cut rail1 dark-in node 1`, `heal all`, `shape rail0 1gbit`, `wire rail0 loss=1%`.
    pub fn parse(text: &str) -> Result<Action, LabError> {
        parse_action(&words(text)).map_err(|(_, message)| LabError::Input(message))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Cut { rail, kind, node } => {
                write!(f, "cut {rail} {kind}")?;
                node.map_or(Ok(()), |node| write!(f, " node {node}"))
            }
            Action::Heal { rail } => write!(f, "heal {rail}"),
            Action::Shape { rail, rate } => write!(f, "shape {rail} {rate}"),
            Action::Wire { rail, faults } => write!(f, "wire {rail} {faults}"),
            Action::Node { node, what } => write!(f, "{what} node {node}"),
        }
    }
}

/// An action and its time.
#[derive(Clone, Debug, PartialEq)]
pub struct Item {
    /// The phase whose announcement starts the clock; `None` is the schedule's own clock.
    pub phase: Option<String>,
    /// Time since that clock started.
    pub at: Duration,
    /// What to do then.
    pub action: Action,
}

/// The most cuts that one `flap` may stand for.
const FLAPS_MAX: u32 = 100_000;

/// Actions in the order of their times.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Schedule {
    /// Sorted by time, whatever the clock; items of the same time keep the order in which they were written.
    pub items: Vec<Item>,
}

impl Schedule {
    /// Reads a schedule and checks it against the lab it is for.
    pub fn parse(text: &str, topology: &Topology) -> Result<Schedule, LabError> {
        let mut items = Vec::new();
        let error_at = |line: usize, column: usize, message: String| {
            LabError::Input(format!("schedule, line {line}, column {column}: {message}"))
        };
        for (number, line) in text.lines().enumerate() {
            let line = line.split('#').next().unwrap_or_default();
            let mut offset = 0;
            for piece in line.split(';') {
                let words = words(piece);
                if !words.is_empty() {
                    let parsed = parse_items(&words, topology).and_then(|parsed| {
                        let checked = parsed.iter().try_for_each(|item| item.action.check(topology));
                        checked.map(|()| parsed).map_err(|error| (words[0].0, error.to_string()))
                    });
                    let place = |column: usize| (number + 1, line[..offset + column].chars().count() + 1);
                    let parsed = parsed.map_err(|(column, message)| {
                        let (line, column) = place(column);
                        error_at(line, column, message)
                    })?;
                    items.extend(parsed.into_iter().map(|item| (item, place(words[0].0))));
                }
                offset += piece.len() + 1;
            }
        }
        items.sort_by_key(|(item, _)| item.at);
        if let Some((at, message)) = heal_before_cut(&items, topology) {
            let (line, column) = items[at].1;
            return Err(error_at(line, column, message));
        }
        Ok(Schedule { items: items.into_iter().map(|(item, _)| item).collect() })
    }
}

/// The first `heal` that comes before the cut that it is meant for, and what is wrong with it. Not judged is a rail
/// that something else may have cut by then: a phase, whose moment is unknown, or a program of the lab when the
/// schedule never cuts it.
fn heal_before_cut<P>(items: &[(Item, P)], topology: &Topology) -> Option<(usize, String)> {
    let cuts = |item: &Item, target: &Target| {
        matches!(item.action, Action::Cut { .. })
            && item.action.targets(topology).is_ok_and(|targets| targets.contains(target))
    };
    items.iter().enumerate().find_map(|(at, (heal, _))| {
        if !matches!(heal.action, Action::Heal { .. }) {
            return None;
        }
        // what all rails of a `heal all` have in common: not one of them can be cut by then
        let mut first: Option<Duration> = None;
        for target in heal.action.targets(topology).ok()? {
            let mut cut = None;
            for (place, (item, _)) in items.iter().enumerate().filter(|(_, (item, _))| cuts(item, &target)) {
                if item.phase != heal.phase || place < at {
                    return None;
                }
                cut = cut.or(Some(item.at));
            }
            first = first.into_iter().chain(cut).min();
        }
        let rail = heal.action.rail()?;
        Some((at, format!("`heal {rail}` comes before its cut, at {:?}: heal it after that", first?)))
    })
}

/// A word and the byte at which it starts.
type Word<'a> = (usize, &'a str);

fn words(text: &str) -> Vec<Word<'_>> {
    text.split_whitespace().map(|word| (word.as_ptr() as usize - text.as_ptr() as usize, word)).collect()
}

fn parse_items(words: &[Word<'_>], topology: &Topology) -> Result<Vec<Item>, (usize, String)> {
    let (column, time) = words[0];
    let (phase, after) = match time.split_once('+') {
        Some((phase, after)) => (Some(parse_phase(phase).map_err(|message| (column, message))?), after),
        None => (None, time),
    };
    let at = parse_span(after).map_err(|message| (column, message))?;
    if words.len() == 1 {
        let message = format!(
            "nothing follows `{time}`: write cut, heal, shape, wire or flap after the time, or what happens to a node"
        );
        return Err((column, message));
    }
    if words[1].1 == "flap" {
        return parse_flap(&words[1..], phase, at, topology);
    }
    let action = parse_action(&words[1..])?;
    Ok(vec![Item { phase, at, action }])
}

/// Whether a text can name a phase: it becomes a file name.
pub(crate) fn is_phase(text: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    text.starts_with(|c: char| c.is_ascii_lowercase()) && text.chars().all(fits)
}

fn parse_phase(text: &str) -> Result<String, String> {
    if is_phase(text) {
        return Ok(text.into());
    }
    Err(format!(
        "`{text}` is not a phase: write small letters, digits and `-`, such as init+0s or finalize+200ms"
    ))
}

fn parse_flap(
    words: &[Word<'_>],
    phase: Option<String>,
    begin: Duration,
    topology: &Topology,
) -> Result<Vec<Item>, (usize, String)> {
    const SHAPE: &str = "write `flap RAIL KIND [node N] for DOWN every PERIOD times COUNT`, RAIL may be `all` or `alternating`";
    let only: Vec<&str> = words.iter().map(|word| word.1).collect();
    let Some(split) = only.iter().position(|&word| word == "for") else {
        return Err((words[0].0, format!("`{}` is not understood: {SHAPE}", only.join(" "))));
    };
    let ["for", down, "every", period, "times", count] = only[split..] else {
        return Err((words[split].0, format!("`{}` is not understood: {SHAPE}", only[split..].join(" "))));
    };
    let at = |index: usize| words[split + index].0;
    let down = parse_span(down).map_err(|message| (at(1), message))?;
    let period = parse_span(period).map_err(|message| (at(3), message))?;
    if down >= period {
        return Err((at(1), "each cut must be shorter than the period: leave time to heal".into()));
    }
    let count: u32 =
        count.parse().ok().filter(|count| (1..=FLAPS_MAX).contains(count)).ok_or_else(|| {
            (at(5), format!("`{}` is not a count: write 1 to {FLAPS_MAX}", words[split + 5].1))
        })?;
    // The first words are those of a cut, read as such.
    let mut cut: Vec<Word<'_>> = words[..split].to_vec();
    cut[0].1 = "cut";
    let template = parse_action(&cut)?;
    let Action::Cut { rail, kind, node } = template else { unreachable!("the words of a cut") };
    let mut items = Vec::with_capacity(2 * count as usize);
    for turn in 0..count {
        let rail = match rail.as_str() {
            "alternating" => crate::topology::rail_name(turn as usize % topology.rails.len()),
            _ => rail.clone(),
        };
        let from = begin + period * turn;
        items.push(Item {
            phase: phase.clone(),
            at: from,
            action: Action::Cut { rail: rail.clone(), kind, node },
        });
        items.push(Item { phase: phase.clone(), at: from + down, action: Action::Heal { rail } });
    }
    Ok(items)
}

fn parse_action(words: &[Word<'_>]) -> Result<Action, (usize, String)> {
    const SHAPES: &str = "write `cut RAIL KIND [node N]`, `heal RAIL`, `shape RAIL RATE`, `wire RAIL FAULT…`, `flap …` or, for a guest, `pause`, `resume`, `kill` or `boot node N`, RAIL may be `all`";
    let number = |text: &str, at: usize| {
        let message = || format!("`{text}` is not a node: write its number, such as `node 1`");
        text.parse::<usize>().map_err(|_| (words[at].0, message()))
    };
    let start = words.first().map_or(0, |word| word.0);
    let only: Vec<&str> = words.iter().map(|word| word.1).collect();
    match only.as_slice() {
        ["cut", rail, kind, rest @ ..] => {
            let kind = kind.parse().map_err(|message| (words[2].0, message))?;
            let node = match rest {
                [] => None,
                ["node" | "--node", node] => Some(number(node, 4)?),
                [word, ..] => {
                    return Err((words[3].0, format!("`{word}` is not understood: {SHAPES}")));
                }
            };
            let rail = rail.to_string();
            Ok(Action::Cut { rail, kind, node })
        }
        ["heal", rail] => Ok(Action::Heal { rail: rail.to_string() }),
        ["shape", rail, rate] => {
            let rate = rate.parse().map_err(|message| (words[2].0, message))?;
            let rail = rail.to_string();
            Ok(Action::Shape { rail, rate })
        }
        ["wire", rail, faults @ ..] => {
            // Blanks or commas, as the faults of a rail are written elsewhere.
            let parts = faults
                .iter()
                .enumerate()
                .flat_map(|(place, word)| word.split(',').map(move |part| (place, part)));
            let (places, parts): (Vec<usize>, Vec<&str>) = parts.filter(|(_, part)| !part.is_empty()).unzip();
            let faults = Faults::parse(parts).map_err(|(place, message)| {
                (words[places.get(place).map_or(0, |place| place + 2)].0, message)
            })?;
            Ok(Action::Wire { rail: rail.to_string(), faults })
        }
        [word, "node", node] => match Power::ALL.into_iter().find(|what| what.name() == *word) {
            Some(what) => Ok(Action::Node { node: number(node, 2)?, what }),
            None => Err((start, format!("`{}` is not understood: {SHAPES}", only.join(" ")))),
        },
        _ => Err((start, format!("`{}` is not understood: {SHAPES}", only.join(" ")))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rdma::Rdma;

    fn topology() -> Topology {
        let rails = ["unshaped", "wire"].map(|text| text.parse().unwrap()).to_vec();
        Topology { nodes: 2, rails, congctl: None, rdma: None, fabric: None }
    }

    fn parse(text: &str) -> Result<Vec<(u128, String)>, String> {
        Schedule::parse(text, &topology())
            .map(|schedule| {
                let items = schedule.items.iter();
                let clock =
                    |item: &Item| item.phase.as_ref().map_or(String::new(), |phase| format!("{phase}: "));
                items.map(|item| (item.at.as_millis(), clock(item) + &item.action.to_string())).collect()
            })
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_schedule_is_read_and_sorted_by_time() {
        let text = "5s heal rail1; 2s cut rail1 down # the cable\n\n 250ms cut all dark-in node 1;1.5s shape rail0 200mbit;";
        let expected = [
            (250, "cut all dark-in node 1"),
            (1500, "shape rail0 200mbit"),
            (2000, "cut rail1 down"),
            (5000, "heal rail1"),
        ];
        let expected = expected.map(|(at, text)| (at, text.to_string()));
        assert_eq!(parse(text).unwrap(), expected);
        assert_eq!(parse("").unwrap(), []);
        let wires = parse("1s wire rail1 loss=1% corrupt=0.1%,from=n1; 2s wire all clean").unwrap();
        let expected = [(1000, "wire rail1 loss=1%,corrupt=0.1%,from=n1"), (2000, "wire all clean")];
        assert_eq!(wires, expected.map(|(at, text)| (at, text.to_string())));
    }

    #[test]
    fn a_time_may_count_from_a_phase() {
        let expected = [
            (0, "init: cut all dark"),
            (300, "finalize: heal all"),
            (1000, "heal rail0"),
            (3000, "init: heal all"),
        ];
        let expected = expected.map(|(at, text)| (at, text.to_string()));
        let text = "init+0s cut all dark; init+3s heal all; 1s heal rail0; finalize+300ms heal all";
        assert_eq!(parse(text).unwrap(), expected);
    }

    #[test]
    fn a_heal_needs_a_cut_before_it_unless_something_else_may_have_cut() {
        for text in [
            "1s heal rail1",
            "2s cut rail1 down; 2s heal rail1",
            "1s heal rail1; init+0s cut rail1 down; 2s cut rail1 dark",
            "1s cut rail0 dark; 2s heal all; 3s cut rail1 dark; 4s heal all",
        ] {
            parse(text).unwrap();
        }
    }

    #[test]
    fn a_flap_is_so_many_cuts_each_with_its_heal() {
        let one = parse("1s flap rail1 dark-in node 1 for 50ms every 200ms times 2").unwrap();
        let expected = [
            (1000, "cut rail1 dark-in node 1"),
            (1050, "heal rail1"),
            (1200, "cut rail1 dark-in node 1"),
            (1250, "heal rail1"),
        ];
        assert_eq!(one, expected.map(|(at, text)| (at, text.to_string())));
        let turns = parse("send-3+0s flap alternating down for 1s every 2s times 3").unwrap();
        let cuts: Vec<&str> =
            turns.iter().map(|(_, text)| text.as_str()).filter(|text| text.contains("cut")).collect();
        assert_eq!(cuts, ["send-3: cut rail0 down", "send-3: cut rail1 down", "send-3: cut rail0 down"]);
    }

    #[test]
    fn an_error_names_line_column_and_remedy() {
        for (text, place, remedy) in [
            ("2s cut rail1 half", "line 1, column 14", "choose down"),
            ("2s cut rail1 dark;\n soon heal all", "line 2, column 2", "not a time"),
            ("2s cut rail1 dark; 3s mend rail1", "line 1, column 23", "heal RAIL"),
            ("2s cut rail5 dark", "line 1, column 1", "choose rail0, rail1 or all"),
            ("2s cut rail1 dark node x", "line 1, column 24", "write its number"),
            ("2s cut rail1 dark node 9", "line 1, column 1", "choose 0 to 1"),
            ("2s cut rail1 dark now", "line 1, column 19", "not understood"),
            ("2s shape rail1 fast", "line 1, column 16", "not a rate"),
            ("2s", "line 1, column 1", "nothing follows"),
            ("2 heal all", "line 1, column 1", "not a time"),
            ("Init+1s heal all", "line 1, column 1", "not a phase"),
            ("init heal all", "line 1, column 1", "not a time"),
            ("1s flap rail1 dark", "line 1, column 4", "for DOWN every"),
            ("1s flap rail1 dark for 2s every 1s times 3", "line 1, column 24", "leave time to heal"),
            ("1s flap rail1 dark for 1s every 2s times 0", "line 1, column 42", "not a count"),
            ("1s flap rail1 dark for 1s each 2s times 3", "line 1, column 20", "for DOWN every"),
            ("1s wire rail0 loss=1%", "line 1, column 1", "is no wire"),
            ("1s wire rail1", "line 1, column 4", "no fault is named"),
            ("1s wire rail1 loss=1% lots", "line 1, column 23", "no fault of a wire"),
            ("1s wire rail1 from=n7", "line 1, column 1", "choose 0 to 1"),
            ("1s flap rail7 dark for 1s every 2s times 3", "line 1, column 1", "choose rail0, rail1 or all"),
            ("3s cut rail1 down; 2s heal rail1", "line 1, column 20", "comes before its cut, at 3s"),
            ("1s heal all\n2s cut rail1 dark; 3s heal rail1", "line 1, column 1", "heal it after that"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(place), "{text}: {error}");
            assert!(error.contains(remedy), "{text}: {error}");
        }
    }

    #[test]
    fn a_link_of_a_fabric_is_cut_by_its_name() {
        let rails = topology().rails[..1].to_vec();
        let fabric = Topology { rails, fabric: Some("leaf-spine:2x2".parse().unwrap()), ..topology() };
        let text = "1s cut rail0/leaf0-spine1 dark; 2s shape all/spine0 10mbit; 3s heal rail0/leaf0-spine1; 4s heal all";
        let schedule = Schedule::parse(text, &fabric).unwrap();
        assert_eq!(schedule.items[0].action.to_string(), "cut rail0/leaf0-spine1 dark");
        for (text, says) in [
            ("1s cut rail0/leaf0-spine2 dark", "choose leaf0-spine0"),
            ("1s cut rail0/spine1 reset", "choose down, dark"),
            ("1s cut rail0/spine1 dark node 1", "leave out `node N`"),
            ("3s cut rail0/spine1 down; 2s heal rail0/leaf1-spine1", "comes before its cut"),
        ] {
            let error = Schedule::parse(text, &fabric).unwrap_err().to_string();
            assert!(error.contains(says), "{text}: {error}");
        }
        let none = Schedule::parse("1s cut rail0/spine1 down", &topology()).unwrap_err().to_string();
        assert!(none.contains("start it with --fabric"), "{none}");
    }

    #[test]
    fn what_is_done_to_a_node_or_to_connections_depends_on_what_the_nodes_are() {
        let guests = Topology { rails: topology().rails[..1].to_vec(), rdma: Some(Rdma::Roce), ..topology() };
        let parse_for = |text: &str, topology: &Topology| {
            let schedule = Schedule::parse(text, topology).map_err(|error| error.to_string())?;
            Ok::<_, String>(schedule.items.iter().map(|item| item.action.to_string()).collect::<Vec<_>>())
        };
        let text = "1s pause node 1; 2s resume node 1; 3s kill node 0; 4s boot node 0; 5s cut all routes";
        let wanted = ["pause node 1", "resume node 1", "kill node 0", "boot node 0", "cut all routes"];
        assert_eq!(parse_for(text, &guests).unwrap(), wanted);
        for (text, topology, says) in [
            ("1s kill node 2", &guests, "there is no node 2"),
            ("1s kill node one", &guests, "column 14: `one` is not a node"),
            ("1s burn node 1", &guests, "`burn node 1` is not understood"),
            ("1s cut rail0 reset", &guests, "choose down, dark"),
            ("1s wire rail0 loss=1%", &guests, "is no wire"),
            ("1s pause node 1", &topology(), "start it with --rdma"),
        ] {
            let error = parse_for(text, topology).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
