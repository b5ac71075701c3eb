//! `rerail paths`, `rerail migrate` and `rerail faults` where there is nothing to ask. What they ask of a running program is in the
//! runtime's tests and in `cargo xtask accept --only request`.

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::process::{Command, Output};

struct Place(PathBuf);

impl Place {
    fn new(word: &str) -> Place {
        let dir = std::env::temp_dir().join(format!("rerail-cli-{word}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        fs::DirBuilder::new().mode(0o700).create(&dir).unwrap();
        Place(dir)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn rerail(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_rerail")).args(arguments).output().unwrap()
}

fn complaint(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn where_nobody_listens_one_sentence_says_so_and_leftovers_are_removed() {
    let place = Place::new("nobody");
    let dir = place.0.to_str().unwrap();
    // no process has this number: it is above what the kernel gives out
    let left = place.0.join("1073741824-1-0badcafe.sock");
    drop(UnixListener::bind(&left).unwrap());
    assert_eq!(
        complaint(&rerail(&["paths", "--dir", dir])),
        "rerail: none of your processes uses rerail now\n"
    );
    assert!(!left.exists());
    let said = complaint(&rerail(&["migrate", "--pid", "1", "--from", "a", "--to", "b", "--dir", dir]));
    assert!(said.starts_with("rerail: process 1 does not use rerail") && said.lines().count() == 1, "{said}");
    let gone = place.0.join("gone");
    let said = complaint(&rerail(&["migrate", "--home", "--socket", gone.to_str().unwrap()]));
    assert!(said.contains("no process listens at") && said.contains("has ended"), "{said}");
    let said = complaint(&rerail(&["migrate", "--home"]));
    assert_eq!(said, "rerail: say which process: --pid PID\n");
}

#[test]
fn two_processes_of_one_number_are_told_apart_by_their_sockets() {
    let place = Place::new("two");
    let _both = ["00000001", "00000002"]
        .map(|word| UnixListener::bind(place.0.join(format!("1073741824-{word}.sock"))).unwrap());
    let said =
        complaint(&rerail(&["migrate", "--home", "--pid", "1073741824", "--dir", place.0.to_str().unwrap()]));
    assert!(said.contains("several processes have this number: choose one with --socket"), "{said}");
}

#[test]
fn half_a_request_is_explained() {
    for (given, missing) in [(&[][..], "--from"), (&["--from", "a"], "--to"), (&["--to", "a"], "--from")] {
        let output = rerail(&[&["migrate", "--pid", "1"], given].concat());
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(said.contains(missing) && said.contains("Usage"), "{said}");
    }
}

#[test]
fn faults_need_a_process_or_all_of_them() {
    let place = Place::new("faults");
    let dir = place.0.to_str().unwrap();
    let said = complaint(&rerail(&["faults", "set", "--dir", dir, "all: loss=1%"]));
    assert_eq!(said, "rerail: say which process: --pid PID, or --all\n");
    for words in [&["show"][..], &["clear", "--all"], &["set", "--all", "all: loss=1%"]] {
        let said = complaint(&rerail(&[&["faults"], words, &["--dir", dir]].concat()));
        assert_eq!(said, "rerail: none of your processes uses rerail now\n", "{words:?}");
    }
}
