//! The structures and constants of PMIx that this crate uses. Owns: their layout. Source: PMIx standard 4.1, under the C names beside them;
//! the sizes and offsets at the end of the file are those of a C compiler with the headers of OpenPMIx 4.2, and 5.0 keeps them.

use std::ffi::{c_char, c_int};

/// `pmix_status_t`.
pub type Status = c_int;
/// `PMIX_SUCCESS`.
pub const SUCCESS: Status = 0;
/// `pmix_scope_t`.
pub type Scope = u8;
/// `PMIX_GLOBAL`: for all processes, on this host and on others.
pub const GLOBAL: Scope = 3;
/// `PMIX_RANK_WILDCARD`: no process, but the job.
pub const RANK_WILDCARD: u32 = u32::MAX - 1;
/// `PMIX_BOOL`, a `pmix_data_type_t`.
pub const BOOL: u16 = 1;
/// `PMIX_UINT32`, a `pmix_data_type_t`.
pub const UINT32: u16 = 14;
/// `PMIX_BYTE_OBJECT`, a `pmix_data_type_t`.
pub const BYTE_OBJECT: u16 = 27;
/// Bytes of a namespace, with the final 0.
pub const NAMESPACE_BYTES: usize = 256;
/// Bytes of a key, with the final 0.
pub const KEY_BYTES: usize = 512;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone)]
pub struct Proc {
    pub namespace: [c_char; NAMESPACE_BYTES],
    pub rank: u32,
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ByteObject {
    pub bytes: *mut c_char,
    pub size: usize,
}

/// What a value holds, by its type. The largest of the C union are three words long.
#[repr(C)]
pub union Data {
    pub flag: bool,
    pub uint32: u32,
    pub byte_object: ByteObject,
    pub words: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
pub struct Value {
    pub kind: u16,
    pub data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
pub struct Info {
    pub key: [c_char; KEY_BYTES],
    pub flags: u32,
    pub value: Value,
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Proc>() == 260 && align_of::<Proc>() == 4 && offset_of!(Proc, rank) == 256);
    assert!(size_of::<ByteObject>() == 16 && offset_of!(ByteObject, size) == 8);
    assert!(size_of::<Value>() == 32 && offset_of!(Value, data) == 8);
    assert!(size_of::<Info>() == 552 && offset_of!(Info, flags) == 512 && offset_of!(Info, value) == 520);
};
