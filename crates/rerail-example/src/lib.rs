//! A rail with the semantics of an adapter, in memory: the example of `docs/adding-a-rail.md`, and what the conformance suite of adapters
//! is tried with.
//!
//! Two sides of one process are joined by a [`Network`]. It behaves as unkindly as the contract allows: nothing happens inside a call; memory
//! is read and written in small parts, at polls of either side, in an order that a seed decides; what was sent stays under way for as long
//! as it likes, also when its lane is broken and its initiator was told so; a fence and an invalidation take their time too.
//!
//! Owns: lanes, regions, and the packets that are under way. Invariants: a packet carries a copy of its bytes, so a source is not
//! read after `Done` or `Failed`; a packet whose target's end is fenced, or whose region is invalid, is thrown away.

mod packet;
mod side;

pub use side::ExamplePort;

use packet::Packet;
use rerail_rail::{AdapterEvent, CloseReason, LaneId, RailId, RemoteKey};
use side::Side;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Steps in which something may happen, for each poll.
const STEPS: usize = 4;

/// What joins the sides. A clone is the same network.
#[derive(Clone)]
pub struct Network(Arc<Mutex<State>>);

struct State {
    sides: Vec<Side>,
    connections: Vec<Connection>,
    random: u64,
    keys: u64,
}

/// A lane of each of two sides; `None`: not accepted yet.
struct Connection {
    ends: [End; 2],
    broken: bool,
}

/// One end of a connection.
struct End {
    side: usize,
    lane: Option<LaneId>,
    /// What comes by it from the other end, in order.
    incoming: VecDeque<Packet>,
    fenced: bool,
}

impl Network {
    /// A network without sides, whose order of events this seed decides.
    pub fn new(seed: u64) -> Network {
        Network(Arc::new(Mutex::new(State {
            sides: Vec::new(),
            connections: Vec::new(),
            random: seed | 1,
            keys: seed,
        })))
    }

    /// A new side, with one rail.
    pub fn attach(&self) -> ExamplePort {
        let mut state = self.lock();
        state.sides.push(Side::default());
        let number = state.sides.len() as u32;
        drop(state);
        ExamplePort::new(self.clone(), number)
    }

    /// Breaks every connection. What is under way stays under way.
    pub fn cut(&self) {
        let mut state = self.lock();
        for connection in 0..state.connections.len() {
            state.break_up(connection, CloseReason::Reset);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// A number below `n`.
    fn below(&mut self, n: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        (self.random >> 16) as usize % n.max(1)
    }

    /// A key that was never used.
    fn fresh_key(&mut self) -> RemoteKey {
        self.keys = self.keys.wrapping_add(0x9e37_79b9_7f4a_7c15);
        RemoteKey(self.keys ^ self.keys.rotate_left(29))
    }

    /// The connection of a lane that is not over, and which end of it the side has.
    fn find(&self, side: usize, lane: LaneId) -> Option<(usize, usize)> {
        self.connections.iter().enumerate().find_map(|(c, connection)| {
            let end = connection.ends.iter().position(|e| e.side == side && e.lane == Some(lane))?;
            Some((c, end))
        })
    }

    fn connect(&mut self, from: usize, lane: LaneId, to: u32) {
        let target = (to as usize).checked_sub(1).filter(|&t| t < self.sides.len() && t != from);
        let Some(target) = target else {
            self.sides[from].say(AdapterEvent::Broken(lane, CloseReason::Refused));
            return;
        };
        let end = |side, lane| End { side, lane, incoming: VecDeque::new(), fenced: false };
        self.connections.push(Connection { ends: [end(from, Some(lane)), end(target, None)], broken: false });
        self.sides[target].say(AdapterEvent::Incoming);
    }

    /// Takes a connection that waits for a side; who connects.
    fn accept(&mut self, side: usize, name: &mut dyn FnMut(RailId, u32) -> LaneId) -> bool {
        let waits = |c: &Connection| !c.broken && c.ends[1].side == side && c.ends[1].lane.is_none();
        let Some(connection) = self.connections.iter().position(waits) else { return false };
        let lane = name(RailId(0), self.connections[connection].ends[0].side as u32 + 1);
        self.connections[connection].ends[1].lane = Some(lane);
        for end in 0..2 {
            let End { side, lane, .. } = self.connections[connection].ends[end];
            self.sides[side].say(AdapterEvent::Connected(lane.expect("both ends have one")));
        }
        true
    }

    /// Ends a connection: what was posted fails, and sources are not read any more. What is under way is not touched.
    fn break_up(&mut self, connection: usize, why: CloseReason) {
        if std::mem::replace(&mut self.connections[connection].broken, true) {
            return;
        }
        for end in 0..2 {
            let End { side, lane: Some(lane), .. } = self.connections[connection].ends[end] else { continue };
            self.sides[side].fail_posted(lane);
            self.sides[side].say(AdapterEvent::Broken(lane, why));
        }
    }

    /// Lets a little happen.
    fn advance(&mut self) {
        for _ in 0..STEPS {
            match self.below(4) {
                // more leaves than arrives, so that much is under way when a lane breaks
                0 | 1 => self.transmit(),
                2 => self.arrive(),
                _ => self.settle(),
            }
        }
    }

    /// A part of some operation leaves its side.
    fn transmit(&mut self) {
        if self.connections.is_empty() {
            return;
        }
        let (c, end) = (self.below(self.connections.len()), self.below(2));
        let part = 1 + self.below(6000);
        let connection = &mut self.connections[c];
        let End { side, lane: Some(lane), .. } = connection.ends[end] else { return };
        // Before the other side has accepted, nothing is carried; when it is broken, nothing new.
        if connection.broken || connection.ends[1 - end].lane.is_none() {
            return;
        }
        if let Some(packet) = self.sides[side].take_part(lane, part) {
            connection.ends[1 - end].incoming.push_back(packet);
        }
    }

    /// The first packet of some connection arrives.
    fn arrive(&mut self) {
        if self.connections.is_empty() {
            return;
        }
        let (c, end) = (self.below(self.connections.len()), self.below(2));
        let broken = self.connections[c].broken;
        let target = &mut self.connections[c].ends[end];
        let Some(packet) = target.incoming.front() else { return };
        if target.fenced {
            target.incoming.clear();
            return;
        }
        let (side, lane) = (target.side, target.lane.expect("nothing is sent before it is accepted"));
        match self.sides[side].land(lane, packet, broken) {
            Landing::Waits => return,
            Landing::Landed => {}
            Landing::Refused => {
                self.connections[c].ends[end].incoming.clear();
                self.break_up(c, CloseReason::Damaged);
                return;
            }
        }
        let packet = self.connections[c].ends[end].incoming.pop_front().expect("looked at above");
        if let (Some(done), false) = (packet.last, broken) {
            let End { side, lane: Some(lane), .. } = self.connections[c].ends[1 - end] else { return };
            self.sides[side].finish(lane, done.work);
        }
    }

    /// A fence or an invalidation takes effect, sometime.
    fn settle(&mut self) {
        let side = self.below(self.sides.len());
        if let Some(lane) = self.sides.get_mut(side).and_then(Side::next_fence) {
            if let Some((c, end)) = self.find(side, lane) {
                self.break_up(c, CloseReason::Requested);
                let end = &mut self.connections[c].ends[end];
                end.fenced = true;
                end.incoming.clear();
            }
            self.sides[side].say(AdapterEvent::Fenced { lane });
        } else if let Some(s) = self.sides.get_mut(side) {
            s.settle_regions();
        }
    }
}

/// What became of a packet that arrived.
enum Landing {
    /// There is no receive for it yet.
    Waits,
    /// It is in memory.
    Landed,
    /// It may not be there, or a receive is too small.
    Refused,
}
