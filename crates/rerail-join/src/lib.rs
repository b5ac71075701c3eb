//! How a process learns its rank, the size of its job and the other processes' addresses from its launcher: `rerail launch`, Hydra (of MPICH and of
//! Intel MPI), Slurm's `srun --mpi=pmi2`, Open MPI's `mpirun`, or none. Owns: the order of the steps join, exchange, finalize.
//! Invariant: a launcher is spoken to by one [`Job`] of a process only, and what it answers is checked before it is used.
//!
//! ```no_run
//! let mut job = rerail_join::join()?;
//! let addresses = job.exchange(b"my address")?;
//! assert_eq!(addresses.len(), job.size());
//! job.finalize()?;
//! # Ok::<(), rerail_join::JoinError>(())
//! ```

mod env;
mod error;
#[cfg(feature = "hostile")]
pub mod hostile;
mod place;
mod pmi1;
mod pmix;

pub use error::JoinError;
use place::Place;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most bytes that a process may give to an exchange.
pub const EXCHANGE_BYTES_MAX: usize = 512;

/// Whether this process has begun to speak to a launcher, which takes only one beginning.
static JOINED: AtomicBool = AtomicBool::new(false);

/// By which means the launcher is spoken to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Launcher {
    /// No launcher: the process is the whole job.
    Alone,
    /// PMI-1: `rerail launch`, Hydra of MPICH or Intel MPI, `srun --mpi=pmi2`.
    Pmi1,
    /// PMIx: Open MPI's `mpirun`, `srun --mpi=pmix`.
    Pmix,
}

impl std::fmt::Display for Launcher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Alone => "no launcher",
            Self::Pmi1 => "PMI-1",
            Self::Pmix => "PMIx",
        })
    }
}

#[derive(Debug)]
enum Session {
    Alone,
    Pmi1(pmi1::Client),
    // boxed: several times as large as the others
    Pmix(Box<pmix::Client>),
}

/// A process's part in its job.
///
/// Dropping a job does not finalize it: a program that ends by an error or a panic drops it, and most launchers report a process that ended
/// without [`Job::finalize`] as failed and end the others. Such a program should also exit with a code other than 0, because Hydra
/// of MPICH may report success otherwise.
#[derive(Debug)]
#[must_use = "launchers report a process that ended without finalize() as failed"]
pub struct Job {
    session: Session,
    exchanged: bool,
}

/// Joins the job of this process: reads the environment, and begins with the launcher that it names. A process may do so once.
pub fn join() -> Result<Job, JoinError> {
    let source = env::source(&|name| std::env::var_os(name).map(|v| v.to_string_lossy().into_owned()))?;
    if source != env::Source::Alone && JOINED.swap(true, Ordering::Relaxed) {
        return Err(JoinError::JoinedBefore);
    }
    let session = match source {
        env::Source::Alone => Session::Alone,
        env::Source::Descriptor { fd, place } => Session::Pmi1(pmi1::Client::inherited(fd, place)?),
        env::Source::Port { host, port, id } => Session::Pmi1(pmi1::Client::connect(&host, port, id)?),
        env::Source::Pmix => Session::Pmix(Box::new(pmix::Client::new()?)),
    };
    Ok(Job { session, exchanged: false })
}

impl Job {
    fn place(&self) -> Place {
        match &self.session {
            Session::Alone => Place::ALONE,
            Session::Pmi1(client) => client.place(),
            Session::Pmix(client) => client.place(),
        }
    }

    /// The number of this process, from 0.
    pub fn rank(&self) -> usize {
        self.place().rank()
    }

    /// How many processes the job has: at least 1, at most 65,536.
    pub fn size(&self) -> usize {
        self.place().size()
    }

    /// By which means the launcher is spoken to, for messages.
    pub fn launcher(&self) -> Launcher {
        match self.session {
            Session::Alone => Launcher::Alone,
            Session::Pmi1(_) => Launcher::Pmi1,
            Session::Pmix(_) => Launcher::Pmix,
        }
    }

    /// Gives bytes to all processes of the job, at most [`EXCHANGE_BYTES_MAX`], and returns what each gave, in the order of ranks. All processes
    /// of the job must call it, once, and it returns when all have.
    pub fn exchange(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, JoinError> {
        if own.len() > EXCHANGE_BYTES_MAX {
            return Err(JoinError::TooLong { bytes: own.len() });
        }
        // also after a failure: a launcher may have stored half of it
        if std::mem::replace(&mut self.exchanged, true) {
            return Err(JoinError::ExchangedBefore);
        }
        match &mut self.session {
            Session::Alone => Ok(vec![own.to_vec()]),
            Session::Pmi1(client) => client.exchange(own),
            Session::Pmix(client) => client.exchange(own),
        }
    }

    /// Reports to the launcher that this process has ended its part, so that the end of the process is no failure. It does not wait for the others.
    pub fn finalize(self) -> Result<(), JoinError> {
        match self.session {
            Session::Alone => Ok(()),
            Session::Pmi1(client) => client.finalize(),
            Session::Pmix(client) => client.finalize(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_alone_gets_its_own_bytes_once() {
        let mut job = Job { session: Session::Alone, exchanged: false };
        assert_eq!((job.rank(), job.size(), job.launcher()), (0, 1, Launcher::Alone));
        let long = [0; EXCHANGE_BYTES_MAX + 1];
        assert_eq!(job.exchange(&long), Err(JoinError::TooLong { bytes: long.len() }));
        assert_eq!(job.exchange(b"here"), Ok(vec![b"here".to_vec()]));
        assert_eq!(job.exchange(b"here"), Err(JoinError::ExchangedBefore));
        assert_eq!(job.finalize(), Ok(()));
    }
}
