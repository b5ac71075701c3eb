//! All stream connections of one process, by the names that it gave them.
//!
//! Owns: the table, the names, which streams are strangers, and the streams because of which streams are worth a look
//! (`engine/expect`). What a connection does is in `stream`, what becomes of it in `handshake`. Invariants: a name is
//! given once in the life of a process; of strangers at most [`STRANGERS_MAX`] are kept; a busy stream is listed.

use crate::output::Output;
use crate::stream::Stream;
use crate::types::{StreamId, Time};
use rustc_hash::FxHashMap;
use std::collections::VecDeque;
use std::ops::{Index, IndexMut};

/// Strangers at one time; the oldest makes room for the next. A peer sends its hello as soon as it connects, so it is a
/// stranger no longer than it takes to read that.
const STRANGERS_MAX: usize = 128;

/// Streams that are over and still listed among the busy ones: at most so many, and as many again as there are streams.
const BUSY_ROOM: usize = 64;

/// A stream, and whether it is among those that were busy.
#[derive(Clone)]
struct Entry {
    stream: Stream,
    listed: bool,
}

/// See above.
#[derive(Clone)]
pub(crate) struct Streams {
    /// Boxed, because a table has room for twice as many as are in it.
    table: FxHashMap<StreamId, Box<Entry>>,
    next: u32,
    /// Connections that are not identified yet, and until when they must be.
    strangers: VecDeque<(Time, StreamId)>,
    /// Those that were busy when that was last checked, or became so since.
    busy: Vec<StreamId>,
}

impl Default for Streams {
    fn default() -> Self {
        Self { table: FxHashMap::default(), next: 1, strangers: VecDeque::new(), busy: Vec::new() }
    }
}

impl Streams {
    /// Gives a stream its name. It is busy: its beginning has no end yet.
    pub fn add(&mut self, stream: Stream) -> StreamId {
        // a stranger that connects for weeks uses up 2^32 numbers: they start again at 0 and skip those in use
        while self.table.contains_key(&StreamId(self.next)) {
            self.next = self.next.wrapping_add(1);
        }
        let id = StreamId(self.next);
        self.next = self.next.wrapping_add(1);
        self.table.insert(id, Box::new(Entry { stream, listed: false }));
        self.expect(id);
        id
    }

    /// A stream is over.
    pub fn remove(&mut self, id: StreamId) {
        self.table.remove(&id);
        self.is_no_stranger(id);
        // progress that never runs out of work does not clear the list
        if self.busy.len() > 2 * self.table.len() + BUSY_ROOM {
            let table = &self.table;
            self.busy.retain(|id| table.contains_key(id));
        }
    }

    #[inline]
    pub fn get(&self, id: StreamId) -> Option<&Stream> {
        self.table.get(&id).map(|e| &e.stream)
    }

    #[inline]
    pub fn get_mut(&mut self, id: StreamId) -> Option<&mut Stream> {
        self.table.get_mut(&id).map(|e| &mut e.stream)
    }

    pub fn iter(&self) -> impl Iterator<Item = &Stream> {
        self.table.values().map(|e| &e.stream)
    }

    /// There may be something to write on a stream.
    #[inline]
    pub fn mark(&mut self, id: StreamId, output: &mut Output) {
        if let Some(s) = self.get_mut(id) {
            s.mark(id, output);
        }
    }

    // ---- strangers ---------------------------------------------------------------------------------------------

    /// A stream has until then to identify itself. Returns the stranger that must make room for it.
    pub fn is_stranger(&mut self, id: StreamId, until: Time) -> Option<StreamId> {
        self.strangers.push_back((until, id));
        if self.strangers.len() <= STRANGERS_MAX {
            return None;
        }
        self.strangers.pop_front().map(|s| s.1)
    }

    /// It has identified itself, or is over.
    pub fn is_no_stranger(&mut self, id: StreamId) {
        self.strangers.retain(|s| s.1 != id);
    }

    /// Takes out a stranger whose time is over.
    pub fn overdue_stranger(&mut self, now: Time) -> Option<StreamId> {
        self.strangers.front().filter(|s| s.0 <= now)?;
        self.strangers.pop_front().map(|s| s.1)
    }

    /// When the time of the oldest stranger is over.
    pub fn stranger_due(&self) -> Option<Time> {
        self.strangers.front().map(|s| s.0)
    }

    pub fn strangers(&self) -> usize {
        self.strangers.len()
    }

    // ---- busy streams ------------------------------------------------------------------------------------------

    /// The stream is busy now.
    #[inline]
    pub fn expect(&mut self, id: StreamId) {
        if let Some(e) = self.table.get_mut(&id).filter(|e| !e.listed) {
            e.listed = true;
            self.busy.push(id);
        }
    }

    /// Whether any stream is busy. Takes as long as there are streams that were at the last call, or became so since.
    pub fn any_busy(&mut self) -> bool {
        let table = &mut self.table;
        self.busy.retain(|id| {
            table.get_mut(id).is_some_and(|e| {
                e.listed = e.stream.is_busy();
                e.listed
            })
        });
        !self.busy.is_empty()
    }

    /// Checks the invariants.
    pub fn check(&self) {
        assert!(self.table.values().all(|e| e.listed || !e.stream.is_busy()), "a busy stream is listed");
        assert!(self.strangers.len() <= STRANGERS_MAX, "invariant 7: strangers are bounded");
    }
}

impl Index<StreamId> for Streams {
    type Output = Stream;

    #[inline]
    fn index(&self, id: StreamId) -> &Stream {
        &self.table[&id].stream
    }
}

impl IndexMut<StreamId> for Streams {
    #[inline]
    fn index_mut(&mut self, id: StreamId) -> &mut Stream {
        self.get_mut(id).expect("the stream is there")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::name::LaneName;
    use crate::types::{Epoch, LaneId, Locator, PathId, PeerId, RailId};

    fn stranger() -> Stream {
        Stream::stranger(RailId(0), Locator::ip([10, 0, 0, 1].into(), 1), Time::ORIGIN)
    }

    #[test]
    fn numbers_begin_again_and_skip_those_in_use() {
        let mut s = Streams::default();
        let first = s.add(stranger());
        s.next = u32::MAX;
        assert_eq!([0, 1].map(|_| s.add(stranger())), [StreamId(u32::MAX), StreamId(0)]);
        let next = s.add(stranger());
        assert!(next != first && s.table.len() == 4);
    }

    #[test]
    fn streams_that_are_over_do_not_fill_the_list_of_busy_ones() {
        let mut s = Streams::default();
        let stays = s.add(stranger());
        for _ in 0..10 * BUSY_ROOM {
            let id = s.add(stranger());
            s.remove(id);
        }
        assert!(s.busy.len() <= 2 + BUSY_ROOM + 1 && s.busy.contains(&stays), "{} are listed", s.busy.len());
    }

    #[test]
    fn the_oldest_stranger_makes_room_and_one_that_is_known_need_not() {
        let mut s = Streams::default();
        let ids: Vec<StreamId> = (0..STRANGERS_MAX + 2).map(|_| s.add(stranger())).collect();
        for (i, &id) in ids[..STRANGERS_MAX].iter().enumerate() {
            assert_eq!(s.is_stranger(id, Time::from_ns(100 + i as u64)), None);
        }
        s.is_no_stranger(ids[0]);
        assert_eq!(s.is_stranger(ids[STRANGERS_MAX], Time::from_ns(900)), None);
        assert_eq!(s.is_stranger(ids[STRANGERS_MAX + 1], Time::from_ns(901)), Some(ids[1]));
        assert_eq!((s.strangers(), s.stranger_due()), (STRANGERS_MAX, Some(Time::from_ns(102))));
        assert_eq!((s.overdue_stranger(Time::from_ns(101)), s.strangers()), (None, STRANGERS_MAX));
        assert_eq!(s.overdue_stranger(Time::from_ns(102)), Some(ids[2]));
        s.remove(ids[3]);
        assert_eq!((s.strangers(), s.get(ids[3]).is_none()), (STRANGERS_MAX - 2, true));
    }

    #[test]
    fn streams_are_busy_until_they_are_attached_and_when_something_waits_on_them() {
        let mut s = Streams::default();
        let (a, b) = (s.add(stranger()), s.add(stranger()));
        assert_ne!(a, b);
        s.remove(a);
        assert!(s.any_busy(), "the other one has not ended its beginning");
        let name = LaneName::new(PathId(0), Epoch(2), LaneId::FIRST, 2);
        s[b].introduce(PeerId(0), name, vec![1, 2]);
        s[b].attach(Epoch(2), Time::ORIGIN);
        assert!(!s.any_busy());
        assert!(!s[b].wrote_preamble(1), "the kernel takes no more");
        s.expect(b);
        s.check();
        assert!(s.any_busy());
    }
}
