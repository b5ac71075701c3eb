//! What faults are to happen in a process, to what, and when.

use crate::chance::draw;
use crate::rule::{Channel, Rule, Way};
use rerail_rail::RailId;
use std::fmt;
use std::time::Duration;

/// Longest text of a plan, in bytes.
pub(super) const TEXT_BYTES_MAX: usize = 900;

/// A list of rules. Several that concern the same rail add up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    pub(super) rules: Vec<Rule>,
}

/// What becomes of a datagram.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    /// It does not arrive.
    pub gone: bool,
    /// It waits until nothing stalls any more.
    pub stalled: bool,
    /// Its bytes are changed; the number says which and how.
    pub corrupt: Option<u64>,
    pub twice: bool,
    /// Later ones overtake it.
    pub reordered: bool,
    pub later: Duration,
}

impl Plan {
    /// Reads rules, separated by `;`, each `RAIL: FAULT…` with blanks or commas between the faults:
    ///
    /// `rail0: loss=1%, corrupt=0.1%, reorder=1%/2ms, seed=7; all: dup=0.1% from=5s for=10s`
    ///
    /// RAIL is one of `rails`, or `all`. Times count from the moment at which the plan comes into force.
    ///
    /// | word | datagrams | streams |
    /// |---|---|---|
    /// | `loss=SHARE`, `dup=SHARE`, `reorder=SHARE[/TIME]` | lost, sent or handed over twice, held back (1 ms unless told) | nothing: a stream has no such faults |
    /// | `corrupt=SHARE` | a bit is flipped | a bit is flipped in this share of the blocks of 1400 bytes |
    /// | `delay=TIME` | every one is later | what arrives is read later |
    /// | `stall` | wait until it is over | stand still |
    /// | `dark`, `flap=PERIOD/DARK` | lost, always or in the first DARK of every PERIOD | stand still |
    /// | `reset=PERIOD` | nothing | all are reset once in every PERIOD |
    /// | `dir=send`, `dir=recv` | only what leaves, or arrives | the same |
    /// | `on=datagrams`, `on=streams` | only these | only these |
    /// | `seed=N` | what the shares hit | the same |
    /// | `from=TIME`, `until=TIME` or `for=TIME` | when the rule is in force | the same |
    ///
    /// SHARE is such as `1%` or `200ppm`, TIME such as `200us`, `2ms` or `5s`.
    ///
    /// # Errors
    /// A sentence that says what is wrong and what to write.
    pub fn parse(text: &str, rails: &[&str]) -> Result<Plan, String> {
        let too_long =
            || Err(format!("the faults are longer than {TEXT_BYTES_MAX} bytes: write fewer rules"));
        if text.len() > TEXT_BYTES_MAX {
            return too_long();
        }
        // Ends of lines are blanks here, and what an error repeats of the text can be printed on one.
        let text = &text.replace(char::is_control, " ");
        let rules = text.split(';').map(str::trim).filter(|rule| !rule.is_empty());
        let rules = rules.map(|rule| Rule::parse(rule, rails)).collect::<Result<Vec<_>, _>>()?;
        if rules.is_empty() {
            return Err("no fault is given: write such as `all: loss=1%`".to_owned());
        }
        let plan = Plan { rules };
        // it is shown with blanks that need not be written, and what is shown shall be good for writing
        if plan.to_string().len() > TEXT_BYTES_MAX {
            return too_long();
        }
        Ok(plan)
    }

    /// Whether there is no rule.
    pub fn is_empty(&self) -> bool {
        self.rules.is_empty()
    }

    fn in_force(
        &self,
        rail: RailId,
        way: Way,
        channel: Channel,
        at: Duration,
    ) -> impl Iterator<Item = &Rule> {
        self.rules.iter().filter(move |rule| rule.concerns(rail, way, channel, at))
    }

    /// What becomes of the `number`-th datagram of a rail and direction.
    pub(super) fn fate(&self, rail: RailId, way: Way, number: u64, at: Duration) -> Fate {
        let mut fate = Fate::default();
        // Salts are the rules' places and kinds: two rules of one seed do not hit the same datagrams.
        for (place, rule) in self.in_force(rail, way, Channel::Datagrams, at).enumerate() {
            let seed = rule.seed ^ u64::from(rail.0) << 40 ^ (way as u64) << 50;
            let roll = |salt: u64| draw(seed, number, salt + 16 * place as u64);
            fate.gone |= rule.is_dark(at) || rule.loss.hits(roll(1));
            fate.stalled |= rule.stall;
            if rule.corrupt.hits(roll(2)) {
                fate.corrupt = Some(roll(3));
            }
            fate.twice |= rule.duplicate.hits(roll(4));
            fate.later += rule.delay;
            if rule.reorder.hits(roll(5)) {
                fate.reordered = true;
                fate.later += rule.holds_back();
            }
        }
        fate
    }

    /// Whether streams of a rail stand still.
    pub(super) fn stands(&self, rail: RailId, way: Way, at: Duration) -> bool {
        self.in_force(rail, way, Channel::Streams, at).any(|rule| rule.stall || rule.is_dark(at))
    }

    /// Whether nothing arrives on streams of a rail.
    pub(super) fn is_deaf(&self, rail: RailId, at: Duration) -> bool {
        self.in_force(rail, Way::Receive, Channel::Streams, at).any(|rule| rule.is_dark(at))
    }

    /// How much later what arrives on streams of a rail is read.
    pub(super) fn stream_delay(&self, rail: RailId, at: Duration) -> Duration {
        self.in_force(rail, Way::Receive, Channel::Streams, at).map(|rule| rule.delay).sum()
    }

    /// Whether the `block`-th block of a stream is corrupted, and a number that says where and how.
    pub(super) fn corrupts_block(
        &self,
        rail: RailId,
        way: Way,
        stream: u32,
        block: u64,
        at: Duration,
    ) -> Option<u64> {
        self.in_force(rail, way, Channel::Streams, at).enumerate().find_map(|(place, rule)| {
            let seed = rule.seed ^ u64::from(stream) << 20 ^ u64::from(rail.0) << 56 ^ (way as u64) << 62;
            let roll = |salt: u64| draw(seed, block, salt + 16 * place as u64);
            rule.corrupt.hits(roll(6)).then(|| roll(7))
        })
    }

    /// How many resets of a rail's streams were due until now, by all rules together.
    pub(super) fn resets_due(&self, rail: RailId, at: Duration) -> u64 {
        let mine = self.rules.iter().filter(|rule| rule.rail.is_none_or(|of| of == rail));
        mine.filter(|rule| rule.channel != Some(Channel::Datagrams)).map(|rule| rule.resets_due(at)).sum()
    }

    /// Whether a rule resets streams, now or later.
    pub(super) fn may_reset(&self) -> bool {
        self.rules.iter().any(|rule| rule.reset.is_some())
    }
}

/// As it is read.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rules: Vec<String> = self.rules.iter().map(ToString::to_string).collect();
        f.write_str(&rules.join("; "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RAILS: [&str; 2] = ["eth0", "eth1"];
    const SECOND: Duration = Duration::from_secs(1);

    fn plan(text: &str) -> Plan {
        Plan::parse(text, &RAILS).unwrap()
    }

    #[test]
    fn plans_are_read_and_written_back() {
        for text in [
            "eth0: loss=1%",
            "eth0: loss=1% corrupt=0.1% dup=1% reorder=1%/2ms delay=5ms stall dark flap=2s/300ms reset=5s dir=send on=streams seed=7",
            "all: loss=100% dir=recv on=datagrams from=5s until=15s; eth1: reset=100ms",
        ] {
            assert_eq!(plan(text).to_string(), text);
        }
        assert_eq!(
            plan(" eth0:loss=1%,corrupt=0.1% , seed=7;all: dup=0.1% from=5s for=10s; ").to_string(),
            "eth0: loss=1% corrupt=0.1% seed=7; all: dup=0.1% from=5s until=15s"
        );
    }

    #[test]
    fn what_is_too_long_to_be_shown_is_refused() {
        // found by the fuzzer: as long as may be, and longer when it is shown
        let rules = "eth0:dark from=5us for=1s;".repeat(TEXT_BYTES_MAX / 26);
        assert!(rules.len() <= TEXT_BYTES_MAX);
        assert!(Plan::parse(&rules, &RAILS).unwrap_err().contains("longer than 900 bytes"));
        let fewer = plan(&"eth0:dark from=5us for=1s;".repeat(TEXT_BYTES_MAX / 60));
        assert_eq!(plan(&fewer.to_string()).to_string(), fewer.to_string());
    }

    #[test]
    fn what_is_wrong_is_named_with_what_to_write() {
        for (text, says) in [
            ("", "no fault is given"),
            ("loss=1%", "names no rail: write such as eth0: loss=1%"),
            ("eth7: loss=1%", "`eth7` is no rail of this process: write all or one of eth0, eth1"),
            ("eth0: lose=1%", "`lose=1%` is not understood: write loss=1%"),
            ("eth0: lots", "`lots` is not understood"),
            ("eth0:", "says no fault"),
            ("eth0: seed=3 from=2s", "says no fault"),
            ("eth0: loss=1", "not a share"),
            ("eth0: delay=1min", "at most 10s"),
            ("eth0: flap=1s", "such as flap=2s/300ms"),
            ("eth0: flap=1s/1s", "shorter than the period"),
            ("eth0: reset=10us", "at least 1ms"),
            ("eth0: dark dir=up", "write dir=send or dir=recv"),
            ("eth0: dark on=tcp", "write on=datagrams or on=streams"),
            ("eth0: dark seed=x", "not a seed"),
            ("eth0: dark from=soon", "not a time"),
            ("eth0: dark from=5s until=2s", "ends before it begins"),
            ("eth0: dark until=5s for=2s", "until or for, not both"),
            // found by the fuzzer: the microseconds were lost when it was read as it was shown
            ("eth0: dark from=55us for=444444444444s", "longer than a year"),
            ("eth0: dark from=55us for=31536000s", "ends more than a year from now"),
        ] {
            let error = Plan::parse(text, &RAILS).unwrap_err();
            assert!(error.contains(says) && error.lines().count() == 1, "{text}: {error}");
        }
        assert!(Plan::parse(&"all: dark;".repeat(200), &RAILS).unwrap_err().contains("fewer rules"));
    }

    #[test]
    fn a_rule_concerns_its_rail_way_channel_and_window_only() {
        let p = plan("eth1: dark dir=send on=datagrams from=1s for=2s");
        let gone = |rail, way, at| p.fate(RailId(rail), way, 0, at).gone;
        assert!(gone(1, Way::Send, SECOND) && gone(1, Way::Send, 3 * SECOND - Duration::from_nanos(1)));
        assert!(!gone(1, Way::Send, Duration::ZERO) && !gone(1, Way::Send, 3 * SECOND));
        assert!(!gone(0, Way::Send, SECOND) && !gone(1, Way::Receive, SECOND));
        assert!(!p.stands(RailId(1), Way::Send, SECOND));
        let p = plan("all: stall on=streams");
        assert!(p.stands(RailId(0), Way::Send, SECOND) && p.stands(RailId(1), Way::Receive, SECOND));
        assert_eq!(p.fate(RailId(0), Way::Send, 0, SECOND), Fate::default());
    }

    #[test]
    fn a_flap_is_dark_in_the_first_part_of_every_period() {
        let p = plan("all: flap=100ms/30ms from=1s");
        let dark: Vec<bool> = [990, 1000, 1029, 1030, 1099, 1100, 1129, 1130]
            .map(|ms| p.is_deaf(RailId(0), Duration::from_millis(ms)))
            .into();
        assert_eq!(dark, [false, true, true, false, false, true, true, false]);
    }

    #[test]
    fn resets_are_due_once_in_each_period_of_their_window() {
        let p = plan("all: reset=100ms from=1s until=2s");
        let due =
            [0, 1050, 1100, 1999, 2000, 9000].map(|ms| p.resets_due(RailId(0), Duration::from_millis(ms)));
        assert_eq!(due, [0, 0, 1, 9, 10, 10]);
    }

    #[test]
    fn shares_add_up_over_rules_and_draws_repeat() {
        let p =
            plan("all: loss=10% seed=1; eth0: loss=10% corrupt=10% dup=10% reorder=10%/3ms delay=1ms seed=1");
        let fates: Vec<Fate> = (0..10_000).map(|n| p.fate(RailId(0), Way::Send, n, SECOND)).collect();
        let count = |which: fn(&Fate) -> bool| fates.iter().filter(|fate| which(fate)).count();
        assert!(
            (1750..2050).contains(&count(|fate| fate.gone)),
            "10 % of the 90 % that the first rule leaves"
        );
        for which in [|f: &Fate| f.corrupt.is_some(), |f: &Fate| f.twice, |f: &Fate| f.reordered] {
            assert!((900..1100).contains(&count(which)));
        }
        assert!(
            fates.iter().all(|fate| fate.later == Duration::from_millis(if fate.reordered { 4 } else { 1 }))
        );
        assert_eq!(fates, (0..10_000).map(|n| p.fate(RailId(0), Way::Send, n, SECOND)).collect::<Vec<_>>());
        assert_ne!(
            fates,
            (0..10_000).map(|n| p.fate(RailId(0), Way::Receive, n, SECOND)).collect::<Vec<_>>()
        );
    }
}
