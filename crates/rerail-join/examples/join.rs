//! Joins its job, exchanges its process number, and prints `rank R of N: <numbers>`. Start it by any launcher, or alone.

use rerail_join::JoinError;
use std::process::ExitCode;

fn run() -> Result<(), JoinError> {
    let mut job = rerail_join::join()?;
    let all = job.exchange(std::process::id().to_string().as_bytes())?;
    let all: Vec<_> = all.iter().map(|bytes| String::from_utf8_lossy(bytes)).collect();
    println!("rank {} of {}: {} (by {})", job.rank(), job.size(), all.join(" "), job.launcher());
    job.finalize()
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("join: {why}");
            ExitCode::FAILURE
        }
    }
}
