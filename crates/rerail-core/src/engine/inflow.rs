//! What comes in over streams: headers, payload read straight into the user's memory under a lease, trailers.
//!
//! Owns: where the next bytes of a stream go. Invariants: one reader has the lease of a fragment, the newest; a reader
//! that lost it reads on into scratch (hazard H2); a fragment counts when its trailer is VALID and its checksum fits;
//! the checksum is computed over each piece as it comes, while it is in the cache (PML DR §3.4).

use super::Engine;
use super::deliver::Taken;
use crate::event::Witness;
use crate::lane::Channel;
use crate::lane::acks::{ACK_BYTES, ACK_DELAY, ACK_PACKETS};
use crate::message::iov::Iov;
use crate::message::receiving::Leasing;
use crate::message::rx::RxMsg;
use crate::peers::Peers;
use crate::stream::{Phase, Place, Reading};
use crate::types::*;
use rerail_wire::frame::flags;
use rerail_wire::stream::{STREAM_HEADER_BYTES, TRAILER_BYTES, Trailer, parse_header};
use rerail_wire::{FrameHeader, FrameType, WireError, crc32c_append};

impl Engine {
    /// Where the next bytes of the stream go. False: nothing is wanted from it any more (an action closes it).
    /// The window must be read into, and [`Engine::stream_rx_done`] called, before any other call of the engine.
    pub fn stream_rx_window(&mut self, stream: StreamId, window: &mut Window) -> bool {
        window.clear();
        let Some(s) = self.streams.get_mut(stream) else { return false };
        if matches!(s.phase(), Phase::Closing | Phase::Connecting) {
            return false;
        }
        s.compact(&mut self.spare_buffers);
        let (peers, peer) = (&self.peers, s.peer());
        s.reader_mut().offer(window, &mut self.scratch, |seq| leased(peers, peer, seq));
        true
    }

    /// `bytes` of the window were read.
    pub fn stream_rx_done(&mut self, stream: StreamId, bytes: usize, now: Time) {
        self.tick(now);
        let Some(s) = self.streams.get_mut(stream) else { return };
        let (peers, peer) = (&self.peers, s.peer());
        s.reader_mut().took(bytes, |seq| leased(peers, peer, seq));
        self.read_frames(stream);
        self.release_held();
        if let Some(s) = self.streams.get_mut(stream) {
            s.give_buffer(&mut self.spare_buffers);
        }
    }

    /// Parses the buffer of a stream, as far as it goes.
    fn read_frames(&mut self, stream: StreamId) {
        loop {
            let Some(s) = self.streams.get_mut(stream) else { return };
            if s.phase() == Phase::Closing {
                return;
            }
            let have = s.reader().unread().len();
            match *s.reader().reading() {
                Reading::Handshake => {
                    if !self.read_handshake(stream) {
                        return;
                    }
                }
                Reading::Header => {
                    if have < STREAM_HEADER_BYTES {
                        return;
                    }
                    let (number, frame, coverage) = match parse_header(s.reader().unread()) {
                        Ok(parsed) => parsed,
                        Err(e) => {
                            if matches!(e, WireError::Checksum(_)) {
                                self.corrupt_stream(stream);
                            } else {
                                self.counters.malformed += 1;
                            }
                            self.break_stream(stream);
                            return;
                        }
                    };
                    let Some((peer, path)) = s.peer() else { return };
                    let Some(index) = self.peers[peer].path_index(path) else { return };
                    if coverage < self.coverage_in(peer, index) {
                        self.counters.downgrades += 1;
                        self.break_stream(stream);
                        return;
                    }
                    let summed = coverage.sums_payload(frame.kind);
                    let s = self.streams.get_mut(stream).expect("looked up above");
                    if frame.kind == FrameType::Frag {
                        let place = self.lease(stream, &frame);
                        let Some(s) = self.streams.get_mut(stream) else { return };
                        s.reader_mut().fragment_follows(frame, number, place, summed);
                        continue;
                    }
                    let Some(whole) = s.reader_mut().take_whole(&frame) else { return };
                    let payload = whole.payload();
                    let taken = match whole.trailer() {
                        Ok(t) if !t.valid => {
                            self.counters.aborted += 1;
                            Taken::No
                        }
                        Ok(t) if !summed || t.crc == crc32c_append(0, payload) => self.on_stream_frame(
                            stream,
                            &frame,
                            payload,
                            coverage.sums_payload(FrameType::Frag),
                        ),
                        Ok(_) => {
                            self.corrupt_stream(stream);
                            Taken::No
                        }
                        Err(_) => self.broken_trailer(stream),
                    };
                    let Some(s) = self.streams.get_mut(stream) else { return };
                    s.reader_mut().put_back(whole);
                    self.frame_done(stream, number, &frame, taken);
                }
                Reading::Payload { .. } => {
                    let (peers, peer) = (&self.peers, s.peer());
                    if !s.reader_mut().fill(|seq| leased(peers, peer, seq)) {
                        return;
                    }
                }
                Reading::Trailer { frame, number, crc, place, summed } => {
                    if have < TRAILER_BYTES {
                        return;
                    }
                    let taken = match s.reader_mut().take_trailer() {
                        Err(_) => self.broken_trailer(stream),
                        Ok(t) => self.fragment_read(stream, &frame, t, summed.then_some(crc), place),
                    };
                    self.frame_done(stream, number, &frame, taken);
                }
            }
        }
    }

    /// The stream is out of step, or its sender is broken: nothing more is read from it.
    fn break_stream(&mut self, stream: StreamId) {
        // the verdict on its path may have closed it already
        if self.streams.get(stream).is_some_and(|s| s.phase() != Phase::Closing) {
            self.fail_stream(stream, Witness::Corruption, true);
        }
    }

    /// A trailer is neither VALID nor ABORT: no engine writes this.
    fn broken_trailer(&mut self, stream: StreamId) -> Taken {
        self.corrupt_stream(stream);
        self.break_stream(stream);
        Taken::No
    }

    /// A frame that is not a fragment. `summed`: a PLACED frame carries the checksum of the bytes that were written.
    fn on_stream_frame(
        &mut self,
        stream: StreamId,
        frame: &FrameHeader,
        payload: &[u8],
        summed: bool,
    ) -> Taken {
        let Some((peer, path)) = self.streams[stream].peer() else { return Taken::Malformed };
        let Some(index) = self.peers[peer].path_index(path) else { return Taken::Malformed };
        if frame.kind == FrameType::Placed {
            return self.on_placed(stream, frame, summed);
        }
        self.heard(peer, index);
        if frame.kind == FrameType::Ping {
            self.asked_by_stream(stream, peer, index, frame, payload);
            return Taken::Yes;
        }
        self.on_frame(peer, index, frame, payload)
    }

    /// A frame of a stream is over: note it for the next acknowledgement.
    fn frame_done(&mut self, stream: StreamId, number: u64, frame: &FrameHeader, taken: Taken) {
        self.counters.stream_frames_received += 1;
        if taken == Taken::Malformed {
            self.counters.malformed += 1;
            self.break_stream(stream);
            return;
        }
        let now = self.clock.now();
        let Some(s) = self.streams.get(stream) else { return };
        if s.phase() != Phase::Attached {
            return;
        }
        let Some((peer, name)) = s.link() else { return };
        let Some(index) = self.peers[peer].path_index(name.path()) else { return };
        let id = name.lane();
        let p = &mut self.peers[peer];
        let lane = p.paths[index].lane_of_mut(id).filter(|l| l.stream() == Some(stream));
        let Some(lane) = lane else { return };
        if taken != Taken::Yes || frame.flags & flags::UNPROTECTED != 0 {
            return;
        }
        let rx = lane.acks_mut().of_mut(Channel::Stream);
        let placed = frame.kind == FrameType::Placed;
        let bytes = if placed { frame.total } else { u64::from(frame.len) };
        // the end of a message frees its sender, unless that has a copy: acknowledge it at once
        let last = ((placed || frame.kind == FrameType::Frag) && !p.incoming.contains(frame.seq))
            || frame.flags & flags::DELIVERY != 0
            || self.options.frees_its_sender(frame);
        let at_once = last || rx.unacked().0 + 1 >= ACK_PACKETS || rx.unacked().1 + bytes >= ACK_BYTES;
        rx.note(number, frame.kind.elicits_ack(), bytes, now, ACK_DELAY, at_once);
        if let Some(due) = rx.due() {
            if due <= now {
                self.mark(peer);
            } else {
                self.schedule(peer, due);
            }
        }
    }

    /// Gives a stream the right to write a fragment into the user's memory. The newest reader gets it: a reader that
    /// held it before reads on into scratch, and what it had written is overwritten in full (hazard H2).
    fn lease(&mut self, stream: StreamId, f: &FrameHeader) -> Place {
        let Some((peer, _)) = self.streams[stream].peer() else { return Place::Scratch };
        let exclusive = self.remedies.placement_lease();
        let p = &mut self.peers[peer];
        let Some(r) = p.incoming.receiving_mut(f.seq) else { return Place::Scratch };
        match r.lease(f.a, u64::from(f.len), stream, exclusive) {
            Leasing::None => Place::Scratch,
            Leasing::Beside { frag } => Place::Side { seq: f.seq, frag },
            Leasing::Given { frag, losers } => {
                for id in losers {
                    self.divert_reader(id, f.seq, frag);
                }
                Place::Lease { seq: f.seq, frag }
            }
        }
    }

    /// Revokes the lease of a stream: the rest of its frame goes to scratch.
    pub(crate) fn divert_reader(&mut self, stream: StreamId, seq: u64, frag: u64) {
        if let Some(s) = self.streams.get_mut(stream) {
            s.divert(seq, frag);
        }
    }

    /// A fragment was read beside the user's memory: it goes there now, if it is what was sent and still wanted.
    fn side_read(
        &mut self,
        stream: StreamId,
        peer: PeerId,
        f: &FrameHeader,
        t: Trailer,
        frag: u64,
        summed: bool,
    ) -> Taken {
        let side = match self.streams.get_mut(stream) {
            Some(s) => s.reader_mut().take_side(),
            None => return Taken::No,
        };
        if !t.valid {
            self.counters.aborted += 1;
            return Taken::No;
        }
        if summed && t.crc != crc32c_append(0, &side) {
            self.corrupt_stream(stream);
            return Taken::No;
        }
        let p = &mut self.peers[peer];
        let Some(r) = p.incoming.receiving_mut(f.seq) else {
            let there = p.incoming.get(f.seq).is_none_or(RxMsg::is_whole);
            return if there { Taken::Yes } else { Taken::No };
        };
        if r.has(frag) {
            self.counters.duplicates += 1;
            return Taken::Yes;
        }
        r.target().iov.scatter(f.a as usize, &side);
        self.fragment_is_there(peer, f.seq, frag);
        Taken::Yes
    }

    /// A whole fragment of a message that is being received is in its place: other readers of it lose their lease, and the message may be
    /// complete.
    pub(crate) fn fragment_is_there(&mut self, peer: PeerId, seq: u64, frag: u64) {
        let r = self.peers[peer].incoming.receiving_mut(seq).expect("the caller has looked it up");
        let holders = r.revoke(frag);
        r.commit(frag);
        let complete = r.is_complete();
        for l in holders {
            self.divert_reader(l.stream, seq, frag);
        }
        if complete {
            self.finish_rx(peer, seq);
        }
    }

    /// No stream reads into the memory of this message any more.
    pub(crate) fn revoke_leases(&mut self, peer: PeerId, seq: u64) {
        for l in self.peers[peer].incoming.revoke_leases(seq) {
            self.divert_reader(l.stream, seq, l.frag);
        }
    }

    /// Payload and trailer of a fragment were read; `crc` of the payload, if it is summed.
    fn fragment_read(
        &mut self,
        stream: StreamId,
        f: &FrameHeader,
        t: Trailer,
        crc: Option<u32>,
        place: Place,
    ) -> Taken {
        let Some((peer, path)) = self.streams[stream].peer() else { return Taken::Malformed };
        if let Some(index) = self.peers[peer].path_index(path) {
            self.heard(peer, index);
        }
        if let Place::Side { frag, .. } = place {
            return self.side_read(stream, peer, f, t, frag, crc.is_some());
        }
        let p = &mut self.peers[peer];
        let Place::Lease { frag, .. } = place else {
            self.counters.duplicates += 1;
            if !t.valid {
                self.counters.aborted += 1;
                return Taken::No;
            }
            // a duplicate may be acknowledged when the fragment is there, not when another reader may still fail
            return match p.incoming.get(f.seq) {
                None if p.incoming.is_past(f.seq) => Taken::Yes,
                None => Taken::Malformed,
                // an order that was fetched, and waits for its turn
                Some(m) if m.is_whole() => Taken::Yes,
                Some(m) => match m.receiving().map(|r| r.has_byte(f.a)) {
                    Some(None) => Taken::Malformed,
                    Some(Some(true)) => Taken::Yes,
                    Some(Some(false)) | None => Taken::No,
                },
            };
        };
        let Some(r) = p.incoming.receiving_mut(f.seq) else { return Taken::Yes };
        r.end_lease(frag, stream);
        if !t.valid {
            self.counters.aborted += 1;
            return Taken::No;
        }
        if crc.is_some_and(|crc| t.crc != crc) && self.remedies.payload_is_checked() {
            self.corrupt_stream(stream);
            return Taken::No;
        }
        if r.has(frag) {
            return Taken::Yes;
        }
        r.commit(frag);
        if r.is_complete() {
            // invariant 4: no other reader may go on into this memory
            self.revoke_leases(peer, f.seq);
            self.finish_rx(peer, f.seq);
        }
        Taken::Yes
    }
}

/// The memory of a message into which a stream of `peer` reads.
fn leased(peers: &Peers, peer: Option<(PeerId, PathId)>, seq: u64) -> &Iov {
    let (peer, _) = peer.expect("frames are read only from attached streams");
    let r = peers[peer].incoming.receiving(seq);
    &r.expect("a lease belongs to a granted message").target().iov
}
