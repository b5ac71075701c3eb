//! How often a planted fault happens: shares that a user wrote, and draws that can be repeated.
//!
//! A draw is a pure function of a seed, the number of the packet and the kind of fault. So a run is repeated by its seed as far as
//! its packets are, and a change of one rate leaves the decisions of the others alone. A generator with a state was rejected: with
//! it one more fault in the list would shift every later decision.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A share of packets, in millionths.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Chance(u32);

const WHOLE_PPM: u32 = 1_000_000;

impl Chance {
    /// Never.
    pub const NEVER: Chance = Chance(0);
    /// Every time.
    pub const ALWAYS: Chance = Chance(WHOLE_PPM);

    /// So many of a million; more than a million is always.
    pub fn ppm(ppm: u32) -> Chance {
        Chance(ppm.min(WHOLE_PPM))
    }

    /// Whether it never happens.
    pub fn is_never(self) -> bool {
        self.0 == 0
    }

    /// Whether it happens, given a [`draw`].
    pub fn hits(self, draw: u64) -> bool {
        ((draw >> 32) * u64::from(WHOLE_PPM)) >> 32 < u64::from(self.0)
    }
}

impl FromStr for Chance {
    type Err = String;

    fn from_str(text: &str) -> Result<Chance, String> {
        let wrong = || format!("`{text}` is not a share: write such as 1%, 0.05% or 200ppm, at most 100%");
        let (number, unit_ppm) = match (text.strip_suffix('%'), text.strip_suffix("ppm")) {
            (Some(number), _) => (number, 10_000.0),
            (_, Some(number)) => (number, 1.0),
            _ => return Err(wrong()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let ppm = (number * unit_ppm).round();
        // Less than a millionth would be taken for never: better refused than silently nothing.
        let lost = number > 0.0 && ppm < 1.0;
        if !(0.0..=f64::from(WHOLE_PPM)).contains(&ppm) || lost {
            return Err(wrong());
        }
        Ok(Chance(ppm as u32))
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", f64::from(self.0) / 10_000.0)
    }
}

/// A number for packet `packet` and fault `salt` of a seed, each bit as good as any other.
pub fn draw(seed: u64, packet: u64, salt: u64) -> u64 {
    let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ packet;
    // splitmix64's finalizer, once for each of the three
    for extra in [0, salt, 0x5bd1_e995] {
        x = x.wrapping_add(extra.wrapping_mul(0xd6e8_feb8_6659_fd93)).wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^= x >> 31;
    }
    x
}

/// Longest time that is read: longer than any job, and short enough that sums of times, and their microseconds, are exact as
/// floating-point numbers too.
pub const SPAN_MAX: Duration = Duration::from_secs(365 * 86_400);

/// Reads a time such as `200us`, `2ms`, `1.5s` or `1min`, to the nearest microsecond, at most [`SPAN_MAX`].
///
/// # Errors
/// A sentence that says what to write.
pub fn parse_span(text: &str) -> Result<Duration, String> {
    let wrong =
        || format!("`{text}` is not a time: write a number and us, ms, s or min, such as 2s or 250ms");
    let digits_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits_end);
    let factor = match unit {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "min" => 60.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    // What is too long for a Duration is too long for us.
    let span = Duration::try_from_secs_f64(number * factor).unwrap_or(Duration::MAX);
    if span > SPAN_MAX {
        return Err(format!("`{text}` is longer than a year: write a shorter time"));
    }
    Ok(Duration::from_micros(((span.as_nanos() + 500) / 1000) as u64))
}

/// Writes a time as [`parse_span`] reads it.
pub fn show_span(span: Duration) -> String {
    let us = span.as_micros();
    match us {
        _ if us > 0 && us % 1_000_000 == 0 => format!("{}s", us / 1_000_000),
        _ if us % 1000 == 0 => format!("{}ms", us / 1000),
        _ => format!("{us}us"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_read_and_written_back() {
        for (text, ppm, shown) in [
            ("1%", 10_000, "1%"),
            ("0.1%", 1000, "0.1%"),
            ("0.0001%", 1, "0.0001%"),
            ("200ppm", 200, "0.02%"),
            ("100%", 1_000_000, "100%"),
            ("0%", 0, "0%"),
        ] {
            let chance: Chance = text.parse().unwrap();
            assert_eq!((chance, chance.to_string().as_str()), (Chance(ppm), shown));
            assert_eq!(shown.parse(), Ok(chance));
        }
        for text in ["", "1", "%", "101%", "-1%", "0.00001%", "nan%", "inf%", "one%", "2000000ppm"] {
            assert!(text.parse::<Chance>().unwrap_err().contains("such as 1%"), "{text}");
        }
    }

    #[test]
    fn times_are_read_and_written_back() {
        for (text, us) in [("200us", 200), ("2ms", 2000), ("1500ms", 1_500_000), ("2s", 2_000_000)] {
            let span = parse_span(text).unwrap();
            assert_eq!((span.as_micros(), show_span(span).as_str()), (us, text));
        }
        assert_eq!(parse_span("1.5s").unwrap().as_millis(), 1500);
        assert_eq!(parse_span("1min").unwrap().as_secs(), 60);
        for text in ["", "2", "s", "soon", "1h", "-1s", "1e300s"] {
            assert!(parse_span(text).is_err(), "{text}");
        }
        assert_eq!(parse_span("31536000s"), Ok(SPAN_MAX));
        for text in ["31536001s", &format!("1{}us", "0".repeat(400))] {
            assert!(parse_span(text).unwrap_err().contains("longer than a year"), "{text}");
        }
    }

    #[test]
    fn a_share_is_hit_as_often_as_it_says_and_a_draw_repeats() {
        for (text, low, high) in
            [("0%", 0, 0), ("1%", 900, 1100), ("50%", 49_000, 51_000), ("100%", 100_000, 100_000)]
        {
            let chance: Chance = text.parse().unwrap();
            let hits = (0..100_000).filter(|&packet| chance.hits(draw(7, packet, 1))).count();
            assert!((low..=high).contains(&hits), "{text}: {hits}");
        }
        assert_eq!(draw(1, 2, 3), draw(1, 2, 3));
        let all = [draw(1, 2, 3), draw(2, 2, 3), draw(1, 3, 3), draw(1, 2, 4), draw(1, 3, 2)];
        for (i, x) in all.iter().enumerate() {
            assert!(!all[..i].contains(x));
        }
    }
}
