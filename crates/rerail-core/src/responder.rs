//! Answers queries without the engine. Owns: a small table of sessions.
//!
//! The engine may be locked by an application thread that is not running (hazard H17); the service thread still answers
//! PINGs, through this table, and marks the answer as given without the engine ([`PONG_BYPASS`]). Source: design,
//! "differential query".

use crate::types::{Datagram, RailId};
use rerail_wire::Coverage;
use rerail_wire::packet::{
    PACKET_HEADER_BYTES, PONG_BYPASS, PONG_ENTRIES_MAX, PONG_ENTRY_BYTES, PacketHeader, PacketKind,
    PongEntry, peek,
};
use rustc_hash::FxHashMap;
use std::net::SocketAddr;

/// A change of the table, made by the engine, carried out by the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ResponderUpdate {
    /// A session exists.
    Add {
        /// Connection id of what arrives.
        cid_in: u64,
        /// Connection id of the answers.
        cid_out: u64,
        /// UDP port of the peer.
        port: u16,
    },
    /// A session is over.
    Remove {
        /// Connection id of what arrived.
        cid_in: u64,
    },
}

/// What became of a datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Respond {
    /// Not a query: the engine must see it.
    ForEngine,
    /// A query; the answer is in the datagram.
    Answered,
    /// A query of nobody we know, or broken: count it and forget it.
    Dropped,
}

#[derive(Debug)]
struct Session {
    cid_out: u64,
    port: u16,
    heard: Vec<PongEntry>,
}

/// The table. The engine has one of its own; the world has another for the time when the engine is locked.
#[derive(Debug, Default)]
pub struct Responder {
    sessions: FxHashMap<u64, Session>,
}

impl Responder {
    /// Carries out a change.
    pub fn update(&mut self, u: ResponderUpdate) {
        match u {
            ResponderUpdate::Add { cid_in, cid_out, port } => {
                self.sessions.entry(cid_in).or_insert(Session { cid_out, port, heard: Vec::new() });
            }
            ResponderUpdate::Remove { cid_in } => {
                self.sessions.remove(&cid_in);
            }
        }
    }

    /// Looks at a datagram that arrived on `rail` from `from`; an answer, if there is one, is left in `out`. It goes back
    /// the way the query came: an answer on another path would prove nothing about this one.
    pub fn respond(
        &mut self,
        rail: RailId,
        from: SocketAddr,
        bytes: &[u8],
        bypass: bool,
        out: &mut Datagram,
    ) -> Respond {
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
        if let Some(e) = s.heard.iter_mut().find(|e| e.path == h.path) {
            if h.number > e.id {
                (e.id, e.epoch) = (h.number, h.epoch);
            }
        } else if s.heard.len() < PONG_ENTRIES_MAX {
            s.heard.push(PongEntry { path: h.path, epoch: h.epoch, id: h.number });
        }
        out.rail = rail;
        out.to = SocketAddr::new(from.ip(), s.port);
        out.bytes.clear();
        let table = s.heard.len() * PONG_ENTRY_BYTES;
        out.bytes.resize(PACKET_HEADER_BYTES + table, 0);
        for (e, b) in s.heard.iter().zip(out.bytes[PACKET_HEADER_BYTES..].chunks_exact_mut(PONG_ENTRY_BYTES))
        {
            e.write(b);
        }
        // never longer than the query, unless the table is: nobody gets more than was sent
        out.bytes.extend_from_slice(padding.get(table..).unwrap_or_default());
        PacketHeader {
            cid: s.cid_out,
            kind: PacketKind::Pong,
            path: h.path,
            epoch: h.epoch,
            number: h.number,
            flags: if bypass { PONG_BYPASS } else { 0 },
            entries: s.heard.len() as u8,
            coverage: Coverage::Full,
        }
        .seal(&mut out.bytes);
        Respond::Answered
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_queries_of_known_sessions_are_answered() {
        let mut r = Responder::default();
        let mut out = Datagram::default();
        let from = SocketAddr::from(([10, 0, 0, 2], 999));
        let mut ping = vec![0; PACKET_HEADER_BYTES];
        let header = PacketHeader {
            cid: 7,
            kind: PacketKind::Ping,
            path: 1,
            epoch: 2,
            number: 3,
            flags: 0,
            entries: 0,
            coverage: Coverage::Full,
        };
        header.seal(&mut ping);
        assert_eq!(r.respond(RailId(1), from, &ping, true, &mut out), Respond::Dropped);
        r.update(ResponderUpdate::Add { cid_in: 7, cid_out: 8, port: 4000 });
        assert_eq!(r.respond(RailId(1), from, &ping, true, &mut out), Respond::Answered);
        assert_eq!((out.rail, out.to), (RailId(1), SocketAddr::from(([10, 0, 0, 2], 4000))));
        let (h, rest) = PacketHeader::parse(&out.bytes).unwrap();
        assert_eq!((h.cid, h.kind, h.number, h.flags), (8, PacketKind::Pong, 3, PONG_BYPASS));
        assert_eq!(PongEntry::read_all(rest).collect::<Vec<_>>(), [PongEntry { path: 1, epoch: 2, id: 3 }]);
        assert_eq!(r.respond(RailId(1), from, b"junk", true, &mut out), Respond::Dropped);
        // a long query has a long answer; a damaged one is the engine's
        let mut long = vec![9; 1000];
        header.seal(&mut long);
        assert_eq!(r.respond(RailId(1), from, &long, true, &mut out), Respond::Answered);
        let (h, rest) = PacketHeader::parse(&out.bytes).unwrap();
        assert_eq!((out.bytes.len(), h.entries, rest[h.table_bytes()..][0]), (1000, 1, 9));
        long[500] ^= 1;
        assert_eq!(r.respond(RailId(1), from, &long, true, &mut out), Respond::ForEngine);
        r.update(ResponderUpdate::Remove { cid_in: 7 });
        assert_eq!(r.respond(RailId(1), from, &ping, true, &mut out), Respond::Dropped);
    }
}
