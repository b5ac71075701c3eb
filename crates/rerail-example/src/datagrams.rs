//! Datagrams. Owns: those that have arrived, which the adapter's thread takes from the sockets: Linux lets no more than ten wait in one.
//!
//! A message of a socket is a train: two bytes that say how long its datagrams are, and the datagrams.

use crate::adapter::Shared;
use crate::names;
use parking_lot::Mutex;
use rerail_rail::{
    Arrived, ArrivedTrain, Condition, DatagramPort, Locator, RailId, SendOutcome, TRAIN_BYTES_MAX,
    TrainOutcome,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendAncillaryBuffer, SendFlags, recvfrom, sendmsg_addr};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Payload of the longest datagram.
pub(crate) const DATAGRAM_BYTES_MAX: u16 = 16 << 10;
/// Trains that wait to be received; others wait in the sockets.
const WAITING_MAX: usize = 256;
/// Trains taken from one socket before other sockets have their turn.
const AT_ONCE_MAX: usize = 32;
const HEADER_BYTES: usize = 2;

/// What has arrived and was not all given out.
struct Waiting {
    what: ArrivedTrain,
    bytes: Vec<u8>,
    given: usize,
}

/// Trains in the order in which they came.
#[derive(Default)]
pub(crate) struct Inbox(Mutex<VecDeque<Waiting>>);

impl Inbox {
    pub fn has_room(&self) -> bool {
        self.0.lock().len() < WAITING_MAX
    }
}

/// Takes what waits in the socket of a rail, as far as there is room.
pub(crate) fn take(shared: &Shared, rail: usize, buffer: &mut [u8]) {
    let mut inbox = shared.inbox.0.lock();
    for _ in 0..AT_ONCE_MAX.min(WAITING_MAX.saturating_sub(inbox.len())) {
        let (len, from) =
            match recvfrom(&shared.datagrams[rail], &mut *buffer, RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
                Ok((_, len, from)) => (len, from),
                Err(Errno::INTR) => continue,
                Err(_) => break,
            };
        let (Some((service, far_rail)), Some(([a, b], bytes))) =
            (names::parse(from), buffer.get(..len).and_then(<[u8]>::split_first_chunk))
        else {
            continue;
        };
        let segment = usize::from(u16::from_le_bytes([*a, *b]));
        if usize::from(far_rail) != rail || segment == 0 {
            continue;
        }
        let from = shared.rails[rail].with_service(service);
        let what = ArrivedTrain {
            rail: RailId(far_rail),
            from,
            len: bytes.len(),
            segment,
            condition: Condition::Whole,
        };
        inbox.push_back(Waiting { what, bytes: bytes.to_vec(), given: 0 });
    }
    shared.datagrams_wait.set(!inbox.is_empty());
}

pub(crate) struct ExampleDatagrams {
    shared: Arc<Shared>,
}

impl ExampleDatagrams {
    pub fn new(shared: Arc<Shared>) -> Self {
        Self { shared }
    }

    /// The next of what waits, one datagram or all of the train; what `buf` has no room for is dropped.
    fn next(&self, buf: &mut [u8], one: bool) -> Option<ArrivedTrain> {
        let mut inbox = self.shared.inbox.0.lock();
        let was_full = inbox.len() >= WAITING_MAX;
        let mut found = None;
        while let (None, Some(first)) = (found, inbox.front_mut()) {
            let rest = &first.bytes[first.given..];
            let len = if one { rest.len().min(first.what.segment) } else { rest.len() };
            if let Some(room) = buf.get_mut(..len) {
                room.copy_from_slice(&rest[..len]);
                found = Some(ArrivedTrain { len, ..first.what });
            }
            first.given += len;
            if first.given == first.bytes.len() {
                inbox.pop_front();
            }
        }
        self.shared.datagrams_wait.set(!inbox.is_empty());
        drop(inbox);
        if was_full {
            self.shared.wake();
        }
        found
    }

    fn post(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> SendOutcome {
        let Some(own) = self.shared.rails.get(usize::from(rail.0)) else { return SendOutcome::RailBroken };
        if !to.same_place(own) || segment > DATAGRAM_BYTES_MAX.into() || bytes.len() > TRAIN_BYTES_MAX {
            return SendOutcome::Full;
        }
        let Ok(to) = names::name(to.service(), rail.0, "datagrams") else { return SendOutcome::Full };
        let header = (segment.max(1) as u16).to_le_bytes();
        let (pieces, flags) =
            ([IoSlice::new(&header), IoSlice::new(bytes)], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        let socket = &self.shared.datagrams[usize::from(rail.0)];
        match sendmsg_addr(socket, &to, &pieces, &mut SendAncillaryBuffer::default(), flags) {
            Ok(_) => SendOutcome::Sent,
            // no room, or nobody there
            Err(_) => SendOutcome::Full,
        }
    }
}

impl DatagramPort for ExampleDatagrams {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        self.post(rail, to, bytes, bytes.len())
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        let one = self.next(buf, true);
        Ok(one.map(|t| Arrived { rail: t.rail, from: t.from, len: t.len, condition: t.condition }))
    }

    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        match self.post(rail, to, bytes, segment) {
            SendOutcome::Sent => {
                TrainOutcome { sent: bytes.len().div_ceil(segment), rest: SendOutcome::Sent }
            }
            rest => TrainOutcome { sent: 0, rest },
        }
    }

    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        Ok(self.next(buf, false))
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        self.recv_train(buf)
    }

    fn keep_neighbour(&self, _rail: RailId, _to: Locator) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.shared.datagrams_wait.fd()
    }

    /// The descriptors say it all.
    fn before_sleep(&self, _streams: bool) -> bool {
        false
    }

    fn after_sleep(&self) {}

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.shared.datagrams.iter().map(AsRawFd::as_raw_fd));
        out.push(self.shared.datagrams_wait.fd().as_raw_fd());
    }
}

/// Bytes of the longest message of a socket.
pub(crate) const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + TRAIN_BYTES_MAX;
