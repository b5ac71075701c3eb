//! What a run left behind, and the figures in it.
//!
//! Owns: reading the log of tests/mpi/stream.c and the events of lab and provider. All times are nanoseconds since 1970, by
//! one clock: the nodes of the lab are namespaces of one machine.

use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

/// One event of the lab or of the provider.
#[derive(Clone, Debug)]
pub struct Event {
    /// When.
    pub at_ns: i64,
    /// The whole line.
    pub fields: Value,
}

impl Event {
    /// Reads one line; `None` when it is none (yet).
    pub fn parse(line: &str) -> Option<Event> {
        let fields: Value = serde_json::from_str(line).ok()?;
        Some(Event { at_ns: fields.get("t_unix_ns")?.as_i64()?, fields })
    }

    /// A field as text, or an empty text.
    pub fn text(&self, field: &str) -> &str {
        self.fields.get(field).and_then(Value::as_str).unwrap_or_default()
    }

    /// A field as a number, or 0.
    pub fn number(&self, field: &str) -> u64 {
        self.fields.get(field).and_then(Value::as_u64).unwrap_or_default()
    }

    /// What happened, such as `cut` or `path_down`.
    pub fn name(&self) -> &str {
        self.text("event")
    }

    /// Whether the lab says it (otherwise the provider does).
    pub fn is_lab(&self) -> bool {
        self.text("source") == "lab"
    }

    /// Whether this concerns a rail: events of `all` concern each, and so do events that name none.
    pub fn concerns(&self, rail: &str) -> bool {
        let own = self.text("rail");
        own == rail || own == "all" || rail == "all"
    }

    /// In a few words, for people.
    pub fn words(&self) -> String {
        if self.is_lab() {
            return match self.name() {
                "cut" => format!("LAB cuts {} ({})", self.text("rail"), self.text("kind")),
                "heal" => format!("LAB heals {}", self.text("rail")),
                "wire" => format!("LAB wire {} {}", self.text("rail"), self.text("faults")),
                other => format!("LAB {other} {}", self.text("rail")),
            };
        }
        let mut words = self.name().replace('_', " ");
        for field in ["rail", "witness", "direction"] {
            if !self.text(field).is_empty() {
                words += match field {
                    "rail" => " ",
                    "witness" => ", seen by ",
                    _ => ", ",
                };
                words += self.text(field);
            }
        }
        if !self.text("host").is_empty() {
            words = format!("{}: {words}", self.text("host"));
        }
        words
    }
}

/// Reads a file of events, in order of time. A file that is not there has none.
pub fn read_events(path: &Path) -> Vec<Event> {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let mut events: Vec<Event> = text.lines().filter_map(Event::parse).collect();
    events.sort_by_key(|event| event.at_ns);
    events
}

/// A fault that the lab made, and its repair.
#[derive(Clone, Debug)]
pub struct Cut {
    /// `rail0`, `rail1` or `all`.
    pub rail: String,
    /// `down`, `dark`, …
    pub kind: String,
    /// When it began.
    pub at_ns: i64,
    /// When it was repaired, if it was.
    pub healed_ns: Option<i64>,
}

/// The faults among the events. The lab may report a cut of `all` as one event or as one per rail; the latter are joined.
pub fn cuts(events: &[Event]) -> Vec<Cut> {
    let mut cuts: Vec<Cut> = Vec::new();
    for event in events.iter().filter(|event| event.is_lab()) {
        let rail = event.text("rail");
        match event.name() {
            "cut" => {
                const SAME_MOMENT_NS: i64 = 100_000_000;
                let same = |cut: &&mut Cut| {
                    cut.kind == event.text("kind") && event.at_ns - cut.at_ns < SAME_MOMENT_NS
                };
                if let Some(last) = cuts.last_mut().as_mut().filter(|cut| same(cut)) {
                    if last.rail != rail {
                        last.rail = "all".into();
                    }
                } else {
                    cuts.push(Cut {
                        rail: rail.into(),
                        kind: event.text("kind").into(),
                        at_ns: event.at_ns,
                        healed_ns: None,
                    });
                }
            }
            "heal" => {
                for cut in cuts.iter_mut().filter(|cut| cut.healed_ns.is_none()) {
                    // a rail is healed with the links of its fabric
                    let whole = cut.rail.split('/').next().unwrap_or_default();
                    if cut.rail == rail || whole == rail || cut.rail == "all" || rail == "all" {
                        cut.healed_ns = Some(event.at_ns);
                    }
                }
            }
            _ => {}
        }
    }
    cuts
}

/// 100 ms of a stream.
#[derive(Clone, Copy, Debug)]
pub struct Slice {
    /// When it begins.
    pub at_ns: i64,
    /// What arrived in it.
    pub bytes: u64,
    /// The longest time without arrival that ended in it.
    pub gap_us_max: f64,
}

/// The length of a slice.
pub const SLICE_NS: i64 = 100_000_000;

/// One line of a stream's log.
#[derive(Clone, Debug)]
pub enum Line {
    /// The first message that counts.
    Start(i64),
    /// 100 ms.
    Slice(Slice),
    /// Nothing arrived from this time on, for so many µs.
    Gap(i64, f64),
    /// The last line: p99 of the gaps of the fault-free beginning in µs, and all bytes.
    End {
        /// µs.
        p99_us: f64,
        /// Of the whole stream.
        bytes: u64,
    },
}

impl Line {
    /// Reads one line; `None` when it is none (yet).
    pub fn parse(line: &str) -> Option<Line> {
        let value: Value = serde_json::from_str(line).ok()?;
        let number = |field: &str| value.get(field).and_then(Value::as_f64);
        let at_ns = value.get("t_unix_ns")?.as_i64()?;
        let bytes = || value.get("bytes").and_then(Value::as_u64);
        Some(match value.get("kind")?.as_str()? {
            "start" => Line::Start(at_ns),
            "slice" => Line::Slice(Slice { at_ns, bytes: bytes()?, gap_us_max: number("gap_us_max")? }),
            "gap" => Line::Gap(at_ns, number("us")?),
            "end" => Line::End { p99_us: number("gap_us_p99")?, bytes: bytes()? },
            _ => return None,
        })
    }
}

/// A whole log of a stream.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    /// When the first message that counts arrived.
    pub start_ns: i64,
    /// The 100 ms slices.
    pub slices: Vec<Slice>,
    /// The gaps above the program's threshold: begin, µs.
    pub gaps: Vec<(i64, f64)>,
    /// p99 of the gaps in the fault-free beginning, µs.
    pub p99_us: f64,
    /// All bytes that arrived.
    pub bytes: u64,
    /// Whether the program wrote its last line.
    pub is_complete: bool,
}

impl Stream {
    /// Reads a log.
    pub fn read(path: &Path) -> Result<Stream> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("the stream left no log {}", path.display()))?;
        Ok(Stream::from_lines(text.lines().filter_map(Line::parse)))
    }

    /// Gathers the lines of a log.
    pub fn from_lines(lines: impl Iterator<Item = Line>) -> Stream {
        let mut stream = Stream::default();
        for line in lines {
            match line {
                Line::Start(at) => stream.start_ns = at,
                Line::Slice(slice) => stream.slices.push(slice),
                Line::Gap(at, us) => stream.gaps.push((at, us)),
                Line::End { p99_us, bytes } => {
                    stream.p99_us = p99_us;
                    stream.bytes = bytes;
                    stream.is_complete = true;
                }
            }
        }
        stream
    }

    /// Bytes per second over whole slices within [from, to).
    pub fn rate(&self, from_ns: i64, to_ns: i64) -> f64 {
        let inside: Vec<&Slice> =
            self.slices.iter().filter(|s| s.at_ns >= from_ns && s.at_ns + SLICE_NS <= to_ns).collect();
        let bytes: u64 = inside.iter().map(|s| s.bytes).sum();
        if inside.is_empty() { 0.0 } else { bytes as f64 / (inside.len() as f64 * SLICE_NS as f64 / 1e9) }
    }

    /// The gap that a fault made, as (begin, ms): the longest of those that go on after `from` and begin before `to`. When none
    /// was long enough for the log, the longest of the slices around (its begin is then `from`).
    pub fn longest_gap(&self, from_ns: i64, to_ns: i64) -> (i64, f64) {
        let logged = self
            .gaps
            .iter()
            .filter(|(at, us)| *at < to_ns && *at + (us * 1e3) as i64 > from_ns)
            .max_by(|a, b| a.1.total_cmp(&b.1));
        if let Some(&(at, us)) = logged {
            return (at, us / 1e3);
        }
        let us = self
            .slices
            .iter()
            .filter(|s| s.at_ns < to_ns && s.at_ns + SLICE_NS > from_ns)
            .map(|s| s.gap_us_max)
            .fold(0.0, f64::max);
        (from_ns, us / 1e3)
    }

    /// How long a fault made the stream stand still, in ms: the longest gap less what is usual.
    pub fn standstill_ms(&self, cut: &Cut) -> f64 {
        // A fault of one rail is over for the stream long before it is repaired; the repair is a second chance to stall.
        let to = cut.healed_ns.unwrap_or(i64::MAX);
        (self.longest_gap(cut.at_ns, to).1 - self.p99_us / 1e3).max(0.0)
    }

    /// Milliseconds from `healed_ns` until 300 ms in a row have `share` of `full` bytes per second.
    pub fn recovered_after_ms(&self, healed_ns: i64, full: f64, share: f64) -> Option<f64> {
        const SLICES: usize = 3;
        self.slices
            .windows(SLICES)
            .filter(|w| w[0].at_ns + SLICE_NS > healed_ns)
            .find(|w| {
                w.iter().map(|s| s.bytes).sum::<u64>() as f64
                    >= share * full * SLICES as f64 * SLICE_NS as f64 / 1e9
            })
            .map(|w| ((w[0].at_ns - healed_ns) as f64 / 1e6).max(0.0))
    }
}

/// The median; 0 of nothing.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: i64 = 1_000_000;

    fn stream(rates: &[u64]) -> Stream {
        let slices = rates.iter().enumerate().map(|(i, &bytes)| Slice {
            at_ns: i as i64 * SLICE_NS,
            bytes,
            gap_us_max: 250.0,
        });
        Stream { slices: slices.collect(), p99_us: 1000.0, ..Stream::default() }
    }

    #[test]
    fn a_standstill_is_the_longest_gap_around_the_cut_less_the_usual_one() {
        let mut s = stream(&[10; 30]);
        s.gaps =
            vec![(500 * MS, 90_000.0), (1005 * MS, 41_000.0), (1300 * MS, 12_000.0), (2100 * MS, 70_000.0)];
        let cut =
            Cut { rail: "rail1".into(), kind: "dark".into(), at_ns: 1010 * MS, healed_ns: Some(2000 * MS) };
        assert_eq!(s.standstill_ms(&cut), 40.0);
    }

    #[test]
    fn without_a_logged_gap_the_slices_tell() {
        let cut =
            Cut { rail: "rail1".into(), kind: "down".into(), at_ns: 1010 * MS, healed_ns: Some(2000 * MS) };
        let mut s = stream(&[10; 30]);
        s.slices[12].gap_us_max = 4000.0;
        assert_eq!(s.standstill_ms(&cut), 3.0);
    }

    #[test]
    fn recovery_needs_three_slices_in_a_row() {
        let s = stream(&[100, 100, 50, 50, 50, 100, 60, 100, 100, 100]);
        assert_eq!(s.recovered_after_ms(310 * MS, 1000.0, 0.95), Some(390.0));
        assert_eq!(s.recovered_after_ms(810 * MS, 1000.0, 0.95), None);
    }

    #[test]
    fn a_link_is_healed_with_its_rail() {
        let line = |at: i64, event: &str, rail: &str| Event {
            at_ns: at * MS,
            fields: serde_json::json!({"source": "lab", "event": event, "rail": rail, "kind": "dark"}),
        };
        let (first, second) = ("rail0/leaf0-spine1", "rail1/leaf0-spine1");
        let found = cuts(&[line(10, "cut", first), line(900, "cut", second), line(990, "heal", "rail0")]);
        let healed: Vec<_> = found.iter().map(|cut| cut.healed_ns).collect();
        assert_eq!(healed, [Some(990 * MS), None]);
    }

    #[test]
    fn cuts_of_all_rails_are_one_cut_however_the_lab_reports_them() {
        let line = |at: i64, event: &str, rail: &str| {
            Event::parse(&format!(
                r#"{{"t_unix_ns":{},"source":"lab","event":"{event}","rail":"{rail}","kind":"dark"}}"#,
                at * MS
            ))
            .unwrap()
        };
        let single = cuts(&[line(10, "cut", "all"), line(900, "heal", "all")]);
        let each = cuts(&[
            line(10, "cut", "rail0"),
            line(12, "cut", "rail1"),
            line(900, "heal", "rail0"),
            line(901, "heal", "rail1"),
        ]);
        for found in [single, each] {
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].rail, "all");
            assert_eq!(found[0].healed_ns, Some(900 * MS));
        }
    }
}
