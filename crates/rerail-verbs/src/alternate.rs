//! Automatic path migration in the adapter. Owns: for each lane the alternate path that its queue pair has, or is to get, and the messages by
//! which the two ends of a lane agree on one.
//!
//! Source: APM (`papers/apm.txt`) §2.2 and §3.1. An alternate path has to be loaded at both ends,
//! and each end names its own port to the other: librdmacm has no call for that, and the addresses of InfiniBand ports are known to their
//! owners only. So the side that opened a lane sends *load* over the lane itself, and the peer loads its end and answers *loaded* or
//! *refused*. `ibv_modify_qp` then makes the state REARM; ARMED, which each adapter finds by itself when both are in REARM and a packet
//! passes, is reported by no event of libibverbs, so the manager asks (`ibv_query_qp`) with growing pauses. That an adapter has migrated is
//! an event of the queue pair ([`PathEvents`]). An event is a hint only: the state of the queue pair is asked for, because the number in an
//! event may be that of a queue pair that is gone.
//!
//! **A path cannot be taken out of a queue pair.** Setting MIGRATED would move the traffic. To *unload*, the present path is loaded as its own
//! alternate. An adapter that takes no other path while it is ARMED stays armed (by APM §3.1.2 a path is loaded from
//! MIGRATED), and its end may still migrate; that is reported as any migration is. When the same path is wanted again later, it is still there.
//!
//! What an adapter says of itself is not believed: [`probe`] tries it on a queue pair that is connected to itself. On RoCE the kernel's core
//! refuses every alternate path, although adapters list the capability.

#[cfg(any(test, feature = "hostile"))]
pub mod mock;
#[cfg(test)]
mod tests;

use crate::abi::*;
use crate::adapter::{Adapter, done, made};
use crate::agreement::{Address, Message, Place};
use crate::completions::Completions;
use crate::lane::LaneNumber;
use crate::reports::Reports;
use rerail_rail::{Alternate, Locator, RailId};
use rustc_hash::FxHashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::ptr::null_mut;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often a queue pair in REARM is asked whether it is ARMED: first, and at the longest.
const ASK_AFTER: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(1));
/// Events of queue pairs that are kept until the manager reads them. Where more come, every queue pair is looked at.
const EVENTS_MAX: usize = 256;
/// A rail, as far as its port matters here.
pub struct Port {
    pub adapter: Arc<Adapter>,
    pub own: Locator,
}

impl Port {
    fn address(&self) -> io::Result<Address> {
        let (a, mut gid) = (&self.adapter, ibv_gid { raw: [0; 16] });
        // SAFETY: the context lives; the identifier is written to.
        done(unsafe { (a.library.ibv_query_gid)(a.context, a.port, a.gid_index.into(), &raw mut gid) })?;
        Ok(Address { lid: a.port_state()?.lid, gid: gid.raw })
    }
}

fn place(of: &Locator) -> Place {
    let mut place = Place::default();
    let bytes = of.place();
    place[..bytes.len()].copy_from_slice(bytes);
    place
}

/// What follows from an order, a message or an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// This is to be sent on the lane.
    Send(Message),
    /// Both ends are ARMED, with an alternate over this own rail. The number of the order.
    Armed(u32, RailId),
    /// There is no alternate, or none any more. The number of the order.
    Unloaded(u32),
    /// The adapter leads the lane over this own rail now.
    Migrated(RailId),
}

/// How far an order is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// None is under way.
    Idle,
    /// The peer was told to load its end.
    Requested { number: u32, rail: RailId },
    /// Loaded here (REARM); to be asked again then, and then after that pause.
    Rearm { number: u32, ask: Instant, pause: Duration },
    /// It can migrate at any time.
    Armed { number: u32 },
}

struct Pair {
    qp: *mut ibv_qp,
    /// The rail that it goes over.
    rail: RailId,
    /// The rail to which its adapter may migrate: what is loaded, or could not be unloaded.
    has: Option<RailId>,
    state: State,
}

// SAFETY: libibverbs allows every call from any thread.
unsafe impl Send for Pair {}

/// See the module. It belongs to the thread of the connection manager, which tells it of every lane before its queue pair is destroyed.
pub struct Alternates {
    ports: Vec<Port>,
    pairs: FxHashMap<LaneNumber, Pair>,
}

impl Alternates {
    /// For rails in this order.
    pub fn new(ports: Vec<Port>) -> Alternates {
        Alternates { ports, pairs: FxHashMap::default() }
    }

    /// A lane of a rail that is made.
    ///
    /// # Safety
    /// The queue pair lives until [`Alternates::forget`].
    pub unsafe fn made(&mut self, lane: LaneNumber, rail: RailId, qp: *mut ibv_qp) {
        // the manager looks at all pairs whenever it wakes up
        if !(0..self.ports.len()).any(|to| self.other_port(rail, RailId(to as u8)).is_some()) {
            return;
        }
        self.pairs.insert(lane, Pair { qp, rail, has: None, state: State::Idle });
    }

    /// Its queue pair is about to be destroyed.
    pub fn forget(&mut self, lane: LaneNumber) {
        self.pairs.remove(&lane);
    }

    /// The rail to which a lane that goes over `from` can be led, if it is this one: another port of the same adapter.
    fn other_port(&self, from: RailId, to: RailId) -> Option<&Port> {
        let (from, to) = (self.ports.get(usize::from(from.0))?, self.ports.get(usize::from(to.0))?);
        let (a, b) = (&from.adapter, &to.adapter);
        (a.context == b.context && a.port != b.port).then_some(to)
    }

    /// An alternate is wanted for a lane that this side opened, or none.
    pub fn load(&mut self, lane: LaneNumber, number: u32, alternate: Option<Alternate>) -> Vec<Effect> {
        // what is loaded now goes first, so that neither end migrates to it while the other one is loaded
        let told = self.unload(lane);
        let unload = told.then_some(Effect::Send(Message::Unload { number }));
        let Some(alternate) = alternate else { return unload.into_iter().collect() };
        let refused = || unload.into_iter().chain([Effect::Unloaded(number)]).collect();
        let Some(pair) = self.pairs.get(&lane) else { return refused() };
        let port = self.other_port(pair.rail, alternate.rail);
        let address = port.and_then(|port| port.address().ok());
        let free = pair.has.is_none_or(|has| has == alternate.rail);
        let (Some(from), true) = (address, free) else { return refused() };
        let to = (place(&alternate.to), alternate.to.service());
        self.pairs.get_mut(&lane).expect("it was just there").state =
            State::Requested { number, rail: alternate.rail };
        vec![Effect::Send(Message::Load { number, from, to })]
    }

    /// A message of the peer has come on a lane.
    pub fn receive(&mut self, lane: LaneNumber, message: Message) -> Vec<Effect> {
        match (message, is_ours(lane)) {
            (Message::Load { number, from, to }, false) => self.peer_loads(lane, number, from, to),
            (Message::Unload { number }, false) => {
                let some = self.unload(lane);
                some.then_some(Effect::Unloaded(number)).into_iter().collect()
            }
            (Message::Loaded { number, at }, true) => self.peer_has_loaded(lane, number, at),
            (Message::Refused { number }, true) => {
                let Some(pair) = self.pairs.get_mut(&lane) else { return Vec::new() };
                match pair.state {
                    State::Requested { number: mine, .. } if mine == number => {
                        pair.state = State::Idle;
                        vec![Effect::Unloaded(number)]
                    }
                    _ => Vec::new(),
                }
            }
            // this side receives no such message
            _ => Vec::new(),
        }
    }

    /// The peer's end of a lane that it opened is at `from`, and this end is to be led over the rail at that place. Whatever it names: only
    /// another port of the adapter of the lane is loaded.
    fn peer_loads(&mut self, lane: LaneNumber, number: u32, from: Address, to: (Place, u32)) -> Vec<Effect> {
        let refused = vec![Effect::Send(Message::Refused { number })];
        let Some(pair) = self.pairs.get(&lane) else { return Vec::new() };
        let is_it = |port: &Port| (place(&port.own), port.own.service()) == to;
        let rail = self.ports.iter().position(is_it).map(|i| RailId(i as u8));
        let Some((rail, port)) = rail.and_then(|rail| Some((rail, self.other_port(pair.rail, rail)?))) else {
            return refused;
        };
        let own = port.address();
        // an earlier path goes first
        self.unload(lane);
        match own.and_then(|at| self.rearm(lane, number, rail, from).map(|()| at)) {
            Ok(at) => vec![Effect::Send(Message::Loaded { number, at })],
            Err(_) => refused,
        }
    }

    fn peer_has_loaded(&mut self, lane: LaneNumber, number: u32, at: Address) -> Vec<Effect> {
        let Some(State::Requested { number: mine, rail }) = self.pairs.get(&lane).map(|p| p.state) else {
            return Vec::new();
        };
        if mine != number {
            // an answer to an earlier order
            return Vec::new();
        }
        if self.rearm(lane, number, rail, at).is_ok() {
            return Vec::new();
        }
        if let Some(pair) = self.pairs.get_mut(&lane) {
            pair.state = State::Idle;
        }
        vec![Effect::Send(Message::Unload { number }), Effect::Unloaded(number)]
    }

    /// Loads a path into this end of a lane: over this own rail, to this port of the peer.
    fn rearm(&mut self, lane: LaneNumber, number: u32, rail: RailId, to: Address) -> io::Result<()> {
        let gone = || io::Error::from(io::ErrorKind::NotFound);
        let qp = self.pairs.get(&lane).ok_or_else(gone)?.qp;
        let adapter = &self.ports.get(usize::from(rail.0)).ok_or_else(gone)?.adapter;
        // SAFETY: the queue pair lives until it is forgotten.
        let now = unsafe { query(adapter, qp) }?;
        let mut wanted = now.ah_attr;
        wanted.dlid = to.lid;
        wanted.grh.dgid = ibv_gid { raw: to.gid };
        wanted.grh.sgid_index = adapter.gid_index;
        wanted.src_path_bits = 0;
        wanted.port_num = adapter.port;
        // SAFETY: as above.
        if let Err(why) = unsafe { load(adapter, qp, &now, wanted) } {
            let has = now.alt_ah_attr;
            let same = (has.dlid, has.grh.dgid.raw) == (to.lid, to.gid) && now.alt_port_num == adapter.port;
            if !(same && now.path_mig_state != IBV_MIG_MIGRATED) {
                return Err(why);
            }
            // it could not be unloaded before, and has this path still
        }
        let pair = self.pairs.get_mut(&lane).ok_or_else(gone)?;
        pair.state = State::Rearm { number, ask: Instant::now(), pause: ASK_AFTER.0 };
        pair.has = Some(rail);
        Ok(())
    }

    /// Ends an order, and loads the present path of a lane as its own alternate, if it has another one. Returns whether there was an order.
    fn unload(&mut self, lane: LaneNumber) -> bool {
        let Some(pair) = self.pairs.get_mut(&lane) else { return false };
        let some = std::mem::replace(&mut pair.state, State::Idle) != State::Idle;
        if pair.has.is_some() {
            let adapter = &self.ports[usize::from(pair.rail.0)].adapter;
            // SAFETY: the queue pair lives until it is forgotten.
            let done =
                unsafe { query(adapter, pair.qp).and_then(|now| load(adapter, pair.qp, &now, now.ah_attr)) };
            if done.is_ok() {
                pair.has = None;
            }
        }
        some
    }

    /// A lane is to migrate now. What comes of it is an event.
    pub fn migrate(&mut self, lane: LaneNumber) {
        let Some(pair) = self.pairs.get(&lane) else { return };
        if !matches!(pair.state, State::Armed { .. }) {
            return;
        }
        let adapter = &self.ports[usize::from(pair.rail.0)].adapter;
        // SAFETY: numbers only, for which 0 is valid.
        let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.path_mig_state = IBV_MIG_MIGRATED;
        // It fails when the adapter was faster.
        // SAFETY: the queue pair lives until it is forgotten.
        let _ = unsafe { (adapter.library.ibv_modify_qp)(pair.qp, &raw mut attr, IBV_QP_PATH_MIG_STATE) };
    }

    /// Looks at the lanes that are to be asked, and returns what follows with the lane.
    pub fn ask(&mut self, now: Instant) -> Vec<(LaneNumber, Effect)> {
        let due = |p: &Pair| matches!(p.state, State::Rearm { ask, .. } if ask <= now);
        let lanes: Vec<LaneNumber> =
            self.pairs.iter().filter(|(_, p)| due(p)).map(|(lane, _)| *lane).collect();
        lanes.into_iter().filter_map(|lane| Some((lane, self.look(lane, now)?))).collect()
    }

    /// How long it is until a lane is to be asked.
    pub fn patience(&self, now: Instant) -> Option<Duration> {
        let ask = |p: &Pair| match p.state {
            State::Rearm { ask, .. } => Some(ask.saturating_duration_since(now)),
            _ => None,
        };
        self.pairs.values().filter_map(ask).min()
    }

    /// Events of queue pairs have come: each is looked at. `None`: of any.
    pub fn events(&mut self, of: Option<Vec<PathEvent>>, now: Instant) -> Vec<(LaneNumber, Effect)> {
        let mut effects = Vec::new();
        let lanes: Vec<LaneNumber> = self.pairs.keys().copied().collect();
        for lane in lanes {
            // SAFETY: the queue pair lives until it is forgotten.
            let number = unsafe { (*self.pairs[&lane].qp).qp_num };
            let of_it = of.as_ref().is_none_or(|of| of.iter().any(|e| e.number == number));
            if !of_it {
                continue;
            }
            effects.extend(self.look(lane, now).map(|effect| (lane, effect)));
            let failed = of.as_ref().is_some_and(|of| of.iter().any(|e| e.number == number && e.failed));
            if failed {
                effects.extend(self.fails(lane).into_iter().map(|effect| (lane, effect)));
            }
        }
        effects
    }

    /// The adapter could not migrate: its alternate is of no use.
    fn fails(&mut self, lane: LaneNumber) -> Vec<Effect> {
        let Some(pair) = self.pairs.get(&lane) else { return Vec::new() };
        let (State::Rearm { number, .. } | State::Armed { number }) = pair.state else { return Vec::new() };
        self.unload(lane);
        let send = is_ours(lane).then_some(Effect::Send(Message::Unload { number }));
        send.into_iter().chain([Effect::Unloaded(number)]).collect()
    }

    /// Asks a queue pair for its state.
    fn look(&mut self, lane: LaneNumber, now: Instant) -> Option<Effect> {
        let pair = self.pairs.get_mut(&lane)?;
        let rail = pair.has?;
        let adapter = &self.ports[usize::from(pair.rail.0)].adapter;
        // SAFETY: the queue pair lives until it is forgotten.
        let found = unsafe { query(adapter, pair.qp) }.map(|attr| attr.path_mig_state);
        match (found, pair.state) {
            (Ok(IBV_MIG_MIGRATED), _) => {
                // it was loaded, so there is but one way back to this state
                (pair.state, pair.rail, pair.has) = (State::Idle, rail, None);
                Some(Effect::Migrated(rail))
            }
            (Ok(IBV_MIG_ARMED), State::Rearm { number, .. }) => {
                pair.state = State::Armed { number };
                Some(Effect::Armed(number, rail))
            }
            (_, State::Rearm { number, pause, .. }) => {
                let pause = (2 * pause).min(ASK_AFTER.1);
                pair.state = State::Rearm { number, ask: now + pause, pause };
                None
            }
            _ => None,
        }
    }
}

/// Whether this process opened a lane.
pub fn is_ours(lane: LaneNumber) -> bool {
    lane % 2 == 0
}

/// # Safety
/// The queue pair lives.
unsafe fn query(adapter: &Adapter, qp: *mut ibv_qp) -> io::Result<ibv_qp_attr> {
    // SAFETY: numbers and pointers only, for which 0 is valid.
    let (mut attr, mut init): (ibv_qp_attr, ibv_qp_init_attr) = unsafe { std::mem::zeroed() };
    let mask = IBV_QP_AV | IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE | IBV_QP_PKEY_INDEX | IBV_QP_TIMEOUT;
    // SAFETY: the caller's promise; both are written to.
    done(unsafe { (adapter.library.ibv_query_qp)(qp, &raw mut attr, mask, &raw mut init) })?;
    Ok(attr)
}

/// Loads a path as the alternate of a queue pair whose attributes are `now`.
///
/// # Safety
/// The queue pair lives.
unsafe fn load(adapter: &Adapter, qp: *mut ibv_qp, now: &ibv_qp_attr, path: ibv_ah_attr) -> io::Result<()> {
    // SAFETY: numbers only, for which 0 is valid.
    let mut attr: ibv_qp_attr = unsafe { std::mem::zeroed() };
    attr.alt_ah_attr = path;
    attr.alt_port_num = path.port_num;
    attr.alt_pkey_index = now.pkey_index;
    attr.alt_timeout = now.timeout;
    attr.path_mig_state = IBV_MIG_REARM;
    // SAFETY: the caller's promise.
    done(unsafe {
        (adapter.library.ibv_modify_qp)(qp, &raw mut attr, IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE)
    })
}

/// Tries whether an adapter takes another one of its ports as an alternate path: on a queue pair of port `one` that is connected to itself. No
/// packet is sent.
///
/// # Errors
/// It does not, or cannot be tried.
pub fn probe(one: &Port, other: &Port, completions: &Completions) -> io::Result<()> {
    let adapter = &one.adapter;
    let cap =
        ibv_qp_cap { max_send_wr: 1, max_recv_wr: 1, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
    let mut init = ibv_qp_init_attr {
        qp_context: null_mut(),
        send_cq: completions.queue(),
        recv_cq: completions.queue(),
        srq: null_mut(),
        cap,
        qp_type: IBV_QPT_RC,
        sq_sig_all: 0,
    };
    // SAFETY: the domain lives, and so does the completion queue.
    let qp = made(unsafe { (adapter.library.ibv_create_qp)(adapter.domain, &raw mut init) })?;
    // SAFETY: it was just made.
    let tried = unsafe { try_on(qp, one, other) };
    // SAFETY: nothing was posted to it.
    unsafe { (adapter.library.ibv_destroy_qp)(qp) };
    tried
}

/// # Safety
/// A queue pair of the adapter in its first state.
unsafe fn try_on(qp: *mut ibv_qp, one: &Port, other: &Port) -> io::Result<()> {
    let (adapter, to_self, to_other) = (&one.adapter, one.address()?, other.address()?);
    let path = |port: &Port, to: Address| ibv_ah_attr {
        grh: ibv_global_route {
            dgid: ibv_gid { raw: to.gid },
            flow_label: 0,
            sgid_index: port.adapter.gid_index,
            hop_limit: 64,
            traffic_class: 0,
        },
        dlid: to.lid,
        sl: 0,
        src_path_bits: 0,
        static_rate: 0,
        is_global: 1,
        port_num: port.adapter.port,
    };
    // SAFETY: numbers only, for which 0 is valid.
    let mut a: ibv_qp_attr = unsafe { std::mem::zeroed() };
    (a.port_num, a.ah_attr) = (adapter.port, path(one, to_self));
    (a.path_mtu, a.timeout, a.retry_cnt, a.rnr_retry, a.min_rnr_timer) = (1, 14, 6, 6, 12);
    // SAFETY: the caller's promise.
    a.dest_qp_num = unsafe { (*qp).qp_num };
    let steps = [
        (IBV_QPS_INIT, IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS),
        (
            IBV_QPS_RTR,
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        ),
        (
            IBV_QPS_RTS,
            IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC,
        ),
    ];
    for (state, mask) in steps {
        a.qp_state = state;
        // SAFETY: as above.
        done(unsafe { (adapter.library.ibv_modify_qp)(qp, &raw mut a, IBV_QP_STATE | mask) })?;
    }
    // SAFETY: as above.
    unsafe { load(adapter, qp, &a, path(other, to_other)) }
}

/// What an adapter has reported of a queue pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PathEvent {
    /// Of the queue pair.
    pub number: u32,
    /// It should have migrated and could not.
    pub failed: bool,
}

/// Events of queue pairs, on their way to the connection manager.
pub struct PathEvents(Reports<PathEvent>);

impl PathEvents {
    /// `wake` wakes the manager.
    pub fn new(wake: Arc<OwnedFd>) -> PathEvents {
        PathEvents(Reports::new(wake))
    }

    /// One more.
    pub fn put(&self, event: PathEvent) {
        self.0.put(|events| {
            // with one more than are kept, all queue pairs are looked at
            if events.len() <= EVENTS_MAX {
                events.push(event);
            }
        });
    }

    /// Those that came since the last call; `Some(None)`: too many to keep.
    pub fn take(&self) -> Option<Option<Vec<PathEvent>>> {
        self.0.take().map(|events| Some(events).filter(|events| events.len() <= EVENTS_MAX))
    }
}
