//! One stream. Owns: what it is to send and how far that has gone, what it has received, and how it ended. Here the adapter touches the
//! application's memory.
//!
//! Bounded: [`STREAM_BYTES_MAX`] bytes each way and [`PLACES_MAX`] writes wait here, more waits with the caller and in the sockets.

use crate::record::{HEADER_BYTES, PART_BYTES_MAX, Record};
use rerail_rail::{CloseReason, IoVec, MemId, Place, RailId, RemoteKey, StreamEvent};
use rustc_hash::FxHashMap;
use rustix::io::Errno;
use rustix::net::{SendFlags, send};
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Writes that may be under way on a stream.
pub(crate) const PLACES_MAX: u16 = 16;
/// Bytes of the stream itself that wait, each way.
const STREAM_BYTES_MAX: usize = 256 << 10;
/// Records moved each way before other streams have their turn.
const RECORDS_AT_ONCE: usize = 8;

/// Memory that peers may write on a rail by a key.
pub(crate) struct Region {
    pub id: MemId,
    pub rail: RailId,
    pub memory: IoVec,
}

pub(crate) type Regions = FxHashMap<RemoteKey, Region>;

/// What waits to be sent, in the order in which it was written and placed.
enum Outgoing {
    Bytes(VecDeque<u8>),
    Write { place: Place, read: usize },
}

/// See the module.
pub(crate) struct Connection {
    rail: RailId,
    /// `None`: it broke.
    socket: Option<OwnedFd>,
    outgoing: VecDeque<Outgoing>,
    /// Of `outgoing`: bytes of the stream, and writes.
    bytes_waiting: usize,
    writes_waiting: u16,
    /// The record that the socket is taking, and how much of it is taken.
    leaving: Vec<u8>,
    left: usize,
    /// The write whose last part that is.
    last_of: Option<Place>,
    wants_room: bool,
    header: Vec<u8>,
    /// The record that is arriving, without what has arrived of it.
    arriving: Option<Record>,
    arrived: VecDeque<u8>,
    over: Option<CloseReason>,
    end_is_reported: bool,
    closing: bool,
}

impl Connection {
    pub fn new(rail: RailId, socket: OwnedFd) -> Self {
        Self {
            rail,
            socket: Some(socket),
            outgoing: VecDeque::new(),
            bytes_waiting: 0,
            writes_waiting: 0,
            leaving: Vec::new(),
            left: 0,
            last_of: None,
            wants_room: false,
            header: Vec::new(),
            arriving: None,
            arrived: VecDeque::new(),
            over: None,
            end_is_reported: false,
            closing: false,
        }
    }

    pub fn rail(&self) -> RailId {
        self.rail
    }

    pub fn descriptor(&self) -> Option<RawFd> {
        self.socket.as_ref().map(AsRawFd::as_raw_fd)
    }

    // ---- the engine's side ---------------------------------------------------------------------------------------

    /// The engine wants it closed. False: it wanted that before.
    pub fn request_close(&mut self) -> bool {
        !std::mem::replace(&mut self.closing, true)
    }

    pub fn is_closing(&self) -> bool {
        self.closing
    }

    /// How it ended.
    pub fn over(&self) -> Option<CloseReason> {
        self.over
    }

    /// The engine knows how it ended.
    pub fn end_reported(&mut self) {
        self.end_is_reported = true;
    }

    pub fn has_sent_all(&self) -> bool {
        self.outgoing.is_empty() && self.leaving.is_empty()
    }

    fn has_room(&self) -> bool {
        self.bytes_waiting <= STREAM_BYTES_MAX / 2
    }

    pub fn want_room(&mut self) {
        self.wants_room = true;
    }

    /// Whether it is readable, whether it is writable and that was requested, and how it ended if that is to be reported.
    pub fn news(&self) -> (bool, bool, Option<CloseReason>) {
        if self.closing {
            return (false, false, None);
        }
        let readable = !self.arrived.is_empty();
        let writable = self.wants_room && self.over.is_none() && self.has_room();
        (readable, writable, self.over.filter(|_| !readable && !self.end_is_reported))
    }

    /// The engine knows that there is room.
    pub fn room_reported(&mut self) {
        self.wants_room = false;
    }

    /// Takes bytes of the stream; returns how many.
    ///
    /// # Safety
    /// The pieces are valid for reads, and nothing writes to them during the call.
    pub unsafe fn write(&mut self, pieces: &[IoVec]) -> usize {
        if !matches!(self.outgoing.back(), Some(Outgoing::Bytes(_))) {
            self.outgoing.push_back(Outgoing::Bytes(VecDeque::new()));
        }
        let Some(Outgoing::Bytes(queue)) = self.outgoing.back_mut() else { return 0 };
        let mut taken = 0;
        for piece in pieces {
            let n = piece.len.min(STREAM_BYTES_MAX - self.bytes_waiting);
            // SAFETY: the caller promises it, and `n` is no more than the piece has.
            queue.extend(unsafe { std::slice::from_raw_parts(piece.ptr, n) });
            self.bytes_waiting += n;
            taken += n;
        }
        if queue.is_empty() {
            self.outgoing.pop_back();
        }
        taken
    }

    /// Posts a write. False: it is over, or too many are under way.
    ///
    /// # Safety
    /// When it is true, the source stays valid, and nothing writes to it, until [`Connection::send`] reports `Placed` or this is dropped.
    pub unsafe fn place(&mut self, place: &Place) -> bool {
        if self.over.is_some() || self.writes_waiting >= PLACES_MAX {
            return false;
        }
        self.writes_waiting += 1;
        self.outgoing.push_back(Outgoing::Write { place: *place, read: 0 });
        true
    }

    /// Gives bytes of the stream; returns how many, and whether the socket may be read again.
    ///
    /// # Safety
    /// The pieces are valid for writes, and nothing else touches them during the call.
    pub unsafe fn read(&mut self, pieces: &[IoVec]) -> (usize, bool) {
        let was_full = self.arrived.len() >= STREAM_BYTES_MAX;
        let mut given = 0;
        for piece in pieces {
            let n = piece.len.min(self.arrived.len());
            let (front, back) = self.arrived.as_slices();
            let from_front = front.len().min(n);
            // SAFETY: the caller promises it, `n` is no more than the piece has, and both slices together have as many.
            unsafe {
                std::ptr::copy_nonoverlapping(front.as_ptr(), piece.ptr, from_front);
                std::ptr::copy_nonoverlapping(back.as_ptr(), piece.ptr.add(from_front), n - from_front);
            }
            self.arrived.drain(..n);
            given += n;
        }
        (given, was_full)
    }

    // ---- the adapter's side --------------------------------------------------------------------------------------

    /// What the adapter waits for, as poll(2) calls it.
    pub fn waits_for(&self) -> i16 {
        let blocked =
            matches!(self.arriving, Some(Record::Bytes { .. })) && self.arrived.len() >= STREAM_BYTES_MAX;
        (if blocked { 0 } else { libc::POLLIN }) | (if self.has_sent_all() { 0 } else { libc::POLLOUT })
    }

    /// What waits to be sent stays unsent, and lent until this is dropped.
    fn end(&mut self, why: CloseReason) {
        self.socket = None;
        self.over.get_or_insert(why);
    }

    /// Hands to the socket what it takes.
    pub fn send(&mut self, events: &mut Vec<StreamEvent>) {
        for _ in 0..RECORDS_AT_ONCE {
            if self.leaving.is_empty() && !self.read_next() {
                return;
            }
            let Some(socket) = &self.socket else { return };
            match send(socket, &self.leaving[self.left..], SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(n) => self.left += n,
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => return self.end(CloseReason::Reset),
            }
            if self.left == self.leaving.len() {
                self.leaving.clear();
                if let Some(place) = self.last_of.take() {
                    self.writes_waiting -= 1;
                    events.push(StreamEvent::Placed(place.work));
                }
            }
        }
    }

    /// Makes the next record. False: there is nothing to be sent.
    fn read_next(&mut self) -> bool {
        self.left = 0;
        match self.outgoing.front_mut() {
            None => return false,
            Some(Outgoing::Bytes(queue)) => {
                let len = queue.len().min(PART_BYTES_MAX);
                self.leaving.extend(Record::Bytes { len }.to_bytes());
                self.leaving.extend(queue.drain(..len));
                self.bytes_waiting -= len;
                if !queue.is_empty() {
                    return true;
                }
            }
            Some(Outgoing::Write { place, read }) => {
                let rest = place.source.len - *read;
                let len = rest.min(PART_BYTES_MAX);
                let offset = place.offset.saturating_add(*read as u64);
                self.leaving
                    .extend(Record::Part { len, key: place.key, offset, rest: rest as u64 }.to_bytes());
                // SAFETY: the source is lent until `Placed` of this work is reported or this is dropped (`Connection::place`), and
                // `read + len` is no more than it has.
                self.leaving.extend(unsafe { std::slice::from_raw_parts(place.source.ptr.add(*read), len) });
                *read += len;
                if len < rest {
                    return true;
                }
                self.last_of = Some(*place);
            }
        }
        self.outgoing.pop_front();
        true
    }

    /// Takes from the socket what there is room for, each record to where it belongs.
    pub fn receive(&mut self, regions: &Regions, buffer: &mut [u8]) {
        for _ in 0..2 * RECORDS_AT_ONCE {
            let Some(socket) = &self.socket else { return };
            let fd = socket.as_raw_fd();
            let got = match self.arriving {
                None => {
                    let buffer = &mut buffer[..HEADER_BYTES - self.header.len()];
                    // SAFETY: the buffer is borrowed exclusively.
                    unsafe { receive_at(fd, buffer.as_mut_ptr(), buffer.len()) }
                }
                Some(Record::Bytes { len }) => {
                    let len = len.min(STREAM_BYTES_MAX - self.arrived.len());
                    if len == 0 {
                        return;
                    }
                    let buffer = &mut buffer[..len];
                    // SAFETY: as above.
                    unsafe { receive_at(fd, buffer.as_mut_ptr(), buffer.len()) }
                }
                Some(Record::Part { len, key, offset, rest }) => {
                    match target(regions, self.rail, key, offset, rest) {
                        // SAFETY: the region is registered, so its memory is valid for writes until `Invalidated` is reported, and it
                        // leaves the regions before; `rest`, and so `len`, is inside.
                        Some(at) if len > 0 => unsafe { receive_at(fd, at, len) },
                        // a write of nothing is done when its key is known
                        Some(_) => {
                            self.arriving = None;
                            continue;
                        }
                        None => return self.end(CloseReason::Reset),
                    }
                }
            };
            match got {
                Ok(0) => return self.end(CloseReason::Reset),
                Ok(n) => self.has_arrived(n, buffer),
                Err(Errno::AGAIN | Errno::INTR) => return,
                Err(_) => return self.end(CloseReason::Reset),
            }
        }
    }

    /// `n` bytes of a header, of the stream or of a part are here.
    fn has_arrived(&mut self, n: usize, buffer: &[u8]) {
        self.arriving = match self.arriving {
            None => {
                self.header.extend(&buffer[..n]);
                let Ok(header) = <&[u8; HEADER_BYTES]>::try_from(self.header.as_slice()) else { return };
                let record = Record::parse(header);
                self.header.clear();
                match record {
                    None => return self.end(CloseReason::Damaged),
                    some => some,
                }
            }
            Some(Record::Bytes { len }) => {
                self.arrived.extend(&buffer[..n]);
                (n < len).then_some(Record::Bytes { len: len - n })
            }
            Some(Record::Part { len, key, offset, rest }) => {
                let (done, n) = (n == len, n as u64);
                let rest = Record::Part { len: len - n as usize, key, offset: offset + n, rest: rest - n };
                (!done).then_some(rest)
            }
        };
    }
}

/// Where in memory a part goes. `None`: there is no such region on this rail, or the write does not fit into it.
fn target(regions: &Regions, rail: RailId, key: RemoteKey, offset: u64, rest: u64) -> Option<*mut u8> {
    let region = regions.get(&key).filter(|r| r.rail == rail)?;
    let fits = offset.checked_add(rest).is_some_and(|end| end <= region.memory.len as u64);
    fits.then(|| region.memory.ptr.wrapping_add(offset as usize))
}

/// # Safety
/// `len` bytes at `at` are valid for writes, and of the application or exclusively the caller's.
unsafe fn receive_at(fd: RawFd, at: *mut u8, len: usize) -> Result<usize, Errno> {
    // SAFETY: the caller's promise. No reference is made, because the application may look at its memory meanwhile.
    let got = unsafe { libc::recv(fd, at.cast(), len, libc::MSG_DONTWAIT) };
    usize::try_from(got)
        .map_err(|_| Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO))
}
