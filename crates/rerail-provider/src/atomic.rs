//! `struct fi_ops_atomic`: atomics on remote memory. Not offered (no FI_ATOMIC), so every call says so; the `*valid` queries,
//! which MPICH asks for every datatype and operation at start, say that nothing is valid.

use crate::ffi::*;
use crate::object::refuse;
use libc::{c_int, c_void};

/// The calls.
pub static OPS: fi_ops_atomic = fi_ops_atomic {
    size: size_of::<fi_ops_atomic>(),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    readwrite: Some(readwrite),
    readwritev: Some(readwritev),
    readwritemsg: Some(readwritemsg),
    compwrite: Some(compwrite),
    compwritev: Some(compwritev),
    compwritemsg: Some(compwritemsg),
    writevalid: Some(valid),
    readwritevalid: Some(valid),
    compwritevalid: Some(valid),
};

type Desc = *mut *mut c_void;

refuse! {
    fn write(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, u64, fi_datatype, fi_op, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn writev(*mut fid_ep, *const fi_ioc, Desc, usize, fi_addr_t, u64, u64, fi_datatype, fi_op, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn writemsg(*mut fid_ep, *const fi_msg_atomic, u64) -> isize = FI_EOPNOTSUPP;
    fn inject(*mut fid_ep, *const c_void, usize, fi_addr_t, u64, u64, fi_datatype, fi_op) -> isize = FI_EOPNOTSUPP;
    fn readwrite(*mut fid_ep, *const c_void, usize, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, u64, u64, fi_datatype, fi_op, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn readwritev(*mut fid_ep, *const fi_ioc, Desc, usize, *mut fi_ioc, Desc, usize, fi_addr_t, u64, u64, fi_datatype, fi_op, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn readwritemsg(*mut fid_ep, *const fi_msg_atomic, *mut fi_ioc, Desc, usize, u64) -> isize = FI_EOPNOTSUPP;
    fn compwrite(*mut fid_ep, *const c_void, usize, *mut c_void, *const c_void, *mut c_void, *mut c_void, *mut c_void, fi_addr_t, u64, u64, fi_datatype, fi_op, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn compwritev(*mut fid_ep, *const fi_ioc, Desc, usize, *const fi_ioc, Desc, usize, *mut fi_ioc, Desc, usize, fi_addr_t, u64, u64, fi_datatype, fi_op, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn compwritemsg(*mut fid_ep, *const fi_msg_atomic, *const fi_ioc, Desc, usize, *mut fi_ioc, Desc, usize, u64) -> isize = FI_EOPNOTSUPP;
    fn valid(*mut fid_ep, fi_datatype, fi_op, *mut usize) -> c_int = FI_EOPNOTSUPP;
}
