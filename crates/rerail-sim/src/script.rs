//! What scripts ask of a world, and look up in it.

use crate::app::{Phase, SendSpec};
use crate::link::{MS, SEC};
use crate::stream::EndState;
use crate::world::World;
use rerail_core::{Counters, Health, PathReport};

/// A send that is refused for so long is refused for ever.
const REFUSED_NS: u64 = 3 * SEC;

impl World {
    /// Runs until `done` says so after any event, for at most `ns`; false when it did not.
    pub fn run_finely(&mut self, ns: u64, mut done: impl FnMut(&World) -> bool) -> bool {
        let limit = self.now + ns;
        loop {
            if done(self) {
                return true;
            }
            if !self.step(limit) {
                self.now = self.now.max(limit);
                return done(self);
            }
        }
    }

    /// Posts a send, letting time pass while the engine wants it later.
    pub fn send_soon(&mut self, s: SendSpec) -> u64 {
        let (mut wait, end) = (20_000, self.now + REFUSED_NS);
        while self.now < end {
            if let Some(id) = self.send(s) {
                return id;
            }
            self.run_for(wait);
            wait = (wait * 2).min(MS);
        }
        panic!("live: a send is refused for ever: {}", self.describe());
    }

    /// A forged datagram arrives, as if process `src` had sent it.
    pub fn inject(&mut self, src: usize, dst: usize, net: usize, bytes: Vec<u8>) {
        let host = self.procs[src].host;
        let from = self.locator(net, host, self.procs[src].port);
        self.after(0, crate::world::Ev::Dgram { p: dst, net, src: host, route: 0, from, bytes, seal: None });
    }

    /// Whether process `p` has a path in service, or no path to any peer yet.
    pub fn carries(&self, p: usize) -> bool {
        let paths = self.paths(p);
        paths.is_empty() || paths.iter().any(|x| x.health.carries())
    }

    /// The process closes its endpoints and leaves as soon as the engine lets it.
    pub fn leave(&mut self, p: usize) {
        self.with_engine(p, |w, e, now| {
            for i in 0..w.procs[p].eps.len() {
                let ep = w.procs[p].eps[i];
                e.close_endpoint(ep, now);
            }
            w.procs[p].app.phase = Phase::Closing;
            w.procs[p].app.next_step = w.now;
        });
    }

    /// Counters of a process; zero when it has exited.
    pub fn counters(&self, p: usize) -> Counters {
        match &self.procs[p].engine {
            Some(e) => e.counters(),
            None => self.procs[p].last,
        }
    }

    /// Frames that ended in ABORT, over all processes.
    pub fn aborted(&self) -> u64 {
        (0..self.procs.len()).map(|p| self.counters(p).aborted).sum()
    }

    /// Paths of a process.
    pub fn paths(&self, p: usize) -> Vec<PathReport> {
        self.procs[p].engine.as_ref().map_or_else(Vec::new, |e| e.paths())
    }

    /// Network on which process `p` has sent the most since it began, among paths that are up.
    pub fn primary(&self, p: usize) -> Option<usize> {
        self.paths(p)
            .iter()
            .filter(|x| x.health == Health::Up)
            .max_by_key(|x| x.bytes_sent)
            .map(|x| self.procs[p].nets[x.rail.0 as usize])
    }

    /// The newest open stream of process `p` on a network: connection, side.
    pub fn stream_of(&self, p: usize, net: usize) -> Option<(usize, usize)> {
        (0..self.conns.len()).rev().find_map(|c| {
            let k = &self.conns[c];
            let side = k.ends.iter().position(|e| e.proc == p && e.state == EndState::Open)?;
            (k.net == net).then_some((c, side))
        })
    }

    /// Bytes that process `p` has written to streams on a network.
    pub fn written(&self, p: usize, net: usize) -> u64 {
        self.each_dir(p, net, |d| d.written)
    }

    /// Bytes of streams on a network that have reached the kernel of the peer of process `p`.
    pub fn delivered(&self, p: usize, net: usize) -> u64 {
        self.each_dir(p, net, |d| d.arrived())
    }

    fn each_dir(&self, p: usize, net: usize, f: impl Fn(&crate::stream::Dir) -> u64) -> u64 {
        let mut sum = 0;
        for c in self.conns.iter().filter(|c| c.net == net) {
            for side in 0..2 {
                if c.ends[side].proc == p {
                    sum += f(&c.dirs[side]);
                }
            }
        }
        sum
    }
}
