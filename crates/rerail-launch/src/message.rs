//! The messages between launcher and agents. Owns: how they are written as bytes.
//!
//! Only an end that has proved to know the secret is ever parsed ([`crate::proof`]), and only up to [`MESSAGE_BYTES_MAX`].

use serde::{Deserialize, Serialize};

/// Longest message, written.
pub const MESSAGE_BYTES_MAX: usize = 8 << 20;

/// Text as the system has it: arguments, variables and paths need not be UTF-8.
pub type Bytes = Vec<u8>;

/// What an agent is to start.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Start {
    /// Name of the job; no other has it.
    pub job: String,
    /// Ranks of the job.
    pub size: usize,
    /// The first one of this host.
    pub first: usize,
    /// Ranks of this host.
    pub count: usize,
    /// Which ranks share a host, in the words of PMI.
    pub mapping: String,
    /// The program and its arguments.
    pub program: Vec<Bytes>,
    /// Where it runs.
    pub directory: Bytes,
    /// Its environment.
    pub env: Vec<(Bytes, Bytes)>,
    /// Milliseconds between the signal that ends ranks and the one that kills them.
    pub grace_ms: u64,
    /// What a PMIx server needs to know as well; `None`: there is none.
    pub pmix: Option<PmixJob>,
}

/// What a PMIx server needs to know.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PmixJob {
    /// Where its library is.
    pub library: PmixLibrary,
    /// The hosts of the job, and how many ranks each has.
    pub hosts: Vec<(String, usize)>,
    /// Which of them this one is.
    pub host: usize,
}

/// Where the library of a PMIx server is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum PmixLibrary {
    /// Below this directory, or in it, and nowhere else.
    In(Bytes),
    /// Below the first of these that has it, or where the loader finds it.
    Found(Vec<Bytes>),
}

/// What ranks do with a group of theirs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum GroupAct {
    /// They make it.
    Construct {
        /// It gets a number that no other group of the job has.
        numbered: bool,
    },
    /// They dissolve it.
    Destruct,
}

/// What the PMIx server of a host wants from those of the others. Each wait has a ticket, which is its server's own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Wants {
    /// All ranks of this host that take part in a fence are at it.
    Fence {
        /// Names the wait.
        ticket: u64,
        /// Which ranks of the job take part, sorted; none: all.
        ranks: Vec<u32>,
        /// What those of this host have put.
        data: Bytes,
    },
    /// What a rank of another host has put.
    Fetch {
        /// Names the wait.
        ticket: u64,
        /// Which rank.
        rank: u32,
    },
    /// The answer to [`Gives::Fetch`]; nothing: there is no such thing.
    Fetched {
        /// The agent that wants it.
        agent: u32,
        /// Names its wait.
        ticket: u64,
        /// What there is.
        data: Option<Bytes>,
    },
    /// All ranks of this host that are members of a group make or dissolve it.
    Group {
        /// Names the wait.
        ticket: u64,
        /// What they do.
        act: GroupAct,
        /// What the program calls the group.
        name: Bytes,
        /// The members of all hosts, sorted; none: all ranks.
        ranks: Vec<u32>,
        /// What those of this host have put.
        data: Bytes,
        /// None of them has left before it did its part.
        whole: bool,
    },
}

/// What the PMIx server of a host is given by those of the others.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Gives {
    /// What it waits for; nothing: there is no such thing.
    Data {
        /// Names the wait.
        ticket: u64,
        /// What there is.
        data: Option<Bytes>,
    },
    /// Another host wants what a rank of this one has put.
    Fetch {
        /// The agent that wants it.
        agent: u32,
        /// Names its wait.
        ticket: u64,
        /// Which rank.
        rank: u32,
    },
    /// All members have made or dissolved a group.
    Group {
        /// Names the wait.
        ticket: u64,
        /// The number of the group, if it has one.
        number: Option<u64>,
        /// What all members have put.
        data: Bytes,
    },
    /// A rank that takes part has ended, so that what it waits for never comes.
    Broken {
        /// Names the wait.
        ticket: u64,
    },
}

/// From the launcher to an agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToAgent {
    /// Start the ranks.
    Start(Box<Start>),
    /// All hosts are at the barrier: what their ranks have put since the last one.
    Fenced(Vec<(String, String)>),
    /// For its PMIx server.
    Pmix(Gives),
    /// For the standard input of rank 0; nothing is its end.
    Input(Bytes),
    /// A signal for all ranks.
    Signal(i32),
    /// End the ranks that are left by this signal, then the agent.
    End(i32),
}

/// How a rank ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Ended {
    /// By itself.
    Code(i32),
    /// By a signal.
    Signal(i32),
}

impl Ended {
    /// As a shell has it.
    pub fn exit_code(self) -> i32 {
        match self {
            Ended::Code(code) => code,
            Ended::Signal(signal) => 128 + signal,
        }
    }
}

/// A standard stream of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// From an agent to the launcher. Ranks are numbered over the job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToLauncher {
    /// The ranks cannot be started: a sentence for the user, and the exit code.
    Refused(String, i32),
    /// A rank has written this.
    Output(usize, Stream, Bytes),
    /// All ranks of this host are at the barrier, and have put these values.
    Fence(Vec<(String, String)>),
    /// Of its PMIx server.
    Pmix(Wants),
    /// Rank 0 has taken one message of its standard input.
    Took,
    /// A rank ends the job.
    Abort(usize, i32),
    /// A rank has ended.
    Ended {
        /// Which.
        rank: usize,
        /// How.
        how: Ended,
        /// It had finalized PMI before, or met the others by it, or never used it.
        finalized: bool,
    },
    /// A sentence for the user.
    Note(String),
    /// All ranks have ended, and the agent ends.
    Done,
}

/// Writes a message.
pub fn write<T: Serialize>(message: &T) -> Vec<u8> {
    postcard::to_allocvec(message).expect("messages are plain data")
}

/// Reads one; `None`: it is none.
pub fn read<T: for<'a> Deserialize<'a>>(bytes: &[u8]) -> Option<T> {
    let (message, rest) = postcard::take_from_bytes(bytes).ok()?;
    rest.is_empty().then_some(message)
}
