//! `struct fi_ops_rma`: reads and writes of remote memory. Not offered (no FI_RMA), so every call says so.

use crate::ffi::*;
use crate::object::refuse;
use libc::{c_void, iovec};

/// The calls.
pub static OPS: fi_ops_rma = fi_ops_rma {
    size: size_of::<fi_ops_rma>(),
    read: Some(read),
    readv: Some(readv),
    readmsg: Some(readmsg),
    write: Some(write),
    writev: Some(writev),
    writemsg: Some(writemsg),
    inject: Some(inject),
    writedata: Some(writedata),
    injectdata: Some(injectdata),
};

refuse! {
    fn read(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn readv(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, u64, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn readmsg(*mut fid_ep, *const fi_msg_rma, u64) -> isize = FI_EOPNOTSUPP;
    fn write(*mut fid_ep, *const c_void, usize, *mut c_void, fi_addr_t, u64, u64, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn writev(*mut fid_ep, *const iovec, *mut *mut c_void, usize, fi_addr_t, u64, u64, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn writemsg(*mut fid_ep, *const fi_msg_rma, u64) -> isize = FI_EOPNOTSUPP;
    fn inject(*mut fid_ep, *const c_void, usize, fi_addr_t, u64, u64) -> isize = FI_EOPNOTSUPP;
    fn writedata(*mut fid_ep, *const c_void, usize, *mut c_void, u64, fi_addr_t, u64, u64, *mut c_void) -> isize = FI_EOPNOTSUPP;
    fn injectdata(*mut fid_ep, *const c_void, usize, u64, fi_addr_t, u64, u64) -> isize = FI_EOPNOTSUPP;
}
