//! The messages by which queue pairs are connected without RDMA-CM, as the manager's thread sends and receives them. Owns: a queue pair
//! for datagrams on each rail, beside that of the engine's datagrams. It is the manager's own, so that a process answers whatever its
//! application does, and no message of a peer passes through the engine's threads.

use crate::datagrams::{Port, Ports};
use crate::exchange::{Call, Exchange, Happened};
use crate::hello::Hello;
use crate::lane::LaneNumber;
use crate::setup::{End, Refusal, SETUP_BYTES_MAX, service};
use crate::{adapter::Adapter, datagrams::SIGNAL_EVERY};
use rerail_rail::{Locator, RailId};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a process that ends waits until its last messages have left the adapter.
const FAREWELL: Duration = Duration::from_millis(50);
/// Queue pairs that are made to find two whose numbers are close together.
const PAIRS_TRIED_MAX: usize = 32;

/// See the module.
pub struct Connector {
    ports: Ports,
    exchange: Exchange,
    happened: VecDeque<Happened>,
}

/// The two queue pairs of a rail: for datagrams of at most so many bytes, and for connections; and the service that names both.
///
/// # Errors
/// The adapter has no more, or gives them numbers too far apart.
pub fn pair(adapter: &Arc<Adapter>, bytes_max: usize) -> io::Result<(Port, Port, u32)> {
    let datagrams = Port::new(adapter, bytes_max, SIGNAL_EVERY)?;
    // Those that do not fit are kept until one does, so that the next has another number.
    let mut others = Vec::new();
    loop {
        let connections = Port::new(adapter, SETUP_BYTES_MAX, 1)?;
        if let Some(service) = service(datagrams.number(), connections.number()) {
            return Ok((datagrams, connections, service));
        }
        others.push(connections);
        if others.len() == PAIRS_TRIED_MAX {
            return Err(io::Error::other(
                "it numbers its queue pairs so that no two of a process are neighbours",
            ));
        }
    }
}

impl Connector {
    /// For rails at these places.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(own: Vec<Locator>, ports: Vec<Port>) -> io::Result<Connector> {
        let (exchange, happened) = (Exchange::default(), VecDeque::new());
        Ok(Connector { ports: Ports::new(own, ports)?, exchange, happened })
    }

    /// All descriptors, of which some become readable when a message comes.
    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.ports.descriptors(out);
    }

    /// Waits for a message, for the next repetition, or until this descriptor is readable; for so long at most.
    pub fn wait(&mut self, wake: BorrowedFd<'_>, patience: Option<Duration>) {
        self.send();
        let left = self.exchange.due().map(|due| due.saturating_duration_since(Instant::now()));
        let left = [left, patience].into_iter().flatten().min();
        let left = if self.ports.before_sleep() { Some(Duration::ZERO) } else { left };
        let left = left.map(|left| Timespec::try_from(left).expect("no more than some seconds"));
        let fds = self.ports.fds().chain([wake]);
        let mut ready: Vec<_> = fds.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)).collect();
        let _ = poll(&mut ready, left.as_ref());
    }

    /// What has happened next. Sends what is due.
    pub fn next(&mut self) -> Option<Happened> {
        if self.happened.is_empty() {
            let mut bytes = [0; SETUP_BYTES_MAX];
            for rail in 0..self.ports.count() {
                while let Some((from, len)) = self.ports.recv(rail, &mut bytes) {
                    let happened = self.exchange.handle(RailId(rail as u8), from, &bytes[..len]);
                    if happened.is_some() {
                        // One at a time: what is done about it decides what the next means.
                        return happened;
                    }
                }
            }
            self.exchange.repeat(Instant::now(), |happened| self.happened.push_back(happened));
        }
        self.send();
        self.happened.pop_front()
    }

    fn send(&mut self) {
        for (rail, to, bytes) in self.exchange.take() {
            // What finds no room is repeated, or is asked for again.
            self.ports.send(rail.0.into(), &to, to.service(), &bytes);
        }
    }

    /// See [`Exchange::ask`].
    pub fn ask(&mut self, lane: (LaneNumber, RailId), to: Locator, request: (Hello, End), token: u64) {
        self.exchange.ask(lane, to, request, token, Instant::now());
    }

    /// See [`Exchange::grant`].
    pub fn grant(&mut self, call: Call, lane: LaneNumber, end: End) {
        self.exchange.grant(call, lane, end);
    }

    /// See [`Exchange::refuse`].
    pub fn refuse(&mut self, call: Call, why: Refusal) {
        self.exchange.refuse(call, why);
    }

    /// See [`Exchange::end`].
    pub fn end(&mut self, lane: LaneNumber) {
        self.exchange.end(lane, Instant::now());
    }

    /// Tells all peers that this process ends.
    pub fn leave(&mut self) {
        self.exchange.end_all(Instant::now());
        self.send();
        self.ports.flush(FAREWELL);
    }
}
