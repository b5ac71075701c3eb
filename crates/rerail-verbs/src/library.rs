//! libibverbs and librdmacm, loaded at run time: a node without them runs without rails of this kind, and building needs
//! neither. Owns: the functions. The names carry no version: the linker takes the newest that the library has.

use crate::abi::*;
use std::ffi::{CStr, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// Why there are no rails of this kind here; each is a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// The library is not there, or needs something that is not.
    #[error(
        "{file} cannot be loaded ({why}): install rdma-core (Debian: libibverbs1 librdmacm1 ibverbs-providers)"
    )]
    Missing {
        /// Its name.
        file: &'static str,
        /// What the linker reports.
        why: String,
    },
    /// It has not all that is needed.
    #[error("{file} has no function {name}: it is older than rdma-core 20")]
    Old {
        /// Its name.
        file: &'static str,
        /// What is missing.
        name: &'static str,
    },
}

fn open(file: &'static CStr) -> Result<*mut c_void, LibraryError> {
    // SAFETY: a constant string. The library runs its constructors, as for every program that is linked with it.
    let handle = unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if !handle.is_null() {
        return Ok(handle);
    }
    // SAFETY: after a failure it returns a string that is valid until the next call of this thread.
    let why = unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned();
    Err(LibraryError::Missing { file: file.to_str().expect("a name of ours"), why })
}

/// Whether what the operation of this number moves to a queue pair's memory is placed in order; 0: no.
pub type QueryInOrder = unsafe extern "C" fn(*mut ibv_qp, c_uint, u32) -> c_int;

fn query_in_order(library: *mut c_void) -> Option<QueryInOrder> {
    // SAFETY: a handle that is never closed, and a string that ends in 0.
    let f = unsafe { libc::dlsym(library, c"ibv_query_qp_data_in_order".as_ptr()) };
    // SAFETY: the header declares the function of this name with this type, which is never null.
    (!f.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, QueryInOrder>(f) })
}

macro_rules! functions {
    ($( $file:literal { $( $name:ident($($arg:ty),*) -> $ret:ty; )* } )*) => {
        /// The functions, by the names that they have in the library.
        pub struct Library {
            $($( pub $name: unsafe extern "C" fn($($arg),*) -> $ret, )*)*
            /// Since rdma-core 41; `None`: the library is older.
            pub ibv_query_qp_data_in_order: Option<QueryInOrder>,
        }

        impl Library {
            /// Functions that must not be called: a test puts its own in their places.
            #[cfg(any(test, feature = "hostile"))]
            pub fn of_nothing() -> Library {
                extern "C" fn nothing() {
                    unreachable!("the test has no such function");
                }
                let nothing = nothing as extern "C" fn();
                Library {
                    $($(
                        // SAFETY: it is never called with arguments that it would read.
                        $name: unsafe { std::mem::transmute::<extern "C" fn(), unsafe extern "C" fn($($arg),*) -> $ret>(nothing) },
                    )*)*
                    ibv_query_qp_data_in_order: None,
                }
            }

            fn load() -> Result<Library, LibraryError> {
                let mut functions = Vec::new();
                $(
                    let handle = open($file)?;
                    let file = $file.to_str().expect("a name of ours");
                    $(
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: a handle that is never closed, and a string that ends in 0.
                        let f = unsafe { libc::dlsym(handle, name.as_ptr().cast()) };
                        if f.is_null() {
                            return Err(LibraryError::Old { file, name: stringify!($name) });
                        }
                        functions.push(f);
                    )*
                )*
                let mut functions = functions.into_iter();
                let mut next = || functions.next().expect("as many as there are fields");
                Ok(Library {
                    $($(
                        // SAFETY: the header declares the function of this name with this type.
                        $name: unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($arg),*) -> $ret>(next()) },
                    )*)*
                    ibv_query_qp_data_in_order: query_in_order(open(c"libibverbs.so.1")?),
                })
            }
        }
    };
}

functions! {
    c"libibverbs.so.1" {
        ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
        ibv_free_device_list(*mut *mut ibv_device) -> ();
        ibv_open_device(*mut ibv_device) -> *mut ibv_context;
        ibv_close_device(*mut ibv_context) -> c_int;
        ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
        ibv_dealloc_pd(*mut ibv_pd) -> c_int;
        ibv_reg_mr_iova(*mut ibv_pd, *mut c_void, usize, u64, c_int) -> *mut ibv_mr;
        ibv_dereg_mr(*mut ibv_mr) -> c_int;
        ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
        ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
        ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
        ibv_destroy_cq(*mut ibv_cq) -> c_int;
        ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
        ibv_ack_cq_events(*mut ibv_cq, c_uint) -> ();
        ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
        ibv_destroy_srq(*mut ibv_srq) -> c_int;
        ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
        ibv_query_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int, *mut ibv_qp_init_attr) -> c_int;
        ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
        ibv_destroy_qp(*mut ibv_qp) -> c_int;
        ibv_create_ah(*mut ibv_pd, *mut ibv_ah_attr) -> *mut ibv_ah;
        ibv_destroy_ah(*mut ibv_ah) -> c_int;
        ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
        ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
        ibv_get_async_event(*mut ibv_context, *mut ibv_async_event) -> c_int;
        ibv_ack_async_event(*mut ibv_async_event) -> ();
    }
    c"librdmacm.so.1" {
        rdma_create_event_channel() -> *mut rdma_event_channel;
        rdma_destroy_event_channel(*mut rdma_event_channel) -> ();
        rdma_create_id(*mut rdma_event_channel, *mut *mut rdma_cm_id, *mut c_void, c_uint) -> c_int;
        rdma_destroy_id(*mut rdma_cm_id) -> c_int;
        rdma_bind_addr(*mut rdma_cm_id, *mut libc::sockaddr) -> c_int;
        rdma_listen(*mut rdma_cm_id, c_int) -> c_int;
        rdma_set_option(*mut rdma_cm_id, c_int, c_int, *mut c_void, usize) -> c_int;
        rdma_resolve_addr(*mut rdma_cm_id, *mut libc::sockaddr, *mut libc::sockaddr, c_int) -> c_int;
        rdma_resolve_route(*mut rdma_cm_id, c_int) -> c_int;
        rdma_create_qp(*mut rdma_cm_id, *mut ibv_pd, *mut ibv_qp_init_attr) -> c_int;
        rdma_destroy_qp(*mut rdma_cm_id) -> ();
        rdma_connect(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_accept(*mut rdma_cm_id, *mut rdma_conn_param) -> c_int;
        rdma_reject(*mut rdma_cm_id, *const c_void, u8) -> c_int;
        rdma_disconnect(*mut rdma_cm_id) -> c_int;
        rdma_get_cm_event(*mut rdma_event_channel, *mut *mut rdma_cm_event) -> c_int;
        rdma_ack_cm_event(*mut rdma_cm_event) -> c_int;
    }
}

/// The libraries of this process, loaded once.
///
/// # Errors
/// They are not there, or too old.
pub fn library() -> Result<&'static Library, LibraryError> {
    static LIBRARY: OnceLock<Result<Library, LibraryError>> = OnceLock::new();
    LIBRARY.get_or_init(Library::load).as_ref().map_err(Clone::clone)
}
