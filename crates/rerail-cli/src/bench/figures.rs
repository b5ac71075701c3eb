//! What was measured. Owns: the figures of every turn, their medians and their spread.

use super::band::{Band, bands};
use super::test::{Kind, Test};
use std::collections::BTreeMap;

/// The figures of one run of `rerail bench`.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Where.
    pub place: String,
    /// The contenders, Rerail first.
    pub contenders: Vec<String>,
    values: BTreeMap<(usize, &'static str, usize), Vec<f64>>,
    /// Turns that failed: the contender, and why.
    pub failures: Vec<(usize, String)>,
    /// What arrived when, of every turn that reports it.
    pub timelines: Vec<Timeline>,
}

/// What arrived in each slice of a turn.
#[derive(Debug, Clone, PartialEq)]
pub struct Timeline {
    /// The contender.
    pub contender: usize,
    /// Bytes of a message.
    pub bytes: usize,
    /// Length of a slice, in ms.
    pub slice_ms: f64,
    /// MB/s in each.
    pub values: Vec<f64>,
    /// What was cut meanwhile.
    pub bands: Vec<Band>,
}

/// A figure over all turns.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The middle one.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
}

impl Figures {
    /// None yet.
    pub fn new(place: &str, contenders: Vec<String>) -> Self {
        Self {
            place: place.into(),
            contenders,
            values: BTreeMap::new(),
            failures: Vec::new(),
            timelines: Vec::new(),
        }
    }

    /// Takes the lines of a turn: `bench TEST BYTES VALUE` and `timeline BYTES SLICE_MS BEGIN_UNIX_NS VALUE…`. Others are the program's or
    /// the MPI's own. `events` is what the lab reported meanwhile, if there was one.
    pub fn add(&mut self, contender: usize, output: &str, events: &str) {
        for line in output.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("bench") => {}
                Some("timeline") => {
                    self.timelines.extend(timeline(contender, words, events));
                    continue;
                }
                _ => continue,
            }
            let (Some(test), Some(bytes), Some(value)) = (words.next(), words.next(), words.next()) else {
                continue;
            };
            let (Some(kind), Ok(bytes), Ok(value)) = (Kind::of(test), bytes.parse(), value.parse()) else {
                continue;
            };
            self.values.entry((contender, kind.name(), bytes)).or_default().push(value);
        }
    }

    /// A turn came to nothing.
    pub fn add_failure(&mut self, contender: usize, why: &str) {
        self.failures.push((contender, why.into()));
    }

    /// Every turn's figure.
    pub fn values(&self, contender: usize, kind: Kind, bytes: usize) -> &[f64] {
        self.values.get(&(contender, kind.name(), bytes)).map_or(&[], Vec::as_slice)
    }

    /// Their summary, if there are any.
    pub fn summary(&self, contender: usize, kind: Kind, bytes: usize) -> Option<Summary> {
        let mut v = self.values(contender, kind, bytes).to_vec();
        v.sort_by(f64::total_cmp);
        let n = v.len();
        (n > 0).then(|| Summary { median: (v[(n - 1) / 2] + v[n / 2]) / 2.0, min: v[0], max: v[n - 1] })
    }

    /// Rerail's median as a share of another's.
    pub fn ratio(&self, other: usize, kind: Kind, bytes: usize) -> Option<f64> {
        let ours = self.summary(0, kind, bytes)?.median;
        let theirs = self.summary(other, kind, bytes)?.median;
        // a share of a share would mean nothing
        (kind != Kind::Overlap && theirs > 0.0).then(|| ours / theirs)
    }

    /// Whether any contender has a figure.
    pub fn has(&self, test: &Test) -> bool {
        (0..self.contenders.len())
            .any(|c| test.sizes.iter().any(|&s| !self.values(c, test.kind, s).is_empty()))
    }
}

fn timeline<'a>(
    contender: usize,
    mut words: impl Iterator<Item = &'a str>,
    events: &str,
) -> Option<Timeline> {
    let (bytes, slice_ms) = (words.next()?.parse().ok()?, words.next()?.parse::<f64>().ok()?);
    let begin_ns = words.next()?.parse().ok()?;
    let values = words.map(|v| v.parse().ok()).collect::<Option<Vec<f64>>>()?;
    let bands = bands(events, begin_ns, values.len() as f64 * slice_ms / 1e3);
    (slice_ms > 0.0).then_some(Timeline { contender, bytes, slice_ms, values, bands })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_the_turns_counts_and_other_lines_do_not() {
        let mut f = Figures::new("here", vec!["rerail".into(), "own".into()]);
        for value in ["5", "4", "9"] {
            f.add(
                0,
                &format!("something else\nbench latency 8 {value}\nbench nothing 8 1\nbench latency 8\n"),
                "",
            );
        }
        f.add(1, "bench latency 8 6\nbench latency 8 10\n", "");
        let kind = Kind::Latency;
        assert_eq!(f.summary(0, kind, 8), Some(Summary { median: 5.0, min: 4.0, max: 9.0 }));
        assert_eq!(f.ratio(1, kind, 8), Some(5.0 / 8.0));
        assert_eq!((f.summary(0, kind, 16), f.ratio(1, kind, 16)), (None, None));
    }

    #[test]
    fn a_timeline_is_taken_whole_or_not_at_all() {
        let mut f = Figures::new("here", vec!["rerail".into()]);
        let lines =
            "timeline 65536 50 9 100 0 99.5\ntimeline 65536 50 9 1 x\ntimeline 65536\ntimeline 1 0 9 5\n";
        f.add(0, lines, "");
        let values = vec![100.0, 0.0, 99.5];
        let whole = Timeline { contender: 0, bytes: 65_536, slice_ms: 50.0, values, bands: Vec::new() };
        assert_eq!(f.timelines, [whole]);
    }
}
