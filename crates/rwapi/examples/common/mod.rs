//! What the examples share: their arguments, how they end, and the layout of their small messages.

use rwapi::{Job, Small};
use std::ops::RangeInclusive;
use std::process::{ExitCode, exit};

/// An argument `--name number`: name, default, and what is allowed.
pub type Argument = (&'static str, u64, RangeInclusive<u64>);

fn usage(program: &str, arguments: &[Argument]) -> ! {
    eprint!("usage: {program}");
    for (name, _, allowed) in arguments {
        eprint!(" [{name} {}..{}]", allowed.start(), allowed.end());
    }
    eprintln!();
    exit(2);
}

/// The values of the arguments, in their order.
pub fn parse<const N: usize>(program: &str, arguments: [Argument; N]) -> [u64; N] {
    let mut values = arguments.each_ref().map(|(_, default, _)| *default);
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        let found = arguments.iter().position(|(name, ..)| *name == word);
        let value = words.next().and_then(|value| value.parse().ok());
        match (found, value) {
            (Some(i), Some(value)) if arguments[i].2.contains(&value) => values[i] = value,
            _ => usage(program, &arguments),
        }
    }
    values
}

/// Why an example ends early: an error of the library, or a sentence.
pub type Failure = Box<dyn std::error::Error>;

/// Joins the job and runs `body`, which returns whether the result is right. After an error the process ends without
/// `finalize`, and the other nodes see that it is gone.
pub fn run(program: &str, body: impl FnOnce(&Job) -> Result<bool, Failure>) -> ExitCode {
    let job = match Job::init() {
        Ok(job) => job,
        Err(why) => {
            eprintln!("{program}: {why}");
            return ExitCode::FAILURE;
        }
    };
    match body(&job) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            eprintln!("{program}: node {}: {why}", job.rank());
            ExitCode::FAILURE
        }
    }
}

/// A small message as a kind and two numbers. Little-endian, so that nodes of any byte order understand each other.
pub fn pack(kind: u32, number: u32, value: u64) -> Small {
    let mut small = [0; 16];
    small[..4].copy_from_slice(&kind.to_le_bytes());
    small[4..8].copy_from_slice(&number.to_le_bytes());
    small[8..].copy_from_slice(&value.to_le_bytes());
    small
}

/// Kind and numbers of a small message.
pub fn unpack(small: &Small) -> (u32, u32, u64) {
    let all = u128::from_le_bytes(*small);
    (all as u32, (all >> 32) as u32, (all >> 64) as u64)
}
