//! What the environment says about the launcher. Owns: the order in which launchers are looked for, and the names of their variables.
//! Invariant: reads the environment only by the function that it is given, so that tests need not change that of the process.
//!
//! Sources: MPICH `src/pmi` (`PMI_FD`, `PMI_PORT`, `PMI_ID`); the PMIx standard 4.1 (`PMIX_NAMESPACE`); srun(1), "OUTPUT ENVIRONMENT VARIABLES";
//! Open MPI 5, "Environment variables". Hydra of Intel MPI sets the same `PMI_FD`, `PMI_RANK` and `PMI_SIZE` as that of MPICH.

use crate::error::JoinError;
use crate::place::Place;

/// Gives the value of a variable.
pub type Lookup<'a> = &'a dyn Fn(&str) -> Option<String>;

/// How the launcher is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// There is none.
    Alone,
    /// PMI-1 over an inherited socket.
    Descriptor {
        /// Its number.
        fd: i32,
        /// Where this process is in the job.
        place: Place,
    },
    /// PMI-1 over a connection that this process makes.
    Port {
        /// Name or address.
        host: String,
        /// TCP port.
        port: u16,
        /// How the process introduces itself.
        id: u64,
    },
    /// A PMIx server, which the library finds by itself.
    Pmix,
}

fn number(get: Lookup<'_>, name: &'static str) -> Result<Option<u64>, JoinError> {
    let wrong = |value: String| JoinError::Setting { name, value, wanted: "a number" };
    get(name).map(|value| value.trim().parse().map_err(|_| wrong(value))).transpose()
}

fn needed(get: Lookup<'_>, present: &'static str, missing: &'static str) -> Result<u64, JoinError> {
    number(get, missing)?.ok_or(JoinError::Missing { present, missing })
}

/// The place of a launcher that listens, as `host:port` or `[host]:port`.
fn address(value: &str) -> Option<(String, u16)> {
    let (host, port) = value.trim().rsplit_once(':')?;
    let host = host.strip_prefix('[').map_or(Some(host), |host| host.strip_suffix(']'))?;
    (!host.is_empty()).then_some((host.to_owned(), port.parse().ok().filter(|port| *port != 0)?))
}

/// Decides which launcher there is. PMI-1 comes first: a launcher with PMI-1 that runs inside a job of Slurm or Open MPI passes the variables of
/// the outer job on.
pub fn source(get: Lookup<'_>) -> Result<Source, JoinError> {
    if let Some(value) = get("PMI_FD") {
        let Some(fd) = value.trim().parse().ok().filter(|fd| *fd >= 0) else {
            return Err(JoinError::Setting { name: "PMI_FD", value, wanted: "the number of a descriptor" });
        };
        let place = Place::new(needed(get, "PMI_FD", "PMI_RANK")?, needed(get, "PMI_FD", "PMI_SIZE")?)?;
        return Ok(Source::Descriptor { fd, place });
    }
    if let Some(value) = get("PMI_PORT") {
        let Some((host, port)) = address(&value) else {
            return Err(JoinError::Setting { name: "PMI_PORT", value, wanted: "of the form host:port" });
        };
        let id = match number(get, "PMI_ID")? {
            Some(id) => id,
            None => number(get, "PMI_RANK")?
                .ok_or(JoinError::Missing { present: "PMI_PORT", missing: "PMI_ID" })?,
        };
        return Ok(Source::Port { host, port, id });
    }
    if get("PMIX_NAMESPACE").is_some() {
        return Ok(Source::Pmix);
    }
    if get("SLURM_PROCID").is_some() {
        if let Some(tasks) = number(get, "SLURM_NTASKS")?.filter(|tasks| *tasks > 1) {
            return Err(JoinError::Slurm { tasks });
        }
    }
    match number(get, "OMPI_COMM_WORLD_SIZE")?.filter(|size| *size > 1) {
        Some(size) => Err(JoinError::OpenMpi { size }),
        None => Ok(Source::Alone),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(variables: &str) -> Result<Source, JoinError> {
        let all: Vec<_> = variables.split_whitespace().filter_map(|word| word.split_once('=')).collect();
        source(&|name| all.iter().find(|(n, _)| *n == name).map(|(_, value)| (*value).to_owned()))
    }

    #[test]
    fn each_launcher_is_known_by_its_variables() {
        let place = Place::new(2, 3).unwrap();
        let port = |host: &str, id| Source::Port { host: host.to_owned(), port: 4711, id };
        let table = [
            ("", Source::Alone),
            // rerail launch, MPICH
            ("PMI_FD=9 PMI_RANK=2 PMI_SIZE=3", Source::Descriptor { fd: 9, place }),
            // Intel MPI
            (
                "PMI_FD=9 PMI_RANK=2 PMI_SIZE=3 HYDRA_BSTRAP_LAUNCHER=ssh I_MPI_HYDRA_UUID=0a",
                Source::Descriptor { fd: 9, place },
            ),
            // srun --mpi=pmi2
            (
                "PMI_FD=14 PMI_RANK=2 PMI_SIZE=3 SLURM_PROCID=2 SLURM_NTASKS=3",
                Source::Descriptor { fd: 14, place },
            ),
            // Hydra inside an allocation that Open MPI or Slurm began
            ("PMIX_NAMESPACE=a@1 PMI_FD=9 PMI_RANK=2 PMI_SIZE=3", Source::Descriptor { fd: 9, place }),
            ("PMI_PORT=10.0.0.1:4711 PMI_ID=2", port("10.0.0.1", 2)),
            ("PMI_PORT=node7:4711 PMI_RANK=1", port("node7", 1)),
            ("PMI_PORT=[fd00::1]:4711 PMI_ID=0", port("fd00::1", 0)),
            ("PMIX_NAMESPACE=prterun-a-1@1 OMPI_COMM_WORLD_SIZE=3", Source::Pmix),
            // srun --mpi=pmix
            ("PMIX_NAMESPACE=slurm.pmix.1.0 SLURM_PROCID=1 SLURM_NTASKS=2", Source::Pmix),
            ("SLURM_PROCID=0 SLURM_NTASKS=1", Source::Alone),
            // a shell in an allocation, which is no task
            ("SLURM_NTASKS=8", Source::Alone),
            ("OMPI_COMM_WORLD_SIZE=1", Source::Alone),
        ];
        for (variables, want) in table {
            assert_eq!(of(variables), Ok(want), "{variables}");
        }
    }

    #[test]
    fn an_environment_that_no_launcher_sets_is_an_error_that_says_what_to_do() {
        let table = [
            ("PMI_FD=x PMI_RANK=0 PMI_SIZE=1", "PMI_FD=\"x\""),
            ("PMI_FD=-1 PMI_RANK=0 PMI_SIZE=1", "PMI_FD=\"-1\""),
            ("PMI_FD=9 PMI_SIZE=1", "PMI_RANK is not"),
            ("PMI_FD=9 PMI_RANK=0", "PMI_SIZE is not"),
            ("PMI_FD=9 PMI_RANK=-1 PMI_SIZE=1", "PMI_RANK=\"-1\" is not a number"),
            ("PMI_FD=9 PMI_RANK=3 PMI_SIZE=3", "rank 3 of 3"),
            ("PMI_FD=9 PMI_RANK=0 PMI_SIZE=0", "rank 0 of 0"),
            ("PMI_FD=9 PMI_RANK=0 PMI_SIZE=65537", "at most 65536"),
            ("PMI_FD=9 PMI_RANK=0 PMI_SIZE=99999999999999999999", "PMI_SIZE="),
            ("PMI_PORT=4711 PMI_ID=0", "host:port"),
            ("PMI_PORT=node7:0 PMI_ID=0", "host:port"),
            ("PMI_PORT=node7:65536 PMI_ID=0", "host:port"),
            ("PMI_PORT=:4711 PMI_ID=0", "host:port"),
            ("PMI_PORT=[fd00::1:4711 PMI_ID=0", "host:port"),
            ("PMI_PORT=node7:4711", "PMI_ID is not"),
            ("SLURM_PROCID=0 SLURM_NTASKS=2", "srun --mpi=pmi2"),
            ("SLURM_PROCID=0 SLURM_NTASKS=many", "SLURM_NTASKS"),
            ("OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_RANK=0", "PMIX_NAMESPACE"),
        ];
        for (variables, want) in table {
            let why = of(variables).expect_err(variables).to_string();
            assert!(why.contains(want), "{variables}: {why}");
        }
    }
}
