//! Devices that this process has opened by itself. Owns: these.

use crate::abi::*;
use crate::library::Library;
use std::ffi::CStr;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where the kernel describes adapters.
pub const SYSFS: &str = "/sys/class/infiniband";

/// A device that is open.
pub struct Device {
    library: &'static Library,
    context: *mut ibv_context,
    name: String,
}

// SAFETY: libibverbs allows every call from any thread.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// The devices of this node that may be opened, and a sentence for each that may not.
    pub fn all(library: &'static Library) -> (Vec<Arc<Device>>, Vec<String>) {
        let (mut opened, mut problems) = (Vec::new(), Vec::new());
        let mut count = 0;
        // SAFETY: a list is returned, with its length, and freed below.
        let list = unsafe { (library.ibv_get_device_list)(&raw mut count) };
        for i in 0..if list.is_null() { 0 } else { count as usize } {
            // SAFETY: an entry of the list.
            let device = unsafe { *list.add(i) };
            // SAFETY: as above.
            let is_adapter =
                unsafe { (*device).node_type == IBV_NODE_CA && (*device).transport_type == IBV_TRANSPORT_IB };
            if !is_adapter {
                continue;
            }
            // SAFETY: as above; the name ends in 0.
            let name = unsafe { CStr::from_ptr((*device).name.as_ptr()) }.to_string_lossy().into_owned();
            // SAFETY: as above.
            let context = unsafe { (library.ibv_open_device)(device) };
            if context.is_null() {
                let why = io::Error::last_os_error();
                problems.push(format!(
                    "the RDMA adapter {name} cannot be opened ({why}): allow this user to open /dev/infiniband/uverbs*"
                ));
            } else {
                opened.push(Arc::new(Device { library, context, name }));
            }
        }
        if !list.is_null() {
            // SAFETY: the list of above; devices that are open stay.
            unsafe { (library.ibv_free_device_list)(list) };
        }
        (opened, problems)
    }

    /// As the kernel names it, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// For calls of libibverbs, as long as this value lives.
    pub fn context(&self) -> *mut ibv_context {
        self.context
    }

    /// What a port reports of itself. `None`: there is no such port.
    pub fn port(&self, port: u8) -> Option<ibv_port_attr> {
        // SAFETY: numbers only, for which 0 is valid.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context lives, and the structure is no shorter than that of any version of the call.
        let known = unsafe { (self.library.ibv_query_port)(self.context, port, &raw mut attr) } == 0;
        known.then_some(attr)
    }

    /// An entry of the table of GIDs of a port.
    pub fn gid(&self, port: u8, index: u8) -> Option<[u8; 16]> {
        let mut gid = ibv_gid { raw: [0; 16] };
        // SAFETY: as above.
        let known =
            unsafe { (self.library.ibv_query_gid)(self.context, port, index.into(), &raw mut gid) } == 0;
        known.then_some(gid.raw)
    }

    /// Where the kernel describes it.
    pub fn sysfs(&self) -> PathBuf {
        Path::new(SYSFS).join(&self.name)
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        // SAFETY: everything that was made of it is gone: each holds an `Arc` of its adapter, and that one of this.
        unsafe { (self.library.ibv_close_device)(self.context) };
    }
}
