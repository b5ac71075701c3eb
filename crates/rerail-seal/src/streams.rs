//! Streams, encrypted. Owns: for each stream what was encrypted and not yet taken by the kernel, and what has arrived and was not yet
//! opened or fetched.
//!
//! Invariants: nothing but the handshake passes in clear, exactly as many bytes as it has; what was taken of the engine's bytes is
//! written before anything that comes later; the descriptor to sleep on is readable as long as a read would find something.

use crate::keys::{Keyring, Ratchet, Session};
use rerail_rail::alarm::Alarm;
use rerail_rail::{
    Alternate, CloseReason, Closing, FarKernel, IoVec, Locator, MemId, Moved, Place, Posted, RailId,
    StreamEvent, StreamId, StreamPort,
};
use rerail_wire::hello::{ACCEPT_BYTES, ACCEPT_NONCE, HELLO_BYTES, NONCE};
use rerail_wire::sealed::{RECORD_BYTES_MAX, RECORD_HEADER_BYTES, TAG_BYTES};
use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

/// Bytes of the largest record on the wire.
const SEALED_BYTES_MAX: usize = RECORD_HEADER_BYTES + RECORD_BYTES_MAX + TAG_BYTES;
/// Bytes that are read at once.
const READ_BYTES: usize = 2 * SEALED_BYTES_MAX;

/// What passes in clear, one way.
#[derive(Default)]
struct Clear {
    /// Bytes that are still to come.
    left: usize,
    /// The beginning of what passed: connection id and nonces, from which the keys follow.
    head: Vec<u8>,
}

impl Clear {
    fn of(bytes: usize) -> Clear {
        Clear { left: bytes, head: Vec::new() }
    }

    fn passed(&mut self, bytes: &[u8]) {
        self.left -= bytes.len();
        let room = ACCEPT_NONCE.end - self.head.len().min(ACCEPT_NONCE.end);
        self.head.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }
}

/// One way of a stream, once it is encrypted.
struct Way {
    key: Ratchet,
    /// Records so far.
    count: u64,
}

impl Way {
    /// Out and in, for the stream whose hello and accept have these nonces.
    fn both(session: &Session, nonces: &[[u8; 16]; 2]) -> (Way, Way) {
        let (out, incoming) = session.stream(nonces);
        (Way { key: out, count: 0 }, Way { key: incoming, count: 0 })
    }
}

/// A stream.
struct Line {
    /// The handshake: what this side sends, and what the other side sends.
    said: Clear,
    heard: Clear,
    /// We opened it, so the hello is ours.
    opener: bool,
    keys: Option<(Way, Way)>,
    /// Encrypted, and not written from `written` on.
    out: Vec<u8>,
    written: usize,
    /// Room is requested: by the engine, and by this layer of the inner port.
    room_wanted: bool,
    room_asked: bool,
    /// Arrived: `start..end`, not opened; `plain`, opened and not fetched.
    arrived: Vec<u8>,
    start: usize,
    end: usize,
    plain: std::ops::Range<usize>,
    /// How it ended, when there were bytes to be given out before that.
    ended: Option<CloseReason>,
}

impl Line {
    fn new(opener: bool) -> Line {
        let (own, other) = if opener { (HELLO_BYTES, ACCEPT_BYTES) } else { (ACCEPT_BYTES, HELLO_BYTES) };
        Line {
            said: Clear::of(own),
            heard: Clear::of(other),
            opener,
            keys: None,
            out: Vec::new(),
            written: 0,
            room_wanted: false,
            room_asked: false,
            arrived: Vec::new(),
            start: 0,
            end: 0,
            plain: 0..0,
            ended: None,
        }
    }

    /// The keys, once both handshakes have passed. False: there are none, so nothing may pass.
    fn find_keys(&mut self, ring: &Keyring) -> bool {
        if self.keys.is_some() {
            return true;
        }
        // The accept has the nonces of both, and a connection id that names the pair.
        let accept = if self.opener { &self.heard.head } else { &self.said.head };
        let (Some(cid), Some(asked), Some(answer)) =
            (accept.first_chunk::<8>(), accept.get(NONCE), accept.get(ACCEPT_NONCE))
        else {
            return false;
        };
        let cid = u64::from_le_bytes(*cid);
        let fits = |s: &Session| s.is_accept(cid, self.opener);
        let Some(session) = ring.session(cid).filter(|s| fits(s)) else { return false };
        let mut nonces = [[0; 16]; 2];
        nonces[0].copy_from_slice(asked);
        nonces[1].copy_from_slice(answer);
        self.keys = Some(Way::both(&session, &nonces));
        true
    }

    /// The length of the first record that has arrived, with header and tag, when that is known.
    fn record(&self) -> Result<Option<usize>, CloseReason> {
        let Some(header) = self.arrived[self.start..self.end].first_chunk::<RECORD_HEADER_BYTES>() else {
            return Ok(None);
        };
        let bytes = u32::from_le_bytes(*header) as usize;
        if bytes == 0 || bytes > RECORD_BYTES_MAX {
            return Err(CloseReason::Damaged);
        }
        Ok(Some(RECORD_HEADER_BYTES + bytes + TAG_BYTES))
    }

    /// Whether a read would find something that has arrived here already.
    fn has_more(&self) -> bool {
        let whole = match self.record() {
            Ok(Some(bytes)) => self.keys.is_some() && bytes <= self.end - self.start,
            Ok(None) => false,
            Err(_) => true,
        };
        !self.plain.is_empty() || whole || self.ended.is_some()
    }

    /// Opens the next record, if all of it is there.
    fn open_next(&mut self) -> Result<bool, CloseReason> {
        let Some(bytes) = self.record()? else { return Ok(false) };
        if bytes > self.end - self.start {
            return Ok(false);
        }
        let (_, incoming) = self.keys.as_mut().expect("nothing is taken for a record before there are keys");
        let at = self.start;
        let mut header = [0; RECORD_HEADER_BYTES];
        header.copy_from_slice(&self.arrived[at..at + RECORD_HEADER_BYTES]);
        let sealed = &mut self.arrived[at..at + bytes];
        let opened = incoming.key.open(incoming.count, &header, sealed, RECORD_HEADER_BYTES..);
        let len = opened.map_err(|_| CloseReason::Damaged)?;
        incoming.count += 1;
        self.plain = at..at + len;
        self.start += bytes;
        Ok(true)
    }

    /// Encrypts a record of at most so many bytes from the pieces, from byte `from` of them on; returns how many it took.
    ///
    /// # Safety
    /// Every piece is valid for reads, and nothing writes to it meanwhile.
    unsafe fn seal(&mut self, pieces: &[IoVec], mut from: usize) -> usize {
        let (out, _) = self.keys.as_mut().expect("the caller has found the keys");
        self.out.clear();
        self.written = 0;
        self.out.extend_from_slice(&[0; RECORD_HEADER_BYTES]);
        let mut left = RECORD_BYTES_MAX;
        for piece in pieces {
            if from >= piece.len {
                from -= piece.len;
                continue;
            }
            let bytes = (piece.len - from).min(left);
            // SAFETY: inside the piece, by the caller's promise.
            self.out.extend_from_slice(unsafe { std::slice::from_raw_parts(piece.ptr.add(from), bytes) });
            (from, left) = (0, left - bytes);
            if left == 0 {
                break;
            }
        }
        let taken = RECORD_BYTES_MAX - left;
        let header = (taken as u32).to_le_bytes();
        self.out[..RECORD_HEADER_BYTES].copy_from_slice(&header);
        let tag = out.key.seal(out.count, &header, &mut self.out[RECORD_HEADER_BYTES..]);
        out.count += 1;
        self.out.extend_from_slice(&tag);
        taken
    }

    fn unwritten(&self) -> bool {
        self.written < self.out.len()
    }

    /// Gives out what is opened, from byte `at` of the pieces on; returns how much.
    ///
    /// # Safety
    /// Every piece is valid for writes, and nothing else touches it meanwhile.
    unsafe fn give(&mut self, pieces: &[IoVec], mut at: usize) -> usize {
        let mut given = 0;
        for piece in pieces {
            if at >= piece.len {
                at -= piece.len;
                continue;
            }
            let bytes = (piece.len - at).min(self.plain.len());
            let from = &self.arrived[self.plain.start..self.plain.start + bytes];
            // SAFETY: inside the piece, by the caller's promise, which is no memory of ours.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), piece.ptr.add(at), bytes) };
            self.plain.start += bytes;
            (at, given) = (0, given + bytes);
            if self.plain.is_empty() {
                break;
            }
        }
        given
    }

    /// Reads more of what is encrypted.
    fn fetch(&mut self, inner: &mut dyn StreamPort, stream: StreamId) -> Moved {
        if self.arrived.is_empty() {
            self.arrived.resize(READ_BYTES, 0);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if self.arrived.len() - self.start < SEALED_BYTES_MAX {
            self.arrived.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = IoVec::from_mut(&mut self.arrived[self.end..]);
        // SAFETY: the buffer is ours, and nothing else touches it.
        let moved = unsafe { inner.read(stream, &[room]) };
        if let Moved::Bytes(n) = moved {
            self.end += n;
        }
        moved
    }

    /// Writes what is encrypted, as far as it is taken.
    fn flush(&mut self, inner: &mut dyn StreamPort, stream: StreamId) -> Moved {
        let mut moved = 0;
        while self.unwritten() {
            // SAFETY: the buffer is ours, and nothing writes to it.
            match unsafe { inner.write(stream, &[IoVec::from_ref(&self.out[self.written..])]) } {
                Moved::Bytes(n) => {
                    self.written += n;
                    moved += n;
                }
                Moved::Blocked => {
                    if !self.room_asked {
                        self.room_asked = true;
                        inner.want_writable(stream);
                    }
                    break;
                }
                closed => return closed,
            }
        }
        if moved > 0 { Moved::Bytes(moved) } else { Moved::Blocked }
    }
}

/// The first `most` bytes of the pieces.
fn first(pieces: &[IoVec], mut most: usize) -> Vec<IoVec> {
    let mut out = Vec::new();
    for piece in pieces {
        if most == 0 {
            break;
        }
        let len = piece.len.min(most);
        out.push(IoVec { ptr: piece.ptr, len });
        most -= len;
    }
    out
}

/// Copies the first `bytes` bytes of the pieces.
///
/// # Safety
/// They are valid for reads.
unsafe fn copied(pieces: &[IoVec], bytes: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes);
    // SAFETY: the caller's promise is handed on.
    unsafe { IoVec::gather(pieces, bytes, &mut out) };
    out
}

/// A port for streams that encrypts.
pub struct SealedStreams {
    // before `inner`, whose descriptor it refers to
    alarm: Alarm,
    inner: Box<dyn StreamPort>,
    keys: Arc<Keyring>,
    lines: HashMap<StreamId, Line>,
    /// Streams of which a read would find something here.
    ready: Vec<StreamId>,
    /// Streams that have ended here, whose close the inner port has not confirmed. This layer does not place, so to its caller their names are
    /// forgotten.
    ending: HashSet<StreamId>,
    /// Events of the inner port's poll; empty between polls, and kept for its room.
    said: Vec<StreamEvent>,
    ringing: bool,
    #[cfg(test)]
    preset: Option<Arc<Session>>,
}

impl SealedStreams {
    /// Over a port that has no streams yet.
    ///
    /// # Errors
    /// The system gives no descriptor to sleep on; the port is given back.
    pub fn new(
        inner: Box<dyn StreamPort>,
        keys: Arc<Keyring>,
    ) -> Result<SealedStreams, (Box<dyn StreamPort>, io::Error)> {
        let alarm = match Alarm::new(inner.fd()) {
            Ok(alarm) => alarm,
            Err(why) => return Err((inner, why)),
        };
        Ok(SealedStreams {
            alarm,
            inner,
            keys,
            lines: HashMap::new(),
            ready: Vec::new(),
            ending: HashSet::new(),
            said: Vec::new(),
            ringing: false,
            #[cfg(test)]
            preset: None,
        })
    }

    /// As if the handshake of every stream had passed already, under the keys of this session; for tests.
    #[cfg(test)]
    pub(crate) fn preset(mut self, session: Arc<Session>) -> SealedStreams {
        self.preset = Some(session);
        self
    }

    fn line(&self, opener: bool) -> Line {
        #[cfg(test)]
        if let Some(session) = &self.preset {
            let keys = Some(Way::both(session, &[[0; 16]; 2]));
            return Line { said: Clear::default(), heard: Clear::default(), keys, ..Line::new(opener) };
        }
        Line::new(opener)
    }

    /// Rings, or does not, as it is now.
    fn set_alarm(&mut self) {
        let ring = !self.ready.is_empty();
        if ring != self.ringing {
            self.ringing = ring;
            self.alarm.ring_after(ring.then_some(Duration::ZERO));
        }
    }

    fn note_ready(&mut self, stream: StreamId) {
        let more = self.lines.get(&stream).is_some_and(Line::has_more);
        let known = self.ready.contains(&stream);
        if more && !known {
            self.ready.push(stream);
        } else if !more && known {
            self.ready.retain(|s| *s != stream);
        }
        self.set_alarm();
    }

    fn forget(&mut self, stream: StreamId) {
        if self.lines.remove(&stream).is_some() {
            self.ready.retain(|s| *s != stream);
            self.set_alarm();
        }
    }

    /// A stream has ended, perhaps for a reason that the inner port does not know.
    fn end(&mut self, stream: StreamId, why: CloseReason) -> Moved {
        if self.inner.close(stream) == Closing::Pending {
            self.ending.insert(stream);
        }
        self.forget(stream);
        Moved::Closed(why)
    }

    /// As the trait's; bookkeeping is the caller's.
    ///
    /// # Safety
    /// As the trait's.
    unsafe fn read_line(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let Some(line) = self.lines.get_mut(&stream) else { return Moved::Closed(CloseReason::Requested) };
        if line.heard.left > 0 {
            let pieces = first(pieces, line.heard.left);
            // SAFETY: the caller's promise is handed on.
            let moved = unsafe { self.inner.read(stream, &pieces) };
            if let Moved::Bytes(n) = moved {
                // SAFETY: just written, and the caller's promise.
                line.heard.passed(&unsafe { copied(&pieces, n) });
            }
            return moved;
        }
        if line.said.left > 0 {
            // What comes behind the handshake cannot be read before it is complete.
            return Moved::Blocked;
        }
        if !line.find_keys(&self.keys) {
            return Moved::Closed(CloseReason::Reset);
        }
        let offered: usize = pieces.iter().map(|p| p.len).sum();
        let mut given = 0;
        loop {
            if !line.plain.is_empty() {
                // SAFETY: the caller's promise is handed on.
                given += unsafe { line.give(pieces, given) };
                if given == offered {
                    return Moved::Bytes(given);
                }
            }
            let ended = match line.open_next() {
                Ok(true) => continue,
                Ok(false) if line.ended.is_some() => line.ended,
                Ok(false) => match line.fetch(&mut *self.inner, stream) {
                    Moved::Bytes(_) => continue,
                    Moved::Blocked => None,
                    Moved::Closed(why) => Some(why),
                },
                Err(why) => Some(why),
            };
            return match (given, ended) {
                (0, Some(why)) => Moved::Closed(why),
                (0, None) => Moved::Blocked,
                (given, _) => {
                    line.ended = ended;
                    Moved::Bytes(given)
                }
            };
        }
    }

    /// As the trait's; bookkeeping is the caller's.
    ///
    /// # Safety
    /// As the trait's.
    unsafe fn write_line(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        let Some(line) = self.lines.get_mut(&stream) else { return Moved::Closed(CloseReason::Requested) };
        if let Some(why) = line.ended {
            return Moved::Closed(why);
        }
        if line.said.left > 0 {
            let pieces = first(pieces, line.said.left);
            // SAFETY: the caller's promise is handed on.
            let moved = unsafe { self.inner.write(stream, &pieces) };
            if let Moved::Bytes(n) = moved {
                // SAFETY: the caller's promise.
                line.said.passed(&unsafe { copied(&pieces, n) });
            }
            return moved;
        }
        if line.heard.left > 0 {
            return Moved::Blocked;
        }
        if !line.find_keys(&self.keys) {
            return Moved::Closed(CloseReason::Reset);
        }
        let offered: usize = pieces.iter().map(|p| p.len).sum();
        let mut taken = 0;
        loop {
            if let Moved::Closed(why) = line.flush(&mut *self.inner, stream) {
                return Moved::Closed(why);
            }
            if line.unwritten() || taken == offered {
                return if taken > 0 { Moved::Bytes(taken) } else { Moved::Blocked };
            }
            // SAFETY: the caller's promise is handed on.
            taken += unsafe { line.seal(pieces, taken) };
        }
    }
}

impl StreamPort for SealedStreams {
    fn open(&mut self, stream: StreamId, rail: RailId, to: Locator) {
        let line = self.line(true);
        self.lines.insert(stream, line);
        self.inner.open(stream, rail, to);
    }

    fn accept(&mut self, name: &mut dyn FnMut(RailId, Locator) -> StreamId) -> bool {
        let (mut line, lines) = (Some(self.line(false)), &mut self.lines);
        self.inner.accept(&mut |rail, from| {
            let stream = name(rail, from);
            lines.insert(stream, line.take().expect("one connection is taken"));
            stream
        })
    }

    unsafe fn read(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        match unsafe { self.read_line(stream, pieces) } {
            Moved::Closed(why) => self.end(stream, why),
            moved => {
                self.note_ready(stream);
                moved
            }
        }
    }

    unsafe fn write(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        match unsafe { self.write_line(stream, pieces) } {
            Moved::Closed(why) => self.end(stream, why),
            moved => moved,
        }
    }

    /// What comes is decrypted from a buffer of this layer, so no read ends early for the sake of a better place.
    fn goes_on(&self, _stream: StreamId) -> bool {
        false
    }

    /// What is written is sealed into a buffer of this layer in any case.
    unsafe fn write_lasting(&mut self, stream: StreamId, pieces: &[IoVec]) -> Moved {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.write(stream, pieces) }
    }

    fn want_writable(&mut self, stream: StreamId) {
        let Some(line) = self.lines.get_mut(&stream) else { return };
        line.room_wanted = true;
        if !line.room_asked {
            line.room_asked = true;
            self.inner.want_writable(stream);
        }
    }

    /// What an adapter writes goes past this layer, and would not be encrypted.
    unsafe fn place(&mut self, _stream: StreamId, _place: &Place) -> Posted {
        Posted::Refused
    }

    unsafe fn register(&mut self, rail: RailId, region: MemId, memory: IoVec) {
        // SAFETY: the caller's promise is handed on.
        unsafe { self.inner.register(rail, region, memory) }
    }

    fn invalidate(&mut self, region: MemId) {
        self.inner.invalidate(region);
    }

    fn load_alternate(&mut self, stream: StreamId, alternate: Option<Alternate>) {
        self.inner.load_alternate(stream, alternate);
    }

    fn migrate(&mut self, stream: StreamId) {
        self.inner.migrate(stream);
    }

    fn close(&mut self, stream: StreamId) -> Closing {
        self.forget(stream);
        if self.ending.contains(&stream) { Closing::Done } else { self.inner.close(stream) }
    }

    fn rail_of(&self, stream: StreamId) -> Option<RailId> {
        self.inner.rail_of(stream)
    }

    fn far_kernel(&mut self, stream: StreamId) -> Option<FarKernel> {
        let told = self.inner.far_kernel(stream)?;
        let unwritten = self.lines.get(&stream).is_some_and(Line::unwritten);
        Some(FarKernel { has_all: told.has_all && !unwritten, ..told })
    }

    fn poll(&mut self, out: &mut Vec<StreamEvent>) {
        let mut said = std::mem::take(&mut self.said);
        self.inner.poll(&mut said);
        for event in said.drain(..) {
            match event {
                StreamEvent::Writable(stream) => {
                    let Some(line) = self.lines.get_mut(&stream) else { continue };
                    line.room_asked = false;
                    match line.flush(&mut *self.inner, stream) {
                        Moved::Closed(why) => {
                            self.end(stream, why);
                            out.push(StreamEvent::Closed(stream, why));
                        }
                        _ if line.unwritten() => {}
                        _ => {
                            if std::mem::take(&mut line.room_wanted) {
                                out.push(event);
                            }
                        }
                    }
                }
                StreamEvent::Closed(stream, CloseReason::Requested) => {
                    self.forget(stream);
                    if !self.ending.remove(&stream) {
                        out.push(event);
                    }
                }
                StreamEvent::Closed(stream, why) => {
                    self.end(stream, why);
                    out.push(event);
                }
                // reported below
                StreamEvent::Readable(stream) if self.ready.contains(&stream) => {}
                event => out.push(event),
            }
        }
        self.said = said;
        out.extend(self.ready.iter().map(|s| StreamEvent::Readable(*s)));
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.alarm.fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        self.inner.descriptors(out);
        self.alarm.descriptors(out);
    }
}
