//! Whether ports of adapters are up. Owns: what was last reported of each. The kernel tells of ports by asynchronous
//! events; the state of the port itself is what counts. Events of queue pairs go on to the connection manager.

use crate::abi::*;
use crate::adapter::Adapter;
use crate::alternate::{PathEvent, PathEvents};
use crate::sleep::any_of;
use rerail_rail::{LinkWatch, RailId};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::Arc;

struct Link {
    adapter: Arc<Adapter>,
    up: bool,
    /// The adapter is broken, whatever its port reports.
    fatal: bool,
}

/// See the module.
pub struct VerbsLinks {
    links: Vec<Link>,
    path_events: Arc<PathEvents>,
    epoll: OwnedFd,
}

/// The descriptor of an adapter's asynchronous events.
fn events_fd(adapter: &Adapter) -> BorrowedFd<'_> {
    // SAFETY: it lives as long as the context.
    unsafe { BorrowedFd::borrow_raw((*adapter.context).async_fd) }
}

/// Whether a port carries traffic.
pub fn is_up(adapter: &Adapter) -> bool {
    adapter.port_state().is_ok_and(|port| port.state == IBV_PORT_ACTIVE)
}

impl VerbsLinks {
    /// Of the rails with these adapters, as they are now.
    pub fn new(adapters: &[Arc<Adapter>], path_events: Arc<PathEvents>) -> io::Result<VerbsLinks> {
        let mut contexts: Vec<&Arc<Adapter>> = Vec::new();
        for adapter in adapters {
            // rails of one device share a context, and an epoll takes a descriptor once
            if contexts.iter().all(|a| a.context != adapter.context) {
                rustix::io::ioctl_fionbio(events_fd(adapter), true)?;
                contexts.push(adapter);
            }
        }
        let epoll = any_of(contexts.iter().map(|a| events_fd(a)))?;
        let link =
            |adapter: &Arc<Adapter>| Link { adapter: adapter.clone(), up: is_up(adapter), fatal: false };
        Ok(VerbsLinks { links: adapters.iter().map(link).collect(), path_events, epoll })
    }
}

impl LinkWatch for VerbsLinks {
    fn drain(&mut self, out: &mut Vec<(RailId, bool)>) {
        let mut broken = Vec::new();
        for link in &self.links {
            let adapter = &link.adapter;
            let mut event = ibv_async_event { element: 0, event_type: 0 };
            // SAFETY: the context lives, and its descriptor does not block.
            while unsafe { (adapter.library.ibv_get_async_event)(adapter.context, &raw mut event) } == 0 {
                if event.event_type == IBV_EVENT_DEVICE_FATAL {
                    broken.push(adapter.context);
                }
                let of_path = [IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR].contains(&event.event_type);
                let path_event = of_path.then(|| PathEvent {
                    // SAFETY: the element of such an event is its queue pair, which lives until the event is acknowledged.
                    number: unsafe { (*(event.element as *const ibv_qp)).qp_num },
                    failed: event.event_type == IBV_EVENT_PATH_MIG_ERR,
                });
                // before the manager knows: it would wait for that when it destroys the queue pair
                // SAFETY: the event that was just taken.
                unsafe { (adapter.library.ibv_ack_async_event)(&raw mut event) };
                if let Some(path_event) = path_event {
                    self.path_events.put(path_event);
                }
            }
        }
        for (rail, link) in self.links.iter_mut().enumerate() {
            link.fatal |= broken.contains(&link.adapter.context);
            let up = !link.fatal && is_up(&link.adapter);
            if up != link.up {
                link.up = up;
                out.push((RailId(rail as u8), up));
            }
        }
    }

    fn fd(&self) -> BorrowedFd<'_> {
        self.epoll.as_fd()
    }

    fn descriptors(&self, out: &mut Vec<RawFd>) {
        out.push(self.epoll.as_raw_fd());
    }
}
