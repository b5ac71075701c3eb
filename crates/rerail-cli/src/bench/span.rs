//! When a figure was measured, and what happened meanwhile: what a program of `--rwapi` reports beside each figure.

use super::band::bands;
use super::test::Kind;

/// A measurement.
#[derive(Debug, Clone, PartialEq)]
pub struct Span {
    /// What was measured.
    pub kind: Kind,
    /// Bytes of a message.
    pub bytes: usize,
    /// The longest time between two messages.
    pub standstill_ms: f64,
    /// How many cuts began and were healed within it, by the lab's own report.
    pub cuts: usize,
}

impl Span {
    /// From the words behind `span`: TEST BYTES STANDSTILL_MS BEGIN_UNIX_NS END_UNIX_NS.
    pub fn of<'a>(mut words: impl Iterator<Item = &'a str>, events: &str) -> Option<Span> {
        let (kind, bytes) = (Kind::of(words.next()?)?, words.next()?.parse().ok()?);
        let standstill_ms = words.next()?.parse().ok()?;
        let (begin_ns, end_ns) = (words.next()?.parse::<i64>().ok()?, words.next()?.parse::<i64>().ok()?);
        let end_s = (end_ns - begin_ns) as f64 / 1e9;
        // what was not healed ends with the span
        let whole = bands(events, begin_ns, end_s);
        let cuts = whole.iter().filter(|band| band.at_s[0] >= 0.0 && band.healed_s[1] < end_s).count();
        Some(Span { kind, bytes, standstill_ms, cuts })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::band::tests::event;

    #[test]
    fn only_whole_cuts_count() {
        let cut = |from, to| event("cut", "rail0", "dark", from, 10) + &event("heal", "rail0", "", to, 10);
        let events = cut(0.5, 0.9) + &cut(1.1, 1.5) + &cut(2.0, 2.5) + &cut(2.8, 3.1);
        let span = |text: &str| Span::of(text.split_whitespace(), &events);
        let whole = span("round-trip 64 0.25 1001000000000 1003000000000").unwrap();
        assert_eq!(
            (whole.kind, whole.bytes, whole.standstill_ms, whole.cuts),
            (Kind::RoundTrip, 64, 0.25, 2)
        );
        for text in ["", "nothing 64 1 2 3", "put 64 1 2", "put 64 x 2 3"] {
            assert_eq!(span(text), None, "{text}");
        }
    }
}
