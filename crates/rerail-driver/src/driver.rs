//! A piece of progress, and what is sent after a call of the application. Owns: the order of the calls, the buffers between engine and
//! ports, and when the streams and the links were looked at.

use crate::bounds::*;
use crate::machine::Machine;
use crate::ports::{Clock, Ports, Waiting};
use rerail_core::{Action, CloseReason, CqId, Datagram, RailEvent, RailId, Time, Train, Window};
use rerail_rail::{Closing, Condition, SendOutcome, StreamEvent};

/// How a piece of progress is made.
#[derive(Debug, Clone, Copy, Default)]
pub struct ProgressOptions {
    /// Poll the streams whether or not bulk is expected.
    pub streams: bool,
    /// Stop reading datagrams as soon as this queue has an entry, which the caller waits for.
    pub until: Option<CqId>,
}

/// What a piece of progress did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Something came in.
    pub input: bool,
    /// A bound was reached: more can be done at once.
    pub more: bool,
}

/// Drives one engine over its ports; see the crate.
pub struct Driver {
    out: Datagram,
    train: Train,
    received: Box<[u8]>,
    pub(crate) window: Window,
    pub(crate) ready: Vec<StreamEvent>,
    /// Pieces since the streams were polled.
    unpolled: u32,
    /// When that was.
    polled_at: Time,
    /// Pieces that still poll the streams because something came in on one lately.
    warm: u32,
    /// When the last piece was done.
    last: Time,
    links_looked: Time,
    /// Rails that refused what was sent in this piece, as bits.
    broken: u64,
}

impl Driver {
    /// For an engine that was made at `now`.
    pub fn new(now: Time) -> Self {
        Self {
            out: Datagram::default(),
            train: Train::default(),
            window: Window::default(),
            received: vec![0; DATAGRAM_BYTES_MAX].into(),
            ready: Vec::new(),
            unpolled: 0,
            polled_at: now,
            warm: 0,
            last: now,
            links_looked: now,
            broken: 0,
        }
    }

    /// The time of the last piece of progress.
    #[inline]
    pub fn last(&self) -> Time {
        self.last
    }

    /// The next piece polls the streams whatever is expected.
    pub fn look_at_streams(&mut self) {
        self.unpolled = STREAM_POLL_EVERY;
    }

    /// A bounded piece of progress.
    pub fn progress<E: Machine, P: Ports, C: Clock>(
        &mut self,
        engine: &mut E,
        ports: &mut P,
        clock: &C,
        options: ProgressOptions,
    ) -> Progress {
        let now = clock.now();
        let absent = now.since(self.last) > ABSENCE;
        let mut done = Progress::default();
        self.broken = 0;

        if now.since(self.links_looked) > LINK_LOOK_EVERY {
            self.links_looked = now;
            ports.look_at_links();
        }
        if ports.has_waiting() {
            ports.take_waiting(|waiting| match waiting {
                Waiting::Link(rail, event) => engine.handle_rail(rail, event, now),
                Waiting::Datagram { rail, from, bytes } => engine.handle_datagram(rail, from, bytes, now),
            });
            done.input = true;
        }

        let most = if absent { DATAGRAMS_MAX_AFTER_ABSENCE } else { DATAGRAMS_MAX };
        let until = if now.since(self.last) > READ_ON_AFTER { None } else { options.until };
        // the caller waits for one message, and not for what comes by streams as well
        let mut eagerly = until.is_some() && self.warm == 0 && !engine.expects_streams();
        let mut count = 0;
        while count < most {
            hand_over_keys(engine, ports);
            let Some(t) = ports.receive(std::mem::take(&mut eagerly), &mut self.received) else { break };
            let bytes = &self.received[..t.len];
            match t.condition {
                Condition::Whole => {
                    for one in bytes.chunks(t.segment) {
                        engine.handle_datagram(t.rail, t.from, one, now);
                    }
                }
                Condition::Damaged => {
                    let cid = bytes.first_chunk().map_or(0, |cid| u64::from_le_bytes(*cid));
                    engine.handle_damaged(t.rail, t.from, cid, now);
                }
                Condition::Unsealed => engine.handle_unsealed(now),
            }
            count += 1;
            if until.is_some_and(|cq| engine.has_completion(cq)) {
                break;
            }
        }
        done.input |= count > 0;
        done.more |= count == most;

        self.unpolled += 1;
        if options.streams
            || absent
            || self.warm > 0
            || self.unpolled >= STREAM_POLL_EVERY
            || now.since(self.polled_at) >= STREAM_POLL_AFTER
            || engine.expects_streams()
        {
            self.unpolled = 0;
            self.polled_at = now;
            let streams = self.poll_streams(engine, ports, clock);
            self.warm = if streams.input { STREAM_WARM } else { self.warm.saturating_sub(1) };
            done.input |= streams.input;
            done.more |= streams.more;
        }

        // A few datagrams take no time worth reading the clock for.
        let now = if done.input && (count > FEW_DATAGRAMS || done.more || self.unpolled == 0) {
            clock.now()
        } else {
            now
        };
        if done.input || engine.poll_timeout().is_some_and(|t| t <= now) {
            engine.handle_timeout(now);
        }
        done.more |= self.output(engine, ports, clock, now);
        self.last = now;
        done
    }

    /// Sends what became sendable; returns whether a bound was reached and there is more. For after a call of the application.
    pub fn flush<E: Machine, P: Ports, C: Clock>(
        &mut self,
        engine: &mut E,
        ports: &mut P,
        clock: &C,
        now: Time,
    ) -> bool {
        self.broken = 0;
        self.output(engine, ports, clock, now)
    }

    /// The clock is read again only after something was done: an empty piece of progress reads it once.
    fn output<E: Machine, P: Ports, C: Clock>(
        &mut self,
        engine: &mut E,
        ports: &mut P,
        clock: &C,
        mut now: Time,
    ) -> bool {
        let mut more = false;
        let mut settled = false;
        let mut written = 0;
        for _ in 0..OUTPUT_ROUNDS_MAX {
            let sent = self.send_datagrams(engine, ports, now);
            more |= sent == SEND_MAX;
            if !engine.has_output() {
                settled = true;
                break;
            }
            let mut quiet = sent == 0;
            for n in 1.. {
                if !engine.poll_train(now, &mut self.train) {
                    break;
                }
                quiet = false;
                self.send_train(engine, ports, now);
                if n == TRAINS_MAX {
                    more = true;
                    break;
                }
            }
            while let Some(action) = engine.poll_action() {
                quiet = false;
                act(action, engine, ports, clock);
            }
            while written < WRITE_BYTES_MAX {
                let Some(s) = engine.poll_writable(now) else { break };
                quiet = false;
                written += self.write_window(s, engine, ports, clock);
                now = clock.now();
            }
            // `poll_train` may have made a datagram sendable although it returned no train
            if quiet && !engine.has_output() {
                settled = true;
                break;
            }
        }
        while let Some(event) = engine.poll_event() {
            ports.report(event);
        }
        // what the last round made sendable would else wait for the next timer
        more || written >= WRITE_BYTES_MAX || (!settled && engine.has_output())
    }

    /// Sends the datagrams that are ready, at most [`SEND_MAX`]; returns how many.
    pub(crate) fn send_datagrams<E: Machine, P: Ports>(
        &mut self,
        engine: &mut E,
        ports: &mut P,
        now: Time,
    ) -> usize {
        hand_over_keys(engine, ports);
        for n in 0..SEND_MAX {
            if !engine.poll_datagram(now, &mut self.out) {
                return n;
            }
            let rail = self.out.rail;
            if ports.send(rail, self.out.to, &self.out.bytes) == SendOutcome::RailBroken {
                self.rail_broke(rail, engine, now);
            }
        }
        SEND_MAX
    }

    /// Sends the train at hand.
    fn send_train<E: Machine, P: Ports>(&mut self, engine: &mut E, ports: &mut P, now: Time) {
        let t = &self.train;
        let done = ports.send_train(t.rail, t.to, &t.bytes, t.segment);
        if done.rest != SendOutcome::Sent {
            let broken = done.rest == SendOutcome::RailBroken;
            engine.train_refused(t, done.sent, broken, now);
            if broken {
                self.rail_broke(t.rail, engine, now);
            }
        }
    }

    /// Reports a broken rail to the engine, once for each rail and piece: the engine may have more to send on it.
    #[cold]
    fn rail_broke<E: Machine>(&mut self, rail: RailId, engine: &mut E, now: Time) {
        let bit = 1u64 << (rail.0 % 64);
        if self.broken & bit == 0 {
            self.broken |= bit;
            engine.handle_rail(rail, RailEvent::SendError, now);
        }
    }
}

/// Passes key changes to the ports, before anything is sent or read under these keys.
#[inline]
pub(crate) fn hand_over_keys<E: Machine, P: Ports>(engine: &mut E, ports: &mut P) {
    if engine.has_keys() {
        ports.update_keys(&mut std::iter::from_fn(|| engine.poll_keys()));
    }
}

/// Carries out an action of the engine.
fn act<E: Machine, P: Ports, C: Clock>(action: Action, engine: &mut E, ports: &mut P, clock: &C) {
    match action {
        Action::OpenStream { stream, rail, to } => ports.open(stream, rail, to),
        Action::CloseStream { stream } => {
            if ports.close(stream) == Closing::Done {
                engine.stream_closed(stream, CloseReason::Requested, clock.now());
            }
        }
        // SAFETY: the engine tells a peer the key only while the memory is the poster's to give (see `Machine`).
        Action::Register { rail, region, memory } => unsafe { ports.register(rail, region, memory) },
        Action::Invalidate { region } => ports.invalidate(region),
        Action::LoadAlternate { stream, alternate } => ports.load_alternate(stream, alternate),
        Action::MigrateStream { stream } => ports.migrate(stream),
        Action::InspectStream { stream } => {
            let told = ports.far_kernel(stream);
            engine.stream_inspected(stream, told, clock.now());
        }
        Action::KeepNeighbour { rail, to } => ports.keep_neighbour(rail, to),
        Action::Lead { rail, to, route } => ports.lead(rail, to, route),
        Action::Responder(update) => ports.update_responder(update),
    }
}
