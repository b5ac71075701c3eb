//! The seeds of the fuzzer, replayed with any compiler: what was found once is never lost again.

use std::path::PathBuf;

fn seeds() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds")
}

#[test]
fn every_seed_of_every_target_breaks_no_promise() {
    for (name, target) in rerail_hostile::TARGETS {
        let dir = seeds().join(name);
        let mut files: Vec<PathBuf> = std::fs::read_dir(&dir)
            .unwrap_or_else(|e| panic!("every target has seeds, {}: {e}", dir.display()))
            .map(|f| f.expect("a directory can be read").path())
            .collect();
        files.sort();
        assert!(!files.is_empty(), "{name} has seeds");
        target(&[]);
        for file in files {
            let bytes = std::fs::read(&file).expect("a seed can be read");
            // when this panics the file is the last one named
            println!("{name}: {}", file.display());
            target(&bytes);
        }
    }
}

#[test]
fn every_target_has_its_program() {
    let manifest = std::fs::read_to_string(seeds().join("../Cargo.toml")).expect("the fuzz package");
    for (name, _) in rerail_hostile::TARGETS {
        assert!(
            manifest.contains(&format!("name = \"{name}\"")),
            "fuzz/Cargo.toml has no program for {name}"
        );
    }
}

/// Without the guidance of coverage, but everywhere: a fixed sequence of pseudo-random inputs, each shorter than `most` bytes.
fn random_inputs(mut state: u64, most: usize) -> impl Iterator<Item = Vec<u8>> {
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    std::iter::repeat_with(move || (0..next() as usize % most).map(|_| (next() >> 24) as u8).collect())
}

/// A target holds its promises for an input, which is kept if not.
fn holds(name: &str, bytes: &[u8]) {
    let target = rerail_hostile::target(name).expect("there is such a target");
    if let Err(e) = std::panic::catch_unwind(|| target(bytes)) {
        let file = std::env::temp_dir().join(format!("rerail-{name}-{}", std::process::id()));
        std::fs::write(&file, bytes).expect("the input is kept");
        eprintln!("replay: cargo run -p rerail-hostile -- {name} {}", file.display());
        std::panic::resume_unwind(e);
    }
}

#[test]
fn random_conversations_break_no_promise() {
    for bytes in random_inputs(0x9e37_79b9_7f4a_7c15, 600).take(ROUNDS) {
        for name in ["outsider", "insider"] {
            holds(name, &bytes);
        }
    }
}

#[test]
fn random_steps_reach_every_kind_of_message_between_nodes() {
    for bytes in random_inputs(0x2545_f491_4f6c_dd1d, 200).take(NODES_ROUNDS) {
        holds("nodes", &bytes);
    }
    println!("{}", rerail_hostile::nodes::TALLY.line());
    assert_eq!(rerail_hostile::nodes::TALLY.missing(), [""; 0], "never reached");
}

/// Jobs of random steps.
const NODES_ROUNDS: usize = 500;

#[test]
fn random_fences_and_groups_break_no_promise() {
    for mut bytes in random_inputs(0x5851_f42d_4c95_7f2d, 160).take(ROUNDS) {
        bytes.insert(0, 6);
        holds("launch", &bytes);
    }
}

#[test]
fn the_seeds_of_a_launcher_reach_every_answer() {
    for entry in std::fs::read_dir(seeds().join("join")).expect("there are seeds").flatten() {
        rerail_hostile::join::join(&std::fs::read(entry.path()).expect("it can be read"));
    }
    assert_eq!(rerail_hostile::join::TALLY.missing(), [""; 0], "never reached");
}

/// Conversations of each sort.
const ROUNDS: usize = 20_000;

#[test]
fn the_seeds_of_the_launcher_hold_every_message() {
    use rerail_launch::message::{ToAgent, ToLauncher, read};
    let (mut to_agent, mut to_launcher) = ([false; 6], [false; 9]);
    let (mut gives, mut wants) = ([false; 4], [false; 4]);
    for entry in std::fs::read_dir(seeds().join("launch")).expect("there are seeds").flatten() {
        let bytes = std::fs::read(entry.path()).expect("it can be read");
        let Some((4, message)) = bytes.split_first().map(|(which, rest)| (*which, rest)) else { continue };
        // the first byte is the number of the variant
        let variant = usize::from(message[0]);
        if let Some(read) = read::<ToAgent>(message) {
            to_agent[variant] = true;
            if matches!(read, ToAgent::Pmix(_)) {
                gives[usize::from(message[1])] = true;
            }
        }
        if let Some(read) = read::<ToLauncher>(message) {
            to_launcher[variant] = true;
            if matches!(read, ToLauncher::Pmix(_)) {
                wants[usize::from(message[1])] = true;
            }
        }
    }
    assert!(to_agent.iter().all(|found| *found), "{to_agent:?}");
    assert!(to_launcher.iter().all(|found| *found), "{to_launcher:?}");
    assert!(gives.iter().all(|found| *found), "{gives:?}");
    assert!(wants.iter().all(|found| *found), "{wants:?}");
}
