//! What was measured. Owns: the figures of every turn, their medians and their spread.

use super::band::{Band, bands};
use super::span::Span;
use super::test::{Kind, Test};
use std::collections::BTreeMap;

/// The figures of one run of `rerail bench`.
#[derive(Debug, Clone)]
pub struct Figures {
    /// Where.
    pub place: String,
    /// The contenders; the first is what the others are compared with.
    pub contenders: Vec<String>,
    values: BTreeMap<(usize, &'static str, usize), Vec<f64>>,
    spans: BTreeMap<(usize, &'static str, usize), Vec<Span>>,
    /// How many cuts must happen within each measurement of a contender.
    cuts: BTreeMap<usize, usize>,
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
    /// The lower and the upper quartile.
    pub quartiles: [f64; 2],
}

impl Summary {
    /// Of these figures, if there are any.
    pub fn of(values: impl IntoIterator<Item = f64>) -> Option<Summary> {
        let mut v: Vec<f64> = values.into_iter().collect();
        v.sort_by(f64::total_cmp);
        // between two figures in proportion
        let at = |share: f64| {
            let place = share * (v.len() - 1) as f64;
            let (below, above) = (v[place.floor() as usize], v[place.ceil() as usize]);
            below + (above - below) * place.fract()
        };
        let last = *v.last()?;
        Some(Summary { median: at(0.5), min: v[0], max: last, quartiles: [at(0.25), at(0.75)] })
    }
}

/// How a figure is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    /// As it was measured.
    Measured,
    /// The time of a message as the throughput that it means.
    Throughput,
}

impl View {
    /// The unit of figures of a kind.
    pub fn unit(self, kind: Kind) -> &'static str {
        match self {
            View::Measured => kind.unit(),
            View::Throughput => "MB/s",
        }
    }

    fn of(self, value: f64, bytes: usize) -> f64 {
        match self {
            View::Measured => value,
            // bytes in a microsecond
            View::Throughput => bytes as f64 / value,
        }
    }
}

impl Figures {
    /// None yet.
    pub fn new(place: &str, contenders: Vec<String>) -> Self {
        Self {
            place: place.into(),
            contenders,
            values: BTreeMap::new(),
            spans: BTreeMap::new(),
            cuts: BTreeMap::new(),
            failures: Vec::new(),
            timelines: Vec::new(),
        }
    }

    /// A figure of this contender counts only if so many cuts began and were healed while it was measured.
    pub fn expect_cuts(&mut self, contender: usize, cuts: usize) {
        self.cuts.insert(contender, cuts);
    }

    /// Takes the lines of a turn: `bench TEST BYTES VALUE`, `timeline BYTES SLICE_MS BEGIN_UNIX_NS VALUE…`, and `span TEST BYTES
    /// STANDSTILL_MS BEGIN_UNIX_NS END_UNIX_NS` before the figure that was measured then. Others are the program's or the MPI's own. `events`
    /// is what the lab reported meanwhile, if there was one.
    pub fn add(&mut self, contender: usize, output: &str, events: &str) {
        let mut spans = BTreeMap::new();
        for line in output.lines() {
            let mut words = line.split_whitespace();
            match words.next() {
                Some("bench") => {}
                Some("span") => {
                    spans.extend(Span::of(words, events).map(|span| ((span.kind.name(), span.bytes), span)));
                    continue;
                }
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
            let span = spans.remove(&(kind.name(), bytes));
            let cuts = span.as_ref().map_or(0, |span: &Span| span.cuts);
            let wanted = self.cuts.get(&contender).copied().unwrap_or(0);
            if cuts < wanted {
                let why = format!(
                    "{test} of {bytes} bytes does not count: {cuts} of {wanted} cuts happened meanwhile"
                );
                self.add_failure(contender, &why);
                continue;
            }
            self.values.entry((contender, kind.name(), bytes)).or_default().push(value);
            self.spans.entry((contender, kind.name(), bytes)).or_default().extend(span);
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

    /// When each of them was measured, where the program reports it.
    pub fn spans(&self, contender: usize, kind: Kind, bytes: usize) -> &[Span] {
        self.spans.get(&(contender, kind.name(), bytes)).map_or(&[], Vec::as_slice)
    }

    /// Their summary, if there are any.
    pub fn summary(&self, contender: usize, kind: Kind, bytes: usize) -> Option<Summary> {
        self.summary_as(View::Measured, contender, kind, bytes)
    }

    /// The same of what they mean.
    pub fn summary_as(&self, view: View, contender: usize, kind: Kind, bytes: usize) -> Option<Summary> {
        Summary::of(self.values(contender, kind, bytes).iter().map(|&value| view.of(value, bytes)))
    }

    /// The longest time between two messages in ms, over all sizes and turns.
    pub fn standstill(&self, contender: usize, test: &Test) -> Option<Summary> {
        let all = test.sizes.iter().flat_map(|&size| self.spans(contender, test.kind, size));
        Summary::of(all.map(|span| span.standstill_ms))
    }

    /// The first contender's median as a share of another's.
    pub fn ratio(&self, other: usize, kind: Kind, bytes: usize) -> Option<f64> {
        self.ratio_as(View::Measured, other, kind, bytes)
    }

    /// The same of what they mean.
    pub fn ratio_as(&self, view: View, other: usize, kind: Kind, bytes: usize) -> Option<f64> {
        let ours = self.summary_as(view, 0, kind, bytes)?.median;
        let theirs = self.summary_as(view, other, kind, bytes)?.median;
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
    use crate::bench::band::tests::event;

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
        let summary = Summary { median: 5.0, min: 4.0, max: 9.0, quartiles: [4.5, 7.0] };
        assert_eq!(f.summary(0, kind, 8), Some(summary));
        assert_eq!(f.ratio(1, kind, 8), Some(5.0 / 8.0));
        assert_eq!((f.summary(0, kind, 16), f.ratio(1, kind, 16)), (None, None));
    }

    #[test]
    fn a_figure_counts_only_when_its_cuts_happened_while_it_was_measured() {
        let mut f = Figures::new("here", vec!["rwapi".into(), "rwapi+cut".into()]);
        f.expect_cuts(1, 1);
        let line = |begin: u64| {
            let begin = 1_000_000_000_000 + begin * 1_000_000_000;
            format!("span put 8 2.5 {begin} {}\nbench put 8 4\n", begin + 3_000_000_000)
        };
        let events = event("cut", "rail1", "dark", 1.0, 10) + &event("heal", "rail1", "", 2.0, 10);
        let unhealed = event("cut", "rail1", "dark", 1.0, 10);
        f.add(0, &line(0), "");
        f.add(1, &line(0), &events);
        for (begin, events) in [(0, ""), (4, events.as_str()), (0, unhealed.as_str())] {
            f.add(1, &line(begin), events);
        }
        let kind = Kind::Put;
        assert_eq!((f.values(0, kind, 8), f.values(1, kind, 8)), (&[4.0][..], &[4.0][..]));
        assert_eq!(f.spans(1, kind, 8).iter().map(|span| span.cuts).collect::<Vec<_>>(), [1]);
        assert_eq!(f.failures.len(), 3, "{:?}", f.failures);
        assert!(f.failures[0].1.contains("0 of 1 cuts"), "{:?}", f.failures);
        let test = Test { kind, sizes: vec![8] };
        assert_eq!(f.standstill(1, &test).unwrap().median, 2.5);
        assert_eq!(f.summary_as(View::Throughput, 1, kind, 8).unwrap().median, 2.0);
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
