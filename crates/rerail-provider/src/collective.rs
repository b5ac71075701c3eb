//! `struct fi_ops_collective`: collectives in the network. Not offered (no FI_COLLECTIVE), so every call says so.

use crate::ffi::*;
use crate::object::refuse;
use libc::c_void;

/// The calls.
pub static OPS: fi_ops_collective = fi_ops_collective {
    size: size_of::<fi_ops_collective>(),
    barrier: Some(barrier),
    broadcast: Some(broadcast),
    alltoall: Some(exchange),
    allreduce: Some(reduce_all),
    allgather: Some(exchange),
    reduce_scatter: Some(reduce_all),
    reduce: Some(reduce),
    scatter: Some(rooted),
    gather: Some(rooted),
    msg: Some(msg),
    barrier2: Some(barrier2),
};

type Buf = *mut c_void;

refuse! {
    fn barrier(*mut fid_ep, fi_addr_t, Buf) -> isize = FI_EOPNOTSUPP;
    fn barrier2(*mut fid_ep, fi_addr_t, u64, Buf) -> isize = FI_EOPNOTSUPP;
    fn broadcast(*mut fid_ep, Buf, usize, Buf, fi_addr_t, fi_addr_t, fi_datatype, u64, Buf) -> isize = FI_EOPNOTSUPP;
    fn exchange(*mut fid_ep, *const c_void, usize, Buf, Buf, Buf, fi_addr_t, fi_datatype, u64, Buf) -> isize = FI_EOPNOTSUPP;
    fn reduce_all(*mut fid_ep, *const c_void, usize, Buf, Buf, Buf, fi_addr_t, fi_datatype, fi_op, u64, Buf) -> isize = FI_EOPNOTSUPP;
    fn reduce(*mut fid_ep, *const c_void, usize, Buf, Buf, Buf, fi_addr_t, fi_addr_t, fi_datatype, fi_op, u64, Buf) -> isize = FI_EOPNOTSUPP;
    fn rooted(*mut fid_ep, *const c_void, usize, Buf, Buf, Buf, fi_addr_t, fi_addr_t, fi_datatype, u64, Buf) -> isize = FI_EOPNOTSUPP;
    fn msg(*mut fid_ep, *const fi_msg_collective, *mut fi_ioc, *mut Buf, usize, u64) -> isize = FI_EOPNOTSUPP;
}
