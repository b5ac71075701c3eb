//! What is to be summed, as the user wishes it: for all rails, and for single ones.
//!
//! The user may leave it to the rail (`auto`). Then the payload of messages is summed, except where the network itself
//! protects it from one adapter to the other ([`RailDesc::sums_end_to_end`]): a sum made by the processor would cost the
//! adapter's advantage, which is that no processor touches what is written into memory.

use rerail_rail::RailDesc;
use rerail_wire::Coverage;

/// The option `checksum`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checksums {
    /// For rails that are not named. `None`: as the rail needs it.
    pub all: Option<Coverage>,
    /// By name of the rail.
    pub rails: Vec<(String, Option<Coverage>)>,
}

impl Checksums {
    /// Reads `auto`, `on`, `header`, `off`, and `rail=mode`, comma-separated: at most one mode without a rail, and each rail
    /// once. `None`: it is nothing of that kind.
    pub fn parse(value: &str) -> Option<Self> {
        let mode = |s: &str| match s.trim() {
            "auto" => Some(None),
            name => Coverage::ALL.into_iter().find(|c| c.name() == name).map(Some),
        };
        let mut out = Self::default();
        let mut general = false;
        for part in value.split(',').map(str::trim).filter(|s| !s.is_empty()) {
            match part.split_once('=') {
                None if general => return None,
                None => {
                    out.all = mode(part)?;
                    general = true;
                }
                Some((rail, m)) => {
                    let rail = rail.trim();
                    if rail.is_empty() || out.rails.iter().any(|r| r.0 == rail) {
                        return None;
                    }
                    out.rails.push((rail.to_owned(), mode(m)?));
                }
            }
        }
        (general || !out.rails.is_empty()).then_some(out)
    }

    /// For this rail.
    pub fn of(&self, rail: &RailDesc) -> Coverage {
        let wish = self.rails.iter().find(|r| r.0 == rail.name).map_or(self.all, |r| r.1);
        wish.unwrap_or(if rail.sums_end_to_end { Coverage::Header } else { Coverage::Full })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_for_all_rails_and_for_single_ones() {
        let of = |c: &Checksums, rail| c.of(&named(rail, false)).name();
        let c = Checksums::parse(" header, eth0 = off,eth1=on ").unwrap();
        assert_eq!(["eth0", "eth1", "eth2"].map(|r| of(&c, r)), ["off", "on", "header"]);
        let c = Checksums::parse("eth0=off").unwrap();
        assert_eq!(["eth0", "eth1"].map(|r| of(&c, r)), ["off", "on"]);
        assert_eq!(of(&Checksums::parse("off").unwrap(), "eth0"), "off");
        for wrong in ["", "no", "on,off", "eth0", "eth0=", "=on", "eth0=on,eth0=off", "eth0=on=off"] {
            assert_eq!(Checksums::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn left_to_the_rail_payload_is_summed_unless_the_network_does_it() {
        let of = |value: Option<&str>, by_network| {
            let c = value.map_or_else(Checksums::default, |v| Checksums::parse(v).unwrap());
            c.of(&named("eth0", by_network)).name()
        };
        for left in [None, Some("auto"), Some("off,eth0=auto")] {
            assert_eq!((of(left, false), of(left, true)), ("on", "header"), "{left:?}");
        }
        for chosen in ["on", "header", "off"] {
            assert_eq!((of(Some(chosen), false), of(Some(chosen), true)), (chosen, chosen));
        }
    }

    fn named(name: &str, sums_end_to_end: bool) -> RailDesc {
        RailDesc { sums_end_to_end, ..RailDesc::ip(name, "10.0.0.1:1".parse().unwrap(), 24, 1500) }
    }
}
