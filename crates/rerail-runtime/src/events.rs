//! Events for people: a line in the log, and a JSON object in the file of the option `events`.
//!
//! Owns: events that were not written yet. They are taken from the engine under its lock and written without it, by the
//! service thread: neither a slow disk nor a slow log holds up a message. A verdict on a peer goes to the file before the application
//! has the error that follows it ([`Sink::write_verdicts`]), because that may end the process before the service thread writes.

use crate::flag::Flag;
use crate::{LogLevel, LogSink};
use parking_lot::Mutex;
use rerail_core::{Counters, Event, EventKind, MigrationCause, RailDesc, RailId};
use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Events kept at most; when a stuck log lets more pile up, the newer ones are only counted.
const PENDING_MAX: usize = 4096;

pub(crate) struct Sink {
    log: Option<LogSink>,
    file: Option<File>,
    rails: Vec<String>,
    host: String,
    pid: u32,
    pending: Mutex<Pending>,
    some: Flag,
    /// A verdict waits for the file.
    verdict: Flag,
    /// Held while the file is written. Before `pending`, and never together with the engine's lock.
    writing: Mutex<()>,
}

#[derive(Default)]
struct Pending {
    events: Vec<(u64, Event, bool)>,
    dropped: u64,
}

/// A field of an event that is not the engine's.
pub(crate) enum Field<'a> {
    Text(&'a str),
    Number(u64),
}

fn unix_ns() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_nanos() as u64)
}

impl Sink {
    pub fn new(log: Option<LogSink>, path: &str, rails: &[RailDesc], host: String) -> Self {
        let mut sink = Self {
            log,
            file: None,
            rails: rails.iter().map(|r| r.name.clone()).collect(),
            host,
            pid: std::process::id(),
            pending: Mutex::default(),
            some: Flag::new(),
            verdict: Flag::new(),
            writing: Mutex::default(),
        };
        if !path.is_empty() {
            match OpenOptions::new().append(true).create(true).open(path) {
                Ok(f) => sink.file = Some(f),
                Err(e) => sink.say(
                    LogLevel::Warn,
                    &format!("events are not written: cannot open FI_RERAIL_EVENTS=\"{path}\": {e}"),
                ),
            }
        }
        sink
    }

    /// Writes one line to the log.
    pub fn say(&self, level: LogLevel, line: &str) {
        if let Some(log) = &self.log {
            log(level, line);
        }
    }

    /// Keeps an event for [`Sink::write`], and writes nothing: the engine's lock is held.
    pub fn push(&self, event: Event) {
        let now = unix_ns();
        let mut p = self.pending.lock();
        if p.events.len() >= PENDING_MAX {
            p.dropped += 1;
        } else {
            if is_verdict(&event.kind) && self.file.is_some() {
                self.verdict.raise();
            }
            p.events.push((now, event, false));
        }
        self.some.raise();
    }

    /// Writes verdicts to the file that are not in it. Called without the engine's lock, before the application has a completion that
    /// was made under it.
    #[inline(always)]
    pub fn write_verdicts(&self) {
        if self.verdict.is_up() {
            self.file_verdicts();
        }
    }

    #[cold]
    fn file_verdicts(&self) {
        // another thread may be writing them just now
        let _writing = self.writing.lock();
        loop {
            let mut text = String::new();
            let mut pending = self.pending.lock();
            for (t, e, filed) in
                pending.events.iter_mut().filter(|(_, e, filed)| is_verdict(&e.kind) && !filed)
            {
                *filed = true;
                text.push_str(&self.json(*t, e));
            }
            if text.is_empty() {
                // only now: another thread that sees it up waits until they are in the file
                return self.verdict.lower();
            }
            drop(pending);
            self.append(&text);
        }
    }

    /// Writes what was pushed. Not to be called under the engine's lock.
    pub fn write(&self) {
        if !self.some.is_up() {
            return;
        }
        self.some.lower();
        let writing = self.writing.lock();
        let Pending { events, dropped } = std::mem::take(&mut *self.pending.lock());
        for (t, e, _) in events.iter().filter(|(.., filed)| !filed) {
            self.append(&self.json(*t, e));
        }
        // a slow log holds up no thread that waits for the file
        drop(writing);
        for (_, e, _) in &events {
            self.say(level(&e.kind), &self.line(e));
        }
        if dropped > 0 {
            self.say(LogLevel::Warn, &format!("{dropped} events were dropped: the log was too slow"));
        }
    }

    /// One write of whole lines to a file opened for appending: lines of several processes do not mix.
    fn append(&self, lines: &str) {
        if let (Some(f), false) = (&self.file, lines.is_empty()) {
            let _ = (&*f).write_all(lines.as_bytes());
        }
    }

    /// Writes an event that is not the engine's at once. Not to be called where a slow disk would hold up a message.
    pub fn tell(
        &self,
        level: LogLevel,
        name: &str,
        line: &str,
        fields: impl FnOnce(&mut dyn FnMut(&str, Field<'_>)),
    ) {
        self.say(level, line);
        let Some(f) = &self.file else { return };
        let mut json = format!(
            "{{\"t_unix_ns\":{},\"source\":\"rerail\",\"pid\":{},\"host\":\"{}\",\"event\":\"{name}\"",
            unix_ns(),
            self.pid,
            escape(&self.host),
        );
        fields(&mut |name, value| {
            let _ = match value {
                Field::Text(t) => write!(json, ",\"{name}\":\"{}\"", escape(t)),
                Field::Number(n) => write!(json, ",\"{name}\":{n}"),
            };
        });
        json.push_str("}\n");
        let _ = (&*f).write_all(json.as_bytes());
    }

    /// Writes what the process counted in its life, when it closes.
    pub fn summary(&self, counters: &Counters) {
        let mut line = String::from("closed:");
        let mut json = format!(
            "{{\"t_unix_ns\":{},\"source\":\"rerail\",\"pid\":{},\"host\":\"{}\",\"event\":\"closed\"",
            unix_ns(),
            self.pid,
            escape(&self.host),
        );
        counters.each(|name, value| {
            let _ = write!(line, " {name}={value}");
            let _ = write!(json, ",\"{name}\":{value}");
        });
        json.push_str("}\n");
        self.say(LogLevel::Info, &line);
        if let Some(f) = &self.file {
            let _ = (&*f).write_all(json.as_bytes());
        }
    }

    fn name(&self, r: RailId) -> &str {
        self.rails.get(usize::from(r.0)).map_or("?", String::as_str)
    }

    fn rail(&self, e: &Event) -> Option<&str> {
        e.path.map(|(_, r, _)| self.name(r))
    }

    fn line(&self, e: &Event) -> String {
        let mut s = e.kind.name().replace('_', " ");
        s.push(':');
        if let (Some(rail), Some((path, _, epoch))) = (self.rail(e), e.path) {
            let _ = write!(s, " rail={rail} path={:#06x} peer={:08x} epoch={}", path.0, e.peer_name, epoch.0);
        } else {
            let _ = write!(s, " peer={:08x}", e.peer_name);
        }
        each_field(&e.kind, |name, value| {
            let _ = match value {
                Value::Text(t) => write!(s, " {name}={t}"),
                Value::Number(n) => write!(s, " {name}={n}"),
                Value::Rail(r) => write!(s, " {name}={}", self.name(r)),
            };
        });
        s
    }

    fn json(&self, t_unix_ns: u64, e: &Event) -> String {
        let mut s = format!(
            "{{\"t_unix_ns\":{t_unix_ns},\"source\":\"rerail\",\"pid\":{},\"host\":\"{}\",\"event\":\"{}\"",
            self.pid,
            escape(&self.host),
            e.kind.name(),
        );
        if let Some(rail) = self.rail(e) {
            let _ = write!(s, ",\"rail\":\"{}\"", escape(rail));
        }
        let _ = write!(s, ",\"peer\":\"{:08x}\"", e.peer_name);
        if let Some((path, _, epoch)) = e.path {
            let _ = write!(s, ",\"path\":{},\"epoch\":{}", path.0, epoch.0);
        }
        each_field(&e.kind, |name, value| {
            let _ = match value {
                Value::Text(t) => write!(s, ",\"{name}\":\"{t}\""),
                Value::Number(n) => write!(s, ",\"{name}\":{n}"),
                Value::Rail(r) => write!(s, ",\"{name}\":\"{}\"", escape(self.name(r))),
            };
        });
        s.push_str("}\n");
        s
    }
}

/// The peer is given up for good.
fn is_verdict(kind: &EventKind) -> bool {
    matches!(
        kind,
        EventKind::PeerLost { .. }
            | EventKind::PeerDied { .. }
            | EventKind::PeerGaveUp
            | EventKind::EncryptionDiffers { .. }
            | EventKind::Unprotected
    )
}

fn level(kind: &EventKind) -> LogLevel {
    match kind {
        EventKind::PathUp { outage } if outage.is_zero() => LogLevel::Info,
        EventKind::PathSuspect | EventKind::PathCleared | EventKind::PeerGoodbye => LogLevel::Info,
        // what a fault brings with it was said with the path that broke
        EventKind::Migrated { cause, .. } if *cause != MigrationCause::Request => LogLevel::Info,
        EventKind::Rearm { .. } | EventKind::Armed { .. } => LogLevel::Info,
        EventKind::AdapterArmed { .. } | EventKind::AdapterUnloaded => LogLevel::Info,
        _ => LogLevel::Warn,
    }
}

enum Value {
    Text(&'static str),
    Number(u64),
    Rail(RailId),
}

/// Calls `f` with every field of an event that applies, in a fixed order: the one list behind log and file.
fn each_field(kind: &EventKind, mut f: impl FnMut(&'static str, Value)) {
    let us = |d: &Duration| Value::Number(u64::try_from(d.as_micros()).unwrap_or(u64::MAX));
    match kind {
        EventKind::PathUp { outage } | EventKind::PartitionEnd { outage } => f("outage_us", us(outage)),
        EventKind::PathDown { witness, direction, resent_bytes, stalled, with } => {
            f("witness", Value::Text(witness.name()));
            f("direction", Value::Text(direction.name()));
            f("resent_bytes", Value::Number(*resent_bytes));
            f("stalled_us", us(stalled));
            if let Some(with) = with {
                f("with", Value::Rail(*with));
            }
        }
        EventKind::Corruption { faults, direction, held } => {
            f("faults", Value::Number(*faults));
            f("direction", Value::Text(direction.name()));
            if let Some(held) = held {
                f("held_us", us(held));
            }
        }
        EventKind::StreamReplaced { witness, resent_bytes } => {
            f("witness", Value::Text(witness.name()));
            f("resent_bytes", Value::Number(*resent_bytes));
        }
        EventKind::LaneMoved { lane, before, after }
        | EventKind::LaneAdded { lane, before, after }
        | EventKind::LaneMerged { lane, before, after } => {
            f("lane", Value::Number(u64::from(lane.0)));
            f("before_bytes_s", Value::Number(*before));
            f("after_bytes_s", Value::Number(*after));
        }
        EventKind::DatagramsBlocked { bulk_only, resent_bytes } => {
            f("what", Value::Text(if *bulk_only { "bulk" } else { "all" }));
            f("resent_bytes", Value::Number(*resent_bytes));
        }
        EventKind::DatagramsLed { steps } => f("steps", Value::Number(u64::from(*steps))),
        EventKind::PeerLost { silent } => f("silent_us", us(silent)),
        EventKind::Rearm { alternate }
        | EventKind::Armed { alternate }
        | EventKind::AdapterArmed { alternate } => f("alternate", Value::Rail(*alternate)),
        EventKind::AdapterMigrated { from, to, requested } => {
            f("from", Value::Rail(*from));
            f("to", Value::Rail(*to));
            f("requested", Value::Text(if *requested { "yes" } else { "no" }));
        }
        EventKind::Migrated { from, cause } => {
            f("from", Value::Rail(*from));
            f("cause", Value::Text(cause.name()));
        }
        EventKind::PeerDied { silent, proof } => {
            f("silent_us", us(silent));
            f("proof", Value::Text(proof.name()));
        }
        EventKind::EncryptionDiffers { peer_encrypts } => {
            f("peer_encrypts", Value::Text(if *peer_encrypts { "yes" } else { "no" }))
        }
        EventKind::AdapterUnloaded
        | EventKind::PathSuspect
        | EventKind::DatagramsPass
        | EventKind::PathCleared
        | EventKind::Partition
        | EventKind::Unprotected
        | EventKind::PeerStopped
        | EventKind::PeerGaveUp
        | EventKind::PeerGoodbye => {}
    }
}

/// The inside of a JSON string.
fn escape(s: &str) -> String {
    let mut out = String::with_capacity(s.len());
    for c in s.chars() {
        match c {
            '"' | '\\' => {
                out.push('\\');
                out.push(c);
            }
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_core::{Direction, Epoch, PathId, PeerId, Witness};
    use std::sync::Arc;

    fn rail(name: &str) -> RailDesc {
        RailDesc::ip(name, ([10, 0, 0, 1], 4000).into(), 24, 1500)
    }

    fn down() -> Event {
        Event {
            kind: EventKind::PathDown {
                witness: Witness::Link,
                direction: Direction::Both,
                resent_bytes: 4096,
                stalled: Duration::from_micros(1500),
                with: None,
            },
            peer: PeerId(0),
            peer_name: 0xbeef,
            path: Some((PathId(0x0101), RailId(1), Epoch(3))),
        }
    }

    #[test]
    fn a_verdict_is_in_the_file_before_its_error_is_given_out_and_nothing_is_written_under_the_lock() {
        let file = std::env::temp_dir().join(format!("rerail-verdict-test-{}", std::process::id()));
        let sink = Sink::new(None, file.to_str().unwrap(), &[rail("eth0"), rail("eth1")], "n0".into());
        sink.push(down());
        let kind = EventKind::PeerDied {
            silent: Duration::from_millis(300),
            proof: rerail_core::DeathProof::EndOfStream,
        };
        sink.push(Event { kind, path: None, ..down() });
        let text = || std::fs::read_to_string(&file).unwrap();
        assert_eq!(text(), "", "the engine's lock is held while an event is pushed");
        sink.write_verdicts();
        let verdict = "\"event\":\"peer_died\",\"peer\":\"0000beef\",\"silent_us\":300000,\"proof\":\"end-of-stream\"}\n";
        assert!(text().ends_with(verdict) && text().lines().count() == 1, "{}", text());
        sink.write_verdicts();
        sink.write();
        sink.write_verdicts();
        assert_eq!((text().lines().count(), text().matches("peer_died").count()), (2, 1));
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn an_event_is_one_log_line_and_one_json_line() {
        let file = std::env::temp_dir().join(format!("rerail-events-test-{}", std::process::id()));
        let said = Arc::new(Mutex::new(Vec::new()));
        let sink = {
            let said = said.clone();
            let log: LogSink = Arc::new(move |l, s| said.lock().push((l, s.to_owned())));
            Sink::new(Some(log), file.to_str().unwrap(), &[rail("eth0"), rail("eth1")], "n\"0".into())
        };
        sink.push(down());
        sink.push(Event { kind: EventKind::PeerGoodbye, path: None, ..down() });
        sink.write();
        sink.write();
        let text = std::fs::read_to_string(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 2);
        assert!(lines[0].starts_with("{\"t_unix_ns\":"), "{}", lines[0]);
        assert!(
            lines[0].ends_with(&format!(
                "\"source\":\"rerail\",\"pid\":{},\"host\":\"n\\\"0\",\"event\":\"path_down\",\"rail\":\"eth1\",\
                 \"peer\":\"0000beef\",\"path\":257,\"epoch\":3,\"witness\":\"link\",\"direction\":\"both\",\
                 \"resent_bytes\":4096,\"stalled_us\":1500}}",
                std::process::id()
            )),
            "{}",
            lines[0]
        );
        assert!(lines[1].ends_with("\"event\":\"peer_goodbye\",\"peer\":\"0000beef\"}"), "{}", lines[1]);
        let said = said.lock();
        assert_eq!(
            said[0],
            (
                LogLevel::Warn,
                "path down: rail=eth1 path=0x0101 peer=0000beef epoch=3 witness=link direction=both \
                 resent_bytes=4096 stalled_us=1500"
                    .into()
            )
        );
        assert_eq!(said[1], (LogLevel::Info, "peer goodbye: peer=0000beef".into()));
    }

    #[test]
    fn a_migration_names_both_rails() {
        let sink = Sink::new(None, "", &[rail("eth0"), rail("eth1")], "n0".into());
        let kind = EventKind::Migrated { from: RailId(0), cause: MigrationCause::Request };
        let e = Event { kind, ..down() };
        assert_eq!(
            sink.line(&e),
            "migrated: rail=eth1 path=0x0101 peer=0000beef epoch=3 from=eth0 cause=request"
        );
        assert!(
            sink.json(0, &e).ends_with(
                "\"event\":\"migrated\",\"rail\":\"eth1\",\"peer\":\"0000beef\",\"path\":257,\"epoch\":3,\
                 \"from\":\"eth0\",\"cause\":\"request\"}\n"
            ),
            "{}",
            sink.json(0, &e)
        );
    }

    #[test]
    fn a_file_that_cannot_be_opened_is_named_in_the_log() {
        let said = Arc::new(Mutex::new(String::new()));
        let log: LogSink = {
            let said = said.clone();
            Arc::new(move |_, s| *said.lock() = s.to_owned())
        };
        let _ = Sink::new(Some(log), "/nonexistent/x", &[], String::new());
        assert!(said.lock().contains("FI_RERAIL_EVENTS=\"/nonexistent/x\""));
    }
}
