//! The rate of a rail: `1gbit`, `200mbit`, `2.5gbit` or `unshaped`.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The slowest rate that still lets ARP and a TCP handshake through in reasonable time.
const RATE_BITS_MIN: u64 = 8_000;
/// `tc` counts bytes per second in 32 bits before it needs the long form; no rail of a lab is faster than this.
const RATE_BITS_MAX: u64 = 400_000_000_000;

/// The rate of a rail, per direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Rate {
    /// As fast as the machine can copy.
    Unshaped,
    /// Shaped by a token bucket to this many bits per second.
    Bits(u64),
}

/// Token bucket of a shaped interface: room for one full GSO burst, and a queue of 10 ms.
const BUCKET: &str = "burst 128kb latency 10ms";

impl Rate {
    /// `tc -batch` to give it to what an interface sends.
    pub(crate) fn batch(self, device: &str) -> String {
        match self {
            Rate::Bits(bits) => format!("qdisc replace dev {device} root tbf rate {bits}bit {BUCKET}\n"),
            // The root queue exists only if the interface was shaped; replacing it by the device's default is not
            // possible by `replace`, hence a bucket first, then its deletion.
            Rate::Unshaped => format!(
                "qdisc replace dev {device} root tbf rate 1gbit {BUCKET}\nqdisc del dev {device} root\n"
            ),
        }
    }
}

impl FromStr for Rate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let lower = text.to_ascii_lowercase();
        if lower == "unshaped" {
            return Ok(Rate::Unshaped);
        }
        let wrong = || {
            format!(
                "`{text}` is not a rate: write a number and kbit, mbit or gbit, such as 1gbit or 200mbit, or `unshaped`"
            )
        };
        let digits_end = lower.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
        let (number, unit) = lower.split_at(digits_end);
        let factor = match unit {
            "kbit" => 1e3,
            "mbit" => 1e6,
            "gbit" => 1e9,
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let bits = (number * factor).round();
        if !(RATE_BITS_MIN as f64..=RATE_BITS_MAX as f64).contains(&bits) {
            return Err(format!(
                "the rate `{text}` is out of range: choose one from 8kbit to 400gbit, or `unshaped`"
            ));
        }
        Ok(Rate::Bits(bits as u64))
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Rate::Unshaped => f.write_str("unshaped"),
            Rate::Bits(bits) => {
                for (unit, size) in [("gbit", 1_000_000_000), ("mbit", 1_000_000)] {
                    // Three decimals at most, so that 1.5gbit stays 1.5gbit and odd rates fall to a smaller unit.
                    if bits >= size && bits % (size / 1000) == 0 {
                        return write!(f, "{}{unit}", bits as f64 / size as f64);
                    }
                }
                write!(f, "{}kbit", bits as f64 / 1000.0)
            }
        }
    }
}

impl TryFrom<String> for Rate {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Rate> for String {
    fn from(rate: Rate) -> String {
        rate.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_and_written_back() {
        for (text, bits) in [
            ("1gbit", 1_000_000_000),
            ("200mbit", 200_000_000),
            ("2.5gbit", 2_500_000_000),
            ("64kbit", 64_000),
        ] {
            let rate: Rate = text.parse().unwrap();
            assert_eq!(rate, Rate::Bits(bits));
            assert_eq!(rate.to_string(), text);
        }
        assert_eq!("1GBit".parse(), Ok(Rate::Bits(1_000_000_000)));
        assert_eq!("unshaped".parse(), Ok(Rate::Unshaped));
        assert_eq!(Rate::Bits(1_234_567).to_string(), "1234.567kbit");
    }

    #[test]
    fn a_wrong_rate_is_answered_with_what_a_rate_looks_like() {
        for text in ["", "fast", "1", "gbit", "1gb", "-1gbit", "1.2.3gbit", "1 gbit"] {
            let error = text.parse::<Rate>().unwrap_err();
            assert!(error.contains("such as 1gbit"), "{text}: {error}");
        }
        for text in ["0gbit", "1000gbit", "1kbit"] {
            let error = text.parse::<Rate>().unwrap_err();
            assert!(error.contains("out of range"), "{text}: {error}");
        }
    }
}
