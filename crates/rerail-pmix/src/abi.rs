//! The structures and constants of PMIx that Rerail uses. Owns: their layout. Source: PMIx standard 4.1, under the C names beside them;
//! the sizes and offsets at the end of the file are those of a C compiler with the headers of OpenPMIx 4.2, and 5.0 keeps them.

use std::ffi::{CStr, c_char, c_int, c_void};

/// `pmix_status_t`.
pub type Status = c_int;
/// `pmix_release_cbfunc_t`: frees what a call was given.
pub type Release = unsafe extern "C" fn(*mut c_void);
/// `PMIX_SUCCESS`.
pub const SUCCESS: Status = 0;
/// `PMIX_ERROR`.
pub const ERROR: Status = -1;
/// `PMIX_ERR_BAD_PARAM`.
pub const BAD_PARAM: Status = -27;
/// `PMIX_ERR_NOT_FOUND`.
pub const NOT_FOUND: Status = -46;
/// `PMIX_ERR_NOT_SUPPORTED`.
pub const NOT_SUPPORTED: Status = -47;
/// `PMIX_ERR_LOST_CONNECTION`: a process that takes part is gone.
pub const LOST_CONNECTION: Status = -61;
/// `PMIX_OPERATION_SUCCEEDED`: done, and nothing will be called back.
pub const OPERATION_SUCCEEDED: Status = -157;
/// `pmix_scope_t`.
pub type Scope = u8;
/// `PMIX_GLOBAL`: for all processes, on this host and on others.
pub const GLOBAL: Scope = 3;
/// `PMIX_RANK_WILDCARD`: no process, but the job.
pub const RANK_WILDCARD: u32 = u32::MAX - 1;
/// `PMIX_BOOL`, a `pmix_data_type_t`.
pub const BOOL: u16 = 1;
/// `PMIX_STRING`, a `pmix_data_type_t`.
pub const STRING: u16 = 3;
/// `PMIX_SIZE`, a `pmix_data_type_t`.
pub const SIZE: u16 = 4;
/// `PMIX_UINT16`, a `pmix_data_type_t`.
pub const UINT16: u16 = 13;
/// `PMIX_UINT32`, a `pmix_data_type_t`.
pub const UINT32: u16 = 14;
/// `PMIX_STATUS`, a `pmix_data_type_t`.
pub const STATUS: u16 = 20;
/// `PMIX_PROC`, a `pmix_data_type_t`.
pub const PROC: u16 = 22;
/// `PMIX_INFO`, a `pmix_data_type_t`.
pub const INFO: u16 = 24;
/// `PMIX_BYTE_OBJECT`, a `pmix_data_type_t`.
pub const BYTE_OBJECT: u16 = 27;
/// `PMIX_DATA_ARRAY`, a `pmix_data_type_t`.
pub const DATA_ARRAY: u16 = 39;
/// `PMIX_PROC_RANK`, a `pmix_data_type_t`.
pub const PROC_RANK: u16 = 40;
/// `PMIX_REGEX`, a `pmix_data_type_t`.
pub const REGEX: u16 = 49;
/// Bytes of a namespace, with the final 0.
pub const NAMESPACE_BYTES: usize = 256;
/// Bytes of a key, with the final 0.
pub const KEY_BYTES: usize = 512;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone)]
pub struct Proc {
    /// The job.
    pub namespace: [c_char; NAMESPACE_BYTES],
    /// The number of the process in it.
    pub rank: u32,
}

impl Proc {
    /// A process of a job. Of a longer name there is the beginning.
    pub fn new(namespace: &CStr, rank: u32) -> Self {
        let mut proc = Self { namespace: [0; NAMESPACE_BYTES], rank };
        copy(namespace, &mut proc.namespace);
        proc
    }
}

/// `pmix_byte_object_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct ByteObject {
    /// Where they are.
    pub bytes: *mut c_char,
    /// How many.
    pub size: usize,
}

/// `pmix_data_array_t`.
#[repr(C)]
pub struct DataArray {
    /// Type of its elements.
    pub kind: u16,
    /// How many.
    pub size: usize,
    /// Where they are.
    pub array: *mut c_void,
}

/// What a value holds, by its type. The largest of the C union are three words long.
#[repr(C)]
pub union Data {
    /// Of type [`BOOL`].
    pub flag: bool,
    /// Of type [`UINT32`].
    pub uint32: u32,
    /// Of type [`SIZE`].
    pub size: usize,
    /// Of type [`STATUS`].
    pub status: Status,
    /// Of type [`BYTE_OBJECT`].
    pub byte_object: ByteObject,
    /// Of type [`DATA_ARRAY`].
    pub array: *mut DataArray,
    /// The whole union.
    pub words: [u64; 3],
}

/// `pmix_value_t`.
#[repr(C)]
pub struct Value {
    /// Its type.
    pub kind: u16,
    /// What it holds.
    pub data: Data,
}

/// `pmix_info_t`.
#[repr(C)]
pub struct Info {
    /// Its name.
    pub key: [c_char; KEY_BYTES],
    /// `pmix_info_directives_t`.
    pub flags: u32,
    /// Its value.
    pub value: Value,
}

impl Info {
    /// One with a name and without a value. Of a longer name there is the beginning.
    pub fn new(key: &CStr) -> Self {
        let value = Value { kind: 0, data: Data { words: [0; 3] } };
        let mut info = Self { key: [0; KEY_BYTES], flags: 0, value };
        copy(key, &mut info.key);
        info
    }

    /// A flag that is set.
    pub fn flag(key: &CStr) -> Self {
        let mut info = Self::new(key);
        info.value = Value { kind: BOOL, data: Data { words: [0; 3] } };
        info.value.data.flag = true;
        info
    }
}

/// The last byte stays 0.
fn copy(text: &CStr, to: &mut [c_char]) {
    let room = to.len() - 1;
    for (to, from) in to[..room].iter_mut().zip(text.to_bytes()) {
        *to = *from as c_char;
    }
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(size_of::<Proc>() == 260 && align_of::<Proc>() == 4 && offset_of!(Proc, rank) == 256);
    assert!(size_of::<ByteObject>() == 16 && offset_of!(ByteObject, size) == 8);
    assert!(size_of::<DataArray>() == 24 && offset_of!(DataArray, size) == 8);
    assert!(offset_of!(DataArray, array) == 16);
    assert!(size_of::<Value>() == 32 && offset_of!(Value, data) == 8);
    assert!(size_of::<Info>() == 552 && offset_of!(Info, flags) == 512 && offset_of!(Info, value) == 520);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_end_within_their_room() {
        let long = std::ffi::CString::new(vec![b'x'; 2 * KEY_BYTES]).unwrap();
        let (proc, info) = (Proc::new(&long, 7), Info::new(&long));
        assert_eq!((proc.namespace[NAMESPACE_BYTES - 1], proc.rank), (0, 7));
        assert_eq!((info.key[KEY_BYTES - 2], info.key[KEY_BYTES - 1]), (b'x' as c_char, 0));
        let flag = Info::flag(c"pmix.collect");
        assert_eq!((flag.value.kind, flag.key[12]), (BOOL, 0));
    }
}
