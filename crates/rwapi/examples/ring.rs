//! A token with data passes through all nodes, `--rounds` times. Each node adds to every word of the data.
//!
//! Shows: the exchange of network addresses by small messages, and a write with a message after it.
//!
//! A node receives the token in the block `arrived` and sends it from the block `leaving`. Node k adds (k + 1) * (i + 1) to
//! word i, so N nodes and R rounds give R * (i + 1) * N * (N + 1) / 2.
//!
//!     rerail launch -n 4 -- target/release/examples/ring --rounds 1000

mod common;
#[path = "common/words.rs"]
mod words;

use common::Failure;
use rwapi::{Job, Net, Sid};
use std::process::ExitCode;
use words::{WORD, read_words, write_words};

const ADDRESS: u32 = 1;
const TOKEN: u32 = 2;

/// What a node has received.
struct Seen {
    /// Where the next node receives the token.
    next_net: Option<Net>,
    has_token: bool,
}

impl Seen {
    /// Takes one message. The next node's address and the previous node's token come in any order, since their senders differ.
    fn receive(&mut self, job: &Job, next: usize, previous: usize, round: u64) -> Result<(), Failure> {
        // a ring with a gap cannot go on, so the end of a node is an error
        let (from, small) = job.next_message()?;
        match common::unpack(&small) {
            (ADDRESS, _, net) if from == next => self.next_net = Some(Net(net)),
            (TOKEN, number, _) if from == previous && u64::from(number) == round => self.has_token = true,
            other => return Err(format!("an unexpected message of node {from}: {other:?}").into()),
        }
        Ok(())
    }

    /// Waits for the token of a round. Where the next node receives it.
    fn await_token(&mut self, job: &Job, next: usize, previous: usize, round: u64) -> Result<Net, Failure> {
        loop {
            match self.next_net {
                Some(net) if self.has_token => return Ok(net),
                _ => self.receive(job, next, previous, round)?,
            }
        }
    }
}

fn ring(job: &Job, rounds: u64, words: usize) -> Result<bool, Failure> {
    let (me, nodes) = (job.rank(), job.size());
    let (next, previous) = ((me + 1) % nodes, (me + nodes - 1) % nodes);
    let bytes = words * WORD;
    let arrived = job.alloc(bytes)?;
    let leaving = job.alloc(bytes)?;

    // To wait for room without receiving is safe here: no node has more than an address and a token under way.
    job.send_when_possible(previous, &common::pack(ADDRESS, 0, arrived.net().0))?;

    let mut seen = Seen { next_net: None, has_token: me == 0 };
    let mut last: Option<Sid> = None;
    for round in 1..=rounds {
        let there = seen.await_token(job, next, previous, round)?;
        if let Some(sid) = last {
            // `leaving` may still be on its way from the round before
            job.wait_sent(sid)?;
        }
        let added = (1..).map(|i: u64| (me as u64 + 1) * i);
        write_words(&leaving, 0, read_words(&arrived, 0, words).zip(added).map(|(word, add)| word + add));
        let number = if me == nodes - 1 { round + 1 } else { round };
        // the message arrives after the bytes of the write
        last = Some(job.when_possible(|| job.write(next, leaving.net(), there, bytes))?);
        job.send_when_possible(next, &common::pack(TOKEN, number as u32, 0))?;
        seen.has_token = false;
    }

    let mut right = true;
    if me == 0 {
        seen.await_token(job, next, previous, rounds + 1)?;
        let sum = rounds * (nodes * (nodes + 1) / 2) as u64;
        let wrong = read_words(&arrived, 0, words).zip(1..).filter(|(word, i)| *word != sum * i).count();
        right = wrong == 0;
        match wrong {
            0 => println!("ring: {nodes} nodes, {rounds} rounds, right"),
            _ => println!("ring: {nodes} nodes, {rounds} rounds, wrong: {wrong} of {words} words"),
        }
    }
    // delivers what is under way; the blocks are still there, since others may write them until then
    job.finalize()?;
    Ok(right)
}

fn main() -> ExitCode {
    let arguments = [("--rounds", 100, 1..=1_000_000), ("--words", 1000, 1..=1_000_000)];
    let [rounds, words] = common::parse("ring", arguments);
    common::run("ring", |job| ring(job, rounds, words as usize))
}
