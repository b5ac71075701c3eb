//! What a wire does to frames: `loss=1%,corrupt=0.1%,reorder=1%/2ms,from=n0`.

use crate::names::node_name;
use rerail_fault::chance::{Chance, parse_span, show_span};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// How long frames are held back that others are to overtake, unless told.
const REORDER_BY: Duration = Duration::from_millis(1);
/// The longest delay: a wire longer than that is none.
const DELAY_MAX: Duration = Duration::from_secs(10);

/// The faults of a wire; the default has none.
///
/// Shares are of the frames that the network carries, of at most the MTU: while a share is given, the kernel cuts its large
/// segments before the wire. ARP and IPv6 neighbour discovery are only touched by `dark`, `stall` and `delay`: on a real network they are
/// as rare as here, and a lost one costs a second, which would hide everything else.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Faults {
    /// Frames that do not arrive.
    pub loss: Chance,
    /// Frames whose payload is changed, with checksums that fit.
    pub corrupt: Chance,
    /// Frames that arrive twice.
    pub duplicate: Chance,
    /// Frames that are held back, so that later ones overtake them.
    pub reorder: Chance,
    /// For how long; zero: [`REORDER_BY`].
    pub reorder_by: Duration,
    /// What every frame takes longer.
    pub delay: Duration,
    /// Nothing arrives until the stall is over; then everything does.
    pub stall: bool,
    /// Nothing arrives at all.
    pub dark: bool,
    /// Only what this node sends is touched; `None`: all of it.
    pub from: Option<usize>,
    /// Changes what the shares hit.
    pub seed: u64,
}

const WORDS: &str = "write loss=1%, corrupt=0.1%, dup=0.1%, reorder=1%/2ms, delay=5ms, stall, dark, from=n0, seed=7, or clean";

impl Faults {
    /// Reads the words; `clean` stands alone and means no faults.
    ///
    /// # Errors
    /// The place of the word that is wrong, and a sentence that says what to write.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a str>) -> Result<Faults, (usize, String)> {
        let words: Vec<&str> = words.into_iter().collect();
        let mut faults = Faults::default();
        if words.is_empty() {
            return Err((0, format!("no fault is named: {WORDS}")));
        }
        if words == ["clean"] {
            return Ok(faults);
        }
        for (place, word) in words.iter().enumerate() {
            faults.set(word).map_err(|message| (place, message))?;
        }
        Ok(faults)
    }

    fn set(&mut self, word: &str) -> Result<(), String> {
        let unknown = || format!("`{word}` is no fault of a wire: {WORDS}");
        let (name, value) = word.split_once('=').unwrap_or((word, ""));
        let has_value = word.contains('=');
        match (name, has_value) {
            ("stall", false) => self.stall = true,
            ("dark", false) => self.dark = true,
            ("loss", true) => self.loss = value.parse()?,
            ("corrupt", true) => self.corrupt = value.parse()?,
            ("dup", true) => self.duplicate = value.parse()?,
            ("reorder", true) => {
                let (share, by) = value.split_once('/').unwrap_or((value, ""));
                self.reorder = share.parse()?;
                self.reorder_by = if by.is_empty() { Duration::ZERO } else { delay(by)? };
            }
            ("delay", true) => self.delay = delay(value)?,
            ("seed", true) => {
                self.seed =
                    value.parse().map_err(|_| format!("`{value}` is not a seed: write a whole number"))?;
            }
            ("from", true) => {
                let digits = value.strip_prefix('n').unwrap_or(value);
                let node = digits.parse().map_err(|_| {
                    format!("`{value}` is not a node: write its name or number, such as from=n0")
                })?;
                self.from = Some(node);
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }

    /// How long a frame is held back that others are to overtake.
    pub fn holds_back(&self) -> Duration {
        if self.reorder_by.is_zero() { REORDER_BY } else { self.reorder_by }
    }

    /// Whether a share is given, so that frames must come one by one.
    pub fn picks(&self) -> bool {
        ![self.loss, self.corrupt, self.duplicate, self.reorder].into_iter().all(Chance::is_never)
    }
}

fn delay(text: &str) -> Result<Duration, String> {
    let span = parse_span(text)?;
    if span > DELAY_MAX {
        return Err(format!("the time `{text}` is too long for a wire: at most {}", show_span(DELAY_MAX)));
    }
    Ok(span)
}

/// As it is read, separated by commas; `clean` when there is none.
impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        for (name, share) in [("loss", self.loss), ("corrupt", self.corrupt), ("dup", self.duplicate)] {
            if !share.is_never() {
                words.push(format!("{name}={share}"));
            }
        }
        if !self.reorder.is_never() {
            let by = match self.reorder_by {
                Duration::ZERO => String::new(),
                by => format!("/{}", show_span(by)),
            };
            words.push(format!("reorder={}{by}", self.reorder));
        }
        if !self.delay.is_zero() {
            words.push(format!("delay={}", show_span(self.delay)));
        }
        words.extend(self.stall.then(|| "stall".into()));
        words.extend(self.dark.then(|| "dark".into()));
        words.extend(self.from.map(|node| format!("from={}", node_name(node))));
        if self.seed != 0 {
            words.push(format!("seed={}", self.seed));
        }
        f.write_str(if words.is_empty() { "clean".into() } else { words.join(",") }.as_str())
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Faults, String> {
        Faults::parse(text.split(',').map(str::trim)).map_err(|(_, message)| message)
    }
}

impl TryFrom<String> for Faults {
    type Error = String;

    fn try_from(text: String) -> Result<Faults, String> {
        text.parse()
    }
}

impl From<Faults> for String {
    fn from(faults: Faults) -> String {
        faults.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_read_and_written_back() {
        for text in [
            "clean",
            "loss=1%",
            "loss=1%,corrupt=0.1%,dup=0.1%,reorder=1%/2ms,delay=5ms,stall,dark,from=n1,seed=7",
            "reorder=0.5%",
        ] {
            let faults: Faults = text.parse().unwrap();
            assert_eq!(faults.to_string(), text);
            assert_eq!(
                serde_json::from_str::<Faults>(&serde_json::to_string(&faults).unwrap()).unwrap(),
                faults
            );
        }
        let faults: Faults = "loss=200ppm, from=1".parse().unwrap();
        assert_eq!((faults.from, faults.picks(), faults.holds_back()), (Some(1), true, REORDER_BY));
        assert!(!"delay=5ms,stall".parse::<Faults>().unwrap().picks());
    }

    #[test]
    fn a_wrong_word_is_answered_with_what_to_write() {
        for (text, says) in [
            ("", "no fault of a wire: write loss"),
            ("lose=1%", "`lose=1%` is no fault of a wire"),
            ("loss", "no fault of a wire"),
            ("loss=1", "not a share"),
            ("stall=1s", "no fault of a wire"),
            ("delay=soon", "not a time"),
            ("delay=1min", "at most 10s"),
            ("reorder=1%/x", "not a time"),
            ("from=rail0", "not a node"),
            ("seed=x", "not a seed"),
            ("clean,loss=1%", "`clean` is no fault"),
        ] {
            let error = text.parse::<Faults>().unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
        assert!(Faults::parse([]).unwrap_err().1.contains("no fault is named"));
        assert_eq!(Faults::parse(["loss=1%", "x"]).unwrap_err().0, 1);
    }
}
