//! Small datagrams that the peer's adapter writes into a ring in this process's memory, where they are found by looking.
//! Owns: the ring, and what is known of the peer's.
//!
//! Source: the "accelerated data transfer mechanism for small messages" of the iWARP slides
//! (`papers/multirail-hsam-checkpoint-iwarp.txt`, "Design: RDMA based data transfers"), with its switch for adapters that place
//! in order.
//!
//! **A slot is taken when it is whole** (hazard H22): its number is that of the next, and the checksum over all of it is right.
//! So bytes that come in another order, or of which some are of an earlier round, are never taken for a message. What is
//! checked are copies; the adapter may write at any time.
//!
//! **Order**: a slot says how many messages its sender had sent before, and a message how many slots. So both sides take all in
//! the order in which it was sent.
//!
//! **Room**: each slot and each message says how many slots of the other direction were given back. Where there is no room, a
//! datagram goes as a message.

use crate::adapter::{Adapter, Registration};
use rerail_rail::IoVec;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// See [`ring_datagrams`].
static TAKEN: AtomicU64 = AtomicU64::new(0);

/// Datagrams that this process has found in rings.
pub fn ring_datagrams() -> u64 {
    TAKEN.load(Ordering::Relaxed)
}

/// Slots of a ring.
pub const SLOTS: u32 = 32;
/// Bytes of a slot.
pub const SLOT_BYTES: usize = 256;
/// In front of a slot's bytes: number, length, credits, slots that are given back, messages before it, checksum.
pub const HEADER_BYTES: usize = 24;
/// Bytes of a datagram that fits into a slot.
pub const DATAGRAM_BYTES_MAX: usize = SLOT_BYTES - HEADER_BYTES;
const WORD_BYTES: usize = 8;
const SLOT_WORDS: usize = SLOT_BYTES / WORD_BYTES;

const _: () = assert!(SLOTS.is_power_of_two(), "numbers wrap");

/// Where a slot with this number lies in its ring, in bytes.
fn offset(number: u32) -> usize {
    (number.wrapping_sub(1) % SLOTS) as usize * SLOT_BYTES
}

/// What a slot says besides its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotHeader {
    /// The first has 1.
    pub number: u32,
    pub bytes: u16,
    /// As in a message.
    pub credits: u16,
    /// As in a message.
    pub given_back: u32,
    /// Messages with a credit that were sent before it.
    pub behind: u32,
}

impl SlotHeader {
    /// Writes it in front of the bytes of a slot, with the checksum over both.
    pub fn write(self, slot: &mut [u8]) {
        let (header, bytes) = slot.split_at_mut(HEADER_BYTES);
        header[..4].copy_from_slice(&self.number.to_le_bytes());
        header[4..6].copy_from_slice(&self.bytes.to_le_bytes());
        header[6..8].copy_from_slice(&self.credits.to_le_bytes());
        header[8..12].copy_from_slice(&self.given_back.to_le_bytes());
        header[12..16].copy_from_slice(&self.behind.to_le_bytes());
        let sum = crc32c::crc32c_append(crc32c::crc32c(&header[..16]), &bytes[..self.bytes.into()]);
        header[16..20].copy_from_slice(&sum.to_le_bytes());
        header[20..].fill(0);
    }

    /// Of a slot that is whole.
    fn read(slot: &[u8; SLOT_BYTES]) -> Option<SlotHeader> {
        let word = |at: usize| u32::from_le_bytes(*slot[at..].first_chunk().expect("four more"));
        let half = |at: usize| u16::from_le_bytes(*slot[at..].first_chunk().expect("two more"));
        let header = SlotHeader {
            number: word(0),
            bytes: half(4),
            credits: half(6),
            given_back: word(8),
            behind: word(12),
        };
        let bytes = slot[HEADER_BYTES..].get(..header.bytes.into()).filter(|bytes| !bytes.is_empty())?;
        let sum = crc32c::crc32c_append(crc32c::crc32c(&slot[..16]), bytes);
        (word(16) == sum && word(20) == 0).then_some(header)
    }
}

/// A ring of this process.
pub struct Ring {
    // before the memory: dropped first
    registration: Registration,
    /// Not bytes: the adapter writes while it is read.
    memory: Box<[AtomicU64]>,
    /// The slots that were taken: what was checked is what is read, whatever the peer writes meanwhile.
    copies: Box<[[u8; SLOT_BYTES]]>,
    /// The number of the slot that was taken last, and of the one that was given back last.
    taken: u32,
    given_back: u32,
}

impl Ring {
    /// # Errors
    /// Not enough memory may be locked, for instance.
    pub fn new(adapter: &Arc<Adapter>) -> io::Result<Ring> {
        let words = SLOTS as usize * SLOT_WORDS;
        let memory: Box<[AtomicU64]> = (0..words).map(|_| AtomicU64::new(0)).collect();
        let piece = IoVec { ptr: memory.as_ptr().cast::<u8>().cast_mut(), len: words * WORD_BYTES };
        // SAFETY: the memory is kept beside the registration, and goes after it; it may change at any time.
        let registration = unsafe { adapter.register(piece, piece.ptr as u64, true) }?;
        let copies = vec![[0; SLOT_BYTES]; SLOTS as usize].into_boxed_slice();
        Ok(Ring { registration, memory, copies, taken: 0, given_back: 0 })
    }

    /// The key and the address of the ring, for the peer.
    pub fn place(&self) -> (u32, u64) {
        (self.registration.remote_key(), self.memory.as_ptr() as u64)
    }

    pub fn taken(&self) -> u32 {
        self.taken
    }

    pub fn given_back(&self) -> u32 {
        self.given_back
    }

    fn words(&self, number: u32) -> &[AtomicU64] {
        &self.memory[offset(number) / WORD_BYTES..][..SLOT_WORDS]
    }

    fn copy(&self, number: u32) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        for (bytes, word) in slot.chunks_exact_mut(WORD_BYTES).zip(self.words(number)) {
            bytes.copy_from_slice(&word.load(Ordering::Relaxed).to_ne_bytes());
        }
        slot
    }

    /// The next slot, if it is whole and at most this many messages were sent before it. It stays the lane's until
    /// [`Ring::read`].
    pub fn take(&mut self, messages: u32) -> Option<SlotHeader> {
        let number = self.taken.wrapping_add(1);
        let first = self.words(number)[0].load(Ordering::Relaxed).to_ne_bytes();
        let is_next = first[..4] == number.to_le_bytes();
        // A peer that writes into slots that are not read has no room, and is not listened to.
        if !is_next || self.taken.wrapping_sub(self.given_back) >= SLOTS {
            return None;
        }
        fence(Ordering::Acquire);
        let copy = self.copy(number);
        let header = SlotHeader::read(&copy)?;
        if header.number != number || header.behind.wrapping_sub(messages) as i32 > 0 {
            return None;
        }
        self.copies[offset(number) / SLOT_BYTES] = copy;
        self.taken = number;
        TAKEN.fetch_add(1, Ordering::Relaxed);
        Some(header)
    }

    /// Copies the bytes of the slot that was taken first, if they fit, and gives it back.
    pub fn read(&mut self, bytes: usize, buf: &mut [u8]) -> bool {
        self.given_back = self.given_back.wrapping_add(1);
        let slot = &self.copies[offset(self.given_back) / SLOT_BYTES];
        let room = buf.get_mut(..bytes);
        let fits = room.is_some();
        room.into_iter().for_each(|room| room.copy_from_slice(&slot[HEADER_BYTES..][..bytes]));
        fits
    }

    /// What a peer's adapter does, as far as it has done it.
    #[cfg(any(test, feature = "hostile"))]
    pub fn fill(&self, number: u32, at: usize, bytes: &[u8]) {
        let mut slot = self.copy(number);
        slot[at..][..bytes.len()].copy_from_slice(bytes);
        for (bytes, word) in slot.chunks_exact(WORD_BYTES).zip(self.words(number)) {
            word.store(u64::from_ne_bytes(*bytes.first_chunk().expect("a word")), Ordering::Relaxed);
        }
    }
}

/// What is known of the peer's ring.
#[derive(Default)]
pub struct FarRing {
    /// Its key and address while the peer looks into it.
    open: Option<(u32, u64)>,
    /// The number of the slot that was written last, and of the one that the peer has given back last.
    written: u32,
    given_back: u32,
}

impl FarRing {
    /// The peer looks into it, or does not any more.
    pub fn set(&mut self, open: Option<(u32, u64)>) {
        self.open = open;
    }

    pub fn written(&self) -> u32 {
        self.written
    }

    /// The peer has taken all that was written.
    pub fn is_empty(&self) -> bool {
        self.written == self.given_back
    }

    pub fn has_room(&self) -> bool {
        self.open.is_some() && self.written.wrapping_sub(self.given_back) < SLOTS
    }

    /// The number of the slot that is written next, with the key and the address.
    pub fn write(&mut self) -> Option<(u32, u32, u64)> {
        let (key, address) = self.open.filter(|_| self.has_room())?;
        self.written = self.written.wrapping_add(1);
        Some((self.written, key, address.wrapping_add(offset(self.written) as u64)))
    }

    /// The peer has given back all up to this number; `false`: it cannot have.
    pub fn give_back(&mut self, number: u32) -> bool {
        let possible = number.wrapping_sub(self.given_back) <= self.written.wrapping_sub(self.given_back);
        if possible {
            self.given_back = number;
        }
        possible
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use crate::fake;

    fn ring() -> Ring {
        Ring::new(fake::adapter()).expect("nothing fails here")
    }

    pub fn slot(number: u32, bytes: &[u8]) -> Vec<u8> {
        let mut slot = [&[0; HEADER_BYTES][..], bytes].concat();
        let bytes = bytes.len() as u16;
        SlotHeader { number, bytes, credits: 0, given_back: 0, behind: 0 }.write(&mut slot);
        slot
    }

    #[test]
    fn a_slot_is_taken_only_when_it_is_whole_in_whatever_order_its_bytes_come() {
        // Hazard H22: the last byte first, the first byte last, every second one.
        let mut ring = ring();
        for round in 0..3 {
            for n in 1..=SLOTS {
                let number = round * SLOTS + n;
                let bytes: Vec<u8> =
                    (0..1 + n as usize * 7).map(|i| (i as u32 * 31 + number) as u8).collect();
                let whole = slot(number, &bytes);
                let mut order: Vec<usize> = (0..whole.len()).collect();
                match n % 4 {
                    0 => order.reverse(),
                    1 => order.rotate_left(whole.len() / 2),
                    2 => order.sort_by_key(|at| (at % 2, *at)),
                    _ => {}
                }
                for at in order {
                    // A byte may happen to be there already.
                    let complete = ring.copy(number)[..whole.len()] == whole[..];
                    if !complete {
                        assert_eq!(ring.take(0), None, "slot {number} without byte {at}");
                    }
                    ring.fill(number, at, &whole[at..=at]);
                }
                let header = ring.take(0).expect("it is whole");
                assert_eq!((header.number, header.bytes as usize), (number, bytes.len()));
                assert_eq!(ring.take(0), None, "once");
                let mut buf = [0; DATAGRAM_BYTES_MAX];
                assert!(ring.read(bytes.len(), &mut buf));
                assert_eq!(buf[..bytes.len()], bytes);
            }
        }
    }

    #[test]
    fn slots_are_taken_in_order_and_behind_the_messages_that_were_sent_before() {
        let mut ring = ring();
        ring.fill(2, 0, &slot(2, b"b"));
        assert_eq!(ring.take(9), None);
        let mut first = [&[0; HEADER_BYTES][..], b"a"].concat();
        SlotHeader { number: 1, bytes: 1, credits: 0, given_back: 0, behind: 3 }.write(&mut first);
        ring.fill(1, 0, &first);
        assert_eq!(ring.take(2), None, "the third message has not come");
        assert_eq!(ring.take(3).map(|h| h.number), Some(1));
        assert_eq!(ring.take(3).map(|h| h.number), Some(2));
    }

    #[test]
    fn a_slot_that_says_more_than_it_can_hold_is_not_taken() {
        let mut ring = ring();
        for bytes in [0, DATAGRAM_BYTES_MAX as u16 + 1, u16::MAX] {
            let mut header = [0; HEADER_BYTES];
            header[0] = 1;
            header[4..6].copy_from_slice(&bytes.to_le_bytes());
            let sum = crc32c::crc32c(&header[..16]);
            header[16..20].copy_from_slice(&sum.to_le_bytes());
            ring.fill(1, 0, &header);
            assert_eq!(ring.take(0), None, "{bytes}");
        }
    }

    #[test]
    fn a_peer_that_writes_into_slots_that_are_not_read_is_not_listened_to() {
        let mut ring = ring();
        for number in 1..=SLOTS {
            ring.fill(number, 0, &slot(number, b"x"));
            assert!(ring.take(0).is_some());
        }
        ring.fill(SLOTS + 1, 0, &slot(SLOTS + 1, b"y"));
        assert_eq!(ring.take(0), None);
        ring.read(1, &mut [0]);
        assert!(ring.take(0).is_some());
    }

    #[test]
    fn no_more_slots_are_written_than_the_peer_has_given_back() {
        let mut far = FarRing::default();
        assert_eq!(far.write(), None, "it looks into none");
        far.set(Some((7, 0x1000)));
        assert!(far.is_empty());
        let all: Vec<_> = std::iter::from_fn(|| far.write()).collect();
        assert_eq!(all.len(), SLOTS as usize);
        assert_eq!((all[0], all[31]), ((1, 7, 0x1000), (32, 7, 0x1000 + 31 * 256)));
        assert!(!far.give_back(SLOTS + 1) && !far.give_back(u32::MAX), "it was not written");
        assert!(far.give_back(2) && !far.give_back(1), "it takes nothing back");
        assert_eq!(
            [far.write(), far.write(), far.write()],
            [Some((33, 7, 0x1000)), Some((34, 7, 0x1100)), None]
        );
        assert!(far.give_back(34) && far.is_empty());
        far.set(None);
        assert_eq!(far.write(), None);
    }

    #[test]
    fn numbers_wrap() {
        let mut ring = ring();
        (ring.taken, ring.given_back) = (u32::MAX, u32::MAX);
        ring.fill(0, 0, &slot(0, b"x"));
        assert_eq!(ring.take(0).map(|h| h.number), Some(0));
        ring.fill(1, 0, &slot(1, b"x"));
        assert_eq!(ring.take(0).map(|h| h.number), Some(1));
    }
}
