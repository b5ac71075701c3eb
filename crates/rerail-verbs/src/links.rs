//! Whether ports of adapters are up. Owns: what was last reported of each. The kernel tells of ports by asynchronous
//! events; the state of the port itself is what counts. It is asked for once at the start, after an event, and again when it could not be
//! asked: the engine looks here some thousand times a second, and the question is a system call that may be a command to the
//! adapter's firmware. Events of queue pairs and shared queues go on to the connection manager; an adapter whose completion queue is
//! broken is as good as broken itself.

use crate::abi::*;
use crate::adapter::Adapter;
use crate::alternate::{PathEvent, PathEvents};
use crate::failures::{Failed, Failures};
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
    /// It was not asked yet, or the last question had no answer.
    ask_again: bool,
}

/// What an event is about.
enum Told {
    Path(PathEvent),
    Failed(Failed),
    /// A port or the whole adapter.
    Port,
}

/// See the module.
pub struct VerbsLinks {
    links: Vec<Link>,
    path_events: Arc<PathEvents>,
    failures: Arc<Failures>,
    epoll: OwnedFd,
}

/// The descriptor of an adapter's asynchronous events.
fn events_fd(adapter: &Adapter) -> BorrowedFd<'_> {
    // SAFETY: it lives as long as the context.
    unsafe { BorrowedFd::borrow_raw((*adapter.context).async_fd) }
}

impl VerbsLinks {
    /// Of the rails with these adapters, and whether they were up as far as the engine knows. Their ports may have changed since,
    /// without an event that is still to be read.
    pub fn new(
        rails: &[(Arc<Adapter>, bool)],
        path_events: Arc<PathEvents>,
        failures: Arc<Failures>,
    ) -> io::Result<VerbsLinks> {
        let mut contexts: Vec<&Arc<Adapter>> = Vec::new();
        for (adapter, _) in rails {
            // rails of one device share a context, and an epoll takes a descriptor once
            if contexts.iter().all(|a| a.context != adapter.context) {
                rustix::io::ioctl_fionbio(events_fd(adapter), true)?;
                contexts.push(adapter);
            }
        }
        let epoll = any_of(contexts.iter().map(|a| events_fd(a)))?;
        let link = |(adapter, up): &(Arc<Adapter>, bool)| Link {
            adapter: adapter.clone(),
            up: *up,
            fatal: false,
            ask_again: true,
        };
        Ok(VerbsLinks { links: rails.iter().map(link).collect(), path_events, failures, epoll })
    }
}

impl LinkWatch for VerbsLinks {
    fn drain(&mut self, out: &mut Vec<(RailId, bool)>) {
        let (mut told, mut broken) = (Vec::new(), Vec::new());
        for link in &self.links {
            let adapter = &link.adapter;
            let mut event = ibv_async_event { element: 0, event_type: 0 };
            // SAFETY: the context lives, and its descriptor does not block.
            while unsafe { (adapter.library.ibv_get_async_event)(adapter.context, &raw mut event) } == 0 {
                if [IBV_EVENT_DEVICE_FATAL, IBV_EVENT_CQ_ERR].contains(&event.event_type) {
                    broken.push(adapter.context);
                }
                // SAFETY: called for events whose element is a queue pair; it lives until the event is acknowledged.
                let number = || unsafe { (*(event.element as *const ibv_qp)).qp_num };
                let path = |failed| Told::Path(PathEvent { number: number(), failed });
                let what = match event.event_type {
                    IBV_EVENT_PATH_MIG => path(false),
                    IBV_EVENT_PATH_MIG_ERR => path(true),
                    IBV_EVENT_QP_FATAL | IBV_EVENT_QP_REQ_ERR | IBV_EVENT_QP_ACCESS_ERR => {
                        Told::Failed(Failed::QueuePair(number()))
                    }
                    IBV_EVENT_SRQ_ERR => Told::Failed(Failed::SharedQueue(event.element as usize)),
                    _ => Told::Port,
                };
                // before the manager knows: it would wait for that when it destroys the queue pair
                // SAFETY: the event that was just taken.
                unsafe { (adapter.library.ibv_ack_async_event)(&raw mut event) };
                match what {
                    Told::Path(event) => self.path_events.put(event),
                    Told::Failed(failed) => self.failures.put(failed),
                    Told::Port => told.push(adapter.context),
                }
            }
        }
        for (rail, link) in self.links.iter_mut().enumerate() {
            // rails of one device share its events
            if !told.contains(&link.adapter.context) && !link.ask_again {
                continue;
            }
            link.fatal |= broken.contains(&link.adapter.context);
            let port = link.adapter.port_state();
            // No event may follow, so the next look repeats a question that had no answer.
            link.ask_again = port.is_err() && !link.fatal;
            let up = !link.fatal && port.map_or(link.up, |port| port.state == IBV_PORT_ACTIVE);
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake;
    use crate::library::Library;
    use rustix::event::{EventfdFlags, eventfd};
    use std::cell::RefCell;
    use std::ffi::c_int;
    use std::os::fd::IntoRawFd;

    const IBV_EVENT_PORT_ACTIVE: u32 = 9;
    const IBV_EVENT_PORT_ERR: u32 = 10;

    #[derive(Default)]
    struct Device {
        events: Vec<ibv_async_event>,
        port: u32,
        /// The next questions have no answer.
        silent: usize,
        acknowledged: usize,
        questions: usize,
    }

    thread_local! {
        static DEVICE: RefCell<Device> = RefCell::default();
    }

    unsafe extern "C" fn get_async_event(_: *mut ibv_context, event: *mut ibv_async_event) -> c_int {
        DEVICE.with_borrow_mut(|device| {
            if device.events.is_empty() {
                return -1;
            }
            // SAFETY: the caller's room for one.
            unsafe { event.write(device.events.remove(0)) };
            0
        })
    }

    unsafe extern "C" fn ack_async_event(_: *mut ibv_async_event) {
        DEVICE.with_borrow_mut(|device| device.acknowledged += 1);
    }

    unsafe extern "C" fn query_port(_: *mut ibv_context, _: u8, attr: *mut ibv_port_attr) -> c_int {
        DEVICE.with_borrow_mut(|device| {
            device.questions += 1;
            if device.silent > 0 {
                device.silent -= 1;
                return libc::EIO;
            }
            // SAFETY: the caller's structure.
            unsafe { (*attr).state = device.port };
            0
        })
    }

    fn happens(event_type: u32, element: u64, port: u32) {
        DEVICE.with_borrow_mut(|device| {
            device.events.push(ibv_async_event { element, event_type });
            device.port = port;
        });
    }

    /// Of two rails on one device, which is up and was asked once.
    fn links() -> (VerbsLinks, Arc<PathEvents>) {
        let (mut links, path_events) = new_links([true; 2], IBV_PORT_ACTIVE);
        assert_eq!(drained(&mut links), []);
        (links, path_events)
    }

    /// Of two rails on one device that were up or not, with the state of its port now.
    fn new_links(up: [bool; 2], port: u32) -> (VerbsLinks, Arc<PathEvents>) {
        let library = Library {
            ibv_get_async_event: get_async_event,
            ibv_ack_async_event: ack_async_event,
            ibv_query_port: query_port,
            ..fake::library()
        };
        let context = fake::new_context();
        context.async_fd = eventfd(0, EventfdFlags::empty()).expect("a descriptor").into_raw_fd();
        DEVICE.with_borrow_mut(|device| device.port = port);
        // SAFETY: the context lives for ever.
        let adapter =
            unsafe { Adapter::new(Box::leak(Box::new(library)), context, 1, 0, rerail_rail::Kind::ROCE) };
        let adapter = Arc::new(adapter.expect("nothing fails here"));
        let wake = eventfd(0, EventfdFlags::NONBLOCK).expect("a descriptor");
        let wake = Arc::new(wake);
        let path_events = Arc::new(PathEvents::new(wake.clone()));
        let failures = Arc::new(Failures::new(wake));
        let rails = up.map(|up| (adapter.clone(), up));
        (VerbsLinks::new(&rails, path_events.clone(), failures).expect("descriptors"), path_events)
    }

    fn drained(links: &mut VerbsLinks) -> Vec<(u8, bool)> {
        let mut out = Vec::new();
        links.drain(&mut out);
        out.into_iter().map(|(rail, up)| (rail.0, up)).collect()
    }

    #[test]
    fn a_port_is_asked_after_an_event_and_never_otherwise() {
        let (mut links, _) = links();
        let questions = || DEVICE.with_borrow_mut(|device| std::mem::take(&mut device.questions));
        questions();
        for _ in 0..100 {
            assert_eq!(drained(&mut links), []);
        }
        assert_eq!(questions(), 0, "nothing has happened");
        happens(IBV_EVENT_PORT_ERR, 1, IBV_PORT_ACTIVE - 1);
        assert_eq!(drained(&mut links), [(0, false), (1, false)], "both rails of the device");
        happens(IBV_EVENT_PORT_ACTIVE, 1, IBV_PORT_ACTIVE);
        assert_eq!(drained(&mut links), [(0, true), (1, true)]);
        assert_eq!((questions(), DEVICE.with_borrow(|device| device.acknowledged)), (4, 2));
        // the event is a hint: the port is what counts
        happens(IBV_EVENT_PORT_ERR, 1, IBV_PORT_ACTIVE);
        assert_eq!(drained(&mut links), []);
    }

    #[test]
    fn a_port_that_could_not_be_asked_keeps_its_state_and_is_asked_at_the_next_look() {
        let (mut links, _) = links();
        DEVICE.with_borrow_mut(|device| device.silent = 4);
        happens(IBV_EVENT_PORT_ERR, 1, IBV_PORT_ACTIVE);
        assert_eq!((drained(&mut links), drained(&mut links)), (vec![], vec![]), "it is up, and was");
        DEVICE.with_borrow_mut(|device| device.silent = 2);
        happens(IBV_EVENT_PORT_ERR, 1, IBV_PORT_ACTIVE - 1);
        assert_eq!(drained(&mut links), []);
        assert_eq!(drained(&mut links), [(0, false), (1, false)], "although no event has come");
        DEVICE.with_borrow_mut(|device| device.questions = 0);
        assert_eq!(drained(&mut links), []);
        assert_eq!(DEVICE.with_borrow(|device| device.questions), 0, "and then no more");
    }

    #[test]
    fn what_changed_before_the_first_look_is_reported_by_it() {
        let (mut links, _) = new_links([true, false], IBV_PORT_ACTIVE - 1);
        assert_eq!(drained(&mut links), [(0, false)]);
        let (mut links, _) = new_links([true, false], IBV_PORT_ACTIVE);
        assert_eq!(drained(&mut links), [(1, true)]);
    }

    #[test]
    fn a_broken_device_is_down_whatever_its_port_reports_later() {
        let (mut links, _) = links();
        happens(IBV_EVENT_DEVICE_FATAL, 0, IBV_PORT_ACTIVE);
        assert_eq!(drained(&mut links), [(0, false), (1, false)]);
        happens(IBV_EVENT_PORT_ACTIVE, 1, IBV_PORT_ACTIVE);
        assert_eq!(drained(&mut links), []);
    }

    #[test]
    fn without_its_completion_queue_a_device_is_down() {
        let (mut links, _) = links();
        happens(IBV_EVENT_CQ_ERR, 0, IBV_PORT_ACTIVE);
        assert_eq!(drained(&mut links), [(0, false), (1, false)]);
    }

    #[test]
    fn errors_of_queue_pairs_and_shared_queues_go_to_the_manager() {
        let (mut links, path_events) = links();
        let pair = fake::new_queue_pair(std::ptr::null_mut(), 78);
        for event in [IBV_EVENT_QP_FATAL, IBV_EVENT_QP_REQ_ERR, IBV_EVENT_QP_ACCESS_ERR] {
            happens(event, &raw const *pair as u64, IBV_PORT_ACTIVE);
            assert_eq!(drained(&mut links), []);
            assert_eq!(links.failures.take(), [Failed::QueuePair(78)], "event {event}");
        }
        happens(IBV_EVENT_SRQ_ERR, 0x1000, IBV_PORT_ACTIVE);
        assert_eq!(drained(&mut links), []);
        assert_eq!(links.failures.take(), [Failed::SharedQueue(0x1000)]);
        assert!(path_events.take().is_none());
        assert_eq!(DEVICE.with_borrow(|device| device.acknowledged), 4);
    }

    #[test]
    fn events_of_queue_pairs_go_to_the_manager() {
        let (mut links, path_events) = links();
        let pair = fake::new_queue_pair(std::ptr::null_mut(), 77);
        for event in [IBV_EVENT_PATH_MIG, IBV_EVENT_PATH_MIG_ERR] {
            happens(event, &raw const *pair as u64, IBV_PORT_ACTIVE);
        }
        assert_eq!(drained(&mut links), []);
        let passed = path_events.take().flatten().expect("there are some");
        let passed: Vec<_> = passed.into_iter().map(|e| (e.number, e.failed)).collect();
        assert_eq!(passed, [(77, false), (77, true)]);
    }
}
