//! Why a process could not join its job. Owns: the sentences. Invariant: each says what to do.

/// Why a process could not join its job, or could not exchange addresses; each is a sentence for the user.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum JoinError {
    /// A variable of the environment has a value that no launcher sets.
    #[error(
        "{name}={value:?} is not {wanted}: start the program by its launcher, without setting {name} by hand"
    )]
    Setting {
        /// The variable.
        name: &'static str,
        /// Its value.
        value: String,
        /// What it should be.
        wanted: &'static str,
    },
    /// A variable of the environment is missing.
    #[error(
        "{present} is set, but {missing} is not: start the program by its launcher, and pass on its whole environment"
    )]
    Missing {
        /// The variable that is set.
        present: &'static str,
        /// The variable that belongs to it.
        missing: &'static str,
    },
    /// The rank is not below the size, or the size is out of bounds.
    #[error(
        "the launcher gives this process rank {rank} of {size}: start at least 1 and at most {} processes, whose ranks begin at 0",
        crate::place::SIZE_MAX
    )]
    Place {
        /// The rank.
        rank: u64,
        /// The size.
        size: u64,
    },
    /// Slurm started several processes without PMI.
    #[error(
        "Slurm started {tasks} tasks without PMI: start them with `srun --mpi=pmi2`, or unset SLURM_PROCID to run one process alone"
    )]
    Slurm {
        /// How many.
        tasks: u64,
    },
    /// Open MPI's mpirun started several processes without PMIx.
    #[error(
        "Open MPI started {size} processes, but PMIX_NAMESPACE is not set: pass on the whole environment of mpirun, of Open MPI 5 or later"
    )]
    OpenMpi {
        /// How many.
        size: u64,
    },
    /// The process has joined before.
    #[error("this process has joined its job before: call join() once, and keep its result")]
    JoinedBefore,
    /// The process has exchanged before.
    #[error("this process has exchanged bytes before: call exchange() once for each job")]
    ExchangedBefore,
    /// The process gives more than an exchange takes.
    #[error("an exchange takes at most {} bytes of each process, not {bytes}", crate::EXCHANGE_BYTES_MAX)]
    TooLong {
        /// How many bytes it gives.
        bytes: usize,
    },
    /// The descriptor of the launcher is not a socket of this process.
    #[error(
        "PMI_FD={fd} is not an open socket ({why}): let the launcher start this program itself, or unset PMI_FD to run it alone"
    )]
    Descriptor {
        /// Its number.
        fd: i32,
        /// What the system reports.
        why: String,
    },
    /// The launcher does not accept a connection.
    #[error("the launcher at PMI_PORT={place} cannot be reached ({why}): check that it still runs")]
    Unreachable {
        /// Where it should be.
        place: String,
        /// What the system reports.
        why: String,
    },
    /// The connection to the launcher is lost.
    #[error("the connection to the launcher is lost at {request} ({why}): see what the launcher printed")]
    Lost {
        /// What was being requested.
        request: &'static str,
        /// What the system reports.
        why: String,
    },
    /// The launcher answered with what is no answer.
    #[error(
        "the launcher answered {request} with {answer:?}, which is not PMI-1: start the program by a launcher that has PMI-1 or PMIx"
    )]
    Answer {
        /// The request.
        request: &'static str,
        /// The beginning of the answer.
        answer: String,
    },
    /// The launcher refused a request.
    #[error("the launcher refused {request} ({answer:?}): see what the launcher printed")]
    Refused {
        /// The request.
        request: &'static str,
        /// The beginning of the answer.
        answer: String,
    },
    /// The launcher stores shorter values than an address needs.
    #[error(
        "the launcher stores values of {value_bytes_max} bytes with keys of {key_bytes_max}, too short for addresses: use another launcher"
    )]
    Maxes {
        /// Longest key.
        key_bytes_max: u64,
        /// Longest value.
        value_bytes_max: u64,
    },
    /// What another process gave is not what this library gives.
    #[error("rank {rank} gave no valid address: start the same version of the program on all hosts")]
    Peer {
        /// Its rank.
        rank: usize,
    },
    /// The PMIx library is not there, or is not the right one.
    #[error(
        "the launcher uses PMIx, but libpmix.so.2 cannot be used ({why}): add the directory of the launcher's own libpmix.so.2 to LD_LIBRARY_PATH"
    )]
    Library {
        /// What the linker reports.
        why: String,
    },
    /// A function of the PMIx library failed.
    #[error("{function} failed ({why}): see what the launcher printed")]
    Pmix {
        /// The function.
        function: &'static str,
        /// What the library reports.
        why: String,
    },
}
