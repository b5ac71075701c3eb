//! What the PMIx servers of a job's hosts exchange. Owns: the fences at which some hosts wait for others. Runs in the launcher, without system calls.
//!
//! A fence is known by the ranks that take part in it. A host joins it with what its ranks have put, once all of them are there; when all hosts of its
//! ranks have joined, each gets what all have put, one after the other. Source: PMIx standard 4.1, `pmix_server_fencenb_fn_t`: the server
//! takes the others' bytes concatenated.

use crate::message::{Bytes, Gives, MESSAGE_BYTES_MAX, Wants};
use std::collections::BTreeMap;
use std::ops::Range;

/// Bytes of a message that are not the data.
const AROUND_BYTES: usize = 64;
/// Bytes that a fence may bring to each host.
const FENCE_BYTES_MAX: usize = MESSAGE_BYTES_MAX - AROUND_BYTES;
/// Fences at which some hosts wait. Ranks wait in a fence, so that more than one for each rank mean a fault.
const FENCES_MAX: usize = 1 << 16;

struct Fence {
    /// Sorted; empty: all.
    ranks: Vec<u32>,
    /// By the agent: its own name for the wait, and what its ranks have put.
    joined: BTreeMap<usize, (u64, Bytes)>,
}

/// See above.
pub struct Exchange {
    /// The ranks of each agent.
    agents: Vec<Range<usize>>,
    fences: Vec<Fence>,
}

/// Messages, each for an agent; or a sentence for the user, and the job cannot go on.
pub type Answer = Result<Vec<(usize, Gives)>, String>;

impl Exchange {
    /// Of agents that have these ranks.
    pub fn new(agents: impl IntoIterator<Item = Range<usize>>) -> Self {
        Self { agents: agents.into_iter().collect(), fences: Vec::new() }
    }

    fn agent_of(&self, rank: u32) -> Option<usize> {
        self.agents.iter().position(|ranks| ranks.contains(&(rank as usize)))
    }

    /// A message of an agent's server.
    ///
    /// # Errors
    /// See [`Answer`].
    pub fn receive(&mut self, agent: usize, wants: Wants) -> Answer {
        match wants {
            Wants::Fence { ticket, ranks, data } => self.fence(agent, ticket, ranks, data),
            Wants::Fetch { ticket, rank } => Ok(match self.agent_of(rank) {
                Some(owner) => vec![(owner, Gives::Fetch { agent: agent as u32, ticket, rank })],
                None => vec![(agent, Gives::Data { ticket, data: None })],
            }),
            Wants::Fetched { agent: by, ticket, data } => match self.agents.get(by as usize) {
                Some(_) => Ok(vec![(by as usize, Gives::Data { ticket, data })]),
                None => Err(format!("the PMIx server of agent {agent} answers agent {by}, which is none")),
            },
        }
    }

    fn fence(&mut self, agent: usize, ticket: u64, ranks: Vec<u32>, data: Bytes) -> Answer {
        // a host may be at the same fence again before others have left it
        let open = |fence: &Fence| fence.ranks == ranks && !fence.joined.contains_key(&agent);
        let at = match self.fences.iter().position(open) {
            Some(at) => at,
            None if self.fences.len() == FENCES_MAX => {
                return Err(format!("ranks wait at {FENCES_MAX} fences of PMIx, more than is possible"));
            }
            None => {
                self.fences.push(Fence { ranks, joined: BTreeMap::new() });
                self.fences.len() - 1
            }
        };
        self.fences[at].joined.insert(agent, (ticket, data));
        let fence = &self.fences[at];
        let takes_part = |of: &Range<usize>| {
            fence.ranks.is_empty() || fence.ranks.iter().any(|rank| of.contains(&(*rank as usize)))
        };
        let all = self.agents.iter().enumerate().filter(|(_, ranks)| takes_part(ranks));
        if !all.clone().all(|(agent, _)| fence.joined.contains_key(&agent)) {
            return Ok(Vec::new());
        }
        let fence = self.fences.remove(at);
        let bytes: Bytes = fence.joined.values().flat_map(|(_, data)| data).copied().collect();
        if bytes.len() > FENCE_BYTES_MAX {
            return Err(format!(
                "the ranks publish {} bytes by PMIx, and {FENCE_BYTES_MAX} is the most: start fewer ranks, or let them fetch what they need, with OMPI_MCA_pmix_base_async_modex=1",
                bytes.len()
            ));
        }
        let each = fence.joined.into_iter();
        Ok(each
            .map(|(agent, (ticket, _))| (agent, Gives::Data { ticket, data: Some(bytes.clone()) }))
            .collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three hosts with two, one and two ranks.
    fn exchange() -> Exchange {
        Exchange::new([0..2, 2..3, 3..5])
    }

    fn fence(ticket: u64, ranks: &[u32], data: &[u8]) -> Wants {
        Wants::Fence { ticket, ranks: ranks.to_vec(), data: data.to_vec() }
    }

    fn data(ticket: u64, data: &[u8]) -> Gives {
        Gives::Data { ticket, data: Some(data.to_vec()) }
    }

    #[test]
    fn a_fence_brings_what_all_hosts_have_put_to_each() {
        let mut hosts = exchange();
        assert_eq!(hosts.receive(2, fence(70, &[], b"c")), Ok(vec![]));
        assert_eq!(hosts.receive(0, fence(5, &[], b"a")), Ok(vec![]));
        let all = hosts.receive(1, fence(6, &[], b"b")).unwrap();
        assert_eq!(all, [(0, data(5, b"abc")), (1, data(6, b"abc")), (2, data(70, b"abc"))]);
        assert_eq!(hosts.receive(1, fence(7, &[], b"")), Ok(vec![]), "the next one begins anew");
    }

    #[test]
    fn fences_of_some_ranks_wait_for_their_hosts_only_and_do_not_mix() {
        let mut hosts = exchange();
        assert_eq!(hosts.receive(0, fence(1, &[], b"all")), Ok(vec![]));
        assert_eq!(hosts.receive(0, fence(2, &[1, 3], b"x")), Ok(vec![]));
        let two = hosts.receive(2, fence(9, &[1, 3], b"y")).unwrap();
        assert_eq!(two, [(0, data(2, b"xy")), (2, data(9, b"xy"))]);
        // once more at the same fence, before the others have come
        assert_eq!(hosts.receive(0, fence(3, &[], b"ALL")), Ok(vec![]));
        assert_eq!(hosts.receive(1, fence(4, &[], b"-")), Ok(vec![]));
        let first = hosts.receive(2, fence(10, &[], b"+")).unwrap();
        assert_eq!(first[0], (0, data(1, b"all-+")));
    }

    #[test]
    fn what_a_rank_has_put_is_fetched_from_its_host() {
        let mut hosts = exchange();
        let asked = hosts.receive(1, Wants::Fetch { ticket: 8, rank: 4 }).unwrap();
        assert_eq!(asked, [(2, Gives::Fetch { agent: 1, ticket: 8, rank: 4 })]);
        let answer = Wants::Fetched { agent: 1, ticket: 8, data: Some(b"port".to_vec()) };
        assert_eq!(hosts.receive(2, answer), Ok(vec![(1, data(8, b"port"))]));
        let none = hosts.receive(1, Wants::Fetch { ticket: 9, rank: 5 }).unwrap();
        assert_eq!(none, [(1, Gives::Data { ticket: 9, data: None })], "there is no such rank");
        assert!(hosts.receive(2, Wants::Fetched { agent: 3, ticket: 1, data: None }).is_err());
    }

    #[test]
    fn more_than_a_message_holds_ends_the_job_with_a_sentence() {
        let mut hosts = Exchange::new([0..1, 1..2]);
        let half = vec![0; FENCE_BYTES_MAX / 2];
        assert!(hosts.receive(0, fence(1, &[], &half)).is_ok());
        assert!(hosts.receive(1, fence(1, &[], &half)).is_ok());
        assert!(hosts.receive(0, fence(2, &[], &half)).is_ok());
        let why = hosts.receive(1, fence(2, &[], &[half, vec![0; 2]].concat())).unwrap_err();
        assert!(why.contains("fewer ranks"), "{why}");
        let most = Gives::Data { ticket: u64::MAX, data: Some(vec![1; FENCE_BYTES_MAX]) };
        let written = crate::message::write(&crate::message::ToAgent::Pmix(most));
        assert!(written.len() <= MESSAGE_BYTES_MAX, "what is not refused fits");
    }
}
