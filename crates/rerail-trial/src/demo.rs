//! `rerail-trial demo`: an MPI program streams checked data for about 20 s while its rails break and are repaired.
//!
//! Two nodes with two rails of 1 Gbit/s. Rail 1 goes down and comes back, rail 0 goes dark and comes back, then everything
//! goes dark for 3 s. Each line on the terminal is 100 ms: bandwidth, a bar, and what happened. At the end: how long the
//! stream stood still for each fault, and a picture. The command succeeds only when every byte was right.
//!
//! With `--fabric` there is one rail, behind leaves and spines, and links inside go dark, which no port shows: once with one lane, once
//! with as many as pay.

use crate::lab::{self, Run, Transport, last_lines};
use crate::picture::{Picture, called, duration};
use crate::record::{Event, Line, SLICE_NS, Slice, Stream, cuts};
use anyhow::{Context, Result, bail};
use std::fs::File;
use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use xtask::mpi::Mpi;
use xtask::workspace::{root, state_dir};
use xtask::{build, setup};

/// A slice is shown this long after its end, so that events of its time have reached the file.
const SHOW_AFTER_NS: i64 = 150_000_000;
const BAR_WIDTH: usize = 40;

/// What is shown.
struct Scene {
    /// Of its directory and its picture.
    name: &'static str,
    title: &'static str,
    /// What the nodes have.
    about: &'static str,
    rails: &'static [&'static str],
    fabric: Option<&'static str>,
    /// What is cut.
    lanes: &'static [&'static str],
    schedule: &'static str,
    seconds: f64,
    /// Seconds at its beginning that show what is usual.
    baseline: f64,
    /// The bar's right end: all that rails and fabric carry.
    bar_mb_s: f64,
    env: Option<(&'static str, &'static str)>,
}

const RAILS: Scene = Scene {
    name: "timeline",
    title: "One MPI program, two rails, three faults",
    about: "two rails of 1 Gbit/s",
    rails: &["1gbit", "1gbit"],
    fabric: None,
    lanes: &["rail0", "rail1"],
    schedule: "3s cut rail1 down; 6s heal rail1; 8s cut rail0 dark; 11s heal rail0; 14s cut all dark; 17s heal all",
    seconds: 20.0,
    baseline: 2.5,
    bar_mb_s: 250.0,
    env: None,
};

/// Each link of a leaf for a second, so that one lane meets a dark one at least once.
const FABRIC: Scene = Scene {
    name: "fabric",
    title: "One MPI program, one rail, links inside the fabric go dark",
    about: "one rail of 800 Mbit/s, two leaves, four spines, links of 200 Mbit/s",
    rails: &["800mbit"],
    fabric: Some("leaf-spine:2x4,200mbit"),
    lanes: &["rail0/leaf0-spine0", "rail0/leaf0-spine1", "rail0/leaf0-spine2", "rail0/leaf0-spine3"],
    schedule: "6s cut rail0/leaf0-spine0 dark; 7s heal rail0; 8s cut rail0/leaf0-spine1 dark; 9s heal rail0; \
               10s cut rail0/leaf0-spine2 dark; 11s heal rail0; 12s cut rail0/leaf0-spine3 dark; 13s heal rail0",
    seconds: 15.0,
    baseline: 5.0,
    bar_mb_s: 100.0,
    env: None,
};

/// An MPI program streams while rails break and are repaired; bandwidth, events, a picture
#[derive(Debug, clap::Args)]
pub struct Options {
    /// The MPI's own transport in place of Rerail
    #[arg(long)]
    no_provider: bool,
    /// One rail behind a leaf-spine fabric, links of which go dark: with one lane, and with as many as pay
    #[arg(long)]
    fabric: bool,
}

/// Prepares and runs.
pub fn run(options: &Options) -> Result<()> {
    let provider = !options.no_provider;
    setup::run()?;
    build::for_lab(provider)?;
    let dir = state_dir().join("demo");
    if let Some(reason) = lab::why_impossible(&dir.join("probe")) {
        bail!("the demo needs the lab, and this machine cannot have one: {reason}");
    }
    let scenes = match (options.fabric, provider) {
        (false, _) => vec![("", RAILS)],
        (true, false) => vec![("", FABRIC)],
        (true, true) => {
            let with = |name, lanes| Scene { name, env: Some(("FI_RERAIL_LANES", lanes)), ..FABRIC };
            vec![("one lane", with("fabric-one", "1")), ("auto", with("fabric-auto", "auto"))]
        }
    };
    let mut results = Vec::new();
    for (contender, scene) in &scenes {
        if !contender.is_empty() {
            println!("FI_RERAIL_LANES={}", scene.env.map_or("", |env| env.1));
        }
        let (mb_s, longest) = show(&dir.join(scene.name), scene, provider)?;
        results.push(format!("{contender:<10} {mb_s:5.0} MB/s, longest standstill {}", duration(longest)));
    }
    if scenes.len() > 1 {
        println!("\n{}", results.join("\n"));
    }
    Ok(())
}

/// Returns the mean bandwidth in MB/s, and the longest standstill in ms.
fn show(dir: &Path, scene: &Scene, provider: bool) -> Result<(f64, f64)> {
    let program = Mpi::Mpich.program("stream").to_string_lossy().into_owned();
    let log = dir.join("stream.jsonl");
    let mut lab_run = Run::new(dir.to_path_buf(), &[]);
    (lab_run.rails, lab_run.fabric) = (scene.rails.to_vec(), scene.fabric);
    lab_run.env.extend(scene.env.map(|(name, value)| (name.to_owned(), value.to_owned())));
    lab_run.program = [
        &program,
        "--size",
        "256KiB",
        "--gap-ms",
        "2",
        "--seconds",
        &scene.seconds.to_string(),
        "--baseline",
        &scene.baseline.to_string(),
        "--log",
    ]
    .map(String::from)
    .to_vec();
    lab_run.program.push(log.to_string_lossy().into_owned());
    lab_run.schedule = scene.schedule.into();
    lab_run.transport = if provider { Transport::Rerail } else { Transport::Own };

    println!("two nodes, {}; MPICH, 256 KiB messages, every byte checked", scene.about);
    println!("the lab will: {}\n", scene.schedule);
    let begun = Instant::now();
    let mut child = lab_run.start()?;
    let mut screen = Screen::new(&log, &dir.join("events.jsonl"), scene.bar_mb_s);
    let patience = Duration::from_secs_f64(scene.seconds + 60.0);
    while child.try_wait().context("could not wait for the lab")?.is_none() && begun.elapsed() < patience {
        screen.update(unix_ns() - SHOW_AFTER_NS);
        std::thread::sleep(Duration::from_millis(20));
    }
    let (code, hung) = lab::wait(&mut child, Duration::ZERO)?;
    screen.update(i64::MAX);
    let ran = lab_run.collect(code, hung, begun.elapsed());

    let stream = Stream::from_lines(screen.lines.into_iter());
    let faults = cuts(&ran.events);
    let standstills: Vec<f64> = faults.iter().map(|cut| stream.standstill_ms(cut)).collect();
    println!();
    for (cut, ms) in faults.iter().zip(&standstills) {
        let at = (cut.at_ns - stream.start_ns) as f64 / 1e9;
        let repaired = match cut.healed_ns {
            // A total blackout is not a matter of the provider until it is over.
            Some(healed) if cut.rail == "all" => {
                let (from, gap) = stream.longest_gap(cut.at_ns, healed);
                format!(
                    "; going again {} after the repair",
                    duration(((from - healed) as f64 / 1e6 + gap).max(0.0))
                )
            }
            _ => String::new(),
        };
        println!(
            "{at:5.1} s  {:<12} {:<5} the stream stood still for {}{repaired}",
            called(cut),
            cut.kind,
            duration(*ms)
        );
    }
    let over = match (provider, scene.env) {
        (false, _) => "MPICH on its own transport, without Rerail".to_owned(),
        (true, None) => "MPICH over Rerail".to_owned(),
        (true, Some((name, value))) => format!("MPICH over Rerail, {name}={value}"),
    };
    if !stream.slices.is_empty() {
        let lanes: Vec<String> = scene.lanes.iter().map(ToString::to_string).collect();
        let picture = Picture {
            title: scene.title,
            subtitle: &format!("{over}: 256 KiB messages, every byte checked; {}", scene.about),
            stream: &stream,
            cuts: &faults,
            lanes: &lanes,
            standstills_ms: &standstills,
        };
        let path = state_dir().join(format!("demo/{}.svg", scene.name));
        std::fs::write(&path, picture.draw()?)
            .with_context(|| format!("could not write {}", path.display()))?;
        println!("picture: {}", path.strip_prefix(root()).unwrap_or(&path).display());
    }
    print!("{}", ran.stdout);
    if hung {
        bail!("the program hung, and was ended after {:.0} s: {}", ran.took.as_secs_f64(), said(&ran.stderr));
    }
    match code {
        Some(0) if stream.is_complete && ran.stdout.contains("every byte right") => {
            println!("every byte was right");
            let slices = stream.slices.len().max(1) as f64;
            let mb_s = stream.bytes as f64 / (slices * SLICE_NS as f64 / 1e9) / 1e6;
            Ok((mb_s, standstills.into_iter().fold(0.0, f64::max)))
        }
        Some(0) => bail!("the program ended without a word on its data: {}", said(&ran.stderr)),
        Some(code) => bail!("the program failed with exit code {code}: {}", said(&ran.stderr)),
        None => bail!("the program was killed: {}", said(&ran.stderr)),
    }
}

fn said(stderr: &str) -> String {
    last_lines(stderr, 3).unwrap_or_else(|| "it said nothing".into())
}

fn unix_ns() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i64)
}

/// A file that grows, read line by line.
struct Tail {
    path: PathBuf,
    file: Option<File>,
    rest: String,
}

impl Tail {
    fn new(path: &Path) -> Tail {
        Tail { path: path.to_path_buf(), file: None, rest: String::new() }
    }

    /// The whole lines that have come since the last call.
    fn lines(&mut self) -> Vec<String> {
        if self.file.is_none() {
            self.file = File::open(&self.path).ok();
        }
        let mut bytes = Vec::new();
        if let Some(file) = &mut self.file {
            let _ = file.read_to_end(&mut bytes);
        }
        self.rest.push_str(&String::from_utf8_lossy(&bytes));
        let Some(end) = self.rest.rfind('\n') else { return Vec::new() };
        let lines = self.rest[..end].lines().map(String::from).collect();
        self.rest.drain(..=end);
        lines
    }
}

/// What the terminal shows. Plain lines, so that a log of it reads as well as a terminal.
struct Screen {
    stream: Tail,
    event_file: Tail,
    lines: Vec<Line>,
    slices: Vec<Slice>,
    events: Vec<Event>,
    start_ns: Option<i64>,
    shown: usize,
    coloured: bool,
    bar_mb_s: f64,
}

impl Screen {
    fn new(log: &Path, events: &Path, bar_mb_s: f64) -> Screen {
        Screen {
            stream: Tail::new(log),
            event_file: Tail::new(events),
            lines: Vec::new(),
            slices: Vec::new(),
            events: Vec::new(),
            start_ns: None,
            shown: 0,
            coloured: std::io::stdout().is_terminal(),
            bar_mb_s,
        }
    }

    /// Shows the slices that were over at `until_ns`, each with the events of its time.
    fn update(&mut self, until_ns: i64) {
        for text in self.stream.lines() {
            let Some(line) = Line::parse(&text) else { continue };
            match &line {
                Line::Start(at) => self.start_ns = Some(*at),
                Line::Slice(slice) => self.slices.push(*slice),
                _ => {}
            }
            self.lines.push(line);
        }
        self.events.extend(self.event_file.lines().iter().filter_map(|text| Event::parse(text)));
        let Some(start) = self.start_ns else { return };
        while let Some(slice) = self.slices.get(self.shown).copied() {
            let end = slice.at_ns + SLICE_NS;
            if end > until_ns {
                break;
            }
            self.shown += 1;
            let (mut now, later): (Vec<Event>, Vec<Event>) =
                self.events.drain(..).partition(|e| e.at_ns < end);
            self.events = later;
            now.sort_by_key(|event| event.at_ns);
            self.print(slice, start, &now);
        }
        let _ = std::io::stdout().flush();
    }

    fn print(&self, slice: Slice, start_ns: i64, events: &[Event]) {
        let at = (slice.at_ns - start_ns) as f64 / 1e9;
        let rate = slice.bytes as f64 / (SLICE_NS as f64 / 1e9) / 1e6;
        let length = ((rate / self.bar_mb_s * BAR_WIDTH as f64).round() as usize).min(BAR_WIDTH);
        let bar = format!("{}{}", "█".repeat(length), "·".repeat(BAR_WIDTH - length));
        let (bar_colour, event_colour, plain) =
            if self.coloured { ("\x1b[36m", "\x1b[33m", "\x1b[0m") } else { ("", "", "") };
        let mut words = Vec::new();
        for event in events.iter().filter(|e| e.at_ns >= start_ns || !e.is_lab()) {
            // Both ends and every process report; once is enough here.
            let text = format!("{:+.0} ms {}", (event.at_ns - slice.at_ns) as f64 / 1e6, event.words());
            let same = |other: &String| {
                other.split_once(" ms ").map(|(_, w)| w) == text.split_once(" ms ").map(|(_, w)| w)
            };
            if !matches!(event.name(), "start" | "end") && !words.iter().any(same) {
                words.push(text);
            }
        }
        let events = if words.is_empty() {
            String::new()
        } else {
            format!("  {event_colour}{}{plain}", words.join("; "))
        };
        println!("{at:5.1} s {rate:6.0} MB/s {bar_colour}{bar}{plain}{events}");
    }
}
