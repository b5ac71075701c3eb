//! Identity of this host and of its boot, as hashes that peers compare (hazard H6).

use crate::sys;

/// FNV-1a, 64 bits: the same on every host and in every build, which is all that is asked of it.
fn hash(parts: &[&[u8]]) -> u64 {
    let mut h = 0xcbf2_9ce4_8422_2325u64;
    for p in parts {
        for b in p.iter().chain(&[0]) {
            h = (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    h
}

/// Hash of the host: its machine id and its name. The name, because containers and namespaces share a machine id and are
/// hosts of their own on the network.
pub(crate) fn host() -> u64 {
    let machine = std::fs::read("/etc/machine-id").unwrap_or_default();
    hash(&[b"host", &machine, sys::host_name().as_bytes()])
}

/// Hash of the boot.
pub(crate) fn boot() -> u64 {
    let id = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    hash(&[b"boot", &id])
}

/// Variables by which launchers tell a process its rank on its node: Hydra (MPICH, Intel MPI), Open MPI, MVAPICH, PALS, Slurm.
const LOCAL_RANK_VARIABLES: [&str; 5] = [
    "MPI_LOCALRANKID",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "MV2_COMM_WORLD_LOCAL_RANK",
    "PALS_LOCAL_RANKID",
    "SLURM_LOCALID",
];

/// Rank of this process on its node, if the launcher says it. `variable` reads the environment.
pub(crate) fn local_rank(variable: impl Fn(&str) -> Option<String>) -> Option<u32> {
    // a variable that is not a number is not meant for us: the next may be
    LOCAL_RANK_VARIABLES.iter().find_map(|name| variable(name)?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_launcher_says_the_rank_on_the_node() {
        let says = |name: &'static str, value: &'static str| {
            local_rank(move |asked| (asked == name).then(|| value.to_owned()))
        };
        assert_eq!(says("MPI_LOCALRANKID", "3"), Some(3));
        assert_eq!(says("OMPI_COMM_WORLD_LOCAL_RANK", "1"), Some(1));
        assert_eq!(says("SLURM_LOCALID", "7"), Some(7));
        assert_eq!(says("SLURM_LOCALID", "none"), None);
        assert_eq!(says("PATH", "1"), None);
    }

    #[test]
    fn identities_are_stable_and_different() {
        assert_eq!((host(), boot()), (host(), boot()));
        assert_ne!(host(), boot());
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
    }
}
