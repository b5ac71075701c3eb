//! Error numbers: what libfabric is told when something goes wrong. One function for each kind of failure, exhaustive.

use crate::ffi::*;
use libc::{c_char, c_int};
use rerail_core::{AccessError, CompletionError, PostError};
use rerail_kinds::AttachError;
use rerail_runtime::{RuntimeError, StartError};
use std::ffi::CStr;
use std::io;

/// A positive error number of libfabric (`FI_E*`). Calls return it negated; error entries carry it as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Errno(pub c_int);

/// Result of everything behind the C ABI.
pub type Result<T> = std::result::Result<T, Errno>;

/// Try again after progress.
pub const AGAIN: Errno = Errno(FI_EAGAIN);
/// The call makes no sense as it is.
pub const INVALID: Errno = Errno(FI_EINVAL);
/// The provider does not have this.
pub const NOT_IMPLEMENTED: Errno = Errno(FI_ENOSYS);
/// The provider has nothing that meets the hints.
pub const NO_DATA: Errno = Errno(FI_ENODATA);
/// Objects depend on this one.
pub const BUSY: Errno = Errno(FI_EBUSY);
/// The object is not enabled yet, or not any more.
pub const BAD_STATE: Errno = Errno(FI_EOPBADSTATE);

impl From<PostError> for Errno {
    fn from(e: PostError) -> Self {
        Errno(match e {
            PostError::Again => FI_EAGAIN,
            PostError::PeerGone => FI_ECONNRESET,
            PostError::NoSuch => FI_ENOENT,
            PostError::Invalid(_) => FI_EINVAL,
            PostError::Exhausted(_) => FI_ENOSPC,
        })
    }
}

impl From<RuntimeError> for Errno {
    fn from(e: RuntimeError) -> Self {
        Errno(match e {
            RuntimeError::Forked => FI_EOPNOTSUPP,
            RuntimeError::Closed => FI_ESHUTDOWN,
            RuntimeError::Failed => FI_EOTHER,
            RuntimeError::Refused(why) => return why.into(),
        })
    }
}

/// What the system refused. libfabric's numbers below FI_ERRNO_OFFSET are the system's own, so `fi_strerror` names each of them.
pub fn of_system(e: &io::Error) -> Errno {
    match e.raw_os_error() {
        // the whole host's table is full, which the program can do as little about as about its own
        Some(libc::ENFILE) => Errno(FI_EMFILE),
        Some(number) if (1..FI_ERRNO_OFFSET as c_int).contains(&number) => Errno(number),
        _ => Errno(FI_EIO),
    }
}

impl From<&StartError> for Errno {
    fn from(e: &StartError) -> Self {
        match e {
            StartError::System { why, .. } => of_system(why),
            StartError::Faults(_) => INVALID,
            StartError::Engine(_) => Errno(FI_ENODEV),
        }
    }
}

impl From<&AttachError> for Errno {
    fn from(e: &AttachError) -> Self {
        match e {
            AttachError::Selection(_) => NO_DATA,
            AttachError::System { why, .. } => of_system(why),
        }
    }
}

/// What an error entry says: libfabric's number, and ours, from which [`describe`] makes a sentence.
pub fn of_completion(e: CompletionError) -> (Errno, c_int) {
    match e {
        CompletionError::Truncated { .. } => (Errno(FI_ETRUNC), 1),
        CompletionError::Canceled => (Errno(FI_ECANCELED), 2),
        CompletionError::NoMessage => (Errno(FI_ENOMSG), 3),
        CompletionError::PeerUnreachable => (Errno(FI_EHOSTUNREACH), 4),
        CompletionError::PeerClosed => (Errno(FI_ECONNRESET), 5),
        CompletionError::PeerDied => (Errno(FI_ECONNRESET), 6),
        CompletionError::Access(AccessError::Key) => (Errno(FI_ENOKEY), 7),
        CompletionError::Access(AccessError::Bounds) => (Errno(FI_EACCES), 8),
        CompletionError::Access(AccessError::Permission) => (Errno(FI_EACCES), 9),
        CompletionError::Access(AccessError::Operation) => (Errno(FI_EOPNOTSUPP), 10),
        CompletionError::Mismatch => (INVALID, 11),
    }
}

/// The sentence behind a `prov_errno`.
pub fn describe(prov_errno: c_int) -> &'static CStr {
    match prov_errno {
        1 => c"the message was longer than the receive buffer, which holds its beginning",
        2 => c"the operation was cancelled",
        3 => c"no message matches",
        4 => c"the peer was unreachable over every rail for longer than FI_RERAIL_PARTITION_TIMEOUT",
        5 => c"the peer closed its endpoint or ended before the operation was done",
        6 => c"the peer's process ended without a goodbye",
        7 => c"the peer has no memory registered under that key, or no longer",
        8 => c"the peer's memory region does not contain all of the range",
        9 => c"the peer's memory region was not registered for this access (FI_REMOTE_READ, FI_REMOTE_WRITE)",
        10 => c"the peer cannot do this atomic operation on this datatype",
        11 => c"the members of the group began collective operations of different kinds or sizes",
        _ => c"unknown error number of rerail",
    }
}

/// Copies a sentence as a C string, cut to the room there is.
///
/// # Safety
/// `buf` is null or has `len` bytes.
pub unsafe fn copy(text: &CStr, buf: *mut c_char, len: usize) {
    if !buf.is_null() && len > 0 {
        let n = text.count_bytes().min(len - 1);
        // SAFETY: `n + 1` bytes are within the caller's room.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buf, n);
            buf.add(n).write(0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_completion_error_has_its_own_sentence() {
        let all = [
            CompletionError::Truncated { over: 1 },
            CompletionError::Canceled,
            CompletionError::NoMessage,
            CompletionError::PeerUnreachable,
            CompletionError::PeerClosed,
            CompletionError::PeerDied,
            CompletionError::Access(AccessError::Key),
            CompletionError::Access(AccessError::Bounds),
            CompletionError::Access(AccessError::Permission),
            CompletionError::Access(AccessError::Operation),
            CompletionError::Mismatch,
        ];
        let mut seen: Vec<&CStr> = all.iter().map(|e| describe(of_completion(*e).1)).collect();
        seen.sort();
        seen.dedup();
        assert_eq!(seen.len(), all.len());
        assert!(!seen.contains(&describe(0)));
    }

    #[test]
    fn what_the_system_refused_is_told_as_the_system_calls_it() {
        let start = |number| StartError::System { what: "do it", why: io::Error::from_raw_os_error(number) };
        let attach =
            |number| AttachError::System { what: "do it", why: io::Error::from_raw_os_error(number) };
        for (system, ours) in [
            (libc::EMFILE, FI_EMFILE),
            (libc::ENFILE, FI_EMFILE),
            (libc::ENOMEM, FI_ENOMEM),
            (libc::EACCES, FI_EACCES),
            (libc::ENODEV, FI_ENODEV),
            (libc::EADDRINUSE, FI_EADDRINUSE),
            (9999, FI_EIO),
        ] {
            assert_eq!((Errno::from(&start(system)).0, Errno::from(&attach(system)).0), (ours, ours));
        }
        assert_eq!(Errno::from(&StartError::Faults(String::new())), INVALID);
        assert_eq!(Errno::from(&AttachError::Selection(String::new())), NO_DATA);
        assert_eq!(of_system(&io::Error::other("no number")), Errno(FI_EIO));
    }

    #[test]
    fn mpi_relevant_errors_have_the_numbers_that_mpis_look_for() {
        let number = |e| of_completion(e).0.0;
        assert_eq!(number(CompletionError::Truncated { over: 3 }), FI_ETRUNC);
        assert_eq!(number(CompletionError::Canceled), FI_ECANCELED);
        assert_eq!(number(CompletionError::NoMessage), FI_ENOMSG);
        assert_eq!(Errno::from(PostError::Again), AGAIN);
    }

    #[test]
    fn refused_access_says_whether_the_key_the_range_or_the_operation_was_wrong() {
        let number = |e| of_completion(CompletionError::Access(e)).0.0;
        assert_eq!(number(AccessError::Key), FI_ENOKEY);
        assert_eq!(number(AccessError::Bounds), FI_EACCES);
        assert_eq!(number(AccessError::Permission), FI_EACCES);
        assert_eq!(number(AccessError::Operation), FI_EOPNOTSUPP);
    }
}
