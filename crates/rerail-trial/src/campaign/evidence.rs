//! What is written down of a job that hangs, before it is ended: where each thread of it waits, and what its sockets hold.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use xtask::workspace::{has_program, rerail};

/// What can be read of a process without disturbing it, and of its threads.
const OF_PROCESS: [&str; 3] = ["status", "limits", "maps"];
const OF_THREAD: [&str; 4] = ["comm", "wchan", "stack", "syscall"];
/// Programs of the lab and the launchers: they are not what hangs.
const NOT_RANKS: [&str; 9] = [
    "rerail",
    "mpiexec",
    "mpiexec.hydra",
    "mpirun",
    "hydra_pmi_proxy",
    "hydra_bstrap_pr",
    "prterun",
    "prted",
    "sh",
];

/// Writes into `dir/hang` what is to be known of lab `name`. Never fails: what cannot be had is left out.
pub fn collect(name: &str, dir: &Path) {
    let dir = dir.join("hang");
    if fs::create_dir_all(&dir).is_err() {
        return;
    }
    let write = |name: String, text: String| {
        let _ = fs::write(dir.join(name), text);
    };
    let rerail = rerail();
    write("lab.json".into(), said(Command::new(&rerail).args(["lab", "status", "--json", "--name", name])));
    for node in ["0", "1"] {
        for (file, command) in [
            ("sockets", ["ss", "-tuinmpe"].as_slice()),
            ("links", &["ip", "-s", "address"]),
            ("rules", &["nft", "list", "ruleset"]),
        ] {
            let mut inside = Command::new(&rerail);
            inside.args(["lab", "exec", node, "--name", name, "--"]).args(command);
            write(format!("{file}.n{node}"), said(&mut inside));
        }
    }
    for pid in ranks_of(name) {
        let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let mut text = format!("{}\n", read("cmdline").replace('\0', " "));
        for file in OF_PROCESS {
            let _ = writeln!(text, "== {file}\n{}", read(file));
        }
        for thread in entries(&format!("/proc/{pid}/task")) {
            for file in OF_THREAD {
                let _ = writeln!(text, "== task {thread} {file}\n{}", read(&format!("task/{thread}/{file}")));
            }
        }
        write(format!("process.{pid}"), text);
        if has_program("gdb") {
            let mut debugger = Command::new("timeout");
            debugger.args(["30", "gdb", "-p", &pid.to_string(), "-batch", "-nx"]);
            debugger.args(["-ex", "set pagination off", "-ex", "thread apply all backtrace 40"]);
            write(format!("backtrace.{pid}"), said(&mut debugger));
        }
    }
}

/// What a command prints, errors included.
fn said(command: &mut Command) -> String {
    match command.output() {
        Ok(output) => {
            String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
        }
        Err(error) => format!("{error}\n"),
    }
}

fn entries(dir: &str) -> Vec<u32> {
    let list = fs::read_dir(dir).into_iter().flatten().flatten();
    let mut numbers: Vec<u32> = list.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    numbers.sort_unstable();
    numbers
}

/// The processes of the program in lab `name`: those whose environment names the lab, without launchers.
pub fn ranks_of(name: &str) -> Vec<u32> {
    let wanted = format!("RERAIL_LAB={name}");
    let is_rank = |pid: &u32| {
        let comm = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        !NOT_RANKS.contains(&comm.trim())
            && environment.split(|&byte| byte == 0).any(|item| item == wanted.as_bytes())
    };
    entries("/proc").into_iter().filter(is_rank).collect()
}

/// Inodes of the connected UDP sockets in the network namespace of a process: proc_pid_net(5).
fn connected_sockets(pid: u32) -> Vec<String> {
    let table = |name: &str| fs::read_to_string(format!("/proc/{pid}/net/{name}")).unwrap_or_default();
    let inode = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        let connected = !words.get(2)?.split(':').next()?.bytes().all(|digit| digit == b'0');
        if connected { words.get(9).map(|inode| format!("socket:[{inode}]")) } else { None }
    };
    ["udp", "udp6"]
        .iter()
        .flat_map(|name| table(name).lines().skip(1).filter_map(inode).collect::<Vec<_>>())
        .collect()
}

/// What a process holds: descriptors, connected UDP sockets (which are not among those), threads, resident memory in KiB, by these names.
pub fn holdings(pid: u32) -> Option<BTreeMap<&'static str, u64>> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let number = |name: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(name))?;
        line.split_whitespace().next()?.parse().ok()
    };
    let connections = connected_sockets(pid);
    let is_connection = |fd: &u32| {
        let target = fs::read_link(format!("/proc/{pid}/fd/{fd}")).unwrap_or_default();
        connections.iter().any(|socket| target.as_os_str() == socket.as_str())
    };
    let (connected, others): (Vec<u32>, Vec<u32>) =
        entries(&format!("/proc/{pid}/fd")).into_iter().partition(is_connection);
    let holdings = [
        ("descriptors", others.len() as u64),
        ("connected_sockets", connected.len() as u64),
        ("threads", number("Threads:")?),
        ("memory_kib", number("VmRSS:")?),
    ];
    Some(holdings.into())
}
