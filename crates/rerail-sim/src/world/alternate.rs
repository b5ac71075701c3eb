//! Adapters that migrate paths by themselves (APM). Owns: what a connection's adapters have loaded, and when they move it.
//!
//! True migration, which no emulated adapter has: a connection whose network goes dark goes on over the network that both its adapters have loaded,
//! with everything that was under way, and nothing of it is sent twice. As unkind as the contract allows: loading takes time and crosses
//! the present network, or is refused; a path that is to be unloaded may still be used until both ends have done it; an adapter moves
//! onto a dead network as onto a sound one (hazard H24), and reports both as success; one end may never learn that the connection was
//! moved.

use super::stream::EndState;
use super::{Ev, World};
use crate::link::{Carries, MS, US};
use rerail_core::{Alternate, RailId, StreamId};
use rerail_driver::StreamEvent;

/// Looks without an acknowledgement, on a network that is not open, after which an adapter moves a connection.
const LOOKS: u32 = 3;

/// What the adapters of a connection have.
#[derive(Debug, Clone, Copy, Default)]
pub struct Loaded {
    /// Orders to load and migrations so far: an earlier order is not carried out any more.
    orders: u64,
    /// The network that both have loaded.
    armed: Option<usize>,
    /// Times that it was moved.
    pub moves: u64,
}

impl Loaded {
    /// The network to which the adapters would move it.
    pub fn armed(&self) -> Option<usize> {
        self.armed
    }
}

impl World {
    /// The adapter that a network's rails are of, on every host.
    fn device(&self, net: usize) -> Option<usize> {
        self.cfg.devices.get(net).copied().filter(|_| self.places_max(net) > 0)
    }

    /// What rails of a network call their adapter.
    pub(crate) fn adapter_name(&self, net: usize) -> String {
        self.device(net).map_or_else(String::new, |device| format!("adapter{device}"))
    }

    /// Both directions of a connection are open on a network.
    fn is_open(&self, c: usize, net: usize) -> bool {
        let k = &self.conns[c];
        let (a, b) = (k.ends[0].host, k.ends[1].host);
        let open = |from, to| self.nets[net].open(from, to, Carries::Tcp(c));
        open(a, b) && open(b, a)
    }

    /// Neither end is over, or to be closed.
    fn lives(&self, c: usize) -> bool {
        self.conns[c].ends.iter().all(|e| e.state == EndState::Open && !e.closing && e.over.is_none())
    }

    pub(crate) fn load_alternate(&mut self, p: usize, stream: StreamId, alternate: Option<Alternate>) {
        let Some(&(c, side)) = self.procs[p].streams.get(&stream) else { return };
        assert_eq!(side, 0, "p{p} {stream:?}: only the side that opened a stream loads its alternate");
        self.trace(|| format!("p{p} {stream:?} conn {c} is to load {alternate:?}"));
        // of an earlier order nothing more is reported
        let earlier = |e: &StreamEvent| matches!(*e, StreamEvent::Armed(s, _) | StreamEvent::Unloaded(s) if s == stream);
        self.procs[p].notices.retain(|n| !matches!(n, super::stream::Notice::Adapter(e) if earlier(e)));
        self.conns[c].alternate.orders += 1;
        let order = self.conns[c].alternate.orders;
        let q = self.conns[c].ends[1].proc;
        let net = alternate.map(|a| {
            let net = self.procs[p].nets[usize::from(a.rail.0)];
            let device = self.device(self.conns[c].net);
            assert!(
                device.is_some() && device == self.device(net),
                "p{p} {stream:?}: another adapter: {a:?}"
            );
            let fits = self.find(a.to) == Some((net, q)) && net != self.conns[c].net;
            fits.then_some(net).filter(|_| !self.adapters.loads.percent(self.cfg.refused_loads_percent))
        });
        let after = self.adapters.loads.log_range(10 * US, 3 * MS);
        self.after(after, Ev::Load { c, order, net });
    }

    /// An order to load has reached both ends. `None`: it is to unload; `Some(None)`: it is refused.
    pub(crate) fn on_load(&mut self, c: usize, order: u64, net: Option<Option<usize>>) {
        if self.conns[c].alternate.orders != order || !self.lives(c) {
            return;
        }
        if !self.is_open(c, self.conns[c].net) {
            let after = self.adapters.loads.log_range(MS, 20 * MS);
            self.after(after, Ev::Load { c, order, net });
            return;
        }
        self.conns[c].alternate.armed = net.flatten();
        match net {
            Some(Some(net)) => {
                for side in 0..2 {
                    self.report(c, side, StreamEvent::Armed, net);
                }
                self.look_later(c, order, 0);
            }
            Some(None) => self.report(c, 0, |s, _| StreamEvent::Unloaded(s), 0),
            None => self.report(c, 1, |s, _| StreamEvent::Unloaded(s), 0),
        }
    }

    fn report(&mut self, c: usize, side: usize, event: impl Fn(StreamId, RailId) -> StreamEvent, net: usize) {
        let e = &self.conns[c].ends[side];
        let (p, Some(stream)) = (e.proc, e.stream) else { return };
        let rail = self.procs[p].nets.iter().position(|&n| n == net).unwrap_or(0);
        let after = self.adapters.loads.log_range(US, MS);
        self.after(after, Ev::Adapter { p, event: event(stream, RailId(rail as u8)) });
    }

    fn look_later(&mut self, c: usize, order: u64, strikes: u32) {
        let after = self.adapters.loads.log_range(US, self.cfg.migrates_after_ns / u64::from(LOOKS));
        self.after(after, Ev::Look { c, order, strikes });
    }

    /// An armed adapter looks whether what it sends is acknowledged.
    pub(crate) fn on_look(&mut self, c: usize, order: u64, strikes: u32) {
        let k = &self.conns[c];
        if k.alternate.orders != order || k.alternate.armed.is_none() || !self.lives(c) {
            return;
        }
        let waits = k.dirs.iter().any(|d| !d.buf.is_empty()) || self.adapters.is_writing_on(c);
        let strikes = if waits && !self.is_open(c, k.net) { strikes + 1 } else { 0 };
        if strikes == LOOKS {
            self.migrate_connection(c);
        } else {
            self.look_later(c, order, strikes);
        }
    }

    pub(crate) fn migrate_stream(&mut self, p: usize, stream: StreamId) {
        if let Some(&(c, _)) = self.procs[p].streams.get(&stream) {
            let order = self.conns[c].alternate.orders;
            let after = self.adapters.loads.log_range(US, 200 * US);
            self.after(after, Ev::Move { c, order });
        }
    }

    pub(crate) fn on_move(&mut self, c: usize, order: u64) {
        let k = &self.conns[c];
        if k.alternate.orders == order && k.alternate.armed.is_some() && self.lives(c) {
            self.migrate_connection(c);
        }
    }

    /// The adapters move a connection: what is under way goes on over the other network, sound or not.
    fn migrate_connection(&mut self, c: usize) {
        let k = &mut self.conns[c];
        let Some(net) = k.alternate.armed.take() else { return };
        k.alternate.orders += 1;
        k.alternate.moves += 1;
        let from = std::mem::replace(&mut k.net, net);
        self.trace(|| format!("conn {c} migrates from net {from} to net {net}"));
        self.note(0xa9 ^ (net as u64) << 8);
        // the end that did it knows; the other learns it from the first packet
        let (open, first) = (self.is_open(c, net), self.adapters.loads.index(2));
        for side in [first, 1 - first] {
            if side == first || open {
                self.report(c, side, StreamEvent::Migrated, net);
            }
        }
        for dir in 0..2 {
            self.conns[c].dirs[dir].repeat(self.now);
            self.tcp_pump(c, dir);
        }
    }
}
