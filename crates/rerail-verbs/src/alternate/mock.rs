//! The verbs calls about path migration, over queue pairs that keep the state machine of APM §2.2, figure 2: MIGRATED by REARM to ARMED, when both ends are in REARM and a packet has passed; back to MIGRATED by a fault or on
//! request, and the other end with the next packet. Owns: the queue pairs of this thread, and the events that were not read.

use super::Port;
use crate::abi::*;
use crate::adapter::Adapter;
use crate::fake;
use crate::library::Library;
use rerail_rail::{Kind, Locator};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::c_int;
use std::net::IpAddr;
use std::ptr::null_mut;
use std::sync::{Arc, OnceLock};

/// A path: port, and the peer's port.
type Way = (u8, u16);

#[derive(Clone, Copy)]
struct Pair {
    state: u32,
    primary: ibv_ah_attr,
    alternate: ibv_ah_attr,
    /// Number of the other end.
    far: u32,
}

/// What adapters do here.
#[derive(Clone, Copy, Default)]
struct Manners {
    /// As RoCE: every alternate path is EINVAL.
    refuses: bool,
    /// A pair that is ARMED takes no other path (by APM §3.1.2 one is loaded from MIGRATED).
    strict: bool,
}

#[derive(Default)]
struct World {
    pairs: BTreeMap<u32, Pair>,
    events: Vec<(u32, u32)>,
    manners: Manners,
    modified: u32,
}

thread_local! {
    static WORLD: RefCell<World> = RefCell::default();
}

fn zero() -> ibv_ah_attr {
    // SAFETY: numbers only, for which 0 is valid.
    unsafe { std::mem::zeroed() }
}

fn way(path: &ibv_ah_attr) -> Way {
    (path.port_num, path.dlid)
}

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: what the code under test passes.
    let (number, attr) = unsafe { ((*qp).qp_num, &*attr) };
    WORLD.with_borrow_mut(|w| {
        w.modified += 1;
        let Manners { refuses, strict } = w.manners;
        let Some(pair) = w.pairs.get_mut(&number) else { return libc::EINVAL };
        if mask & IBV_QP_STATE != 0 {
            if mask & IBV_QP_AV != 0 {
                pair.primary = attr.ah_attr;
            }
            return 0;
        }
        if mask == IBV_QP_ALT_PATH | IBV_QP_PATH_MIG_STATE && attr.path_mig_state == IBV_MIG_REARM {
            if refuses || strict && pair.state == IBV_MIG_ARMED {
                return libc::EINVAL;
            }
            assert_eq!(attr.alt_port_num, attr.alt_ah_attr.port_num);
            (pair.alternate, pair.state) = (attr.alt_ah_attr, IBV_MIG_REARM);
            return 0;
        }
        if mask == IBV_QP_PATH_MIG_STATE && attr.path_mig_state == IBV_MIG_MIGRATED {
            if pair.state != IBV_MIG_ARMED {
                return libc::EINVAL;
            }
            migrate(w, number);
            return 0;
        }
        libc::EINVAL
    })
}

unsafe extern "C" fn query_qp(
    qp: *mut ibv_qp,
    attr: *mut ibv_qp_attr,
    _: c_int,
    _: *mut ibv_qp_init_attr,
) -> c_int {
    // SAFETY: as above.
    let (number, attr) = unsafe { ((*qp).qp_num, &mut *attr) };
    WORLD.with_borrow(|w| {
        let Some(pair) = w.pairs.get(&number) else { return libc::EINVAL };
        attr.path_mig_state = pair.state;
        (attr.ah_attr, attr.port_num) = (pair.primary, pair.primary.port_num);
        (attr.alt_ah_attr, attr.alt_port_num) = (pair.alternate, pair.alternate.port_num);
        attr.timeout = 14;
        0
    })
}

unsafe extern "C" fn create_qp(_: *mut ibv_pd, _: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    pair(u32::MAX, 1, 0)
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: made by `create_qp`.
    unsafe { destroy(qp) };
    0
}

unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    // SAFETY: as above.
    unsafe { (*attr).lid = 100 + u16::from(port) };
    0
}

unsafe extern "C" fn query_gid(_: *mut ibv_context, port: u8, _: c_int, gid: *mut ibv_gid) -> c_int {
    // SAFETY: as above.
    unsafe { (*gid).raw = [port; 16] };
    0
}

unsafe extern "C" fn alloc_pd(_: *mut ibv_context) -> *mut ibv_pd {
    std::ptr::NonNull::dangling().as_ptr()
}

unsafe extern "C" fn dealloc_pd(_: *mut ibv_pd) -> c_int {
    0
}

fn migrate(w: &mut World, number: u32) {
    let pair = w.pairs.get_mut(&number).expect("it is there");
    std::mem::swap(&mut pair.primary, &mut pair.alternate);
    pair.state = IBV_MIG_MIGRATED;
    w.events.push((number, IBV_EVENT_PATH_MIG));
}

/// An end that this process does not have loads its alternate.
pub fn rearm(qp: *mut ibv_qp) {
    // SAFETY: made by this file, and not destroyed.
    let number = unsafe { (*qp).qp_num };
    WORLD.with_borrow_mut(|w| {
        let pair = w.pairs.get_mut(&number).expect("it is there");
        if pair.state == IBV_MIG_MIGRATED {
            pair.state = IBV_MIG_REARM;
        }
    });
}

/// A packet of this queue pair reaches the other end, and one comes back.
pub fn traffic(number: u32) {
    WORLD.with_borrow_mut(|w| {
        let Some((a, b)) = w.pairs.get(&number).and_then(|a| Some((*a, *w.pairs.get(&a.far)?))) else {
            return;
        };
        match (a.state, b.state) {
            (IBV_MIG_REARM | IBV_MIG_ARMED, IBV_MIG_REARM | IBV_MIG_ARMED) => {
                for n in [number, a.far] {
                    w.pairs.get_mut(&n).expect("it is there").state = IBV_MIG_ARMED;
                }
            }
            // a packet with the migration request
            (IBV_MIG_MIGRATED, IBV_MIG_ARMED) => migrate(w, a.far),
            _ => {}
        }
    });
}

/// The path of this queue pair breaks: its adapter migrates, if it is armed.
pub fn fault(number: u32) {
    WORLD.with_borrow_mut(|w| {
        if w.pairs.get(&number).is_some_and(|pair| pair.state == IBV_MIG_ARMED) {
            migrate(w, number);
        }
    });
}

/// It should migrate, and cannot.
pub fn fails_to_migrate(number: u32) {
    WORLD.with_borrow_mut(|w| w.events.push((number, IBV_EVENT_PATH_MIG_ERR)));
}

/// The events of queue pairs since the last call.
pub fn events() -> Vec<super::PathEvent> {
    let all = WORLD.with_borrow_mut(|w| std::mem::take(&mut w.events));
    let event = |(number, kind)| super::PathEvent { number, failed: kind == IBV_EVENT_PATH_MIG_ERR };
    all.into_iter().map(event).collect()
}

/// Adapters refuse every alternate; or take none while they are armed.
pub fn manners(refuses: bool, strict: bool) {
    WORLD.with_borrow_mut(|w| w.manners = Manners { refuses, strict });
}

/// Port and far port of the primary and of the alternate path, and the state.
pub fn paths(number: u32) -> (Way, Way, u32) {
    WORLD.with_borrow(|w| {
        let pair = w.pairs[&number];
        (way(&pair.primary), way(&pair.alternate), pair.state)
    })
}

/// A queue pair over a port to the peer's port with this LID.
pub fn pair(far: u32, port: u8, lid: u16) -> *mut ibv_qp {
    WORLD.with_borrow_mut(|w| {
        let number = w.pairs.keys().last().map_or(1, |last| last + 1);
        let primary = ibv_ah_attr { dlid: lid, port_num: port, ..zero() };
        let state = IBV_MIG_MIGRATED;
        w.pairs.insert(number, Pair { state, primary, alternate: zero(), far });
        Box::into_raw(crate::fake::new_queue_pair(null_mut(), number))
    })
}

/// Two queue pairs that are connected over the first ports of their adapters: the numbers are those of the ends.
pub fn connected() -> [*mut ibv_qp; 2] {
    let a = pair(0, 1, 101);
    // SAFETY: just made.
    let (b, number) = unsafe { (pair((*a).qp_num, 1, 101), (*a).qp_num) };
    // SAFETY: as above.
    let far = unsafe { (*b).qp_num };
    WORLD.with_borrow_mut(|w| w.pairs.get_mut(&number).expect("just made").far = far);
    [a, b]
}

/// A queue pair goes, its events stay.
///
/// # Safety
/// It was made here, and nothing uses it any more.
pub unsafe fn destroy(qp: *mut ibv_qp) {
    // SAFETY: the caller's promise.
    let qp = unsafe { Box::from_raw(qp) };
    WORLD.with_borrow_mut(|w| w.pairs.remove(&qp.qp_num));
}

/// Its functions.
fn library() -> &'static Library {
    static LIBRARY: OnceLock<Library> = OnceLock::new();
    LIBRARY.get_or_init(|| Library {
        ibv_alloc_pd: alloc_pd,
        ibv_dealloc_pd: dealloc_pd,
        ibv_modify_qp: modify_qp,
        ibv_query_qp: query_qp,
        ibv_create_qp: create_qp,
        ibv_destroy_qp: destroy_qp,
        ibv_query_port: query_port,
        ibv_query_gid: query_gid,
        ..fake::library()
    })
}

/// The rails of one side: two ports of one adapter, and the port of another one. `side` tells their addresses apart.
pub fn ports(side: u8) -> Vec<Port> {
    let port = |rail: u8, device: usize, port: u8| {
        let context = (device * 8) as *mut ibv_context;
        // SAFETY: no function of this library looks at a context.
        let adapter = unsafe { Adapter::new(library(), context, port, 3, Kind::ROCE) };
        let ip = IpAddr::from([10, rail, 0, side]);
        Port {
            adapter: Arc::new(adapter.expect("nothing fails here")),
            own: Locator::of_ip(Kind::ROCE, ip, 70 + u32::from(rail)),
        }
    };
    vec![port(0, 1, 1), port(1, 1, 2), port(2, 2, 3)]
}
