//! What the fuzzer calls: the parsers of this crate, without a launcher.

use crate::error::JoinError;
use crate::place::Place;
use crate::{env, pmi1, pmix};
use rustix::fd::OwnedFd;

/// Decides which launcher there is by variables: what was decided, as text.
///
/// # Errors
/// As [`crate::join`].
pub fn environment(get: &dyn Fn(&str) -> Option<String>) -> Result<String, JoinError> {
    env::source(get).map(|source| format!("{source:?}"))
}

/// Joins, exchanges and finalizes over a socket with a launcher of PMI-1. `id`: the launcher gives rank and size; else this process is
/// `rank` of `size`. Returns rank, size, and what each process gave.
///
/// # Errors
/// The launcher answers something else, or refuses.
pub fn pmi1(
    socket: OwnedFd,
    id: Option<u64>,
    (rank, size): (u64, u64),
    own: &[u8],
) -> Result<(usize, usize, Vec<Vec<u8>>), JoinError> {
    let mut client = match id {
        Some(id) => pmi1::Client::introduce(socket, id)?,
        None => pmi1::Client::over(socket, Place::new(rank, size)?)?,
    };
    let place = client.place();
    let all = client.exchange(own)?;
    client.finalize()?;
    Ok((place.rank(), place.size(), all))
}

/// What is read of a value of PMIx with this type and these words: a number, and bytes. With `bytes` the value has these, and the words are
/// not used.
pub fn pmix(kind: u16, words: [u64; 3], bytes: Option<&[u8]>) -> (Option<u32>, Option<Vec<u8>>) {
    pmix::read(kind, words, bytes)
}
