//! `struct fid_domain`: a group of endpoints, queues, address vectors and memory regions. All rails belong to every domain.

pub mod ops;

use crate::fabric;
use crate::ffi::*;
use crate::names::Format;
use crate::object::Object;
use crate::regions::Regions;
use libc::c_int;
use std::sync::Arc;

/// What a domain's children know of it. Holding it keeps the domain from being closed.
pub struct Shared {
    fabric: Arc<fabric::Shared>,
    /// Registration mode that the program agreed to.
    mr_mode: c_int,
    /// How endpoints are named.
    pub format: Format,
    /// Memory that peers may read and write through its endpoints.
    pub regions: Regions,
}

impl Shared {
    /// API version of the program.
    pub fn api_version(&self) -> u32 {
        self.fabric.api_version
    }
}

/// A domain.
#[repr(C)]
pub struct Domain {
    fid: fid_domain,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Domain {
    const CLASS: usize = FI_CLASS_DOMAIN;
}

impl Domain {
    /// What children keep.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }
}
