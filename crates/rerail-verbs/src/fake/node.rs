//! A node of tests with one adapter for InfiniBand. Owns: its ports, and what became of its queue pairs in this thread.

use crate::abi::*;
use crate::library::Library;
use std::cell::{Cell, RefCell};
use std::ffi::c_int;
use std::ptr::null_mut;

/// The subnet prefix, and behind it the interface half of the GID of port 0.
pub const GID: [u8; 16] = [0xfe, 0x80, 0, 0, 0, 0, 0, 7, 0, 2, 0xc9, 3, 0, 1, 2, 0];

thread_local! {
    static PORTS: RefCell<Vec<ibv_port_attr>> = const { RefCell::new(Vec::new()) };
    static STEPS: RefCell<Vec<(c_int, ibv_qp_attr)>> = const { RefCell::new(Vec::new()) };
    static OPEN: Cell<u32> = const { Cell::new(0) };
    static QUEUE_PAIRS: Cell<u32> = const { Cell::new(0) };
}

/// A port in this state with this LID, for packets of at most 2048 bytes.
pub fn port(state: u32, lid: u16) -> ibv_port_attr {
    // SAFETY: numbers only, for which 0 is valid.
    let zero: ibv_port_attr = unsafe { std::mem::zeroed() };
    ibv_port_attr { state, lid, active_mtu: 4, link_layer: 1, ..zero }
}

/// The adapter has these ports from now on.
pub fn set_ports(ports: Vec<ibv_port_attr>) {
    PORTS.set(ports);
}

/// What queue pairs were told since the last call: the mask, and the attributes.
pub fn steps() -> Vec<(c_int, ibv_qp_attr)> {
    STEPS.take()
}

/// How often the adapter is open, and how many queue pairs there are.
pub fn open() -> (u32, u32) {
    (OPEN.get(), QUEUE_PAIRS.get())
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: bytes and numbers only, for which 0 is valid.
    let mut device: ibv_device = unsafe { std::mem::zeroed() };
    device.node_type = IBV_NODE_CA;
    for (to, from) in device.name.iter_mut().zip(b"mlx5_0") {
        *to = *from as _;
    }
    // SAFETY: the caller's number.
    unsafe { *count = 1 };
    Box::into_raw(Box::new([Box::into_raw(Box::new(device)), null_mut()])).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: made above.
    unsafe {
        let list = Box::from_raw(list.cast::<[*mut ibv_device; 2]>());
        drop(Box::from_raw(list[0]));
    }
}

unsafe extern "C" fn open_device(_: *mut ibv_device) -> *mut ibv_context {
    OPEN.set(OPEN.get() + 1);
    std::ptr::NonNull::dangling().as_ptr()
}

unsafe extern "C" fn close_device(_: *mut ibv_context) -> c_int {
    OPEN.set(OPEN.get() - 1);
    0
}

unsafe extern "C" fn query_port(_: *mut ibv_context, port: u8, attr: *mut ibv_port_attr) -> c_int {
    PORTS.with_borrow(|ports| match ports.get(usize::from(port) - 1) {
        // SAFETY: numbers, which are copied to where the caller wants them.
        Some(known) => unsafe {
            attr.copy_from(known, 1);
            0
        },
        None => libc::EINVAL,
    })
}

unsafe extern "C" fn query_gid(_: *mut ibv_context, port: u8, index: c_int, gid: *mut ibv_gid) -> c_int {
    let mut raw = GID;
    raw[15] += port;
    // SAFETY: where the caller wants it.
    unsafe { *gid = ibv_gid { raw } };
    index.min(1)
}

unsafe extern "C" fn create_qp(_: *mut ibv_pd, attributes: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    QUEUE_PAIRS.set(QUEUE_PAIRS.get() + 1);
    // SAFETY: pointers and numbers, for which 0 is valid; the caller's attributes.
    unsafe {
        assert_eq!((*attributes).qp_type, IBV_QPT_RC);
        let mut qp: ibv_qp = std::mem::zeroed();
        qp.qp_num = 0x77;
        Box::into_raw(Box::new(qp))
    }
}

unsafe extern "C" fn modify_qp(_: *mut ibv_qp, attributes: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's attributes.
    STEPS.with_borrow_mut(|steps| steps.push((mask, unsafe { attributes.read() })));
    0
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    QUEUE_PAIRS.set(QUEUE_PAIRS.get() - 1);
    // SAFETY: made above.
    drop(unsafe { Box::from_raw(qp) });
    0
}

/// Its functions. For the whole process.
pub fn library() -> &'static Library {
    static LIBRARY: std::sync::OnceLock<Library> = std::sync::OnceLock::new();
    LIBRARY.get_or_init(|| Library {
        ibv_get_device_list: get_device_list,
        ibv_free_device_list: free_device_list,
        ibv_open_device: open_device,
        ibv_close_device: close_device,
        ibv_query_port: query_port,
        ibv_query_gid: query_gid,
        ibv_create_qp: create_qp,
        ibv_modify_qp: modify_qp,
        ibv_destroy_qp: destroy_qp,
        ..super::library()
    })
}
