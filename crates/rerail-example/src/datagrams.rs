//! Datagrams. Owns: the UDP socket that all rails share. The first byte of a datagram is the rail.

use rerail_rail::{
    Arrived, ArrivedTrain, Condition, DatagramPort, Locator, RailId, SendOutcome, TrainOutcome, receive_one,
    send_one_by_one,
};
use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};

/// Bytes of the longest datagram.
pub(crate) const DATAGRAM_BYTES_MAX: u16 = 16 << 10;

pub(crate) struct ExampleDatagrams {
    own: Vec<Locator>,
    socket: UdpSocket,
}

impl ExampleDatagrams {
    /// A non-blocking socket.
    pub fn new(own: Vec<Locator>, socket: UdpSocket) -> Self {
        Self { own, socket }
    }
}

impl DatagramPort for ExampleDatagrams {
    fn send(&self, rail: RailId, to: Locator, bytes: &[u8]) -> SendOutcome {
        let Some(own) = self.own.get(usize::from(rail.0)) else { return SendOutcome::RailBroken };
        let port = u16::try_from(to.service()).ok().filter(|_| to.same_place(own));
        let Some(port) = port.filter(|_| bytes.len() <= DATAGRAM_BYTES_MAX.into()) else {
            return SendOutcome::Full;
        };
        // the receiver may be gone, or have no room
        match self.socket.send_to(&[&[rail.0], bytes].concat(), (Ipv4Addr::LOCALHOST, port)) {
            Ok(_) => SendOutcome::Sent,
            Err(_) => SendOutcome::Full,
        }
    }

    fn recv(&self, buf: &mut [u8]) -> io::Result<Option<Arrived>> {
        let mut datagram = [0; DATAGRAM_BYTES_MAX as usize + 2];
        loop {
            let (len, from) = match self.socket.recv_from(&mut datagram) {
                Ok(got) => got,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                // it belongs to a datagram that was sent, or to a signal
                Err(_) => continue,
            };
            // what is longer than a datagram of ours was cut, and is dropped as well as what is longer than the buffer
            let Some(([rail], bytes)) = datagram[..len].split_first_chunk() else { continue };
            let own = self.own.get(usize::from(*rail)).filter(|_| bytes.len() <= DATAGRAM_BYTES_MAX.into());
            let (Some(own), Some(room)) = (own, buf.get_mut(..bytes.len())) else { continue };
            room.copy_from_slice(bytes);
            let (rail, from) = (RailId(*rail), own.with_service(from.port().into()));
            return Ok(Some(Arrived { rail, from, len: bytes.len(), condition: Condition::Whole }));
        }
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

    fn lead(&self, _rail: RailId, _to: Locator, _route: u8) {}

    fn fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// The descriptors are readable whenever there is something.
    fn before_sleep(&self, _streams: bool) -> bool {
        false
    }

    fn after_sleep(&self) {}

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.socket.as_raw_fd());
    }
}
