//! Adapters on Ethernet that are there and make no rail. Owns: what is read of them in sysfs, and the sentences.
//!
//! An adapter without an address is not found by its address, and that is what its user would look for.

use crate::device::SYSFS;
use crate::discover::{Found, addresses};
use std::fs::{read_dir, read_to_string};
use std::path::Path;

/// Where the kernel describes network interfaces.
const INTERFACES: &str = "/sys/class/net";
/// IFF_UP of `/sys/class/net/NAME/flags`.
const UP: u32 = 1;

/// Whether this node has any adapter.
pub fn has_adapter() -> bool {
    read_dir(SYSFS).is_ok_and(|mut all| all.next().is_some())
}

/// A sentence for each adapter that is not among these because of its interface.
pub fn sentences(found: &[Found]) -> Vec<String> {
    let with_address: Vec<String> = addresses().into_iter().map(|(interface, _, _)| interface).collect();
    of_folders(Path::new(SYSFS), Path::new(INTERFACES), found, &with_address)
}

fn of_folders(adapters: &Path, interfaces: &Path, found: &[Found], with_address: &[String]) -> Vec<String> {
    let names = read_dir(adapters).into_iter().flatten().flatten();
    let mut names: Vec<String> = names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
    names.sort_unstable();
    let sentence = |name: String| {
        let is_found = |f: &Found| f.name.split(':').next() == Some(&name);
        let interface = interface(&adapters.join(&name)).filter(|_| !found.iter().any(is_found))?;
        let flags = read_to_string(interfaces.join(&interface).join("flags")).ok()?;
        let flags = u32::from_str_radix(flags.trim().trim_start_matches("0x"), 16).ok()?;
        if flags & UP == 0 {
            return Some(format!(
                "the RDMA adapter {name} is not used, because its network interface {interface} is switched off: `ip link set {interface} up`"
            ));
        }
        (!with_address.contains(&interface)).then(|| {
            format!(
                "the RDMA adapter {name} is not used, because its network interface {interface} has no IP address: give it one with `ip address add`"
            )
        })
    };
    names.into_iter().filter_map(sentence).collect()
}

/// The network interface of an adapter's first port. Adapters in software name it themselves, others have it beside them.
fn interface(adapter: &Path) -> Option<String> {
    let ethernet =
        read_to_string(adapter.join("ports/1/link_layer")).is_ok_and(|kind| kind.trim() == "Ethernet");
    let of_file = |file: &str| read_to_string(adapter.join(file)).ok().map(|name| name.trim().to_owned());
    let beside = || read_dir(adapter.join("device/net")).ok()?.next()?.ok()?.file_name().into_string().ok();
    let named = of_file("parent").or_else(beside).or_else(|| of_file("ports/1/gid_attrs/ndevs/0"));
    named.filter(|name| ethernet && !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::discover::Address;
    use rerail_rail::Kind;
    use std::fs::{create_dir_all, remove_dir_all, write};

    #[test]
    fn an_adapter_whose_interface_is_off_or_has_no_address_has_a_sentence() {
        let root = std::env::temp_dir().join(format!("rerail-unused-{}", std::process::id()));
        let put = |path: &str, text: &str| {
            let path = root.join(path);
            create_dir_all(path.parent().unwrap()).unwrap();
            write(path, text).unwrap();
        };
        for (adapter, layer, interface_in, interface, flags) in [
            ("a0", "Ethernet\n", "parent", "eth0\n", "0x1002\n"),
            ("a1", "Ethernet\n", "ports/1/gid_attrs/ndevs/0", "eth1\n", "0x1003\n"),
            ("a2", "Ethernet\n", "parent", "eth2\n", "0x1003\n"),
            ("a3", "Ethernet\n", "parent", "eth3\n", "0x1002\n"),
            ("a4", "InfiniBand\n", "parent", "ib0\n", "0x1002\n"),
        ] {
            put(&format!("adapters/{adapter}/ports/1/link_layer"), layer);
            put(&format!("adapters/{adapter}/{interface_in}"), interface);
            put(&format!("interfaces/{}/flags", interface.trim()), flags);
        }
        create_dir_all(root.join("adapters/a5/device/net/eth5")).unwrap();
        put("adapters/a5/ports/1/link_layer", "Ethernet\n");
        put("interfaces/eth5/flags", "0x1003\n");
        let address = Address::Ip { ip: [10, 0, 0, 1].into(), prefix_bits: 24 };
        let found = Found { kind: Kind::ROCE, name: "a3:1".into(), interface: "eth3".into(), address };
        let all =
            of_folders(&root.join("adapters"), &root.join("interfaces"), &[found], &["eth2".to_owned()]);
        remove_dir_all(&root).unwrap();
        assert_eq!(all.len(), 3, "{all:?}");
        assert!(all[0].contains("adapter a0 ") && all[0].contains("eth0 is switched off"), "{all:?}");
        assert!(all[1].contains("adapter a1 ") && all[1].contains("eth1 has no IP address"), "{all:?}");
        assert!(all[2].contains("adapter a5 ") && all[2].contains("eth5 has no IP address"), "{all:?}");
    }
}
