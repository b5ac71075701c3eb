//! The ways to peers on one rail: address handles, and the thread that makes them. Owns: the handles, and the datagrams
//! that wait for one.
//!
//! An address handle holds the Ethernet address of a peer, for which the kernel may ask the network for a second or
//! longer. So a thread of the rail makes them; meanwhile the last few datagrams for the peer wait, and the peers of other
//! rails wait for nothing.
//!
//! **Handles are renewed.** The Ethernet address of a peer may change (another adapter has taken its IP address, or its
//! router has failed over), of which verbs report nothing. So every [`RENEW_EVERY`] those are made anew by which something
//! was sent since, one after the other, and between two of them a new peer is looked for. The old one lives on until the next time,
//! because the adapter may not be done with the last sends by it. InfiniBand has no such addresses: a peer whose LID changes is another place.

use crate::abi::ibv_ah;
use crate::adapter::{Adapter, made};
use crate::network::Network;
use parking_lot::RwLock;
use rerail_rail::Locator;
use rerail_rail::thread::spawn;
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Datagrams that wait for an address handle, per peer: a short train.
const WAITING_MAX: usize = 32;
/// Address handles of a rail. The engine sends to its peers only, of which it has no more.
const HANDLES_MAX: usize = 1 << 16;
/// How old the handle of a peer becomes to which something is sent.
const RENEW_EVERY: Duration = Duration::from_secs(10);

/// An address handle.
pub struct Handle {
    adapter: Arc<Adapter>,
    handle: *mut ibv_ah,
}

// SAFETY: libibverbs allows every call from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Handle {
    /// May take a second.
    ///
    /// # Errors
    /// It is no place of this network, or no Ethernet address was found.
    pub fn new(adapter: &Arc<Adapter>, to: &Locator) -> io::Result<Handle> {
        let vector = adapter.network.address_vector(to.place(), adapter.port, adapter.gid_index);
        let mut attributes = vector.ok_or(io::ErrorKind::HostUnreachable)?;
        // SAFETY: the domain lives.
        let handle = made(unsafe { (adapter.library.ibv_create_ah)(adapter.domain, &raw mut attributes) })?;
        Ok(Handle { adapter: adapter.clone(), handle })
    }

    /// For a send. It lives as long as this value.
    pub fn raw(&self) -> *mut ibv_ah {
        self.handle
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: nothing is sent by it any more: each send holds the lock of its table.
        unsafe { (self.adapter.library.ibv_destroy_ah)(self.handle) };
    }
}

/// A datagram, and the number of the queue pair that it goes to.
type Waiting = (u32, Vec<u8>);

/// What is known of the way to a peer.
enum Way {
    /// It is being asked for.
    Asked(VecDeque<Waiting>),
    Known {
        handle: Handle,
        /// Something was sent by it since it was made.
        used: AtomicBool,
    },
}

impl Way {
    fn known(handle: Handle) -> Way {
        Way::Known { handle, used: AtomicBool::new(false) }
    }

    fn handle(&self) -> Option<&Handle> {
        let Way::Known { handle, used } = self else { return None };
        used.store(true, Ordering::Relaxed);
        Some(handle)
    }
}

/// What became of a datagram to a place to which no way was known.
#[derive(Debug, PartialEq, Eq)]
pub enum Later {
    /// It waits; the way has to be asked for.
    Ask,
    /// It waits for a way that was asked for.
    Waits,
    /// There is no room for another peer: it is lost.
    Full,
    /// The way has been found meanwhile: it is to be sent.
    Known,
}

/// Of one rail, by places.
#[derive(Default)]
pub struct Ways(RwLock<FxHashMap<Locator, Way>>);

impl Ways {
    /// What `send` returns for the handle of a place, if there is one.
    pub fn by<T>(&self, to: &Locator, send: impl FnOnce(&Handle) -> T) -> Option<T> {
        self.0.read().get(to)?.handle().map(send)
    }

    /// A datagram waits until the way is known.
    pub fn wait(&self, to: Locator, datagram: Waiting) -> Later {
        let mut all = self.0.write();
        let full = all.len() >= HANDLES_MAX;
        match all.get_mut(&to) {
            Some(Way::Known { .. }) => Later::Known,
            Some(Way::Asked(waiting)) => {
                if waiting.len() == WAITING_MAX {
                    waiting.pop_front();
                }
                waiting.push_back(datagram);
                Later::Waits
            }
            None if full => Later::Full,
            None => {
                all.insert(to, Way::Asked([datagram].into()));
                Later::Ask
            }
        }
    }

    /// The way to a place has been found, or not: then what waited is lost, and the next datagram asks again. `send` sends
    /// what waited, before anything else goes that way.
    fn found(&self, to: Locator, handle: io::Result<Handle>, mut send: impl FnMut(&Handle, u32, &[u8])) {
        let mut all = self.0.write();
        let Some(Way::Asked(waiting)) = all.remove(&to) else { return };
        let Ok(handle) = handle else { return };
        for (number, bytes) in waiting {
            send(&handle, number, &bytes);
        }
        all.insert(to, Way::known(handle));
    }

    /// Those by which something was sent since they were made, or since this was asked last.
    fn take_used(&self) -> Vec<Locator> {
        let is_used =
            |way: &Way| matches!(way, Way::Known { used, .. } if used.swap(false, Ordering::Relaxed));
        self.0.read().iter().filter(|(_, way)| is_used(way)).map(|(to, _)| *to).collect()
    }

    /// Makes one anew; the old one. What is not reached at present keeps its old one, until something is sent by that again.
    fn renew(&self, adapter: &Arc<Adapter>, to: Locator) -> Option<Handle> {
        // without the lock: it may take a second
        let handle = Handle::new(adapter, &to).ok()?;
        match self.0.write().insert(to, Way::known(handle)) {
            Some(Way::Known { handle, .. }) => Some(handle),
            _ => None,
        }
    }
}

/// Rounds in which handles are made anew, one at a time, so that new peers need not wait for a round.
struct Renewal {
    /// Places of this round that are left.
    left: Vec<Locator>,
    /// Handles that this round and none before it has replaced.
    old: Vec<Handle>,
    /// When the last round ended.
    ended: Instant,
}

impl Renewal {
    fn new(now: Instant) -> Renewal {
        Renewal { left: Vec::new(), old: Vec::new(), ended: now }
    }

    /// How long there is nothing to do.
    fn patience(&self, now: Instant) -> Duration {
        match self.left.is_empty() {
            true => RENEW_EVERY.saturating_sub(now.saturating_duration_since(self.ended)),
            false => Duration::ZERO,
        }
    }

    /// Makes one handle anew, if that is due.
    fn turn(&mut self, ways: &Ways, adapter: &Arc<Adapter>, now: Instant) {
        if !self.patience(now).is_zero() {
            return;
        }
        if self.left.is_empty() {
            self.old.clear();
            self.left = ways.take_used();
        }
        if let Some(to) = self.left.pop() {
            self.old.extend(ways.renew(adapter, to));
        }
        if self.left.is_empty() {
            // a round may have taken long, and the adapter may not be done with what it has replaced
            self.ended = Instant::now().max(now);
        }
    }
}

/// A thread that finds the ways of one rail. It ends when this is dropped.
pub struct Finder {
    ask: Option<Sender<Locator>>,
    /// It is to end without another handle.
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Finder {
    /// Which sends by `send` what waited for a handle.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new<P: AsRef<Ways> + Send + Sync + 'static>(
        port: Arc<P>,
        adapter: Arc<Adapter>,
        send: fn(&P, &Handle, u32, &[u8]),
    ) -> io::Result<Finder> {
        let (ask, asked) = channel();
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let renewal = Renewal::new(Instant::now());
        let thread =
            spawn("rerail-verbs", move || find(&*port, &adapter, (&asked, &stopped), renewal, send))?;
        Ok(Finder { ask: Some(ask), stop, thread: Some(thread) })
    }

    /// Asks for the way to a place.
    pub fn ask(&self, to: Locator) {
        // The thread ends only when the sender is dropped.
        let _ = self.ask.as_ref().expect("until it is dropped").send(to);
    }
}

impl Drop for Finder {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.ask = None;
        if let Some(thread) = self.thread.take() {
            // One that panicked has printed why.
            drop(thread.join());
        }
    }
}

/// Finds what is asked for, and makes handles anew: one of each in turn, because each may take a second and neither is to wait for
/// all of the other.
fn find<P: AsRef<Ways>>(
    port: &P,
    adapter: &Arc<Adapter>,
    (asked, stopped): (&Receiver<Locator>, &AtomicBool),
    mut renewal: Renewal,
    send: fn(&P, &Handle, u32, &[u8]),
) {
    let ways = port.as_ref();
    loop {
        let to = match adapter.network {
            Network::Ethernet => asked.recv_timeout(renewal.patience(Instant::now())),
            Network::Subnet(_) => asked.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        if stopped.load(Ordering::Relaxed) {
            return;
        }
        match to {
            Ok(to) => ways.found(to, Handle::new(adapter, &to), |handle, number, bytes| {
                send(port, handle, number, bytes)
            }),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        if matches!(adapter.network, Network::Ethernet) && !stopped.load(Ordering::Relaxed) {
            renewal.turn(ways, adapter, Instant::now());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;
    use rerail_rail::Kind;

    fn place(n: u8) -> Locator {
        Locator::of_ip(Kind::ROCE, [10, 0, 0, n].into(), 1)
    }

    fn handle(to: &Locator) -> io::Result<Handle> {
        Handle::new(fake::adapter(), to)
    }

    #[test]
    fn the_last_few_datagrams_wait_for_a_way_and_go_in_order() {
        let (ways, to) = (Ways::default(), place(1));
        assert!(ways.by(&to, |_| ()).is_none());
        assert_eq!(ways.wait(to, (7, vec![0])), Later::Ask);
        for n in 1..WAITING_MAX as u8 + 4 {
            assert_eq!(ways.wait(to, (7, vec![n])), Later::Waits);
        }
        let mut sent = Vec::new();
        ways.found(to, handle(&to), |_, number, bytes| sent.push((number, bytes.to_vec())));
        assert_eq!(sent, (4..WAITING_MAX as u8 + 4).map(|n| (7, vec![n])).collect::<Vec<_>>());
        assert!(ways.by(&to, |_| ()).is_some());
        assert_eq!(ways.wait(to, (7, vec![])), Later::Known);
    }

    #[test]
    fn a_way_that_is_not_found_is_asked_for_again() {
        let (ways, to) = (Ways::default(), place(1));
        assert_eq!(ways.wait(to, (7, vec![0])), Later::Ask);
        ways.found(to, Err(io::ErrorKind::HostUnreachable.into()), |_, _, _| panic!("there is no way"));
        assert_eq!(ways.wait(to, (7, vec![1])), Later::Ask);
    }

    #[test]
    fn what_is_used_is_renewed_and_the_old_handle_outlives_that() {
        let ways = Ways::default();
        for n in 1..=3 {
            ways.wait(place(n), (7, vec![]));
            ways.found(place(n), handle(&place(n)), |_, _, _| ());
        }
        let raw = |n| ways.by(&place(n), |handle| handle.raw() as usize).expect("it is known");
        let (first, alive) = (raw(1), fake::handles());
        // the third peer is not reached at present
        raw(3);
        fake::cannot_reach(Some(3));
        let now = Instant::now();
        let mut renewal = Renewal::new(now);
        let round = |renewal: &mut Renewal, now| {
            let mut turns = 0;
            while renewal.patience(now).is_zero() {
                renewal.turn(&ways, fake::adapter(), now);
                turns += 1;
            }
            turns
        };
        assert_eq!(round(&mut renewal, now), 0, "it is too early");
        assert_eq!(round(&mut renewal, now + RENEW_EVERY), 2, "each in a turn of its own");
        fake::cannot_reach(None);
        assert_eq!(renewal.old.iter().map(|h| h.raw() as usize).collect::<Vec<_>>(), [first]);
        assert_eq!(fake::handles(), alive + 1, "the old one lives");
        assert_ne!(raw(1), first);
        // the second was never used, and by the third nothing was sent since it was not reached
        assert_eq!(round(&mut renewal, now + 2 * RENEW_EVERY), 1);
        assert_eq!(fake::handles(), alive + 1, "the first old one is gone, and there is another");
        round(&mut renewal, now + 3 * RENEW_EVERY);
        assert_eq!((fake::handles(), renewal.old.len()), (alive, 0), "nothing was sent since");
    }

    impl AsRef<Ways> for Ways {
        fn as_ref(&self) -> &Ways {
            self
        }
    }

    /// Ways to peers 1 to 3, by which something was sent, and a renewal that is due.
    fn used_and_due() -> (Ways, Renewal, Vec<usize>) {
        let ways = Ways::default();
        for n in 1..=3 {
            ways.wait(place(n), (7, vec![]));
            ways.found(place(n), handle(&place(n)), |_, _, _| ());
        }
        let known = raws(&ways);
        let due = Instant::now().checked_sub(RENEW_EVERY).expect("the machine runs for some seconds");
        (ways, Renewal::new(due), known)
    }

    fn raws(ways: &Ways) -> Vec<usize> {
        (1..=3).map(|n| ways.by(&place(n), |handle| handle.raw() as usize).expect("it is known")).collect()
    }

    #[test]
    fn constant_questions_for_peers_that_are_not_reached_do_not_keep_handles_from_being_renewed() {
        let (ways, renewal, before) = used_and_due();
        let (ask, asked) = channel();
        (0..3).for_each(|_| ask.send(place(9)).unwrap());
        drop(ask);
        find(&ways, fake::adapter(), (&asked, &AtomicBool::new(false)), renewal, |_, _, _, _| ());
        assert!(raws(&ways).iter().zip(&before).all(|(now, before)| now != before));
    }

    #[test]
    fn a_process_that_ends_waits_for_no_handle_more() {
        let (ways, renewal, before) = used_and_due();
        let (ask, asked) = channel();
        (4..9).for_each(|n| {
            ways.wait(place(n), (7, vec![]));
            ask.send(place(n)).unwrap();
        });
        drop(ask);
        let alive = fake::handles();
        find(&ways, fake::adapter(), (&asked, &AtomicBool::new(true)), renewal, |_, _, _, _| ());
        assert_eq!((raws(&ways), fake::handles()), (before, alive));
    }
}
