//! Streams within a piece of progress: what happened on them, reads straight to where the engine wants the bytes, writes.

use crate::bounds::{ACCEPT_MAX, READ_BYTES_MAX};
use crate::driver::{Driver, Progress, hand_over_keys};
use crate::machine::Machine;
use crate::ports::{Clock, Ports};
use rerail_core::{CloseReason, StreamId};
use rerail_rail::{Moved, Posted, StreamEvent};

impl Driver {
    pub(crate) fn poll_streams<E: Machine, P: Ports, C: Clock>(
        &mut self,
        engine: &mut E,
        ports: &mut P,
        clock: &C,
    ) -> Progress {
        let mut ready = std::mem::take(&mut self.ready);
        ports.poll_streams(&mut ready);
        let mut done = Progress { input: !ready.is_empty(), more: false };
        for event in ready.drain(..) {
            let now = clock.now();
            match event {
                StreamEvent::Incoming => {
                    for _ in 0..ACCEPT_MAX {
                        if !ports.accept(&mut |rail, from| engine.stream_accepted(rail, from, now)) {
                            break;
                        }
                    }
                }
                StreamEvent::Connected(s) => engine.stream_connected(s, now),
                StreamEvent::Writable(s) => engine.stream_writable(s),
                StreamEvent::Closed(s, why) => engine.stream_closed(s, why, now),
                StreamEvent::Readable(s) => done.more |= self.read(s, engine, ports, clock),
                StreamEvent::Placed(work) => engine.placed(work, now),
                StreamEvent::Registered(region, key) => engine.registered(region, key, now),
                StreamEvent::Invalidated(region) => engine.invalidated(region, now),
                StreamEvent::Armed(s, rail) => engine.stream_armed(s, rail, now),
                StreamEvent::Unloaded(s) => engine.stream_unloaded(s, now),
                StreamEvent::Migrated(s, rail) => engine.stream_migrated(s, rail, now),
            }
        }
        self.ready = ready;
        done
    }

    /// Reads a stream until it has no more or it is the turn of others; returns whether there may be more.
    fn read<E: Machine, P: Ports, C: Clock>(
        &mut self,
        s: StreamId,
        engine: &mut E,
        ports: &mut P,
        clock: &C,
    ) -> bool {
        let mut left = READ_BYTES_MAX;
        while left > 0 {
            hand_over_keys(engine, ports);
            self.window.clear();
            if !engine.stream_rx_window(s, &mut self.window) {
                return false;
            }
            if self.window.bytes() == 0 {
                engine.stream_rx_done(s, 0, clock.now());
                return false;
            }
            // SAFETY: the engine has just leased these pieces to this stream (see `Machine`); its next call is
            // stream_rx_done, right after this one.
            match unsafe { ports.read(s, self.window.pieces()) } {
                Moved::Bytes(n) => {
                    let now = clock.now();
                    engine.stream_rx_done(s, n, now);
                    // Acknowledgements go while we read on: the sender keeps its window moving.
                    self.send_datagrams(engine, ports, now);
                    if n < self.window.bytes() && !ports.goes_on(s) {
                        return false;
                    }
                    left = left.saturating_sub(n);
                }
                Moved::Blocked => {
                    engine.stream_rx_done(s, 0, clock.now());
                    return false;
                }
                Moved::Closed(why) => {
                    let now = clock.now();
                    engine.stream_rx_done(s, 0, now);
                    engine.stream_closed(s, why, now);
                    return false;
                }
            }
        }
        true
    }

    /// Writes one window of a stream; returns the bytes. A stream with more to write queues up again behind the others, so
    /// that all rails are kept busy.
    pub(crate) fn write_window<E: Machine, P: Ports, C: Clock>(
        &mut self,
        s: StreamId,
        engine: &mut E,
        ports: &mut P,
        clock: &C,
    ) -> usize {
        self.window.clear();
        if !engine.stream_tx_window(s, &mut self.window, clock.now()) {
            return 0;
        }
        for (n, place) in self.window.places().iter().enumerate() {
            // SAFETY: the engine keeps the source valid and unchanged until `placed`, or until the stream is closed
            // (see `Machine`).
            let posted = unsafe { ports.place(s, place) };
            if posted == Posted::Lent {
                continue;
            }
            // the bytes that announce the write must not be sent
            let now = clock.now();
            engine.stream_tx_done(s, 0, now);
            let unlent = &self.window.places()[n..];
            if posted == Posted::Unreadable {
                engine.unreadable(s, unlent, now);
            } else {
                unlent.iter().for_each(|place| engine.placed(place.work, now));
                engine.stream_closed(s, CloseReason::Reset, now);
            }
            return 0;
        }
        // SAFETY: the engine keeps these pieces unchanged until stream_tx_done, right after this call. A frame that was
        // begun and is not offered again ends with ABORT (see `Machine`).
        let (taken, closed) = match unsafe { ports.write(s, self.window.pieces()) } {
            Moved::Bytes(n) => (n, None),
            Moved::Blocked => (0, None),
            Moved::Closed(why) => (0, Some(why)),
        };
        let now = clock.now();
        engine.stream_tx_done(s, taken, now);
        if let Some(why) = closed {
            engine.stream_closed(s, why, now);
        } else if taken < self.window.bytes() {
            ports.want_writable(s);
        }
        taken
    }
}
