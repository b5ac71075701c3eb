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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn identities_are_stable_and_different() {
        assert_eq!((host(), boot()), (host(), boot()));
        assert_ne!(host(), boot());
        assert_ne!(hash(&[b"ab", b"c"]), hash(&[b"a", b"bc"]));
    }
}
