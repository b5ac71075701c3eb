//! What is to be summed, as the user wishes it: for all rails, and for single ones.

use rerail_wire::Coverage;

/// The option `checksum`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Checksums {
    /// For rails that are not named.
    pub all: Coverage,
    /// By name of the rail.
    pub rails: Vec<(String, Coverage)>,
}

impl Checksums {
    /// Reads `on`, `header`, `off`, and `rail=mode`, comma-separated: at most one mode without a rail, and each rail once.
    pub fn parse(value: &str) -> Option<Self> {
        let mode = |s: &str| {
            [Coverage::Full, Coverage::Header, Coverage::None].into_iter().find(|c| c.name() == s.trim())
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

    /// For the rail of this name.
    pub fn of(&self, rail: &str) -> Coverage {
        self.rails.iter().find(|r| r.0 == rail).map_or(self.all, |r| r.1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_are_read_for_all_rails_and_for_single_ones() {
        let c = Checksums::parse(" header, eth0 = off,eth1=on ").unwrap();
        assert_eq!(["eth0", "eth1", "eth2"].map(|r| c.of(r).name()), ["off", "on", "header"]);
        let c = Checksums::parse("eth0=off").unwrap();
        assert_eq!(["eth0", "eth1"].map(|r| c.of(r).name()), ["off", "on"]);
        assert_eq!(Checksums::parse("off").unwrap().of("eth0"), Coverage::None);
        for wrong in ["", "no", "on,off", "eth0", "eth0=", "=on", "eth0=on,eth0=off", "eth0=on=off"] {
            assert_eq!(Checksums::parse(wrong), None, "{wrong}");
        }
    }
}
