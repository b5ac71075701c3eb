//! Routes through the fabric for datagrams: source ports beside that of the process, of which a fabric makes other ways (ECMP).
//!
//! Owns: which destinations are led over another route than the usual one, and the sockets of those routes. Peers send to the known ports only, and the
//! source port of a datagram means nothing to its receiver. Sockets are made when a route is first needed, shared by all destinations of a rail, and
//! closed when none is led over it; its ports are remembered, so that it is the same route when it is needed again. Where one cannot be made, the usual
//! way serves; so it does while the lock is held elsewhere, because the thread that holds it may be stopped anywhere (hazard H17).

use crate::shared::{RailSockets, Shared};
use parking_lot::RwLock;
use rerail_rail::{Locator, RailId};
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long the lock is waited for.
const PATIENCE: Duration = Duration::from_millis(1);

/// Sends from another port than the usual one of its rail.
struct Route {
    rail: RailId,
    number: u8,
    /// [`Shared::generation`] when its sockets were made.
    generation: u32,
    sockets: Arc<RailSockets>,
}

#[derive(Default)]
struct Led {
    destinations: Vec<(RailId, Locator, u8)>,
    routes: Vec<Route>,
    /// Source ports of routes that were needed: [`RailSockets::ports`].
    ports: Vec<(RailId, u8, [u16; 2])>,
}

impl Led {
    /// Makes the sockets of a route, from its ports if it had some.
    fn open(&mut self, shared: &Shared, rail: RailId, number: u8, generation: u32) {
        let known = self.ports.iter().position(|p| (p.0, p.1) == (rail, number));
        let Some(sockets) = shared.another(rail, known.map_or([0; 2], |at| self.ports[at].2)) else { return };
        let ports = (rail, number, sockets.ports());
        match known {
            Some(at) => self.ports[at] = ports,
            None => self.ports.push(ports),
        }
        self.routes.push(Route { rail, number, generation, sockets: Arc::new(sockets) });
    }
}

/// See above.
#[derive(Default)]
pub(crate) struct Detours {
    led: RwLock<Led>,
    /// Some destination is led elsewhere.
    some: AtomicBool,
}

impl Detours {
    /// Leads what goes from a rail to a place over a route.
    pub fn lead(&self, shared: &Shared, rail: RailId, to: Locator, number: u8) {
        let generation = shared.generation();
        let Some(mut led) = self.led.try_write_for(PATIENCE) else { return };
        led.destinations.retain(|d| (d.0, d.1) != (rail, to));
        if number > 0 {
            led.destinations.push((rail, to, number));
        }
        let Led { destinations, routes, .. } = &mut *led;
        // the sockets of a device that was removed serve no more
        let is_used = |r: &Route| destinations.iter().any(|d| (d.0, d.2) == (r.rail, r.number));
        routes.retain(|r| r.generation == generation && is_used(r));
        if number > 0 && !led.routes.iter().any(|r| (r.rail, r.number) == (rail, number)) {
            led.open(shared, rail, number, generation);
        }
        self.some.store(!led.destinations.is_empty(), Ordering::Release);
    }

    /// The sockets of the route that a destination is led over; `None`: the usual ones.
    #[inline]
    pub fn of(&self, shared: &Shared, rail: RailId, to: Locator) -> Option<Arc<RailSockets>> {
        if self.some.load(Ordering::Acquire) { self.look_up(shared, rail, to) } else { None }
    }

    #[cold]
    fn look_up(&self, shared: &Shared, rail: RailId, to: Locator) -> Option<Arc<RailSockets>> {
        let led = self.led.try_read()?;
        let number = led.destinations.iter().find(|d| (d.0, d.1) == (rail, to))?.2;
        let route = led.routes.iter().find(|r| (r.rail, r.number) == (rail, number))?;
        (route.generation == shared.generation()).then(|| route.sockets.clone())
    }

    /// Appends the descriptors.
    pub fn descriptors(&self, out: &mut Vec<RawFd>) {
        if let Some(led) = self.led.try_read_for(PATIENCE) {
            led.routes.iter().for_each(|r| r.sockets.descriptors(out));
        }
    }
}
