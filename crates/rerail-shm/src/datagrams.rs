//! Datagrams to neighbours through memory, all others through the rail. Owns: nothing but how often the rail's own socket is looked
//! at, which costs a system call, while neighbours keep the rings busy.

use crate::connection::Connection;
use crate::hello::{PLACE_BYTES, place_bytes, place_of};
use crate::shared::Shared;
use rerail_rail::{
    Arrived, ArrivedTrain, Condition, DatagramPort, Locator, RailId, SendOutcome, TrainOutcome,
};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// In front of each datagram: its length, the address of the rail it comes from, and the one it goes to.
const HEAD: usize = 4 + 2 * PLACE_BYTES;
/// Longer datagrams go the long way: they would fill the ring.
const BYTES_MAX: usize = 32 << 10;
/// How long an empty look at the rail's own socket is good for, while there are links: short against anything that goes over a network, and
/// long against a look into the rings.
const LOOK_EVERY: Duration = Duration::from_micros(2);
/// The same when nothing came by that socket for [`QUIET`]: the first datagram of a conversation may wait so long.
const LOOK_EVERY_QUIET: Duration = Duration::from_micros(10);
const QUIET: Duration = Duration::from_millis(1);
/// After a datagram of a neighbour came, so many empty looks in a row wait a moment for the next. A reply that is just
/// being written is then received sooner than at the caller's next turn, before which it often gives up the processor.
const EAGER_LOOKS: u32 = 3;
/// How long such a look waits at most and at least, in turns of about ten nanoseconds. Where neighbours share a
/// processor, the other one cannot write while this one waits. So a look that waited in vain makes the next ones wait
/// less, and one that found something makes them wait longer.
const EAGER_TURNS: (u32, u32) = (120, 8);
const EAGER_LONGER: u32 = 32;
const EAGER_SHORTER: u32 = 8;
/// Datagrams from neighbours in a row before the rail has its turn.
const ROW_MAX: u32 = 16;

pub(crate) struct ShmDatagrams {
    shared: Arc<Shared>,
    inner: Arc<dyn DatagramPort>,
    /// Over the bells and the rail's own descriptor.
    epoll: OwnedFd,
    /// Where the next look into the rings begins.
    turn: AtomicU32,
    /// Datagrams from neighbours since the rail's last turn.
    row: AtomicU32,
    /// Looks that found nothing since the last datagram of a neighbour.
    vain: AtomicU32,
    /// How long the next one waits.
    turns: AtomicU32,
    began: Instant,
    /// When the rail was last found empty: nanoseconds since `began`.
    looked: AtomicU64,
    /// When it last had something, in the same way.
    found: AtomicU64,
}

impl ShmDatagrams {
    pub fn new(shared: Arc<Shared>, inner: Arc<dyn DatagramPort>, epoll: OwnedFd) -> Self {
        Self {
            shared,
            inner,
            epoll,
            turn: AtomicU32::new(0),
            row: AtomicU32::new(0),
            vain: AtomicU32::new(EAGER_LOOKS),
            turns: AtomicU32::new(EAGER_TURNS.0),
            began: Instant::now(),
            looked: AtomicU64::new(0),
            found: AtomicU64::new(0),
        }
    }

    /// Sends through memory; `false`: it has to go the long way.
    fn send_near(&self, rail: RailId, to: Locator, bytes: &[u8]) -> bool {
        if bytes.len() > BYTES_MAX || !self.shared.is_neighbour(&to) {
            return false;
        }
        let links = self.shared.links.read();
        let (Some(c), Some(from)) = (links.by_service.get(&to.service()), self.shared.locator(rail)) else {
            return false;
        };
        // Not before the other side has taken the link: until then a query would wait for the thread that holds the
        // engine there (hazard H17).
        if c.over().is_some() || !c.out.has_reader() {
            return false;
        }
        let mut head = [0; HEAD];
        head[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        head[4..4 + PLACE_BYTES].copy_from_slice(&place_bytes(&from));
        head[4 + PLACE_BYTES..].copy_from_slice(&place_bytes(&to));
        // Another thread may have been stopped while it was sending.
        let Some(_turn) = c.sending.try_lock() else { return false };
        let sent = c.out.push([&head, bytes]) == Ok(true);
        if sent && c.out.reader_to_wake() {
            c.ring_bell();
        }
        sent
    }

    /// A datagram out of the rings.
    fn recv_near(&self, buf: &mut [u8]) -> Option<Arrived> {
        let links = self.shared.links.read();
        let first = self.turn.load(Ordering::Relaxed) as usize;
        let n = links.all.len();
        let vain = self.vain.load(Ordering::Relaxed);
        if vain < EAGER_LOOKS {
            self.vain.store(vain + 1, Ordering::Relaxed);
            let most = self.turns.load(Ordering::Relaxed);
            let is_empty = || links.all.iter().all(|(_, _, c)| c.incoming.is_empty());
            let mut turns = 0;
            while turns < most && is_empty() {
                std::hint::spin_loop();
                turns += 1;
            }
            // threads that do so at once may count for one another, which changes nothing
            let next = match turns < most {
                true => (most + EAGER_LONGER).min(EAGER_TURNS.0),
                false => most.saturating_sub(EAGER_SHORTER).max(EAGER_TURNS.1),
            };
            self.turns.store(next, Ordering::Relaxed);
        }
        for i in (0..n).map(|k| (first + k) % n) {
            let (_, service, c) = &links.all[i];
            while let Some(arrived) = self.take(*service, c, buf) {
                if let Some(arrived) = arrived {
                    self.turn.store(i as u32 + 1, Ordering::Relaxed);
                    self.vain.store(0, Ordering::Relaxed);
                    return Some(arrived);
                }
            }
        }
        None
    }

    /// The next datagram of a link; `Some(None)`: it was for none of our rails.
    fn take(&self, service: u32, c: &Connection, buf: &mut [u8]) -> Option<Option<Arrived>> {
        let len = |head: &[u8; HEAD]| u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let (head, len) = match c.incoming.pop(buf, len) {
            Ok(found) => found?,
            Err(_) => {
                // A broken neighbour: nothing more is taken from it, as if it had gone.
                c.give_up();
                return None;
            }
        };
        let (from, to) = head[4..].split_at(PLACE_BYTES);
        let rail = place_of(to, 0).and_then(|to| self.shared.rail_at(&to));
        let from = place_of(from, service);
        Some(rail.zip(from).map(|(rail, from)| Arrived { rail, from, len, condition: Condition::Whole }))
    }

    /// What the rings or the rail have.
    fn recv_any(
        &self,
        buf: &mut [u8],
        inner: impl FnOnce(&mut [u8]) -> io::Result<Option<ArrivedTrain>>,
    ) -> io::Result<Option<ArrivedTrain>> {
        if !self.shared.some_links.load(Ordering::Acquire) {
            return inner(buf);
        }
        if self.row.load(Ordering::Relaxed) < ROW_MAX {
            if let Some(near) = self.recv_near(buf) {
                self.row.fetch_add(1, Ordering::Relaxed);
                return Ok(Some(near.into()));
            }
        }
        let in_turn = self.row.swap(0, Ordering::Relaxed) < ROW_MAX;
        let now = self.began.elapsed().as_nanos() as u64;
        let since = |then: &AtomicU64| Duration::from_nanos(now.saturating_sub(then.load(Ordering::Relaxed)));
        let every = if since(&self.found) < QUIET { LOOK_EVERY } else { LOOK_EVERY_QUIET };
        if in_turn && since(&self.looked) < every {
            return Ok(None);
        }
        let found = inner(buf)?;
        if found.is_some() {
            self.found.store(now, Ordering::Relaxed);
            return Ok(found);
        }
        self.looked.store(now, Ordering::Relaxed);
        if in_turn { Ok(None) } else { Ok(self.recv_near(buf).map(ArrivedTrain::from)) }
    }
}

impl DatagramPort for ShmDatagrams {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        if self.shared.some_links.load(Ordering::Acquire) && self.send_near(rail, to, bytes) {
            return SendOutcome::Sent;
        }
        self.inner.send(rail, to, bytes)
    }

    /// Trains carry bulk where streams do not work, which is not so between neighbours, or where the user wants to see bulk as
    /// datagrams: they go the long way.
    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        self.inner.send_train(rail, to, bytes, segment)
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        let one =
            |a: ArrivedTrain| Arrived { rail: a.rail, from: a.from, len: a.len, condition: a.condition };
        Ok(self.recv_any(buf, |buf| Ok(self.inner.recv(buf)?.map(ArrivedTrain::from)))?.map(one))
    }

    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.recv_any(buf, |buf| self.inner.recv_train(buf))
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        if self.shared.some_links.load(Ordering::Acquire) {
            // the rings have eager looks of their own, and neighbours are not to wait for the rail's
            return self.recv_train(buf);
        }
        self.inner.recv_train_eagerly(buf)
    }

    fn keep_neighbour(&self, rail: RailId, to: Locator) {
        self.inner.keep_neighbour(rail, to);
    }

    fn lead(&self, rail: RailId, to: Locator, route: u8) {
        self.inner.lead(rail, to, route);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.inner.descriptors(out);
        self.shared.descriptors(out);
        out.push(self.epoll.as_raw_fd());
    }

    fn before_sleep(&self, streams: bool) -> bool {
        self.inner.before_sleep(streams) | self.shared.before_sleep(streams)
    }

    fn after_sleep(&self) {
        self.shared.after_sleep();
        self.inner.after_sleep();
    }
}
