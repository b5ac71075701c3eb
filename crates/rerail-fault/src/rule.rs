//! One rule of a plan: `rail0: loss=1%, reorder=1%/2ms, dir=send, from=5s for=10s`.

use crate::chance::{Chance, SPAN_MAX, parse_span, show_span};
use rerail_rail::RailId;
use std::fmt::Write as _;
use std::time::Duration;

/// Whether something leaves or arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Send,
    Receive,
}

/// What a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Channel {
    Datagrams,
    Streams,
}

/// How long datagrams are held back that others are to overtake, unless told.
const REORDER_BY: Duration = Duration::from_millis(1);
/// The longest delay: what is later than that is lost.
const DELAY_MAX: Duration = Duration::from_secs(10);
/// The shortest period of a flap or of resets.
const PERIOD_MIN: Duration = Duration::from_millis(1);

const WORDS: &str = "write loss=1%, corrupt=0.1%, dup=1%, reorder=1%/2ms, delay=5ms, stall, dark, flap=2s/300ms, reset=5s, \
                     dir=send, on=datagrams, seed=7, from=5s, until=9s or for=10s";

/// Faults of one rail, or of all, and when they are in force.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Rule {
    /// `None`: all rails.
    pub rail: Option<RailId>,
    /// As the user named it.
    pub rail_name: String,
    pub loss: Chance,
    pub corrupt: Chance,
    pub duplicate: Chance,
    pub reorder: Chance,
    pub reorder_by: Option<Duration>,
    pub delay: Duration,
    pub stall: bool,
    pub dark: bool,
    /// Period, and how long of each the rail is dark.
    pub flap: Option<(Duration, Duration)>,
    /// Streams are reset once in each such time.
    pub reset: Option<Duration>,
    pub way: Option<Way>,
    pub channel: Option<Channel>,
    pub seed: u64,
    /// Since the plan was set.
    pub from: Duration,
    pub until: Option<Duration>,
}

impl Rule {
    /// Reads a rule; `rails` are the names that there are.
    pub fn parse(text: &str, rails: &[&str]) -> Result<Rule, String> {
        let Some((name, faults)) = text.split_once(':') else {
            return Err(format!(
                "`{text}` names no rail: write such as {}: loss=1%",
                rails.first().unwrap_or(&"all")
            ));
        };
        let name = name.trim();
        let rail = match name {
            "all" => None,
            _ => Some(rails.iter().position(|rail| *rail == name).ok_or_else(|| {
                format!("`{name}` is no rail of this process: write all or one of {}", rails.join(", "))
            })?),
        };
        let mut rule =
            Rule { rail: rail.map(|rail| RailId(rail as u8)), rail_name: name.to_owned(), ..Rule::default() };
        let mut lasts = None;
        for word in faults.split([',', ' ', '\t', '\n']).filter(|word| !word.is_empty()) {
            rule.set(word, &mut lasts)?;
        }
        if let Some(span) = lasts {
            if rule.until.is_some() {
                return Err(format!("`{}`: write until or for, not both", text.trim()));
            }
            rule.until = Some(rule.from + span);
        }
        // It is shown as `until`, and what is shown shall be good for writing.
        if rule.until.is_some_and(|until| until > SPAN_MAX) {
            return Err(format!("`{}` ends more than a year from now: write shorter times", text.trim()));
        }
        if rule.until.is_some_and(|until| until <= rule.from) {
            return Err(format!("`{}` ends before it begins: make until later than from", text.trim()));
        }
        if !rule.does_something() {
            return Err(format!("`{}` says no fault: {WORDS}", text.trim()));
        }
        Ok(rule)
    }

    fn set(&mut self, word: &str, lasts: &mut Option<Duration>) -> Result<(), String> {
        let unknown = || format!("`{word}` is not understood: {WORDS}");
        let Some((name, value)) = word.split_once('=') else {
            match word {
                "stall" => self.stall = true,
                "dark" => self.dark = true,
                _ => return Err(unknown()),
            }
            return Ok(());
        };
        match name {
            "loss" => self.loss = value.parse()?,
            "corrupt" => self.corrupt = value.parse()?,
            "dup" => self.duplicate = value.parse()?,
            "reorder" => {
                let (share, by) =
                    value.split_once('/').map_or((value, None), |(share, by)| (share, Some(by)));
                self.reorder = share.parse()?;
                self.reorder_by = by.map(delay).transpose()?;
            }
            "delay" => self.delay = delay(value)?,
            "flap" => {
                let (period, dark) = value.split_once('/').ok_or_else(|| {
                    format!("`{word}`: write the period and how long of it is dark, such as flap=2s/300ms")
                })?;
                let (period, dark) = (period_of(period)?, parse_span(dark)?);
                if dark.is_zero() || dark >= period {
                    return Err(format!(
                        "`{word}`: the dark part must be shorter than the period, and not 0"
                    ));
                }
                self.flap = Some((period, dark));
            }
            "reset" => self.reset = Some(period_of(value)?),
            "dir" => {
                self.way = Some(match value {
                    "send" => Way::Send,
                    "recv" => Way::Receive,
                    _ => return Err(format!("`{value}` is no direction: write dir=send or dir=recv")),
                });
            }
            "on" => {
                self.channel = Some(match value {
                    "datagrams" => Channel::Datagrams,
                    "streams" => Channel::Streams,
                    _ => return Err(format!("`{value}` is no channel: write on=datagrams or on=streams")),
                });
            }
            "seed" => {
                self.seed =
                    value.parse().map_err(|_| format!("`{value}` is not a seed: write a whole number"))?;
            }
            "from" => self.from = parse_span(value)?,
            "until" => self.until = Some(parse_span(value)?),
            "for" => *lasts = Some(parse_span(value)?),
            _ => return Err(unknown()),
        }
        Ok(())
    }

    fn does_something(&self) -> bool {
        let shares = [self.loss, self.corrupt, self.duplicate, self.reorder];
        !shares.into_iter().all(Chance::is_never)
            || !self.delay.is_zero()
            || self.stall
            || self.dark
            || self.flap.is_some()
            || self.reset.is_some()
    }

    /// Whether it is in force for this, so long after the plan was set.
    pub fn concerns(&self, rail: RailId, way: Way, channel: Channel, at: Duration) -> bool {
        self.rail.is_none_or(|of| of == rail)
            && self.way.is_none_or(|of| of == way)
            && self.channel.is_none_or(|of| of == channel)
            && self.is_on(at)
    }

    /// Whether its window is open.
    pub fn is_on(&self, at: Duration) -> bool {
        at >= self.from && self.until.is_none_or(|until| at < until)
    }

    /// Whether nothing passes.
    pub fn is_dark(&self, at: Duration) -> bool {
        let flaps = self.flap.is_some_and(|(period, dark)| {
            let into = (at - self.from).as_nanos() % period.as_nanos();
            into < dark.as_nanos()
        });
        self.dark || flaps
    }

    /// How long what others are to overtake is held back.
    pub fn holds_back(&self) -> Duration {
        self.reorder_by.unwrap_or(REORDER_BY)
    }

    /// How many resets were due until now.
    pub fn resets_due(&self, at: Duration) -> u64 {
        let Some(period) = self.reset.filter(|_| at >= self.from) else { return 0 };
        let at = self.until.map_or(at, |until| at.min(until));
        ((at - self.from).as_nanos() / period.as_nanos()) as u64
    }
}

fn delay(text: &str) -> Result<Duration, String> {
    let span = parse_span(text)?;
    if span > DELAY_MAX {
        return Err(format!("the time `{text}` is too long: at most {}", show_span(DELAY_MAX)));
    }
    Ok(span)
}

fn period_of(text: &str) -> Result<Duration, String> {
    let span = parse_span(text)?;
    if span < PERIOD_MIN {
        return Err(format!("the period `{text}` is too short: at least {}", show_span(PERIOD_MIN)));
    }
    Ok(span)
}

/// As it is read.
impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut s = format!("{}:", self.rail_name);
        for (name, share) in [("loss", self.loss), ("corrupt", self.corrupt), ("dup", self.duplicate)] {
            if !share.is_never() {
                write!(s, " {name}={share}")?;
            }
        }
        if !self.reorder.is_never() {
            write!(s, " reorder={}", self.reorder)?;
            self.reorder_by.map_or(Ok(()), |by| write!(s, "/{}", show_span(by)))?;
        }
        if !self.delay.is_zero() {
            write!(s, " delay={}", show_span(self.delay))?;
        }
        s.push_str(if self.stall { " stall" } else { "" });
        s.push_str(if self.dark { " dark" } else { "" });
        if let Some((period, dark)) = self.flap {
            write!(s, " flap={}/{}", show_span(period), show_span(dark))?;
        }
        self.reset.map_or(Ok(()), |period| write!(s, " reset={}", show_span(period)))?;
        s.push_str(match self.way {
            None => "",
            Some(Way::Send) => " dir=send",
            Some(Way::Receive) => " dir=recv",
        });
        s.push_str(match self.channel {
            None => "",
            Some(Channel::Datagrams) => " on=datagrams",
            Some(Channel::Streams) => " on=streams",
        });
        if self.seed != 0 {
            write!(s, " seed={}", self.seed)?;
        }
        if !self.from.is_zero() {
            write!(s, " from={}", show_span(self.from))?;
        }
        self.until.map_or(Ok(()), |until| write!(s, " until={}", show_span(until)))?;
        f.write_str(&s)
    }
}
