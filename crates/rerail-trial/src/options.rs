//! What the options of several commands share.

use clap::{Args, Command};
use std::time::Duration;

/// A time: seconds, or with `s`, `m` or `min`, or `h`.
pub fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let factor = match unit {
        "" | "s" => Some(1),
        "m" | "min" => Some(60),
        "h" => Some(3600),
        _ => None,
    };
    let seconds = factor.and_then(|factor| number.parse::<u64>().ok()?.checked_mul(factor));
    seconds.map(Duration::from_secs).ok_or_else(|| "write such as 90s, 40min or 1h".into())
}

/// The options that these words mean: what a command would be given on the command line, from another command or a test.
pub fn of<T: Args>(words: &[&str]) -> Result<T, clap::Error> {
    let command = T::augment_args(Command::new("rerail-trial").no_binary_name(true));
    T::from_arg_matches(&command.try_get_matches_from(words)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, seconds) in [("90", 90), ("90s", 90), ("2m", 120), ("2min", 120), ("1h", 3600)] {
            assert_eq!(time(text).unwrap().as_secs(), seconds, "{text}");
        }
        for text in ["", "soon", "5d", "s", "99999999999999999999h"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
