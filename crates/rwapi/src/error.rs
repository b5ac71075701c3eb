//! Why a call did nothing. Owns: the errno of each cause.

use rerail_runtime::RuntimeError;
use rerail_rwapi::{Failure, Refused};

/// Why a call did nothing, or what became of a write. Each is one sentence.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The call is refused as it is.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// The target has no such block, or the range leaves it: no byte was touched.
    #[error("the target refused the write: it has no such block, or the range leaves the block")]
    TargetRefused,
    /// This node is gone: what [`crate::Job::next_message`] received.
    #[error("node {0} is gone")]
    Gone(usize),
    /// No write had this identifier.
    #[error("no write had this identifier")]
    NoSuchSid,
    /// The system has no memory for a block.
    #[error("the system has no memory for a block of this size")]
    NoMemory,
    /// This process is in a job already.
    #[error("rwapi_init was called before")]
    Already,
    /// There is no job: before `rwapi_init`, or after `rwapi_finalize`.
    #[error("there is no job: call rwapi_init first, and nothing after rwapi_finalize")]
    NoJob,
    /// This process is a forked child.
    #[error("this is a forked child: the job belongs to its parent")]
    Forked,
    /// The job cannot begin.
    #[error("{0}")]
    Start(String),
    /// An invariant broke; the log has more.
    #[error("the engine stopped after an internal error")]
    Failed,
}

impl Error {
    /// As C programs see it.
    pub fn errno(&self) -> i32 {
        match self {
            Error::Refused(why) => match why {
                Refused::Again => libc::EAGAIN,
                Refused::NoSuchNode | Refused::Empty => libc::EINVAL,
                Refused::Local | Refused::Remote | Refused::Block => libc::EFAULT,
                Refused::Gone => libc::EHOSTDOWN,
                Refused::Failures => libc::ENOBUFS,
            },
            Error::TargetRefused => libc::EFAULT,
            Error::Gone(_) => libc::EHOSTDOWN,
            Error::NoSuchSid => libc::EINVAL,
            Error::NoMemory => libc::ENOMEM,
            Error::Already => libc::EALREADY,
            Error::NoJob => libc::ENOTCONN,
            Error::Forked => libc::EPERM,
            Error::Start(_) => libc::ENETDOWN,
            Error::Failed => libc::EIO,
        }
    }

    /// Whether the call may work a little later.
    pub fn is_again(&self) -> bool {
        *self == Error::Refused(Refused::Again)
    }

    /// Whether the cause is that a node is gone: that of the call, or the one that was received as gone.
    pub fn is_gone(&self) -> bool {
        matches!(self, Error::Refused(Refused::Gone) | Error::Gone(_))
    }
}

impl From<RuntimeError> for Error {
    fn from(e: RuntimeError) -> Self {
        match e {
            RuntimeError::Forked => Error::Forked,
            RuntimeError::Closed => Error::NoJob,
            RuntimeError::Failed | RuntimeError::Refused(_) => Error::Failed,
        }
    }
}

impl From<Option<Failure>> for Error {
    fn from(why: Option<Failure>) -> Self {
        match why {
            Some(Failure::Refused) => Error::TargetRefused,
            Some(Failure::Gone) => Error::Refused(Refused::Gone),
            None => Error::NoSuchSid,
        }
    }
}
