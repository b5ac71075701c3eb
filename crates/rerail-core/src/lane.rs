//! A lane: one connection of a path with everything that is counted on it.
//!
//! Owns: packet numbers and unacknowledged datagrams ([`Datagrams`]), bulk datagrams (`bulk`), what was received and
//! has to be acknowledged ([`Acks`]), the stream and the attempts at one ([`Connection`]), whether adapters write for it
//! ([`Placing`]), what the previous epoch left unacknowledged ("ghosts"), round-trip time and rate. The evidence about
//! the path, its health and its epoch belong to the path. Invariant: with a new epoch all numbers restart, and nothing
//! is unacknowledged. Packet numbers per path, epoch and channel are as in multipath QUIC
//! (draft-ietf-quic-multipath, §4).

pub(crate) mod acks;
pub(crate) mod bulk;
pub(crate) mod connection;
pub(crate) mod datagrams;
pub(crate) mod name;
pub(crate) mod placing;
pub(crate) mod sent;

use crate::message::item::Item;
use crate::message::outgoing::Outgoing;
use crate::rate::{Rate, Rtt};
use crate::rest::{OnDemand, rests};
use crate::types::{Epoch, StreamId, Time};
use acks::Acks;
use bulk::{Bulk, BulkAck, BulkNews};
use connection::Connection;
use datagrams::Datagrams;
use placing::Placing;
use rustc_hash::{FxBuildHasher, FxHashMap};
use sent::{Items, Sent};
use std::time::Duration;

/// Packets and frames of a dead epoch of which a late acknowledgement still counts. What is acknowledged beyond them is sent again, and
/// the other side throws it away: small messages on a fast stream would be a great many.
const GHOSTS_MAX: usize = 2048;

/// Which channel of a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Channel {
    Datagram = 0,
    Stream = 1,
    Bulk = 2,
}

/// What packets and frames of the previous epoch carried that were not acknowledged in it, by epoch, channel, stream (0
/// for datagrams), packet number. Numbers restart with each stream.
type Ghosts = FxHashMap<(Epoch, Channel, u16, u64), Items>;

rests! {
    empty Ghosts = Ghosts::with_hasher(FxBuildHasher);
}

/// See above.
#[derive(Clone)]
pub(crate) struct Lane {
    datagrams: Datagrams,
    bulk: Bulk,
    acks: Acks,
    connection: Connection,
    placing: Placing,
    ghosts: OnDemand<Ghosts>,
    rtt: Rtt,
    rate: Rate,
}

impl Lane {
    /// A lane of a rail of that nominal speed, whose datagrams have so many bytes.
    pub fn new(datagram_bytes: usize, mbps: u32, now: Time) -> Self {
        Self {
            datagrams: Datagrams::default(),
            bulk: Bulk::new(datagram_bytes, now),
            acks: Acks::default(),
            connection: Connection::default(),
            placing: Placing::default(),
            ghosts: OnDemand::default(),
            rtt: Rtt::default(),
            rate: Rate::nominal(mbps),
        }
    }

    /// A new epoch begins. What was received in the last one is still acknowledged, and late acknowledgements of its
    /// ghosts still count.
    pub fn begin_epoch(&mut self, datagram_bytes: usize, mbps: u32, now: Time) {
        self.datagrams = Datagrams::default();
        self.bulk = Bulk::new(datagram_bytes, now);
        self.acks.begin_epoch();
        self.connection.begin_epoch();
        self.rate = Rate::nominal(mbps);
    }

    /// Gives back what nothing needs while the peer is silent.
    pub fn rest(&mut self) {
        self.datagrams.rest();
        self.connection.rest();
        self.ghosts.rest();
        self.bulk.rest();
        self.acks.rest();
    }

    #[inline]
    pub fn datagrams(&self) -> &Datagrams {
        &self.datagrams
    }

    #[inline]
    pub fn datagrams_mut(&mut self) -> &mut Datagrams {
        &mut self.datagrams
    }

    #[inline]
    pub fn acks(&self) -> &Acks {
        &self.acks
    }

    #[inline]
    pub fn acks_mut(&mut self) -> &mut Acks {
        &mut self.acks
    }

    #[inline]
    pub fn connection(&self) -> &Connection {
        &self.connection
    }

    #[inline]
    pub fn connection_mut(&mut self) -> &mut Connection {
        &mut self.connection
    }

    /// Whether adapters write for it.
    #[inline]
    pub fn placing(&self) -> &Placing {
        &self.placing
    }

    #[inline]
    pub fn placing_mut(&mut self) -> &mut Placing {
        &mut self.placing
    }

    /// The stream that is attached.
    #[inline]
    pub fn stream(&self) -> Option<StreamId> {
        self.connection.stream()
    }

    #[inline]
    pub fn bulk(&self) -> &Bulk {
        &self.bulk
    }

    #[inline]
    pub fn bulk_mut(&mut self) -> &mut Bulk {
        &mut self.bulk
    }

    /// Bulk datagrams were acknowledged (see [`Bulk::acked`]).
    pub fn bulk_acked(
        &mut self,
        ack: BulkAck,
        datagram_bytes: usize,
        outgoing: &Outgoing,
        now: Time,
    ) -> Option<BulkNews> {
        self.bulk.acked(ack, datagram_bytes, outgoing, (&mut self.rtt, &mut self.rate), now)
    }

    #[inline]
    pub fn rtt(&self) -> &Rtt {
        &self.rtt
    }

    /// An answer took so long.
    #[inline]
    pub fn sample(&mut self, round_trip: Duration) {
        self.rtt.sample(round_trip);
    }

    /// Bytes per second.
    #[inline]
    pub fn rate(&self) -> f64 {
        self.rate.get()
    }

    #[inline]
    pub fn rate_mut(&mut self) -> &mut Rate {
        &mut self.rate
    }

    // ---- what is left of a dead epoch --------------------------------------------------------------------------

    /// The epoch ended with these datagrams and frames of its stream unacknowledged: an acknowledgement that comes late over another path
    /// still counts.
    pub fn bury<'a>(
        &mut self,
        epoch: Epoch,
        datagrams: &'a [Sent],
        on_stream: impl Iterator<Item = &'a Sent>,
    ) {
        self.ghosts.clear();
        let stream_number = self.connection.number() as u16;
        let datagrams = datagrams.iter().map(|r| ((epoch, Channel::Datagram, 0, r.number()), r));
        let on_stream = on_stream.map(|r| ((epoch, Channel::Stream, stream_number, r.number()), r));
        // the oldest are the likeliest to have arrived
        for (key, r) in datagrams.chain(on_stream).take(GHOSTS_MAX) {
            self.ghosts.insert(key, r.to_items());
        }
    }

    /// Takes out what such a late acknowledgement names.
    pub fn acked_late(
        &mut self,
        epoch: Epoch,
        channel: Channel,
        stream: u16,
        ranges: &[(u64, u64)],
    ) -> Vec<Item> {
        let mut done = Vec::new();
        if let Some(ghosts) = self.ghosts.awake_mut() {
            ghosts.retain(|&(e, c, s, n), items| {
                let hit = e == epoch
                    && c == channel
                    && s == stream
                    && ranges.iter().any(|&(l, h)| (l..=h).contains(&n));
                if hit {
                    done.extend_from_slice(items.as_slice());
                }
                !hit
            });
        }
        done
    }

    /// How many of them there are.
    pub fn ghosts(&self) -> usize {
        self.ghosts.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sent(number: u64, seq: u64) -> Sent {
        Sent::new(number, Items::One(Item::Eager { seq }), 1, Time::ORIGIN)
    }

    #[test]
    fn what_a_dead_epoch_left_is_acknowledged_once_and_by_its_own_channel_only() {
        let mut lane = Lane::new(1400, 0, Time::ORIGIN);
        lane.connection_mut().attach(StreamId(7), 5);
        let (datagrams, frames) = ([sent(0, 10), sent(1, 11)], [sent(0, 20)]);
        lane.bury(Epoch(2), &datagrams, frames.iter());
        assert_eq!(lane.ghosts(), 3);
        for (epoch, channel, stream) in
            [(Epoch(3), Channel::Datagram, 0), (Epoch(2), Channel::Stream, 4), (Epoch(2), Channel::Bulk, 0)]
        {
            assert!(lane.acked_late(epoch, channel, stream, &[(0, 9)]).is_empty());
        }
        assert_eq!(lane.acked_late(Epoch(2), Channel::Datagram, 0, &[(1, 1)]), [Item::Eager { seq: 11 }]);
        assert_eq!(lane.acked_late(Epoch(2), Channel::Datagram, 0, &[(0, 1)]), [Item::Eager { seq: 10 }]);
        assert_eq!(lane.acked_late(Epoch(2), Channel::Stream, 5, &[(0, 0)]), [Item::Eager { seq: 20 }]);
        assert_eq!(lane.ghosts(), 0);
    }

    #[test]
    fn with_a_new_epoch_numbers_begin_anew_and_the_round_trip_stays() {
        let mut lane = Lane::new(1400, 0, Time::ORIGIN);
        assert_eq!((lane.datagrams_mut().take_number(), lane.datagrams_mut().take_number()), (0, 1));
        lane.datagrams_mut().record(sent(0, 1));
        lane.connection_mut().attach(StreamId(7), 5);
        lane.acks_mut().of_mut(Channel::Stream).note(3, true, 0, Time::ORIGIN, Duration::ZERO, true);
        lane.sample(Duration::from_millis(3));
        lane.begin_epoch(1400, 0, Time::ORIGIN);
        assert_eq!((lane.datagrams_mut().take_number(), lane.datagrams().is_empty()), (0, true));
        assert_eq!((lane.stream(), lane.connection().number()), (None, 0));
        assert_eq!(lane.acks().of(Channel::Stream).largest(), None);
        assert_eq!(lane.rtt().min(), Some(Duration::from_millis(3)));
    }
}
