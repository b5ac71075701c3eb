//! Faults of datagrams. Owns: the datagrams that are held, because they are late, stalled or overtaken.
//!
//! Invariant: at most [`HELD_MAX`] are held in each direction; what comes on top is lost, as in a queue that is full.

use crate::injector::{Injector, count};
use crate::plan::Fate;
use crate::rule::Way;
use rerail_rail::alarm::Alarm;
use rerail_rail::{
    Arrived, ArrivedTrain, Condition, DatagramPort, Locator, RailId, SendOutcome, TrainOutcome, receive_one,
    send_one_by_one,
};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Datagrams held in each direction.
const HELD_MAX: usize = 8192;
/// How often what stalls is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(1);
/// Datagrams that one call of `recv` loses or holds at most before it says that there is nothing: the caller has more to do.
const TAKEN_MAX: usize = 64;

struct Held {
    way: Way,
    rail: RailId,
    peer: Locator,
    bytes: Vec<u8>,
    due: Instant,
    /// It also waits for the end of a stall.
    stalled: bool,
}

/// A port for datagrams with faults.
pub struct FaultyDatagrams {
    inner: Arc<dyn DatagramPort>,
    injector: Arc<Injector>,
    held: Mutex<Vec<Held>>,
    /// How many are held, to be looked at without the lock.
    some: AtomicUsize,
    /// Datagrams so far, by rail and direction.
    numbers: Vec<[AtomicU64; 2]>,
    alarm: Alarm,
    /// The alarm rings because a call of `recv` stopped before its time.
    again: AtomicBool,
}

impl FaultyDatagrams {
    /// Over a port.
    ///
    /// # Errors
    /// The system gives no descriptor for the time at which what is late becomes due.
    pub fn new(inner: Arc<dyn DatagramPort>, injector: Arc<Injector>) -> io::Result<FaultyDatagrams> {
        let alarm = Alarm::new(inner.fd())?;
        let numbers = (0..injector.rails()).map(|_| Default::default()).collect();
        Ok(FaultyDatagrams {
            inner,
            injector,
            held: Mutex::default(),
            some: AtomicUsize::new(0),
            numbers,
            alarm,
            again: AtomicBool::new(false),
        })
    }

    /// Nothing is to be done, and nothing is left from when something was.
    fn is_idle(&self) -> bool {
        !self.injector.is_on()
            && self.some.load(Ordering::Acquire) == 0
            && !self.again.load(Ordering::Acquire)
    }

    fn held(&self) -> MutexGuard<'_, Vec<Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides about the next datagram of a rail and direction, and counts what was decided.
    fn fate(&self, rail: RailId, way: Way, now: Instant) -> Fate {
        let (Some(numbers), Some(tally)) = (self.numbers.get(usize::from(rail.0)), self.injector.tally(rail))
        else {
            return Fate::default();
        };
        let current = self.injector.in_force();
        let number = numbers[way as usize].fetch_add(1, Ordering::Relaxed);
        let fate = current.plan.fate(rail, way, number, current.at(now));
        if fate.gone {
            count(&tally.lost);
            return fate;
        }
        for (happens, counter) in [
            (fate.corrupt.is_some(), &tally.corrupted),
            (fate.twice, &tally.duplicated),
            (fate.reordered, &tally.reordered),
            (!fate.reordered && (fate.stalled || !fate.later.is_zero()), &tally.delayed),
        ] {
            if happens {
                count(counter);
            }
        }
        fate
    }

    fn hold(&self, way: Way, rail: RailId, peer: Locator, bytes: Vec<u8>, fate: &Fate, now: Instant) {
        let mut held = self.held();
        if held.iter().filter(|one| one.way == way).count() >= HELD_MAX {
            if let Some(tally) = self.injector.tally(rail) {
                count(&tally.lost);
            }
            return;
        }
        held.push(Held { way, rail, peer, bytes, due: now + fate.later, stalled: fate.stalled });
        self.some.store(held.len(), Ordering::Release);
        self.set_alarm(&held, now);
    }

    fn set_alarm(&self, held: &[Held], now: Instant) {
        let next = held.iter().map(|one| {
            let due = one.due.saturating_duration_since(now);
            if one.stalled { due.max(LOOK_EVERY) } else { due }
        });
        self.alarm.ring_after(next.min());
    }

    /// Takes out what is due in a direction; what is due first comes first.
    fn due(&self, way: Way, most: usize, now: Instant) -> Vec<Held> {
        if self.some.load(Ordering::Acquire) == 0 {
            return Vec::new();
        }
        let current = self.injector.in_force();
        let at = current.at(now);
        let mut held = self.held();
        let mut out = Vec::new();
        while out.len() < most {
            let is_due = |one: &Held| {
                one.way == way
                    && one.due <= now
                    && !(one.stalled && current.plan.fate(one.rail, way, 0, at).stalled)
            };
            // the first among equals
            let next = held
                .iter()
                .enumerate()
                .filter(|(_, one)| is_due(one))
                .min_by_key(|(place, one)| (one.due, *place));
            let Some((place, _)) = next else { break };
            out.push(held.remove(place));
        }
        self.some.store(held.len(), Ordering::Release);
        self.set_alarm(&held, now);
        out
    }

    /// Sends what is due.
    fn send_due(&self, now: Instant) {
        for one in self.due(Way::Send, TAKEN_MAX, now) {
            self.inner.send(one.rail, one.peer, &one.bytes);
        }
    }
}

/// Flips one bit.
fn spoil(bytes: &mut [u8], source: u64) {
    if !bytes.is_empty() {
        let at = (source >> 32) as usize % bytes.len();
        bytes[at] ^= 1 << (source & 7);
    }
}

impl DatagramPort for FaultyDatagrams {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        if self.is_idle() {
            return self.inner.send(rail, to, bytes);
        }
        let now = Instant::now();
        self.send_due(now);
        let fate = self.fate(rail, Way::Send, now);
        if fate.gone {
            return SendOutcome::Sent;
        }
        let mut copy = None;
        if let Some(source) = fate.corrupt {
            // never in the sender's own bytes: it sends them again
            let mut bytes = bytes.to_vec();
            spoil(&mut bytes, source);
            copy = Some(bytes);
        }
        let bytes = copy.as_deref().unwrap_or(bytes);
        let mut outcome = SendOutcome::Sent;
        for _ in 0..1 + u8::from(fate.twice) {
            if fate.stalled || !fate.later.is_zero() {
                self.hold(Way::Send, rail, to, bytes.to_vec(), &fate, now);
            } else {
                outcome = self.inner.send(rail, to, bytes);
            }
        }
        outcome
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        if self.is_idle() {
            return self.inner.recv(buf);
        }
        let now = Instant::now();
        self.send_due(now);
        for _ in 0..TAKEN_MAX {
            if let Some(one) = self.due(Way::Receive, 1, now).pop() {
                let len = one.bytes.len();
                if let Some(room) = buf.get_mut(..len) {
                    room.copy_from_slice(&one.bytes);
                    return Ok(Some(Arrived {
                        rail: one.rail,
                        from: one.peer,
                        len,
                        condition: Condition::Whole,
                    }));
                }
                continue;
            }
            let Some(arrived) = self.inner.recv(buf)? else {
                if self.again.swap(false, Ordering::AcqRel) {
                    self.set_alarm(&self.held(), now);
                }
                return Ok(None);
            };
            let Arrived { rail, from, len, .. } = arrived;
            let fate = self.fate(rail, Way::Receive, now);
            if fate.gone {
                continue;
            }
            if let Some(source) = fate.corrupt {
                spoil(&mut buf[..len], source);
            }
            let late = fate.stalled || !fate.later.is_zero();
            for _ in 0..u8::from(late) + u8::from(fate.twice) {
                self.hold(Way::Receive, rail, from, buf[..len].to_vec(), &fate, now);
            }
            if !late {
                return Ok(Some(arrived));
            }
        }
        // More may wait: the caller is to come again at once.
        self.again.store(true, Ordering::Release);
        self.alarm.ring_after(Some(Duration::ZERO));
        Ok(None)
    }

    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        if self.is_idle() {
            return self.inner.send_train(rail, to, bytes, segment);
        }
        send_one_by_one(self, rail, to, bytes, segment)
    }

    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        if self.is_idle() {
            return self.inner.recv_train(buf);
        }
        receive_one(self, buf)
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        if self.is_idle() {
            return self.inner.recv_train_eagerly(buf);
        }
        receive_one(self, buf)
    }

    fn keep_neighbour(&self, rail: RailId, to: Locator) {
        self.inner.keep_neighbour(rail, to);
    }

    fn lead(&self, rail: RailId, to: Locator, route: u8) {
        self.inner.lead(rail, to, route);
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.alarm.fd()
    }

    fn before_sleep(&self, streams: bool) -> bool {
        self.inner.before_sleep(streams)
    }

    fn after_sleep(&self) {
        self.inner.after_sleep();
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.inner.descriptors(out);
        self.alarm.descriptors(out);
    }
}
