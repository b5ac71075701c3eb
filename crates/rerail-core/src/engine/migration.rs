//! Path migration: which path and which alternate each carrier has, and what moves it (see [`crate::migration`](Migration)).

use super::Engine;
use super::ports::ready;
use crate::event::EventKind;
use crate::health::{Health, HealthEvent};
use crate::migration::{
    Carrier, MIGRATION_STEPS, MigrateError, Migration, MigrationCause, MigrationEvent, MigrationReport,
};
use crate::path::Path;
use crate::peer::Peer;
use crate::types::{PeerId, RailId, Time};

/// Whether a path was in service, or was to be, and is not.
fn broken(path: &Path) -> bool {
    matches!(path.health(), Health::Draining | Health::Down | Health::Recovering | Health::Probation)
}

impl Engine {
    /// Something about a peer's paths changed that matters to carriers; they are arranged at the next timer.
    pub(crate) fn unsettle(&mut self, peer: PeerId) {
        self.peers[peer].carriers.unsettle();
        let now = self.clock.now();
        self.schedule(peer, now);
    }

    /// Gives each carrier of a peer a path that works and an alternate, and puts paths that no carrier uses into standby.
    pub(crate) fn arrange(&mut self, peer: PeerId) {
        let p = &mut self.peers[peer];
        p.carriers.settle();
        if p.is_self() || p.gone().is_some() || p.paths.is_empty() {
            return;
        }
        if !p.carriers.fit(p.paths.len()) {
            self.make_carriers(peer);
        }
        for carrier in 0..self.peers[peer].carriers.len() {
            self.follow(peer, carrier);
        }
        for carrier in 0..self.peers[peer].carriers.len() {
            self.arm(peer, carrier);
        }
        self.park(peer);
        self.settle_adapters(peer);
    }

    /// The carriers that the policy wants for the paths there are.
    fn make_carriers(&mut self, peer: PeerId) {
        let now = self.clock.now();
        let plan = &self.plan;
        let p = &self.peers[peer];
        let reserve = |path: &Path| plan.is_reserve(path.rail());
        let mut homes: Vec<usize> = (0..p.paths.len()).filter(|&i| !reserve(&p.paths[i])).collect();
        if homes.is_empty() {
            // this peer is reached over reserves only
            homes = (0..p.paths.len()).collect();
        }
        let with_seconds = homes.len();
        homes.retain(|&i| !self.is_second(p, i));
        let seconds = with_seconds > homes.len();
        if plan.policy().single() {
            let on_it = |&&i: &&usize| Some(p.paths[i].rail()) == plan.chosen();
            let place = plan.chosen().map_or(0, |r| r.0 as usize);
            homes = vec![homes.iter().find(on_it).copied().unwrap_or(homes[place % homes.len()])];
        }
        let carriers = homes.into_iter().map(|home| Carrier::new(home, now)).collect();
        let p = &mut self.peers[peer];
        p.carriers.make(carriers, p.paths.len(), seconds);
    }

    /// Moves a carrier by the table, and reports what happened.
    fn migration_step(
        &mut self,
        peer: PeerId,
        carrier: usize,
        step: impl FnOnce(&mut Carrier, Time) -> usize,
    ) {
        let now = self.clock.now();
        let c = &mut self.peers[peer].carriers[carrier];
        let row = step(c, now);
        self.migration_steps |= 1 << row;
        let (path, alternate) = (c.path(), c.alternate());
        let rail = alternate.map(|a| self.peers[peer].paths[a].rail());
        match (MIGRATION_STEPS[row].event, rail) {
            (MigrationEvent::Load | MigrationEvent::Lost, Some(alternate)) => {
                self.event(EventKind::Rearm { alternate }, peer, Some(path));
            }
            (MigrationEvent::Loaded, Some(alternate)) => {
                self.counters.alternates_armed += 1;
                self.event(EventKind::Armed { alternate }, peer, Some(path));
            }
            _ => {}
        }
    }

    /// Specification and loading request: `alternate` from here on.
    fn load(&mut self, peer: PeerId, carrier: usize, alternate: usize) {
        if self.peers[peer].carriers[carrier].alternate() == Some(alternate) {
            return;
        }
        if self.peers[peer].carriers[carrier].state() != Migration::Migrated {
            self.migration_step(peer, carrier, Carrier::withdraw);
        }
        self.migration_step(peer, carrier, |c, now| c.load(alternate, now));
        if ready(&self.peers[peer].paths[alternate]) {
            self.migration_step(peer, carrier, Carrier::loaded);
        }
    }

    /// The alternate that carrier `carrier` should have (APM §3.1.1): one that works before one that does not, the user's before
    /// ours, other ports on both sides, one that takes no port from a better kind, a path that is idle, that broke less often,
    /// that the same adapter has, that is faster.
    fn specify(&self, peer: PeerId, carrier: usize) -> Option<usize> {
        let p = &self.peers[peer];
        let used = p.carriers[carrier].path();
        let own = &p.paths[used];
        let named = self.plan.alternate(own.rail());
        let better = |&i: &usize| {
            let path = &p.paths[i];
            let idle = !p.carriers.iter().any(|c| c.path() == i);
            let other_ports = !self.shares_port(p, path, own);
            let port_is_free = !self.port_is_taken(p, i, used);
            let fewer_flaps = u32::MAX - path.retry.flaps();
            // its adapter can move what is under way
            let by_adapter = self.rails[own.rail()].shares_adapter_with(&self.rails[path.rail()]);
            (
                ready(path),
                Some(path.rail()) == named,
                other_ports,
                port_is_free,
                idle,
                fewer_flaps,
                by_adapter,
                path.rate() as u64,
                std::cmp::Reverse(i),
            )
        };
        (0..p.paths.len()).filter(|&i| i != used).max_by_key(better)
    }

    /// Keeps a carrier on a path that works.
    fn follow(&mut self, peer: PeerId, carrier: usize) {
        let p = &self.peers[peer];
        let c = &p.carriers[carrier];
        if broken(&p.paths[c.path()]) {
            let armed = || c.alternate().filter(|&a| c.state() == Migration::Armed && ready(&p.paths[a]));
            let any = || self.specify(peer, carrier).filter(|&i| ready(&p.paths[i]));
            let to = self.stand_in(p, c.path()).or_else(armed).or_else(any);
            if let Some(to) = to {
                self.move_carrier(peer, carrier, to, MigrationCause::Fault);
            }
            return;
        }
        if c.path() == c.home() || c.is_pinned() {
            return;
        }
        if !ready(&p.paths[c.home()]) {
            // its port works after all: back to it, and off the path of another carrier
            let elsewhere = !self.shares_port(p, &p.paths[c.path()], &p.paths[c.home()]);
            let to = self.stand_in(p, c.home()).filter(|_| elsewhere && broken(&p.paths[c.home()]));
            if let Some(to) = to {
                self.move_carrier(peer, carrier, to, MigrationCause::Return);
            }
            return;
        }
        // home again: to give up a place that it shares, or for a faster link or kind. Between equals it stays (figure 2 of APM), and
        // the rail that was repaired a moment ago becomes the alternate.
        let shared = p.carriers.iter().filter(|o| o.path() == c.path()).count() > 1;
        let speed = |i: usize| self.rails.speed_mbps(p.paths[i].rail(), p.far(&p.paths[i]));
        if shared || speed(c.home()) > speed(c.path()) || self.gives_way(p, c.path(), c.home()) {
            let home = c.home();
            self.move_carrier(peer, carrier, home, MigrationCause::Return);
        }
    }

    /// Migration (APM §3.1.3). `to` is ready.
    fn move_carrier(&mut self, peer: PeerId, carrier: usize, to: usize, cause: MigrationCause) {
        debug_assert!(ready(&self.peers[peer].paths[to]), "only to a path that could carry at once");
        self.load(peer, carrier, to);
        if self.peers[peer].carriers[carrier].state() == Migration::Rearm {
            self.migration_step(peer, carrier, Carrier::loaded);
        }
        let p = &self.peers[peer];
        let left = p.carriers[carrier].path();
        let from = p.paths[left].rail();
        self.migration_step(peer, carrier, |c, now| c.migrate(cause, now));
        if cause == MigrationCause::Request {
            self.leave_by_adapter(peer, left, to);
        }
        let counter = match cause {
            MigrationCause::Fault => &mut self.counters.migrations_fault,
            MigrationCause::Request => &mut self.counters.migrations_request,
            MigrationCause::Return => &mut self.counters.migrations_return,
        };
        *counter += 1;
        self.event(EventKind::Migrated { from, cause }, peer, Some(to));
    }

    /// Sees to the alternate of a carrier: specifies one, notes that it is loaded, or that it broke.
    fn arm(&mut self, peer: PeerId, carrier: usize) {
        let p = &self.peers[peer];
        let c = &p.carriers[carrier];
        let alternate_ready = c.alternate().is_some_and(|a| ready(&p.paths[a]));
        match c.state() {
            Migration::Armed if !alternate_ready => self.migration_step(peer, carrier, Carrier::lose),
            Migration::Rearm if alternate_ready => self.migration_step(peer, carrier, Carrier::loaded),
            _ => {}
        }
        let p = &self.peers[peer];
        let c = &p.carriers[carrier];
        let best = self.specify(peer, carrier);
        match (c.state(), best) {
            (Migration::Migrated, Some(best)) => self.load(peer, carrier, best),
            (Migration::Rearm, Some(best)) if c.alternate() != Some(best) && ready(&p.paths[best]) => {
                self.load(peer, carrier, best);
            }
            // the alternate that the user named works now, or the peer has reported that the present one shares a port, or
            // a better kind works on the port that it would take
            (Migration::Armed, Some(best)) => {
                let named = self.plan.alternate(p.paths[c.path()].rail());
                let is_named = |i: usize| Some(p.paths[i].rail()) == named;
                let shares = |i: usize| self.shares_port(p, &p.paths[i], &p.paths[c.path()]);
                let better = |is_so: &dyn Fn(usize) -> bool| is_so(best) && !c.alternate().is_some_and(is_so);
                let free = |i: usize| !self.port_is_taken(p, i, c.path());
                let is_better = better(&is_named) || better(&|i| !shares(i)) || better(&free);
                if ready(&p.paths[best]) && is_better {
                    self.load(peer, carrier, best);
                }
            }
            _ => {}
        }
        let p = &self.peers[peer];
        if let (Migration::Rearm, Some(a)) = (p.carriers[carrier].state(), p.carriers[carrier].alternate()) {
            let path = &p.paths[a];
            if path.health().connected() && !path.evidence.is_proven() && path.evidence.is_answered() {
                // an alternate is loaded when it answers: query it now, not at the next probe
                self.ping(peer, a);
            }
        }
    }

    /// Puts paths that no carrier uses into standby, and takes them out when they are needed.
    fn park(&mut self, peer: PeerId) {
        let p = &self.peers[peer];
        let wanted = |i: usize| p.carriers.iter().any(|c| c.path() == i) || self.stands_in(p, i);
        let serves = |i: usize| {
            wanted(i)
                && matches!(p.paths[i].health(), Health::Up | Health::Standby)
                && !self.avoids(&p.paths[i])
        };
        let serving = (0..p.paths.len()).any(serves);
        let (mode, now) = (self.options.bulk, self.clock.now());
        let bulk = |path: &Path| p.carry(path, mode, now).is_some();
        let serving_bulk = (0..p.paths.len()).any(|i| serves(i) && bulk(&p.paths[i]));
        let armed = |i: usize| {
            p.paths[i].health() == Health::Standby && p.carriers.iter().any(|c| c.alternate() == Some(i))
        };
        let some_armed = (0..p.paths.len()).any(armed);
        let mut moves = Vec::new();
        for (i, path) in p.paths.iter().enumerate() {
            match path.health() {
                Health::Standby => {
                    let in_need = !serving && (armed(i) || !some_armed);
                    let for_bulk = serving && !serving_bulk && bulk(path);
                    if wanted(i) || in_need || for_bulk {
                        moves.push((i, HealthEvent::Unpark));
                    }
                }
                // a path that can carry bulk goes only when another can
                Health::Up if !wanted(i) && serving && (serving_bulk || !bulk(path)) => {
                    moves.push((i, HealthEvent::Park));
                }
                _ => {}
            }
        }
        if moves.is_empty() {
            return;
        }
        for (i, event) in moves {
            self.shift(peer, i, event);
        }
        self.peers[peer].carriers.settle();
        self.mark(peer);
        self.mark_streams(peer);
    }

    // ---- requests ----------------------------------------------------------------------------------------------

    /// The rail of this name.
    ///
    /// # Errors
    /// [`MigrateError::NoSuchRail`].
    pub fn rail_named(&self, name: &str) -> Result<RailId, MigrateError> {
        self.rails.iter().position(|r| r.name == name).map(|i| RailId(i as u8)).ok_or_else(|| {
            MigrateError::NoSuchRail {
                name: name.to_owned(),
                rails: self.rails.iter().map(|r| r.name.as_str()).collect::<Vec<_>>().join(", "),
            }
        })
    }

    /// Migration on request, for load balancing (APM §3.1.3): what rail `from` carries moves to rail `to`, for every peer (or
    /// one), and stays there until that path breaks or [`Engine::migrate_home`]. Nothing is lost or sent again: what is under
    /// way arrives where it was sent.
    ///
    /// # Errors
    /// A sentence for the user when nothing could be moved. When only some peers could be served, the report says so.
    pub fn migrate(
        &mut self,
        only: Option<PeerId>,
        from: RailId,
        to: RailId,
        now: Time,
    ) -> Result<MigrationReport, MigrateError> {
        self.tick(now);
        let name = |r: RailId| {
            self.rails.get(r.0 as usize).map_or_else(|| r.0.to_string(), |path| path.name.clone())
        };
        let (from_name, to_name) = (name(from), name(to));
        if from == to {
            return Err(MigrateError::SameRail(from_name));
        }
        let mut report = MigrationReport::default();
        for peer in self.peers.ids() {
            if only.is_some_and(|only| only != peer) || self.peers[peer].gone().is_some() {
                continue;
            }
            self.arrange(peer);
            let mut moved = 0;
            for carrier in 0..self.peers[peer].carriers.len() {
                let p = &self.peers[peer];
                let c = &p.carriers[carrier];
                let used = &p.paths[c.path()];
                if used.rail() != from || used.health() == Health::Idle {
                    continue;
                }
                match target(p, c, to, &to_name) {
                    Ok(i) => {
                        self.move_carrier(peer, carrier, i, MigrationCause::Request);
                        moved += 1;
                    }
                    Err(e) => {
                        report.refused += 1;
                        report.why.get_or_insert(e);
                        break;
                    }
                }
            }
            self.note_moves(peer, moved, &mut report);
        }
        match (report.moved, &report.why) {
            (0, Some(why)) => Err(why.clone()),
            (0, None) => Err(MigrateError::Unused(from_name)),
            _ => Ok(report),
        }
    }

    /// Carriers of a peer have moved on request: its traffic takes the new paths.
    fn note_moves(&mut self, peer: PeerId, moved: usize, report: &mut MigrationReport) {
        if moved > 0 {
            report.moved += moved;
            report.peers += 1;
            self.choose_primary(peer);
            self.mark(peer);
            self.mark_streams(peer);
        }
    }

    /// Takes requests to migrate back: every carrier goes home, if its home works, and otherwise as soon as it pays.
    pub fn migrate_home(&mut self, now: Time) -> MigrationReport {
        self.tick(now);
        let mut report = MigrationReport::default();
        for peer in self.peers.ids() {
            let mut moved = 0;
            for carrier in 0..self.peers[peer].carriers.len() {
                let p = &mut self.peers[peer];
                let c = &mut p.carriers[carrier];
                c.release();
                let home = c.home();
                if c.path() != home && p.gone().is_none() && ready(&p.paths[home]) {
                    self.move_carrier(peer, carrier, home, MigrationCause::Return);
                    moved += 1;
                }
            }
            self.note_moves(peer, moved, &mut report);
        }
        report
    }

    /// Which rows of [`MIGRATION_STEPS`] were taken, as bits.
    pub fn migration_steps_visited(&self) -> u64 {
        self.migration_steps
    }
}

/// The path over rail `to` that a carrier may migrate to.
fn target(p: &Peer, c: &Carrier, to: RailId, rail: &str) -> Result<usize, MigrateError> {
    let on_it = |&i: &usize| p.paths[i].rail() == to && i != c.path();
    // large messages need a stream; without one they would crawl
    let streams = |i: usize| p.paths[i].has_stream() || p.paths[i].demand.is_saved();
    let fit = |i: usize| ready(&p.paths[i]) && (streams(i) || !p.paths[c.path()].has_stream());
    let best = (0..p.paths.len()).filter(on_it).max_by_key(|&i| (fit(i), c.alternate() == Some(i)));
    match best {
        None => Err(MigrateError::NoPath { rail: rail.to_owned(), peer: p.name() }),
        Some(i) if !fit(i) => {
            let path = &p.paths[i];
            let health =
                if ready(path) { "without a connection for large messages" } else { path.health().name() };
            Err(MigrateError::NotReady { rail: rail.to_owned(), peer: p.name(), health })
        }
        Some(i) => Ok(i),
    }
}
