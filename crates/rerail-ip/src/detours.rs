//! Routes through the fabric for datagrams: source ports beside that of the process, of which a fabric makes other ways (ECMP).
//!
//! Owns: which destinations are led over another route than the usual one, and the sockets of those routes. Peers send to the known ports only, and the
//! source port of a datagram means nothing to its receiver. Sockets are made when a route is first needed, shared by all destinations of a rail, and kept:
//! there are two for each route of a rail, and a fault seldom needs more than two routes. Where one cannot be made, the usual way serves; so it does while
//! the lock is held elsewhere, because the thread that holds it may be stopped anywhere (hazard H17).

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
            // those of a device that was removed serve no more
            led.routes.retain(|r| r.generation == generation);
            if !led.routes.iter().any(|r| (r.rail, r.number) == (rail, number)) {
                if let Some(sockets) = shared.another(rail) {
                    led.routes.push(Route { rail, number, generation, sockets: Arc::new(sockets) });
                }
            }
            led.destinations.push((rail, to, number));
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
