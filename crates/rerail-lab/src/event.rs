//! What the lab reports while a program runs: one line to the terminal, one JSON line to the events file.

use crate::LabError;
use crate::error::Attempt;
use crate::schedule::Action;
use crate::wire::Counts;
use serde_json::{Map, Value, json};
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where the lab writes what happens.
pub struct Journal {
    events: Option<File>,
    log: Option<File>,
    quiet: bool,
    started: Option<Instant>,
}

impl Journal {
    /// Opens the files; `events` is appended to, because the provider appends to it as well.
    pub fn open(events: Option<&Path>, log: Option<&Path>, quiet: bool) -> Result<Journal, LabError> {
        let append = |path: &Path| {
            OpenOptions::new()
                .create(true)
                .append(true)
                .open(path)
                .attempt(|| format!("open `{}` for writing", path.display()))
        };
        Ok(Journal {
            events: events.map(append).transpose()?,
            log: log.map(append).transpose()?,
            quiet,
            started: None,
        })
    }

    /// The program starts now: times count from here.
    pub fn start(&mut self) {
        self.started = Some(Instant::now());
        self.event(unix_ns(), "start", Map::new());
    }

    /// A program has announced a phase.
    pub fn phase(&mut self, name: &str) {
        let mut fields = Map::new();
        fields.insert("phase".into(), name.into());
        self.event(unix_ns(), "phase", fields);
    }

    /// What a wire has done in the whole run.
    pub fn wire(&mut self, rail: &str, counts: &Counts) {
        self.say(&format!("wire {rail}: {counts}"));
        let Ok(Value::Object(mut fields)) = serde_json::to_value(counts) else {
            unreachable!("counts are a JSON object");
        };
        fields.insert("rail".into(), rail.into());
        self.event(unix_ns(), "wire-counts", fields);
    }

    /// Adds lines that others have written.
    pub fn add(&mut self, lines: &[u8]) {
        if let Some(file) = &mut self.events {
            let _ = file.write_all(lines);
        }
    }

    /// The program has ended.
    pub fn end(&mut self, code: i32) {
        let mut fields = Map::new();
        fields.insert("code".into(), code.into());
        self.event(unix_ns(), "end", fields);
    }

    /// Prints a line for the user, unless quiet was asked for.
    pub fn say(&mut self, text: &str) {
        self.write(text, self.quiet);
    }

    /// Prints what went wrong, quiet or not.
    pub fn complain(&mut self, text: &str) {
        self.write(text, false);
    }

    fn write(&mut self, text: &str, quiet: bool) {
        let since = self.started.map_or(Duration::ZERO, |at| at.elapsed());
        let line = format!("rerail lab: +{:.3}s {text}\n", since.as_secs_f64());
        // One write each, so that lines of other processes do not end up in the middle.
        if !quiet {
            let _ = std::io::stderr().write_all(line.as_bytes());
        }
        if let Some(log) = &mut self.log {
            let _ = log.write_all(line.as_bytes());
        }
    }

    /// An action was carried out on `rails`, begun at `begun_ns` and finished `took` later.
    pub fn acted(&mut self, action: &Action, rails: &[String], begun_ns: u128, took: Duration) {
        self.say(&action.to_string());
        // What is done to a node is about no rail, and is one event.
        let rails = rails.iter().map(Some).chain(rails.is_empty().then_some(None));
        for rail in rails {
            let Ok(Value::Object(mut fields)) = serde_json::to_value(action) else {
                unreachable!("an action is a JSON object");
            };
            let Some(Value::String(event)) = fields.remove("event") else {
                unreachable!("an action has a name");
            };
            fields.retain(|_, value| !value.is_null());
            if let Some(rail) = rail {
                fields.insert("rail".into(), rail.clone().into());
            }
            fields.insert("took_us".into(), json!(took.as_micros() as u64));
            self.event(begun_ns, &event, fields);
        }
    }

    fn event(&mut self, t_unix_ns: u128, event: &str, fields: Map<String, Value>) {
        let Some(file) = &mut self.events else { return };
        let mut line = json!({"t_unix_ns": t_unix_ns as u64, "source": "lab", "event": event});
        line.as_object_mut().expect("an object").extend(fields);
        // One append per line: several processes write to this file.
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

/// The wall clock, in nanoseconds.
pub fn unix_ns() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos())
}
