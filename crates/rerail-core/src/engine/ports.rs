//! Port groups: rails of several kinds on one physical port, such as an RDMA device and its own Ethernet interface.
//!
//! Such rails share one cable, so two rules hold for the paths of a peer that share a port, at either end (hazard H25):
//!
//! * *One kind carries.* A path gives way to one of a better kind: it has no carrier of its own, stays in standby, and is
//!   kept warm by probes. Both at once would crowd each other, and each one's rate would be mismeasured. It stands in when
//!   the better one fails and the port works: when it has answered a query that was sent after the better one fell silent.
//! * *One failure counts once.* A path that breaks while another one of its port is out of service, and that has answered
//!   nothing since that one fell silent, has no fault of its own: the port has failed.
//!
//! Which kind is better is read from what it describes ([`LocalRails::outranks`](crate::rails::LocalRails)); a rail that
//! the user names as a carrier gives way to none ([`Plan::insists`](crate::policy::Plan)). Each side decides for what it
//! sends, and by the groups of both ends.
//!
//! Owns: these rules. `migration` applies the first, `recovery` the second. Each path's verdict still rests on its own
//! evidence: taking a port's paths down together was rejected, because a device hangs while its port works.
//!
//! Where else paths are counted, a port needs no care. A verdict needs one witness, not a number of them (`query`); a
//! sweep counts peers, and takes its witness from another port if it can (`suspicion`); partitions and deaths need the
//! silence of all paths (`liveness`); the budget of queries counts queries, which each path costs (`probes`).

use super::Engine;
use crate::health::Health;
use crate::migration::Carrier;
use crate::path::Path;
use crate::peer::Peer;
use crate::types::{PeerId, RailId, Time};

/// Whether a path could carry at once: connected, not suspected, and something was answered on it in this epoch.
pub(super) fn ready(path: &Path) -> bool {
    matches!(path.health(), Health::Up | Health::Standby) && path.evidence.is_proven()
}

/// Since when a path that should carry does not; `None`: it does.
fn failed_since(path: &Path) -> Option<Time> {
    match path.health() {
        Health::Up | Health::Standby => None,
        Health::Suspect => Some(path.evidence.open_since().unwrap_or(path.since())),
        // one that never worked says nothing of its port
        _ => Some(path.retry.silent_since().unwrap_or(Time::ORIGIN)),
    }
}

impl Engine {
    /// Whether two paths go through one physical port, here or at the peer, and so break together.
    pub(super) fn shares_port(&self, p: &Peer, a: &Path, b: &Path) -> bool {
        a.rail() == b.rail() || self.of_one_port(p, a, b)
    }

    /// The same for two rails of one port group.
    fn of_one_port(&self, p: &Peer, a: &Path, b: &Path) -> bool {
        let far = |path: &Path| p.far(path).map_or(0, |far| far.port());
        let here = a.rail() != b.rail() && self.rails[a.rail()].shares_port_with(&self.rails[b.rail()]);
        here || far(a) != 0 && far(a) == far(b)
    }

    /// Whether path `index` leaves their port to path `to`.
    pub(super) fn gives_way(&self, p: &Peer, index: usize, to: usize) -> bool {
        let (own, better) = (&p.paths[index], &p.paths[to]);
        self.rails.outranks(better.rail(), own.rail())
            && !self.plan.insists(own.rail())
            && !self.plan.is_reserve(better.rail())
            && self.of_one_port(p, own, better)
            && self.remedies.one_kind_carries()
    }

    /// The paths to which path `index` leaves their port.
    fn betters<'a>(&'a self, p: &'a Peer, index: usize) -> impl Iterator<Item = usize> + 'a {
        (0..p.paths.len()).filter(move |&to| self.gives_way(p, index, to))
    }

    /// Whether path `index` leaves its port to another one.
    pub(super) fn is_second(&self, p: &Peer, index: usize) -> bool {
        self.betters(p, index).next().is_some()
    }

    /// The rail for which path `index` stands by, if it does.
    pub(crate) fn stands_by_for(&self, p: &Peer, index: usize) -> Option<RailId> {
        let standby = p.paths[index].health() == Health::Standby;
        self.betters(p, index).find(|_| standby).map(|to| p.paths[to].rail())
    }

    /// Whether a path to which `index` leaves its port could carry at once, besides `used`.
    pub(super) fn port_is_taken(&self, p: &Peer, index: usize, used: usize) -> bool {
        self.betters(p, index).any(|to| to != used && ready(&p.paths[to]))
    }

    /// The path that takes the place of path `index` on the same port: the port works, and no better one of it does.
    pub(super) fn stand_in(&self, p: &Peer, index: usize) -> Option<usize> {
        let since = failed_since(&p.paths[index])?;
        let works = |path: &Path| path.evidence.answered_sent_at().is_some_and(|asked| asked >= since);
        let fit = |&i: &usize| {
            self.gives_way(p, i, index)
                && ready(&p.paths[i])
                && works(&p.paths[i])
                && !self.port_is_taken(p, i, index)
        };
        (0..p.paths.len()).find(fit)
    }

    /// Whether path `index` takes the place of the path of a carrier, which is not in service and not out of it either.
    pub(super) fn stands_in(&self, p: &Peer, index: usize) -> bool {
        let of = |c: &Carrier| {
            let used = p.paths[c.path()].health();
            !matches!(used, Health::Up | Health::Standby) && self.stand_in(p, c.path()) == Some(index)
        };
        !self.plan.policy().single() && p.carriers.have_seconds() && p.carriers.iter().any(of)
    }

    /// The peer has reported its ports: carriers are made again if they are other ones.
    pub(crate) fn settle_ports(&mut self, peer: PeerId) {
        let p = &self.peers[peer];
        if (0..p.paths.len()).any(|i| self.is_second(p, i)) {
            self.peers[peer].carriers.forget();
            self.unsettle(peer);
        }
    }

    /// A path broke, or its rail did: are those of the same port well? They are queried at once.
    pub(super) fn query_port(&mut self, peer: PeerId, index: usize) {
        for i in 0..self.peers[peer].paths.len() {
            let p = &self.peers[peer];
            let mate = i != index && self.of_one_port(p, &p.paths[i], &p.paths[index]);
            if mate && ready(&p.paths[i]) && p.gone().is_none() {
                self.ping(peer, i);
            }
        }
    }

    /// A query on path `index` was answered: it may stand in for another one now.
    pub(super) fn port_answers(&mut self, peer: PeerId, index: usize) {
        let p = &self.peers[peer];
        let failed = |to: usize| failed_since(&p.paths[to]).is_some();
        if p.carriers.have_seconds() && self.betters(p, index).any(failed) {
            self.unsettle(peer);
        }
    }

    /// The rail that broke before path `index` did, if one failure of their port was both: this one has answered nothing
    /// since the other fell silent.
    pub(super) fn broke_with(&self, p: &Peer, index: usize) -> Option<RailId> {
        let own = &p.paths[index];
        let with = |o: &&Path| {
            let out = matches!(o.health(), Health::Draining | Health::Down | Health::Recovering);
            let since = o.retry.silent_since().filter(|_| out && self.of_one_port(p, own, o));
            since.is_some_and(|since| own.evidence.answered_sent_at().is_none_or(|asked| asked < since))
        };
        p.paths.iter().filter(|o| o.id() != own.id()).find(with).map(Path::rail)
    }
}
