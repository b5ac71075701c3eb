//! Datagrams. Owns: those that have arrived, which the adapter's thread takes from the sockets: Linux lets ten wait in one.

use crate::adapter::Shared;
use crate::names;
use parking_lot::Mutex;
use rerail_rail::{
    Arrived, ArrivedTrain, Condition, DatagramPort, Locator, RailId, SendOutcome, TrainOutcome, receive_one,
    send_one_by_one,
};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, recvfrom, sendto};
use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

/// Bytes of the longest datagram.
pub(crate) const DATAGRAM_BYTES_MAX: u16 = 16 << 10;
/// Datagrams that wait to be received; others wait in the sockets.
const WAITING_MAX: usize = 512;
/// Datagrams taken from one socket before other sockets have their turn.
const AT_ONCE_MAX: usize = 32;

/// What has arrived, in the order in which it came.
#[derive(Default)]
pub(crate) struct Inbox(Mutex<VecDeque<(Arrived, Box<[u8]>)>>);

impl Inbox {
    pub fn has_room(&self) -> bool {
        self.0.lock().len() < WAITING_MAX
    }
}

/// Takes what waits in the socket of a rail, as far as there is room.
pub(crate) fn take(shared: &Shared, rail: usize, buffer: &mut [u8]) {
    let mut inbox = shared.inbox.0.lock();
    for _ in 0..AT_ONCE_MAX.min(WAITING_MAX.saturating_sub(inbox.len())) {
        let flags = RecvFlags::DONTWAIT | RecvFlags::TRUNC;
        let (len, from) = match recvfrom(&shared.datagrams[rail], &mut *buffer, flags) {
            Ok((_, len, from)) => (len, from),
            Err(Errno::INTR) => continue,
            Err(_) => break,
        };
        // what is longer, or not of such a rail, is dropped
        if let (Some(from), Some(bytes)) = (shared.neighbour(rail, from), buffer.get(..len)) {
            let what = Arrived { rail: RailId(rail as u8), from, len, condition: Condition::Whole };
            inbox.push_back((what, bytes.into()));
        }
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
}

impl DatagramPort for ExampleDatagrams {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        let index = usize::from(rail.0);
        let Some(own) = self.shared.rails.get(index) else { return SendOutcome::RailBroken };
        if !to.same_place(own) || bytes.len() > DATAGRAM_BYTES_MAX.into() {
            return SendOutcome::Full;
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let sent = names::name(to.service(), rail.0, "datagrams")
            .and_then(|to| sendto(&self.shared.datagrams[index], bytes, flags, &to));
        // the receiver has no room, or there is no receiver
        if sent.is_ok() { SendOutcome::Sent } else { SendOutcome::Full }
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        let mut inbox = self.shared.inbox.0.lock();
        let was_full = inbox.len() >= WAITING_MAX;
        let mut fitting = std::iter::from_fn(|| inbox.pop_front()).filter(|(what, _)| what.len <= buf.len());
        let found = fitting.next();
        self.shared.datagrams_wait.set(!inbox.is_empty());
        drop(inbox);
        if was_full {
            self.shared.wake();
        }
        Ok(found.map(|(what, bytes)| {
            buf[..what.len].copy_from_slice(&bytes);
            what
        }))
    }

    fn send_train(&self, rail: RailId, to: Locator, bytes: &[u8], segment: usize) -> TrainOutcome {
        send_one_by_one(self, rail, to, bytes, segment)
    }

    fn recv_train(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        receive_one(self, buf)
    }

    fn recv_train_eagerly(&self, buf: &mut [u8]) -> io::Result<Option<ArrivedTrain>> {
        receive_one(self, buf)
    }

    fn keep_neighbour(&self, _rail: RailId, _to: Locator) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.shared.datagrams_wait.fd()
    }

    /// The descriptors are readable whenever there is something.
    fn before_sleep(&self, _streams: bool) -> bool {
        false
    }

    fn after_sleep(&self) {}

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.extend(self.shared.datagrams.iter().map(AsRawFd::as_raw_fd));
        out.push(self.shared.datagrams_wait.fd().as_raw_fd());
    }
}
