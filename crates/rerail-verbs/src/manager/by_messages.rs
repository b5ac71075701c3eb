//! Connections that are made by messages, for networks and containers without RDMA-CM. Owns: what a request must say before it gets a
//! queue pair, and the order of steps: the side that was asked is ready before it answers, and the side that asked sends first.

use super::{Connecting, Connection, ConnectionEnd, Work, purpose_of, random};
use crate::exchange::{Call, Happened};
use crate::hello::Hello;
use crate::lane::LaneNumber;
use crate::mailbox::News;
use crate::setup::{self, Refusal};
use rerail_rail::{CloseReason, Locator, RailId};
use std::io;

impl Work {
    /// Makes a lane, and asks a process to connect it.
    pub(super) fn ask(&mut self, lane: LaneNumber, rail: RailId, to: &Locator) -> io::Result<()> {
        let unreachable = || io::Error::from(io::ErrorKind::HostUnreachable);
        let own = &self.rails.get(usize::from(rail.0)).ok_or_else(unreachable)?.own;
        if to.kind() != own.kind() || setup::connections_of(to.service()).is_none() {
            return Err(unreachable());
        }
        let hello = Hello { purpose: purpose_of(lane), from: own.service(), to: to.service() };
        let end = self.connection(lane, rail, hello, None)?;
        if let Connecting::ByMessages(connector) = &mut self.way {
            connector.ask((lane, rail), *to, (hello, end), random());
        }
        Ok(())
    }

    /// A connection with its lane and its queue pair, which is not connected yet; what a peer has to know of that.
    fn connection(
        &mut self,
        lane: LaneNumber,
        rail: RailId,
        hello: Hello,
        from: Option<Locator>,
    ) -> io::Result<setup::End> {
        self.connections.insert(lane, Connection::new(ConnectionEnd::QueuePair(None), rail, hello));
        let made = self.make(lane, from);
        match (made, self.connections.get(&lane)) {
            (Ok(()), Some(Connection { end: ConnectionEnd::QueuePair(Some(pair)), .. })) => Ok(pair.own()),
            (made, _) => {
                self.connections.remove(&lane);
                Err(made.err().unwrap_or_else(|| io::ErrorKind::NotConnected.into()))
            }
        }
    }

    /// Handles what has come, and repeats what was not answered.
    pub(super) fn exchange(&mut self) {
        while let Connecting::ByMessages(connector) = &mut self.way {
            let Some(happened) = connector.next() else { break };
            match happened {
                Happened::Requested { call, hello, end } => self.request(call, hello, end),
                Happened::Granted { lane, peer, end } => self.granted(lane, &peer, end),
                Happened::Refused { lane, why: Refusal::NoSuchProcess } => {
                    self.over(lane, CloseReason::Refused);
                }
                Happened::Refused { lane, why: Refusal::NoRoom } => self.over(lane, CloseReason::Unreachable),
                Happened::Unanswered { lane } => self.over(lane, CloseReason::Unreachable),
                Happened::Ended { lane } => self.over(lane, CloseReason::Reset),
            }
        }
    }

    /// A peer connects. One that means another process, or wants what this rail has not, gets no queue pair.
    fn request(&mut self, call: Call, hello: Hello, end: setup::End) {
        let rail = &mut self.rails[usize::from(call.rail.0)];
        let known = hello.to == rail.own.service() && rail.lanes(hello.purpose).is_some();
        let granted = known.then(|| self.grant(call, hello, end));
        let Connecting::ByMessages(connector) = &mut self.way else { return };
        match granted {
            Some(Ok((lane, end))) => connector.grant(call, lane, end),
            Some(Err(_)) => connector.refuse(call, Refusal::NoRoom),
            None => connector.refuse(call, Refusal::NoSuchProcess),
        }
    }

    fn grant(&mut self, call: Call, hello: Hello, end: setup::End) -> io::Result<(LaneNumber, setup::End)> {
        let lane = self.next_lane();
        let from = call.peer.with_service(hello.from);
        let own = self.connection(lane, call.rail, hello, Some(from))?;
        if let Err(why) = self.connect_pair(lane, &call.peer, end) {
            // Its lane is with its user already, and comes back.
            self.report(hello.purpose, News::Ended { lane, why: CloseReason::Reset });
            return Err(why);
        }
        Ok((lane, own))
    }

    /// The peer is ready: this side sends first.
    fn granted(&mut self, lane: LaneNumber, peer: &Locator, end: setup::End) {
        if self.connect_pair(lane, peer, end).and_then(|()| self.greet(lane)).is_err() {
            self.over(lane, CloseReason::Unreachable);
        }
    }

    fn connect_pair(&mut self, lane: LaneNumber, peer: &Locator, end: setup::End) -> io::Result<()> {
        let not_there = || io::Error::from(io::ErrorKind::NotConnected);
        let c = self.connections.get_mut(&lane).ok_or_else(not_there)?;
        let ConnectionEnd::QueuePair(Some(pair)) = &c.end else { return Err(not_there()) };
        pair.connect(peer.place(), end)?;
        c.established = true;
        Ok(())
    }

    fn greet(&mut self, lane: LaneNumber) -> io::Result<()> {
        let Some(c) = self.connections.get(&lane) else { return Ok(()) };
        let ConnectionEnd::QueuePair(Some(pair)) = &c.end else { return Ok(()) };
        // before anything of the lane, as with RDMA-CM
        // SAFETY: made for a lane, and destroyed by this thread.
        let sent = unsafe { self.rails[usize::from(c.rail.0)].greeting.send(pair.raw()) };
        self.mailboxes.of(c.hello.purpose).put(News::Established { lane });
        sent
    }

    fn over(&mut self, lane: LaneNumber, why: CloseReason) {
        if let Some(c) = self.connections.get(&lane) {
            self.report_end(lane, c.hello.purpose, why);
        }
    }
}
