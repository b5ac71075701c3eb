//! The process that is a wire: reads each node's frames, and hands them to the nodes they are for.
//!
//! A process rather than a thread of the supervisor, which forks and hence must have one thread only; one for each wire, so that a
//! busy rail does not slow the others down. It ends with the supervisor, and its interfaces with it.

use super::fate::{Gone, decide};
use super::faults::Faults;
use super::line::Line;
use super::packet;
use super::tap::{FRAME_BYTES_MAX, HEADER_BYTES, Tap, has_partial_checksum};
use crate::LabError;
use crate::error::Attempt;
use crate::node::Node;
use crate::sys::{self, Forked, Mailbox};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Frames taken from one node before the others get their turn.
const BATCH: usize = 64;

/// What a wire has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Frames that came in. Without shares, a large segment counts as one.
    pub frames: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Frames that a share made disappear.
    pub lost: u64,
    /// Frames whose payload was changed.
    pub corrupted: u64,
    /// Frames that were handed over twice.
    pub duplicated: u64,
    /// Frames that were held back.
    pub reordered: u64,
    /// Frames that came in the dark.
    pub dark: u64,
    /// Frames that waited out a stall, wholly or in part.
    pub stalled: u64,
    /// Frames that were lost because too many were under way.
    pub overflowed: u64,
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} frames", self.frames)?;
        for (what, count) in [
            ("lost", self.lost),
            ("corrupted", self.corrupted),
            ("duplicated", self.duplicated),
            ("reordered", self.reordered),
            ("in the dark", self.dark),
            ("stalled", self.stalled),
            ("too many", self.overflowed),
        ] {
            if count > 0 {
                write!(f, ", {count} {what}")?;
            }
        }
        Ok(())
    }
}

/// From the supervisor to the wire. Each is answered by a [`Report`].
#[derive(Debug, Serialize, Deserialize)]
enum Order {
    Set { faults: Faults },
    Carrier { node: usize, on: bool },
    Count,
}

/// From the wire to the supervisor. The first says that the interfaces are there.
#[derive(Debug, Default, Serialize, Deserialize)]
struct Report {
    counts: Counts,
    error: Option<String>,
}

/// A wire, as the supervisor holds it.
pub(crate) struct Copier {
    /// Its process.
    pub pid: libc::pid_t,
    name: String,
    mailbox: Mailbox,
    faults: Faults,
}

impl Copier {
    /// Makes an interface of this name in every node, and the process between them.
    pub fn start(
        name: &str,
        index_of: impl Fn(usize) -> usize,
        nodes: &[Node],
        faults: &Faults,
    ) -> Result<Copier, LabError> {
        let what = || format!("make the wire {name}");
        let (ours, theirs) = Mailbox::pair().attempt(what)?;
        let pid = match sys::fork().attempt(what)? {
            Forked::Child => {
                drop(ours);
                live(name, index_of, nodes, faults, &theirs)
            }
            Forked::Parent(pid) => pid,
        };
        drop(theirs);
        let copier = Copier { pid, name: name.into(), mailbox: ours, faults: faults.clone() };
        copier.hear()?;
        Ok(copier)
    }

    /// What the wire does to frames now.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// Changes the faults; when it returns, they are in force.
    pub fn set(&mut self, faults: &Faults) -> Result<(), LabError> {
        self.ask(&Order::Set { faults: faults.clone() })?;
        self.faults = faults.clone();
        Ok(())
    }

    /// Plugs a node's end in, or pulls it.
    pub fn carrier(&self, node: usize, on: bool) -> Result<(), LabError> {
        self.ask(&Order::Carrier { node, on }).map(drop)
    }

    /// What it has done so far.
    pub fn counts(&self) -> Result<Counts, LabError> {
        self.ask(&Order::Count)
    }

    fn ask(&self, order: &Order) -> Result<Counts, LabError> {
        self.mailbox.send(order);
        self.hear()
    }

    fn hear(&self) -> Result<Counts, LabError> {
        let report: Report = self.mailbox.receive().ok_or_else(|| {
            LabError::Refused(format!(
                "the process of the wire {} was killed: start the lab again",
                self.name
            ))
        })?;
        report.error.map_or(Ok(report.counts), |error| Err(LabError::Refused(error)))
    }
}

/// The process.
fn live(
    name: &str,
    index_of: impl Fn(usize) -> usize,
    nodes: &[Node],
    faults: &Faults,
    mailbox: &Mailbox,
) -> ! {
    match taps(name, index_of, nodes) {
        Ok(taps) => {
            let mut wire = Wire::new(taps);
            let error = wire.set(faults).err().map(|error| error.to_string());
            mailbox.send(&Report { error, ..Report::default() });
            wire.run(mailbox);
        }
        Err(error) => mailbox.send(&Report { error: Some(error.to_string()), ..Report::default() }),
    }
    sys::exit_now(0)
}

fn taps(name: &str, index_of: impl Fn(usize) -> usize, nodes: &[Node]) -> Result<Vec<Tap>, LabError> {
    sys::die_with_parent().attempt(|| "tie the wire to its lab".into())?;
    nodes
        .iter()
        .enumerate()
        .map(|(number, node)| {
            sys::setns(node.network(), libc::CLONE_NEWNET).attempt(|| format!("enter node {number}"))?;
            Tap::create(name, index_of(number)).map_err(|error| {
                LabError::Refused(format!(
                    "the wire {name} needs a TAP interface, and /dev/net/tun gives none ({error}): as root, `modprobe tun; chmod 666 /dev/net/tun`, or use a rail that is no wire"
                ))
            })
        })
        .collect()
}

struct Wire {
    taps: Vec<Tap>,
    faults: Faults,
    counts: Counts,
    /// Frames under way, by sender.
    lines: Vec<Line>,
    /// Frames that each node has sent while shares were given.
    numbers: Vec<u64>,
}

impl Wire {
    fn new(taps: Vec<Tap>) -> Wire {
        Wire {
            faults: Faults::default(),
            counts: Counts::default(),
            lines: taps.iter().map(|_| Line::default()).collect(),
            numbers: vec![0; taps.len()],
            taps,
        }
    }

    fn run(&mut self, mailbox: &Mailbox) {
        // a cable waits for no core: two ranks that poll would hold up one rail for tens of milliseconds, and not the other
        sys::go_first();
        let mut buffer = vec![0u8; FRAME_BYTES_MAX];
        loop {
            let now = Instant::now();
            let next = (0..self.lines.len())
                .filter(|&from| !self.stands(from))
                .filter_map(|from| self.lines[from].next())
                .min();
            let mut fds = vec![mailbox.as_fd()];
            fds.extend(self.taps.iter().map(AsFd::as_fd));
            let ready = sys::wait_readable(&fds, next.map(|next| next.saturating_duration_since(now)));
            if ready[0] {
                let Some(order) = mailbox.receive() else { return };
                let error = self.obey(&order).err().map(|error| error.to_string());
                mailbox.send(&Report { counts: self.counts, error });
            }
            self.release();
            for from in 0..self.taps.len() {
                if !ready[from + 1] {
                    continue;
                }
                for _ in 0..BATCH {
                    let Some(length) = self.taps[from].read(&mut buffer) else { break };
                    self.take(from, &mut buffer[..length]);
                }
            }
            self.release();
        }
    }

    fn obey(&mut self, order: &Order) -> Result<(), LabError> {
        match order {
            Order::Set { faults } => self.set(faults),
            Order::Carrier { node, on } => {
                self.taps[*node].carrier(*on).attempt(|| "plug or pull a cable".into())
            }
            Order::Count => Ok(()),
        }
    }

    /// Shares are of the frames that a network carries, so large segments are cut while there is one.
    fn set(&mut self, faults: &Faults) -> Result<(), LabError> {
        for tap in &self.taps {
            tap.offload(!faults.picks()).attempt(|| "say what a wire carries at once".into())?;
        }
        self.faults = faults.clone();
        Ok(())
    }

    /// Whether what a node has sent stands still.
    fn stands(&self, from: usize) -> bool {
        self.faults.stall && self.concerns(from)
    }

    fn concerns(&self, from: usize) -> bool {
        self.faults.from.is_none_or(|node| node == from)
    }

    /// One frame, header included.
    fn take(&mut self, from: usize, bytes: &mut [u8]) {
        self.counts.frames += 1;
        self.counts.bytes += (bytes.len() - HEADER_BYTES) as u64;
        self.numbers[from] += u64::from(self.faults.picks());
        let fate = decide(&self.faults, from, self.numbers[from], &bytes[HEADER_BYTES..]);
        match fate.gone {
            Some(Gone::Lost) => self.counts.lost += 1,
            Some(Gone::Dark) => self.counts.dark += 1,
            None => {}
        }
        if fate.gone.is_some() {
            return;
        }
        if let Some(source) = fate.corrupt {
            let partial = has_partial_checksum(bytes);
            self.counts.corrupted += u64::from(packet::corrupt(&mut bytes[HEADER_BYTES..], partial, source));
        }
        let (delay, held_back) = match self.concerns(from) {
            true if fate.held_back => (self.faults.delay, self.faults.holds_back()),
            true => (self.faults.delay, Duration::ZERO),
            false => (Duration::ZERO, Duration::ZERO),
        };
        self.counts.reordered += u64::from(fate.held_back);
        self.counts.duplicated += u64::from(fate.twice);
        let stands = self.stands(from);
        for _ in 0..1 + u8::from(fate.twice) {
            self.counts.stalled += u64::from(stands);
            if stands || !(delay.is_zero() && held_back.is_zero() && self.lines[from].is_empty()) {
                let room = self.lines[from].push(Instant::now(), delay, held_back, bytes);
                self.counts.overflowed += u64::from(!room);
            } else {
                hand_over(&self.taps, from, bytes);
            }
        }
    }

    /// Hands over what is due.
    fn release(&mut self) {
        for from in 0..self.lines.len() {
            if self.lines[from].is_empty() || self.stands(from) {
                continue;
            }
            let now = Instant::now();
            while let Some(bytes) = self.lines[from].pop(now) {
                hand_over(&self.taps, from, &bytes);
            }
        }
    }
}

/// To the node that the frame is for, or to all others.
fn hand_over(taps: &[Tap], from: usize, bytes: &[u8]) {
    // The last byte of a node's Ethernet address counts from 1.
    let to = packet::destination(&bytes[HEADER_BYTES..]).and_then(|last| last.checked_sub(1));
    for (number, tap) in taps.iter().enumerate() {
        if number != from && to.is_none_or(|to| to == number || to >= taps.len()) {
            tap.write(bytes);
        }
    }
}
