//! What a kernel measures of the round trips of one direction of a connection. Owns: the byte that is timed, and the smoothed values (RFC 6298 §2).
//! The engine's own measurement is not used here: a simulated kernel must not share its faults.

/// What a kernel takes for the variation before it has measured anything.
const UNMEASURED_NS: u64 = 250_000_000;

/// See above.
#[derive(Debug, Default)]
pub struct Clocked {
    timed: Option<(u64, u64)>,
    smoothed_ns: u64,
    variation_ns: u64,
}

impl Clocked {
    /// Bytes up to `end` went out for the first time.
    pub fn sends(&mut self, end: u64, now: u64) {
        self.timed.get_or_insert((end, now));
    }

    /// Something goes again: its acknowledgement may be one of the first copy (Karn's rule).
    pub fn repeats(&mut self) {
        self.timed = None;
    }

    /// Everything before `ack` is acknowledged.
    pub fn acked(&mut self, ack: u64, now: u64) {
        let Some((_, at)) = self.timed.filter(|t| ack >= t.0) else { return };
        self.timed = None;
        let ns = now - at;
        if self.smoothed_ns == 0 {
            (self.smoothed_ns, self.variation_ns) = (ns, ns / 2);
            return;
        }
        self.variation_ns = (3 * self.variation_ns + self.smoothed_ns.abs_diff(ns)) / 4;
        self.smoothed_ns = (7 * self.smoothed_ns + ns) / 8;
    }

    /// How long an acknowledgement takes at most as a rule.
    pub fn usual_ns(&self) -> u64 {
        if self.smoothed_ns == 0 { UNMEASURED_NS } else { self.smoothed_ns + 4 * self.variation_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_again_is_not_measured() {
        let mut c = Clocked::default();
        assert_eq!(c.usual_ns(), UNMEASURED_NS);
        c.sends(100, 1_000);
        c.sends(200, 5_000);
        c.acked(99, 6_000);
        assert_eq!(c.usual_ns(), UNMEASURED_NS);
        c.acked(200, 9_000);
        assert_eq!(c.usual_ns(), 8_000 + 4 * 4_000);
        c.sends(300, 10_000);
        c.repeats();
        c.acked(300, 900_000);
        assert_eq!(c.usual_ns(), 24_000);
        c.sends(400, 1_000_000);
        c.acked(400, 1_008_000);
        assert_eq!(c.usual_ns(), 8_000 + 4 * 3_000);
    }
}
