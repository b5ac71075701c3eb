//! The messages between an agent and its host's PMIx server. Owns: how they are framed. Both ends are one program on one host, and trust each other.

use crate::message::{Bytes, Gives, Start, Wants, read, write};
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Read, Result, Write};

/// From the agent to the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToServer {
    /// Serve the ranks of this job, and keep files in this directory.
    Serve(Box<Start>, String),
    /// The agent has noted what a rank did, and the rank goes on.
    Noted(u64),
    /// From the servers of other hosts.
    Gives(Gives),
    /// A rank, over the job, has ended.
    Ended(u32),
}

/// What a rank does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Act {
    /// It has connected.
    Begins,
    /// It has ended its part.
    Finalizes,
    /// It ends the job with this code.
    Aborts(i32),
}

/// From the server to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum FromServer {
    /// It serves. By the rank of this host: variables that it needs.
    Ready(Vec<Vec<(Bytes, Bytes)>>),
    /// It cannot serve: a sentence for the user.
    Failed(String),
    /// A rank, over the job, does something, and waits until that is noted.
    Act {
        /// Names the wait; `None`: it does not wait.
        ticket: Option<u64>,
        /// Which rank.
        rank: u32,
        /// What.
        act: Act,
    },
    /// For the servers of other hosts.
    Wants(Wants),
}

/// A message as a frame: its length, and it.
pub fn frame<T: Serialize>(message: &T) -> Bytes {
    let bytes = write(message);
    let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
    frame.extend(bytes);
    frame
}

/// Writes a frame.
///
/// # Errors
/// That of the system.
pub fn send<T: Serialize>(to: &mut impl Write, message: &T) -> Result<()> {
    to.write_all(&frame(message))
}

/// Reads a frame.
///
/// # Errors
/// That of the system; what is no message is `InvalidData`.
pub fn receive<T: for<'a> Deserialize<'a>>(from: &mut impl Read) -> Result<T> {
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut bytes)?;
    read(&bytes).ok_or_else(|| ErrorKind::InvalidData.into())
}
