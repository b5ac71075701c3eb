//! libfabric as seen from C: its structures, and the functions of the library that loaded this provider.
//!
//! `abi.rs` was generated from the public headers of libfabric 1.17 (BSD licence) and is checked in. To make it again (only when a newer
//! structure is needed), with `bindgen-cli` 0.73 and a `wrapper.h` that includes `rdma/{fabric,fi_domain,fi_endpoint,fi_eq,
//! fi_cm,fi_rma,fi_tagged,fi_atomic,fi_collective,fi_errno}.h` and `rdma/providers/{fi_prov,fi_log}.h`:
//!
//! ```text
//! bindgen wrapper.h --allowlist-type 'fi_(info|provider|..._attr|ops.*|..._entry|msg|msg_tagged|...)' \
//!   --allowlist-type 'fid_(fabric|domain|av|cq|cntr|ep|eq|mr)|fid' --allowlist-var 'FI_.*' --blocklist-type iovec \
//!   --raw-line 'use libc::iovec;' --no-doc-comments --use-core --no-prepend-enum-name \
//!   --default-enum-style consts --rust-target 1.82 --generate types,vars
//! ```
//!
//! then give flags the type `u64`, error numbers, options, control commands and MR modes `i32`, and classes `usize`.
//!
//! # What differs between libfabric 1.17 and 2.6
//!
//! The structures of 1.17 are a prefix of the newer ones, so they can be read and written through, but never allocated or
//! copied whole: an `fi_info` comes from the running library's `fi_dupinfo(NULL)`, and fields behind the prefix are touched
//! only when the caller's version says that they are there ([`fi_cq_err_entry_1_20`]).

#[allow(
    non_camel_case_types,
    non_upper_case_globals,
    non_snake_case,
    dead_code,
    missing_docs,
    unsafe_op_in_unsafe_fn,
    clippy::all,
    clippy::undocumented_unsafe_blocks
)]
#[rustfmt::skip]
mod abi;
pub mod host;

pub use abi::*;

/// `FI_ADDR_UNSPEC` and `FI_ADDR_NOTAVAIL`: bindgen does not see through the casts in their definitions.
pub const FI_ADDR_UNSPEC: fi_addr_t = u64::MAX;
/// See [`FI_ADDR_UNSPEC`].
pub const FI_ADDR_NOTAVAIL: fi_addr_t = u64::MAX;

/// `FI_VERSION(major, minor)`.
pub const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}

/// The error entry since 1.20: one field longer.
#[repr(C)]
#[allow(non_camel_case_types)]
pub struct fi_cq_err_entry_1_20 {
    /// All that 1.17 has.
    pub base: fi_cq_err_entry,
    /// Source of the message.
    pub src_addr: fi_addr_t,
}

/// `enum fi_mr_mode`, whose values are bits next to the other `FI_MR_*`.
pub const FI_MR_BASIC: i32 = 1 << 0;
/// See [`FI_MR_BASIC`].
pub const FI_MR_SCALABLE: i32 = 1 << 1;
