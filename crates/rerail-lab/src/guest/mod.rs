//! Nodes as QEMU guests, each with a kernel of its own and RDMA devices on its rails.
//!
//! A guest stands in its node's namespaces: what is a rail's interface there carries the frames of the guest's adapter, over a
//! bridge and a TAP interface. So cuts, rates and counters are those of any other lab. What the guest sees of itself, its link
//! and its power, is QEMU's business. The guest's disk is this machine's, read-only under a layer in memory; the lab's directory
//! and the user's working directory are shared with it, writable.
//!
//! ```text
//! guest n0: rail0 (10.1.0.1, device rdma0) ─ QEMU ─ tap ─ bridge ─ rail0 of the node's namespace ─ … the other nodes
//! ```
//!
//! Owns: QEMU's processes, children of the supervisor, so none outlives the lab.

mod agent;
mod call;
mod caller;
mod kit;
mod qmp;

pub use agent::main as agent_main;
pub use call::Call;
pub use caller::run as call_guest;
pub use kit::{DIR_ENV, Kit};

use crate::error::Attempt;
use crate::node::Node;
use crate::rdma::Rdma;
use crate::schedule::Power;
use crate::sys;
use crate::tool::Tools;
use crate::topology::{MGMT, Topology, mgmt_address, mgmt_mac, node_name, rail_mac, rail_name};
use crate::{LabError, RUN_DIR};
use serde_json::json;
use std::ffi::OsString;
use std::fmt::Write;
use std::fs::{self, File};
use std::io;
use std::net::Ipv4Addr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// How long a guest may take to boot; it needs some ten seconds of a core without KVM.
const BOOT_PATIENCE: Duration = Duration::from_secs(180);
/// How often to look meanwhile.
const BOOT_POLL: Duration = Duration::from_millis(50);
/// Memory of a guest, MiB.
const MEMORY_MIB: u32 = 1500;
/// MTU of the rails: room for RoCE's largest packets, 4096 bytes and headers.
const RAIL_MTU_BYTES: u32 = 4200;
/// Kernel modules of every guest. The kernel cannot load any by itself, because what it would start lies on another root.
const MODULES: &str = "crc32_generic crc32c_generic ib_uverbs rdma_ucm nf_tables unix_diag tcp_diag udp_diag inet_diag netlink_diag af_packet_diag tun";

/// In the lab's directory: what a node's agent runs first.
fn set_up_path(number: usize) -> PathBuf {
    Path::new(RUN_DIR).join(format!("set-up.{}", node_name(number)))
}

/// In the lab's directory: appears when the agent listens, and has what went wrong.
fn ready_path(number: usize) -> PathBuf {
    Path::new(RUN_DIR).join(format!("ready.{}", node_name(number)))
}

/// In the lab's directory: is there while a guest has no power.
pub fn off_path(name: &str) -> PathBuf {
    Path::new(RUN_DIR).join(format!("off.{name}"))
}

/// In the lab's directory: what the provider writes in a node. One file for each, because guests cannot append to a common one.
fn events_path(number: usize) -> PathBuf {
    Path::new(RUN_DIR).join(format!("events.{}", node_name(number)))
}

/// In every guest: leads to its own file of events.
pub const EVENTS_LINK: &str = "/run/rerail-events";

fn console_path(number: usize) -> PathBuf {
    Path::new(RUN_DIR).join(format!("console.{}", node_name(number)))
}

fn monitor_path(number: usize) -> PathBuf {
    Path::new(RUN_DIR).join(format!("monitor.{}", node_name(number)))
}

/// One guest.
#[derive(Debug)]
enum State {
    Runs { qemu: libc::pid_t, paused: bool },
    Off,
}

/// All guests of a lab.
pub struct Guests {
    topology: Topology,
    kit: Kit,
    kind: Rdma,
    qemu: PathBuf,
    cores: Vec<Option<Vec<usize>>>,
    states: Vec<State>,
}

impl Guests {
    /// Boots one in each node and waits until all answer. The nodes' interfaces must be there.
    pub fn boot(
        topology: &Topology,
        kind: Rdma,
        kit: Kit,
        tools: &Tools,
        nodes: &[Node],
        cores: &[Option<Vec<usize>>],
    ) -> Result<Guests, LabError> {
        let path = OsString::from("/usr/local/bin:/usr/bin:/bin");
        let qemu = crate::find_program("qemu-system-x86_64", &std::env::var_os("PATH").unwrap_or_default())
            .or_else(|| crate::find_program("qemu-system-x86_64", &path))
            .ok_or_else(|| {
                LabError::Refused(
                    "nodes as guests need QEMU: install it (Debian: `apt-get install qemu-system-x86`)"
                        .into(),
                )
            })?;
        let mut guests = Guests {
            topology: topology.clone(),
            kit,
            kind,
            qemu,
            cores: cores.to_vec(),
            states: nodes.iter().map(|_| State::Off).collect(),
        };
        guests.share()?;
        for (number, node) in nodes.iter().enumerate() {
            let batch = plugs(topology, number);
            tools.run("ip", &["-batch", "-"], &batch, Some(node.network())).map_err(|error| {
                LabError::Refused(format!(
                    "a guest cannot be plugged into its node ({error}): guests need /dev/net/tun and the kernel's bridge"
                ))
            })?;
        }
        for (number, node) in nodes.iter().enumerate() {
            guests.start(number, node)?;
        }
        for number in 0..nodes.len() {
            guests.wait(number)?;
        }
        Ok(guests)
    }

    /// Writes what the guests read at boot.
    fn share(&self) -> Result<(), LabError> {
        let agent = std::env::current_exe().attempt(|| "find this executable".into())?;
        let here = std::env::current_dir().attempt(|| "find the working directory".into())?;
        let text = boot_script(&agent, &self.kit.modules, &here);
        let path = Path::new(RUN_DIR).join("boot.sh");
        fs::write(&path, text).attempt(|| format!("write {}", path.display()))?;
        for number in 0..self.states.len() {
            let path = set_up_path(number);
            fs::write(&path, set_up_script(&self.topology, self.kind, number))
                .attempt(|| format!("write {}", path.display()))?;
            fs::write(events_path(number), "").attempt(|| "make the files of events".into())?;
        }
        Ok(())
    }

    /// Starts QEMU; the guest then boots by itself.
    fn start(&mut self, number: usize, node: &Node) -> Result<(), LabError> {
        let what = || format!("start the guest of node {number}");
        for path in [ready_path(number), monitor_path(number), off_path(&node_name(number))] {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error).attempt(what),
                _ => {}
            }
        }
        let log = File::options().create(true).append(true).open(qemu_log(number)).attempt(what)?;
        let here = std::env::current_dir().attempt(what)?;
        let mut command = Command::new(&self.qemu);
        command.args(qemu_arguments(&self.topology, &self.kit, number, &here));
        command.stdin(Stdio::null()).stdout(log.try_clone().attempt(what)?).stderr(log);
        // The terminal's signals are for the program.
        command.process_group(0);
        node.place(&mut command, self.cores[number].clone()).attempt(what)?;
        let qemu = command.spawn().attempt(what)?.id() as libc::pid_t;
        self.states[number] = State::Runs { qemu, paused: false };
        Ok(())
    }

    /// Waits until a guest answers.
    fn wait(&mut self, number: usize) -> Result<(), LabError> {
        let end = Instant::now() + BOOT_PATIENCE;
        let State::Runs { qemu, .. } = self.states[number] else { unreachable!("it was started") };
        loop {
            // The whole line, so that a file that is being written is not taken for one.
            if let Ok(word) = fs::read_to_string(ready_path(number))
                && let Some(word) = word.strip_suffix('\n')
            {
                if word.is_empty() {
                    return Ok(());
                }
                return Err(LabError::Refused(format!(
                    "node {number} could not be set up in its guest: {word}"
                )));
            }
            let ended = sys::has_ended(qemu);
            if ended || Instant::now() > end {
                let why = if ended { "ended" } else { "does not come up" };
                return Err(LabError::Refused(format!("the guest of node {number} {why}: {}", said(number))));
            }
            thread::sleep(BOOT_POLL);
        }
    }

    /// Plugs a guest's cable in or out, as the guest sees it.
    pub fn carrier(&self, number: usize, rail: usize, on: bool) -> Result<(), LabError> {
        if let State::Off = self.states[number] {
            // A guest that boots later is told then.
            return Ok(());
        }
        let arguments = json!({"name": adapter(&rail_name(rail)), "up": on});
        qmp::command(&monitor_path(number), "set_link", arguments)
            .attempt(|| format!("set the link of {} at node {number}", rail_name(rail)))
    }

    /// Does something to a whole node.
    pub fn power(&mut self, number: usize, node: &Node, what: Power) -> Result<(), LabError> {
        let refused = |why: &str| Err(LabError::Input(format!("node {number} {why}")));
        let command = |name| {
            qmp::command(&monitor_path(number), name, json!({})).attempt(|| format!("{what} node {number}"))
        };
        match (&mut self.states[number], what) {
            (State::Off, Power::Boot) => self.start(number, node),
            (State::Runs { .. }, Power::Boot) => refused("has power already: `kill` takes it away"),
            (State::Off, _) => refused("has no power: `boot` gives it back"),
            (State::Runs { qemu, .. }, Power::Kill) => {
                let qemu = *qemu;
                self.states[number] = State::Off;
                let path = off_path(&node_name(number));
                fs::write(&path, "").attempt(|| format!("write {}", path.display()))?;
                sys::kill(qemu, libc::SIGKILL);
                sys::wait_for(qemu);
                Ok(())
            }
            (State::Runs { paused: true, .. }, Power::Pause) => refused("is paused already"),
            (State::Runs { paused: false, .. }, Power::Resume) => refused("is not paused"),
            (State::Runs { paused, .. }, Power::Pause | Power::Resume) => {
                let pause = what == Power::Pause;
                command(if pause { "stop" } else { "cont" })?;
                *paused = pause;
                Ok(())
            }
        }
    }

    /// The node whose guest is this process.
    pub fn of_process(&self, pid: libc::pid_t) -> Option<usize> {
        self.states.iter().position(|state| matches!(state, State::Runs { qemu, .. } if *qemu == pid))
    }

    /// What QEMU and the guest's kernel said last.
    pub fn last_words(&self, number: usize) -> String {
        said(number)
    }

    /// Everything that the provider wrote in the guests, and the lab itself did not see.
    pub fn events(&self) -> Vec<u8> {
        (0..self.states.len()).flat_map(|number| fs::read(events_path(number)).unwrap_or_default()).collect()
    }

    /// Keeps the guests' consoles.
    pub fn keep_consoles(&self, dir: &Path) -> io::Result<()> {
        (0..self.states.len()).try_for_each(|number| {
            fs::copy(console_path(number), dir.join(format!("console.{}", node_name(number)))).map(drop)
        })
    }
}

fn qemu_log(number: usize) -> PathBuf {
    Path::new(RUN_DIR).join(format!("qemu.{}", node_name(number)))
}

fn said(number: usize) -> String {
    let read = |path| String::from_utf8_lossy(&fs::read(path).unwrap_or_default()).into_owned();
    let text = read(qemu_log(number)) + &read(console_path(number));
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(5)..].join("; ")
}

/// The interfaces that a guest has.
fn interfaces(topology: &Topology, number: usize) -> Vec<(String, String)> {
    let rails = (0..topology.rails.len()).map(|rail| (rail_name(rail), rail_mac(rail, number)));
    rails.chain([(MGMT.to_string(), mgmt_mac(number))]).collect()
}

/// The TAP interface through which a guest has the one of this name.
fn tap(name: &str) -> String {
    format!("t-{name}")
}

/// QEMU's name for a guest's adapter.
fn adapter(name: &str) -> String {
    format!("nic-{name}")
}

/// The lab's own address in a node on the management network; the guest has the node's.
fn lab_address(number: usize) -> Ipv4Addr {
    let [a, b, c, node] = mgmt_address(number).octets();
    Ipv4Addr::new(a, b, c, node + 128)
}

/// Joins each interface of a node's namespace with one of the guest, for `ip -batch`.
fn plugs(topology: &Topology, number: usize) -> String {
    let mut batch = String::new();
    for (name, _) in interfaces(topology, number) {
        let (bridge, tap) = (format!("b-{name}"), tap(&name));
        writeln!(batch, "tuntap add dev {tap} mode tap").expect("String");
        writeln!(batch, "link add name {bridge} type bridge stp_state 0 forward_delay 0 mcast_snooping 0")
            .expect("String");
        for port in [&name, &tap] {
            if name != MGMT {
                writeln!(batch, "link set dev {port} mtu {RAIL_MTU_BYTES}").expect("String");
            }
            writeln!(batch, "link set dev {port} master {bridge} up").expect("String");
        }
        writeln!(batch, "link set dev {bridge} up").expect("String");
    }
    writeln!(batch, "address add {}/24 dev b-{MGMT}", lab_address(number)).expect("String");
    batch
}

/// Assignments that the guest's first process reads, in the language of the shell.
fn boot_script(agent: &Path, modules: &Path, here: &Path) -> String {
    // The root itself is there anyway, and cannot be mounted on itself.
    let here = if here == Path::new("/") { Path::new("") } else { here };
    let pairs = [("lab_dir", Path::new(RUN_DIR)), ("modules", modules), ("agent", agent), ("here", here)];
    pairs.iter().map(|(name, value)| format!("{name}={}\n", quoted(&value.to_string_lossy()))).collect()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// What a node's agent runs first, as root in the guest.
fn set_up_script(topology: &Topology, kind: Rdma, number: usize) -> String {
    let mut text = format!(
        "hostname {}\nmount -o bind {RUN_DIR}/hosts /etc/hosts\nln -sfn {} {EVENTS_LINK}\n",
        node_name(number),
        events_path(number).display()
    );
    text.push_str(
        "name() { for d in /sys/class/net/*; do [ \"$(cat $d/address)\" != $1 ] || ip link set dev ${d##*/} name $2; done; }\n",
    );
    for (name, mac) in interfaces(topology, number) {
        writeln!(text, "name {mac} {name}").expect("String");
    }
    // One answer for each address, on the link that has it: rails are separate networks.
    text.push_str(
        "for s in ipv6/conf/all/disable_ipv6=1 ipv4/conf/all/arp_ignore=1 ipv4/conf/all/arp_announce=2; do echo ${s#*=} > /proc/sys/net/${s%=*}; done\n",
    );
    writeln!(text, "for m in {MODULES}; do modprobe -q $m || true; done").expect("String");
    if let Some(name) = &topology.congctl {
        writeln!(text, "modprobe -q tcp_{name} || true").expect("String");
    }
    write!(text, "ip -batch - <<'END'\n{}END\n", topology.address_batch(number)).expect("String");
    match kind {
        Rdma::Roce => text.push_str("modprobe rdma_rxe\n"),
        Rdma::Iwarp => text.push_str("insmod /lib/modules/siw.ko\n"),
    }
    for rail in 0..topology.rails.len() {
        let (device, link) = (rail_name(rail), kind.link_type());
        writeln!(text, "ip link set dev {device} mtu {RAIL_MTU_BYTES}").expect("String");
        writeln!(text, "rdma link add {link}{rail} type {link} netdev {device}").expect("String");
    }
    text
}

fn qemu_arguments(topology: &Topology, kit: &Kit, number: usize, here: &Path) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(OsString::from));
    let text = |path: &Path| path.to_string_lossy().into_owned();
    // A comma within a value is written twice.
    let value = |path: &Path| text(path).replace(',', ",,");
    add(&["-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", &MEMORY_MIB.to_string()]);
    add(&["-nodefaults", "-display", "none", "-no-reboot"]);
    add(&["-serial", &format!("file:{}", value(&console_path(number)))]);
    add(&["-qmp", &format!("unix:{},server=on,wait=off", value(&monitor_path(number)))]);
    add(&["-kernel", &text(&kit.kernel), "-initrd", &text(&kit.initrd)]);
    // What the kernel does not know it gives to process 1 as a variable.
    add(&[
        "-append",
        &format!("console=ttyS0 quiet panic=-1 no_timer_check net.ifnames=0 mitigations=off node={number}"),
    ]);
    let shares =
        [("host", Path::new("/"), "readonly=on,"), ("lab", Path::new(RUN_DIR), ""), ("here", here, "")];
    for (tag, path, mode) in shares {
        let path = value(path);
        add(&[
            "-virtfs",
            &format!("local,path={path},mount_tag={tag},{mode}security_model=none,multidevs=remap"),
        ]);
    }
    for (name, mac) in interfaces(topology, number) {
        let mtu = if name == MGMT { 1500 } else { RAIL_MTU_BYTES };
        let (tap, adapter) = (tap(&name), adapter(&name));
        add(&["-netdev", &format!("tap,id={tap},ifname={tap},script=no,downscript=no")]);
        add(&[
            "-device",
            &format!("virtio-net-pci,id={adapter},netdev={tap},mac={mac},host_mtu={mtu},romfile="),
        ]);
    }
    arguments
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::Rate;
    use crate::topology::RailPlan;

    fn topology() -> Topology {
        let rails = vec![RailPlan::veth(Rate::Unshaped); 2];
        Topology { nodes: 2, rails, congctl: None, rdma: Some(Rdma::Roce), fabric: None }
    }

    #[test]
    fn the_adapter_of_a_guest_has_the_address_that_rules_and_names_go_by() {
        let kit = Kit { kernel: "/k".into(), initrd: "/i".into(), modules: "/m".into() };
        let arguments = qemu_arguments(&topology(), &kit, 1, Path::new("/a,b"));
        let line = arguments.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
        let script = set_up_script(&topology(), Rdma::Roce, 1);
        for rail in 0..2 {
            let (name, mac) = (rail_name(rail), rail_mac(rail, 1));
            assert!(line.contains(&format!("id=nic-{name},netdev=t-{name},mac={mac},")), "{line}");
            assert!(script.contains(&format!("name {mac} {name}\n")), "{script}");
            assert!(script.contains(&format!("rdma link add rxe{rail} type rxe netdev {name}\n")));
        }
        assert!(line.contains("path=/a,,b,"), "{line}");
        assert!(line.contains("path=/,mount_tag=host,readonly=on,"), "{line}");
        assert!(
            set_up_script(&topology(), Rdma::Iwarp, 0).contains("rdma link add siw1 type siw netdev rail1")
        );
    }

    #[test]
    fn interfaces_of_a_pair_of_guests_have_no_address_in_common_with_the_lab() {
        let batch = plugs(&topology(), 1);
        assert!(batch.contains("address add 10.250.0.130/24 dev b-mgmt"), "{batch}");
        assert!(!batch.contains("10.250.0.2/"), "that is the guest's: {batch}");
        for name in ["rail0", "rail1", "mgmt"] {
            assert!(batch.contains(&format!("link set dev {name} master b-{name} up")), "{batch}");
            assert!(batch.contains(&format!("link set dev t-{name} master b-{name} up")), "{batch}");
        }
    }

    #[test]
    fn a_path_with_a_quote_reaches_the_guest_and_the_root_is_not_mounted_on_itself() {
        let script = boot_script(Path::new("/it's/rerail"), Path::new("/m"), Path::new("/"));
        assert!(script.contains("agent='/it'\\''s/rerail'\n"), "{script}");
        assert!(script.contains("here=''\n"), "{script}");
    }
}
