//! `struct fid_fabric`: the beginning of everything a program opens.

pub mod ops;

use crate::ffi::*;
use crate::object::Object;
use std::sync::Arc;

/// What a fabric's children know of it.
pub struct Shared {
    /// API version of the program: decides which fields of its structures exist.
    pub api_version: u32,
}

/// A fabric.
#[repr(C)]
pub struct Fabric {
    fid: fid_fabric,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Fabric {
    const CLASS: usize = FI_CLASS_FABRIC;
}
