//! What the tests of the lab share. Needs root or unprivileged user namespaces.
//!
//! Where neither is to be had, every test says SKIPPED on standard error; with `RERAIL_REQUIRE_LAB=1` it fails instead.

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

pub const RERAIL: &str = env!("CARGO_BIN_EXE_rerail");
/// A bound on how long something that must happen may take; not a measurement.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn rerail(arguments: &[&str]) -> Command {
    let mut command = Command::new(RERAIL);
    command.arg("lab").args(arguments);
    command.stdin(Stdio::null());
    command
}

pub fn output(arguments: &[&str]) -> Output {
    rerail(arguments).output().unwrap()
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A name no other lab on this machine has.
pub fn unique(word: &str) -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{word}-{}-{count}", std::process::id())
}

/// Whether this machine can make a lab with such a rail; says so loudly if not.
pub fn lab_is_possible(rail: &str) -> bool {
    let name = unique("probe");
    let probe = output(&["run", "-q", "--mpi", "none", "--name", &name, "--rail", rail, "--", "true"]);
    if probe.status.success() {
        return true;
    }
    let why = text(&probe.stderr);
    assert!(
        env::var_os("RERAIL_REQUIRE_LAB").is_none(),
        "RERAIL_REQUIRE_LAB is set, and no lab can be made: {why}"
    );
    // Not eprintln!, which the test harness hides when the test passes.
    let test = thread::current().name().unwrap_or("?").to_string();
    let _ = std::io::stderr().write_all(format!("SKIPPED: {test}: {why}\n").as_bytes());
    false
}

macro_rules! need_lab {
    () => {
        need_lab!("unshaped");
    };
    ($rail:literal) => {
        if !world::lab_is_possible($rail) {
            return;
        }
    };
}

/// A lab that stays up until dropped.
pub struct Lab {
    pub name: String,
}

impl Lab {
    pub fn up(shape: &[&str]) -> Lab {
        let name = unique("test");
        let mut arguments = vec!["up", "-q", "--detach", "--name", &name];
        arguments.extend(shape);
        let up = output(&arguments);
        assert!(up.status.success(), "{}", text(&up.stderr));
        Lab { name }
    }

    pub fn command(&self, words: &str) -> Output {
        let mut arguments: Vec<&str> = words.split(' ').collect();
        arguments.extend(["--name", &self.name]);
        output(&arguments)
    }

    /// Cuts, heals or shapes.
    pub fn act(&self, words: &str) {
        let done = self.command(words);
        assert!(done.status.success(), "{words}: {}", text(&done.stderr));
    }

    pub fn exec(&self, node: usize, words: &[&str]) -> Command {
        let node = node.to_string();
        let mut command = rerail(&["exec", &node, "--name", &self.name, "--"]);
        command.args(words);
        command
    }

    pub fn read(&self, node: usize, words: &[&str]) -> String {
        let output = self.exec(node, words).output().unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).trim().to_string()
    }

    /// This executable in a node, in a role.
    pub fn play(&self, node: usize, role: &str) -> Actor {
        let me = env::current_exe().unwrap();
        let mut command =
            self.exec(node, &[me.to_str().unwrap(), "--exact", "role_in_a_node", "--ignored", "--nocapture"]);
        command.env("RERAIL_TEST_ROLE", role);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Actor { child, lines }
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        output(&["down", "--name", &self.name]);
    }
}

/// A program in a node, and what it says.
pub struct Actor {
    pub child: Child,
    pub lines: BufReader<ChildStdout>,
}

impl Actor {
    pub fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            let read = self.lines.read_line(&mut line).unwrap();
            assert!(read > 0, "the program in the node ended without a word");
            // The harness prints the test's name before the first line, without a line end.
            if let Some((_, said)) = line.split_once('@') {
                return said.trim().to_string();
            }
        }
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "never came true: {what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Processes whose command line contains `word`.
pub fn processes_with(word: &str) -> usize {
    fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| fs::read(entry.ok()?.path().join("cmdline")).ok())
        .filter(|line| text(line).contains(word))
        .count()
}

pub fn temporary(name: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_TARGET_TMPDIR")).join(unique(name));
    fs::create_dir_all(&dir).unwrap();
    dir
}

pub fn say(words: &str) {
    let mut stdout = std::io::stdout();
    // The parent may have heard enough and gone.
    let _ = stdout.write_all(format!("@{words}\n").as_bytes());
}

/// A lab with a program in it that never ends, known by a word on its command line. `wires` is how many of its rails are wires.
pub fn endless(rails: &[&str], wires: usize, setting: impl FnOnce(&mut Command)) -> (Child, String, String) {
    let (name, word) = (unique("endless"), unique("marker"));
    let program = format!(": {word}; trap '' INT TERM HUP; while :; do sleep 100; done");
    let mut command = rerail(&["run", "-q", "--mpi", "none", "--name", &name]);
    command.args(rails).args(["--", "sh", "-c"]).arg(program);
    setting(&mut command);
    let child = command.spawn().unwrap();
    // Session, supervisor, two holders, two programs, and each wire's own.
    eventually("the program runs", || processes_with(&word) == 6 + wires);
    (child, name, word)
}

pub fn nothing_is_left(name: &str, word: &str, links_before: &str) {
    eventually("no process is left", || processes_with(word) == 0);
    eventually("no socket is left", || !text(&output(&["list"]).stdout).lines().any(|lab| lab == name));
    assert_eq!(host_links(), links_before);
    assert!(!Path::new("/dev/shm/rerail-lab").exists());
}

pub fn host_links() -> String {
    let mut names: Vec<String> = fs::read_dir("/sys/class/net")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names.join(" ")
}
