//! What waits to leave the engine: datagrams that are built, actions for the world, keys for the layer that encrypts,
//! events for people, and the peers and streams to be looked at for more.
//!
//! Owns: these queues. Parts and chapters only add to them, and the `poll_` functions of [`Engine`](crate::Engine) take out; two things are
//! taken back: the request to close a stream that is closed already, and datagrams under keys that are forgotten. Invariants: everything
//! leaves in the order in which it came; of events at most [`EVENTS_MAX`] wait.

use crate::cipher::KeysUpdate;
use crate::event::Event;
use crate::marks::{Mark, Marks};
use crate::rest::fit;
use crate::types::*;
use std::collections::VecDeque;

/// Most events that wait to be read; older ones are dropped first.
const EVENTS_MAX: usize = 4096;

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Output {
    datagrams: VecDeque<Datagram>,
    actions: VecDeque<Action>,
    keys: VecDeque<KeysUpdate>,
    events: VecDeque<Event>,
    /// Peers for which a datagram may be built.
    peers: Marks<PeerId>,
    /// Peers to which trains of bulk datagrams may be due.
    trains: Marks<PeerId>,
    /// Streams that may have something to write.
    streams: Marks<StreamId>,
}

impl Output {
    /// A datagram is complete.
    pub fn send(&mut self, datagram: Datagram) {
        self.datagrams.push_back(datagram);
    }

    /// The world is to do something.
    pub fn act(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// The layer that encrypts must know.
    pub fn renew_keys(&mut self, update: KeysUpdate) {
        self.keys.push_back(update);
    }

    /// People should know.
    pub fn tell(&mut self, event: Event) {
        if self.events.len() >= EVENTS_MAX {
            self.events.pop_front();
        }
        self.events.push_back(event);
    }

    /// A stream is closed already: its close need not be requested.
    pub fn is_closed(&mut self, stream: StreamId) {
        self.actions.retain(|a| *a != Action::CloseStream { stream });
    }

    /// Datagrams that cannot be sent any more are dropped.
    pub fn drop_datagrams(&mut self, useless: impl Fn(&Datagram) -> bool) {
        self.datagrams.retain(|d| !useless(d));
    }

    pub fn next_datagram(&mut self) -> Option<Datagram> {
        self.datagrams.pop_front()
    }

    pub fn next_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    pub fn next_keys(&mut self) -> Option<KeysUpdate> {
        self.keys.pop_front()
    }

    #[inline]
    pub fn has_keys(&self) -> bool {
        !self.keys.is_empty()
    }

    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    // ---- what has to be looked at for more ---------------------------------------------------------------------

    /// A datagram may be built for a peer.
    #[inline]
    pub fn datagram_is_due(&mut self, peer: PeerId, mark: &mut Mark) {
        self.peers.add(peer, mark);
    }

    /// The first peer for which a datagram may be built. It stays the first until [`Output::no_datagram`].
    #[inline]
    pub fn due_datagram(&self) -> Option<PeerId> {
        self.peers.first()
    }

    /// No more datagrams can be built for the first peer now.
    #[inline]
    pub fn no_datagram(&mut self, mark: &mut Mark) {
        self.peers.done(mark);
    }

    /// A train of bulk datagrams may be built for a peer.
    #[inline]
    pub fn train_is_due(&mut self, peer: PeerId, mark: &mut Mark) {
        self.trains.add(peer, mark);
    }

    /// The first peer for which a train may be built.
    #[inline]
    pub fn due_train(&self) -> Option<PeerId> {
        self.trains.first()
    }

    /// A train was built for the first peer, which goes to the end: the others have their turn.
    #[inline]
    pub fn train_is_built(&mut self) {
        self.trains.turn();
    }

    /// No train can be built for the first peer now.
    #[inline]
    pub fn no_train(&mut self, mark: &mut Mark) {
        self.trains.done(mark);
    }

    /// There may be something to write on a stream.
    #[inline]
    pub fn stream_is_due(&mut self, stream: StreamId, mark: &mut Mark) {
        self.streams.add(stream, mark);
    }

    /// The first stream that may have something to write.
    #[inline]
    pub fn due_stream(&self) -> Option<StreamId> {
        self.streams.first()
    }

    /// The first stream is given to the world, to be written.
    #[inline]
    pub fn stream_is_taken(&mut self, mark: &mut Mark) {
        self.streams.done(mark);
    }

    /// The first stream does not exist any more.
    #[inline]
    pub fn stream_is_gone(&mut self) {
        self.streams.is_gone();
    }

    /// Whether nothing waits, and no peer or stream has to be looked at.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.peers.is_empty()
            && self.datagrams.is_empty()
            && self.trains.is_empty()
            && self.actions.is_empty()
            && self.keys.is_empty()
            && self.streams.is_empty()
            && self.events.is_empty()
    }

    /// Gives back what bursts have left behind.
    pub fn tidy(&mut self) {
        fit(&mut self.datagrams);
        fit(&mut self.actions);
        fit(&mut self.keys);
        fit(&mut self.events);
        self.peers.tidy();
        self.trains.tidy();
        self.streams.tidy();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::EventKind;

    fn event(peer: u32) -> Event {
        Event { kind: EventKind::PeerStopped, peer: PeerId(peer), peer_name: 0, path: None }
    }

    #[test]
    fn of_events_the_newest_are_kept() {
        let mut o = Output::default();
        for i in 0..EVENTS_MAX as u32 + 2 {
            o.tell(event(i));
        }
        let peers: Vec<u32> = std::iter::from_fn(|| o.next_event()).map(|e| e.peer.0).collect();
        assert_eq!((peers.len(), peers[0]), (EVENTS_MAX, 2));
        assert!(o.is_empty());
    }

    #[test]
    fn a_stream_that_is_closed_needs_no_closing_and_all_else_keeps_its_order() {
        let close = |n| Action::CloseStream { stream: StreamId(n) };
        let mut o = Output::default();
        o.act(close(1));
        o.act(Action::InspectStream { stream: StreamId(1) });
        o.act(close(2));
        o.is_closed(StreamId(1));
        assert!(!o.is_empty());
        assert_eq!(o.next_action(), Some(Action::InspectStream { stream: StreamId(1) }));
        assert_eq!((o.next_action(), o.next_action()), (Some(close(2)), None));
    }

    #[test]
    fn output_is_not_empty_while_something_has_to_be_looked_at() {
        let (mut o, mut marks) = (Output::default(), [Mark::default(); 4]);
        let [datagram, first, second, stream] = &mut marks;
        o.datagram_is_due(PeerId(1), datagram);
        assert_eq!((o.due_datagram(), o.is_empty()), (Some(PeerId(1)), false));
        o.no_datagram(datagram);
        o.train_is_due(PeerId(1), first);
        o.train_is_due(PeerId(2), second);
        o.train_is_built();
        assert_eq!((o.due_train(), o.is_empty()), (Some(PeerId(2)), false), "the other has its turn");
        o.no_train(second);
        o.no_train(first);
        o.stream_is_due(StreamId(1), stream);
        o.stream_is_due(StreamId(1), stream);
        assert_eq!((o.due_stream(), o.is_empty()), (Some(StreamId(1)), false));
        o.stream_is_taken(stream);
        assert!(o.is_empty() && marks.iter().all(|m| !m.is_set()));
    }

    #[test]
    fn datagrams_that_are_dropped_leave_the_others_in_order() {
        let mut o = Output::default();
        for n in 0..4 {
            o.send(Datagram { bytes: vec![n], ..Datagram::default() });
        }
        o.drop_datagrams(|d| d.bytes[0] % 2 == 0);
        let left: Vec<u8> = std::iter::from_fn(|| o.next_datagram()).map(|d| d.bytes[0]).collect();
        assert_eq!(left, [1, 3]);
    }
}
