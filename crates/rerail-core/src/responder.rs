//! Answers queries without the engine. Owns: a small table of sessions.
//!
//! The engine may be locked by an application thread that is not running (hazard H17); the service thread still answers
//! PINGs, through this table, and marks the answer as given without the engine ([`PONG_BYPASS`]). Source: design,
//! "differential query".

use crate::types::{Datagram, Locator, RailId};
use rerail_wire::address::Rails;
use rerail_wire::packet::{
    PACKET_HEADER_BYTES, PONG_BYPASS, PONG_ENTRIES_MAX, PONG_ENTRY_BYTES, PacketHeader, PacketKind,
    PongEntry, peek,
};
use rerail_wire::{Address, Coverage};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// A change of the table, made by the engine, carried out by the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponderUpdate {
    /// A session exists.
    Add {
        /// Connection id of what arrives.
        cid_in: u64,
        /// Connection id of the answers.
        cid_out: u64,
        /// Where the peer is.
        at: Whereabouts,
    },
    /// A session is over.
    Remove {
        /// Connection id of what arrived.
        cid_in: u64,
    },
}

/// Where a peer is, as it published. Answers go there and nowhere else: the source of a datagram can be forged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whereabouts {
    rails: Rails,
    /// Our token is the higher of the two: the peer's rails are in the high byte of path numbers.
    own_is_high: bool,
}

impl Whereabouts {
    /// As published, and as seen from a process whose token is the higher of the two, or not.
    pub fn new(published: &Address, own_is_high: bool) -> Self {
        Self { rails: Rails::of(&published.rails), own_is_high }
    }

    /// The far end of path `path`, if that ends at our rail `rail`.
    fn remote(&self, path: u16, rail: RailId) -> Option<Locator> {
        let [low, high] = path.to_le_bytes();
        let (own, remote) = if self.own_is_high { (low, high) } else { (high, low) };
        self.rails.get(usize::from(remote)).filter(|_| own == rail.0)
    }
}

/// What answers a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answerer {
    /// The engine. Its answers name the interval of queries on idle paths that it requests.
    Engine {
        /// See [`PongEntry::wish`].
        wish: u16,
    },
    /// The service thread, while the engine is locked. Its answers name no interval.
    Bypass,
}

/// What became of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Respond {
    /// Not a query: the engine must see it.
    ForEngine,
    /// A query; the answer is in the datagram.
    Answered,
    /// A query of no known peer, or broken: count it and forget it.
    Dropped,
}

#[derive(Debug, Clone)]
struct Session {
    cid_out: u64,
    at: Whereabouts,
    /// Two rails are the usual number, and need no memory of their own.
    heard: SmallVec<[PongEntry; 2]>,
}

/// The table. The engine has one of its own; the world has another for the time when the engine is locked.
#[derive(Debug, Clone, Default)]
pub struct Responder {
    /// Boxed, because a table has room for twice as many as are in it.
    sessions: FxHashMap<u64, Box<Session>>,
}

impl Responder {
    /// Carries out a change.
    pub fn update(&mut self, u: ResponderUpdate) {
        match u {
            ResponderUpdate::Add { cid_in, cid_out, at } => {
                let fresh = || Box::new(Session { cid_out, at, heard: SmallVec::new() });
                self.sessions.entry(cid_in).or_insert_with(fresh);
            }
            ResponderUpdate::Remove { cid_in } => {
                self.sessions.remove(&cid_in);
            }
        }
    }

    /// Looks at a datagram that arrived on `rail`; an answer, if there is one, is left in `out`. It goes back the way the query
    /// came: an answer on another path would prove nothing about this one. It has at most as many bytes as the query.
    pub fn respond(&mut self, rail: RailId, bytes: &[u8], by: Answerer, out: &mut Datagram) -> Respond {
        let (wish, flags) = match by {
            Answerer::Engine { wish } => (wish, 0),
            Answerer::Bypass => (0, PONG_BYPASS),
        };
        match peek(bytes) {
            Some((_, PacketKind::Ping)) => {}
            Some(_) => return Respond::ForEngine,
            None => return Respond::Dropped,
        }
        let Some(s) = peek(bytes).and_then(|(cid, _)| self.sessions.get_mut(&cid)) else {
            return Respond::Dropped;
        };
        // a damaged query of a known session is for the engine to count
        let Ok((h, padding)) = PacketHeader::parse(bytes) else { return Respond::ForEngine };
        let Some(to) = s.at.remote(h.path, rail) else { return Respond::Dropped };
        if let Some(e) = s.heard.iter_mut().find(|e| e.path == h.path) {
            if h.number > e.id {
                (e.id, e.epoch) = (h.number, h.epoch);
            }
        } else if s.heard.len() < PONG_ENTRIES_MAX {
            s.heard.push(PongEntry { path: h.path, wish: 0, epoch: h.epoch, id: h.number });
        }
        (out.rail, out.to) = (rail, to);
        let entries = s.heard.len().min(padding.len() / PONG_ENTRY_BYTES);
        out.bytes.clear();
        let table = entries * PONG_ENTRY_BYTES;
        out.bytes.resize(PACKET_HEADER_BYTES + table, 0);
        for (e, b) in s.heard.iter().zip(out.bytes[PACKET_HEADER_BYTES..].chunks_exact_mut(PONG_ENTRY_BYTES))
        {
            PongEntry { wish, ..*e }.write(b);
        }
        // never longer than the query: an answer amplifies nothing
        out.bytes.extend_from_slice(padding.get(table..).unwrap_or_default());
        PacketHeader {
            cid: s.cid_out,
            kind: PacketKind::Pong,
            path: h.path,
            epoch: h.epoch,
            number: h.number,
            flags,
            entries: entries as u8,
            coverage: Coverage::Full,
        }
        .seal(&mut out.bytes);
        Respond::Answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENGINE: Answerer = Answerer::Engine { wish: 30 };

    fn ping(path: u16, number: u64, entries: usize) -> Vec<u8> {
        let mut b = vec![0; PACKET_HEADER_BYTES + entries * PONG_ENTRY_BYTES];
        PacketHeader {
            cid: 7,
            kind: PacketKind::Ping,
            path,
            epoch: 2,
            number,
            flags: 0,
            entries: 0,
            coverage: Coverage::Full,
        }
        .seal(&mut b);
        b
    }

    fn at(addr: &str) -> Locator {
        Locator::ip(addr.parse().unwrap(), 4000)
    }

    fn peer() -> ResponderUpdate {
        let published = Address {
            token: rerail_wire::Token([3; 16]),
            endpoint: 0,
            encrypts: false,
            rails: vec![at("10.0.0.2"), at("10.1.0.2")],
        };
        ResponderUpdate::Add { cid_in: 7, cid_out: 8, at: Whereabouts::new(&published, true) }
    }

    #[test]
    fn only_queries_of_known_sessions_are_answered() {
        let mut r = Responder::default();
        let mut out = Datagram::default();
        // rail 0 of the peer, in the high byte, and our rail 1
        let ping = ping(1, 3, 2);
        assert_eq!(r.respond(RailId(1), &ping, Answerer::Bypass, &mut out), Respond::Dropped);
        r.update(peer());
        assert_eq!(r.respond(RailId(1), &ping, Answerer::Bypass, &mut out), Respond::Answered);
        assert_eq!((out.rail, out.to), (RailId(1), at("10.0.0.2")));
        let (h, rest) = PacketHeader::parse(&out.bytes).unwrap();
        assert_eq!((h.cid, h.kind, h.number, h.flags), (8, PacketKind::Pong, 3, PONG_BYPASS));
        let table = &rest[..h.table_bytes()];
        assert_eq!(
            PongEntry::read_all(table).collect::<Vec<_>>(),
            [PongEntry { path: 1, wish: 0, epoch: 2, id: 3 }]
        );
        assert_eq!(r.respond(RailId(1), b"junk", Answerer::Bypass, &mut out), Respond::Dropped);
        // a long query has a long answer; a damaged one is the engine's
        let mut long = vec![9; 1000];
        PacketHeader { kind: PacketKind::Ping, cid: 7, flags: 0, entries: 0, ..h }.seal(&mut long);
        assert_eq!(r.respond(RailId(1), &long, Answerer::Bypass, &mut out), Respond::Answered);
        let (h, rest) = PacketHeader::parse(&out.bytes).unwrap();
        assert_eq!((out.bytes.len(), h.entries, rest[h.table_bytes()..][0]), (1000, 1, 9));
        long[500] ^= 1;
        assert_eq!(r.respond(RailId(1), &long, Answerer::Bypass, &mut out), Respond::ForEngine);
        r.update(ResponderUpdate::Remove { cid_in: 7 });
        assert_eq!(r.respond(RailId(1), &ping, Answerer::Bypass, &mut out), Respond::Dropped);
    }

    #[test]
    fn only_answers_of_the_engine_name_an_interval() {
        let mut r = Responder::default();
        let mut out = Datagram::default();
        r.update(peer());
        for (by, flags, wish) in [(ENGINE, 0, 30), (Answerer::Bypass, PONG_BYPASS, 0)] {
            assert_eq!(r.respond(RailId(1), &ping(1, 3, 2), by, &mut out), Respond::Answered);
            let (h, rest) = PacketHeader::parse(&out.bytes).unwrap();
            assert_eq!(h.flags, flags, "{by:?}");
            assert!(PongEntry::read_all(&rest[..h.table_bytes()]).all(|e| e.wish == wish), "{by:?}");
        }
    }

    #[test]
    fn an_answer_goes_where_the_peer_is_and_is_no_longer_than_the_question() {
        let mut r = Responder::default();
        let mut out = Datagram::default();
        r.update(peer());
        for path in [0x0000, 0x0001, 0x0100, 0x0101] {
            assert_eq!(r.respond(RailId(path as u8), &ping(path, 9, 4), ENGINE, &mut out), Respond::Answered);
        }
        for room in 0..6 {
            let q = ping(0x0100, 10, room);
            assert_eq!(r.respond(RailId(0), &q, ENGINE, &mut out), Respond::Answered);
            assert!(out.bytes.len() <= q.len());
            assert_eq!(out.to, at("10.1.0.2"));
            let (h, _) = PacketHeader::parse(&out.bytes).unwrap();
            assert_eq!(usize::from(h.entries), room.min(4));
        }
        // a rail that the path does not have, and a rail of the peer that it has not published
        assert_eq!(r.respond(RailId(1), &ping(0x0100, 11, 4), ENGINE, &mut out), Respond::Dropped);
        assert_eq!(r.respond(RailId(0), &ping(0x0200, 11, 4), ENGINE, &mut out), Respond::Dropped);
    }

    #[test]
    fn a_peer_is_found_on_rails_of_either_family() {
        let published = |rails: &[&str]| Address {
            token: rerail_wire::Token([3; 16]),
            endpoint: 0,
            encrypts: false,
            rails: rails.iter().map(|r| at(r)).collect(),
        };
        let v4: Vec<String> = (0..8).map(|i| format!("10.{i}.0.2")).collect();
        let v4: Vec<&str> = v4.iter().map(String::as_str).collect();
        for rails in [&v4[..], &["fd00::2", "fd01::2"], &["fd00::2"], &["10.0.0.2", "fd00::2", "10.1.0.2"]] {
            let place = Whereabouts::new(&published(rails), false);
            for (i, r) in rails.iter().enumerate() {
                assert_eq!(place.remote(0x0100 | i as u16, RailId(1)), Some(at(r)));
                assert_eq!(place.remote(0x0100 | i as u16, RailId(0)), None, "that is not our rail");
            }
            assert_eq!(place.remote(0x0100 | rails.len() as u16, RailId(1)), None, "it has no such rail");
        }
    }
}
