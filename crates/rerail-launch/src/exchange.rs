//! What the PMIx servers of a job's hosts exchange. Owns: what some hosts wait for from others (fences, groups, data of one rank), the numbers of groups,
//! and which ranks have ended. Runs in the launcher, without system calls.
//!
//! A fence is known by the ranks that take part in it, a group also by its name. A host joins with what its ranks have put, once all of them are there;
//! when all hosts of the ranks have joined, each gets what all have put, one after the other. When one of the ranks has ended, each gets an error instead.
//! Source: PMIx standard 4.1, `pmix_server_fencenb_fn_t`: the server takes the others' bytes concatenated; `pmix_server_grp_fn_t`: likewise for
//! `PMIX_GROUP_ENDPT_DATA`.

use crate::message::{Bytes, Gives, GroupAct, MESSAGE_BYTES_MAX, Wants};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Bytes of a message that are not the data.
const AROUND_BYTES: usize = 64;
/// Bytes that a fence may bring to each host.
const FENCE_BYTES_MAX: usize = MESSAGE_BYTES_MAX - AROUND_BYTES;
/// Fences and groups at which some hosts wait. Ranks wait in them, so that more than one for each rank mean a fault.
const FENCES_MAX: usize = 1 << 16;

/// Requests for what one rank has put that are not answered. A rank waits for each that it makes in a call of its own.
const FETCHES_MAX: usize = 1 << 20;

/// What hosts wait for.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Purpose {
    Fence,
    Construct(Bytes),
    Destruct(Bytes),
}

struct Fence {
    purpose: Purpose,
    /// Sorted; empty: all.
    ranks: Vec<u32>,
    /// By the agent: its own name for the wait, and what its ranks have put.
    joined: BTreeMap<usize, (u64, Bytes)>,
    /// It is a group that gets a number.
    numbered: bool,
    /// A rank has left it. It stays until all hosts have come, because those that come later must not wait.
    broken: bool,
    /// Hosts that were given that it is broken.
    informed: BTreeSet<usize>,
}

impl Fence {
    fn is_of(&self, rank: u32) -> bool {
        self.ranks.is_empty() || self.ranks.binary_search(&rank).is_ok()
    }

    fn has(&self, agent: usize) -> bool {
        self.joined.contains_key(&agent) || self.informed.contains(&agent)
    }

    /// Those that wait get an error.
    fn break_up(&mut self) -> Vec<(usize, Gives)> {
        let joined = std::mem::take(&mut self.joined);
        self.informed.extend(joined.keys());
        joined.into_iter().map(|(agent, (ticket, _))| (agent, Gives::Broken { ticket })).collect()
    }
}

/// A host that joins a fence or a group.
struct Joins {
    agent: usize,
    ticket: u64,
    purpose: Purpose,
    ranks: Vec<u32>,
    data: Bytes,
    numbered: bool,
    whole: bool,
}

/// See above.
pub struct Exchange {
    /// The ranks of each agent.
    agents: Vec<Range<usize>>,
    fences: Vec<Fence>,
    /// By the agent that waits, and its own name for the wait: the rank whose data it wants from another agent's server.
    fetches: BTreeMap<(usize, u64), u32>,
    /// Ranks that have ended.
    ended: BTreeSet<u32>,
    /// Groups that have a number. Open MPI keeps 0 for the communicators that it has from the start.
    numbers: u64,
}

/// Messages, each for an agent; or a sentence for the user, and the job cannot go on.
pub type Answer = Result<Vec<(usize, Gives)>, String>;

impl Exchange {
    /// Of agents that have these ranks.
    pub fn new(agents: impl IntoIterator<Item = Range<usize>>) -> Self {
        let agents = agents.into_iter().collect();
        Self { agents, fences: Vec::new(), fetches: BTreeMap::new(), ended: BTreeSet::new(), numbers: 0 }
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
            Wants::Fence { ticket, ranks, data } => {
                let purpose = Purpose::Fence;
                self.join(Joins { agent, ticket, purpose, ranks, data, numbered: false, whole: true })
            }
            Wants::Group { ticket, act, name, ranks, data, whole } => {
                let (purpose, numbered) = match act {
                    GroupAct::Construct { numbered } => (Purpose::Construct(name), numbered),
                    GroupAct::Destruct => (Purpose::Destruct(name), false),
                };
                self.join(Joins { agent, ticket, purpose, ranks, data, numbered, whole })
            }
            Wants::Fetch { .. } if self.fetches.len() == FETCHES_MAX => {
                Err(format!("{FETCHES_MAX} requests of PMIx wait for an answer, more than is possible"))
            }
            Wants::Fetch { ticket, rank } => Ok(match self.agent_of(rank) {
                Some(owner) if !self.ended.contains(&rank) => {
                    self.fetches.insert((agent, ticket), rank);
                    vec![(owner, Gives::Fetch { agent: agent as u32, ticket, rank })]
                }
                _ => vec![(agent, Gives::Data { ticket, data: None })],
            }),
            Wants::Fetched { agent: by, ticket, data } => {
                let by = by as usize;
                if by >= self.agents.len() {
                    return Err(format!(
                        "the PMIx server of agent {agent} answers agent {by}, which is none"
                    ));
                }
                // the rank may have ended meanwhile
                let waits = self.fetches.remove(&(by, ticket)).is_some();
                Ok(if waits { vec![(by, Gives::Data { ticket, data })] } else { Vec::new() })
            }
        }
    }

    /// A rank has ended: nothing that it takes part in is ever complete, and the library of its server does not answer for it any more.
    pub fn ended(&mut self, rank: u32) -> Vec<(usize, Gives)> {
        self.ended.insert(rank);
        let all = std::mem::take(&mut self.fences);
        let (broken, rest): (Vec<Fence>, _) = all.into_iter().partition(|fence| fence.is_of(rank));
        self.fences = rest;
        let mut gives: Vec<_> = broken.into_iter().flat_map(|mut fence| fence.break_up()).collect();
        self.fetches.retain(|(agent, ticket), of| {
            if *of == rank {
                gives.push((*agent, Gives::Data { ticket: *ticket, data: None }));
            }
            *of != rank
        });
        gives
    }

    fn join(&mut self, joins: Joins) -> Answer {
        let Joins { agent, ticket, purpose, ranks, data, numbered, whole } = joins;
        // a host may be at the same fence again before others have left it
        let open = |fence: &Fence| fence.purpose == purpose && fence.ranks == ranks && !fence.has(agent);
        let at = match self.fences.iter().position(open) {
            Some(at) => at,
            None if self.fences.len() == FENCES_MAX => {
                return Err(format!("ranks wait at {FENCES_MAX} fences of PMIx, more than is possible"));
            }
            None => {
                let (joined, informed) = (BTreeMap::new(), BTreeSet::new());
                let fence = Fence { purpose, ranks, joined, numbered, broken: false, informed };
                if self.ended.iter().any(|rank| fence.is_of(*rank)) {
                    return Ok(vec![(agent, Gives::Broken { ticket })]);
                }
                self.fences.push(fence);
                self.fences.len() - 1
            }
        };
        let fence = &mut self.fences[at];
        fence.joined.insert(agent, (ticket, data));
        fence.numbered |= numbered;
        fence.broken |= !whole;
        let informed = if fence.broken { fence.break_up() } else { Vec::new() };
        let fence = &self.fences[at];
        let takes_part = |of: &Range<usize>| {
            fence.ranks.is_empty() || fence.ranks.iter().any(|rank| of.contains(&(*rank as usize)))
        };
        let mut all = self.agents.iter().enumerate().filter(|(_, ranks)| takes_part(ranks));
        if !all.all(|(agent, _)| fence.has(agent)) {
            return Ok(informed);
        }
        let fence = self.fences.remove(at);
        if fence.broken {
            return Ok(informed);
        }
        let data: Bytes = fence.joined.values().flat_map(|(_, data)| data).copied().collect();
        if data.len() > FENCE_BYTES_MAX {
            return Err(format!(
                "the ranks publish {} bytes by PMIx, and {FENCE_BYTES_MAX} is the most: start fewer ranks, or let them fetch what they need, with OMPI_MCA_pmix_base_async_modex=1",
                data.len()
            ));
        }
        self.numbers += u64::from(fence.numbered);
        let number = fence.numbered.then_some(self.numbers);
        let gives = |ticket| match fence.purpose {
            Purpose::Fence => Gives::Data { ticket, data: Some(data.clone()) },
            Purpose::Construct(_) | Purpose::Destruct(_) => {
                Gives::Group { ticket, number, data: data.clone() }
            }
        };
        Ok(fence.joined.iter().map(|(agent, (ticket, _))| (*agent, gives(*ticket))).collect())
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

    fn group(ticket: u64, act: GroupAct, name: &str, ranks: &[u32], data: &[u8]) -> Wants {
        let (ranks, data) = (ranks.to_vec(), data.to_vec());
        Wants::Group { ticket, act, name: name.into(), ranks, data, whole: true }
    }

    fn made(ticket: u64, number: Option<u64>, data: &[u8]) -> Gives {
        Gives::Group { ticket, number, data: data.to_vec() }
    }

    const NUMBERED: GroupAct = GroupAct::Construct { numbered: true };

    #[test]
    fn groups_get_numbers_of_their_own_and_what_all_members_have_put() {
        let mut hosts = exchange();
        // the same name for two groups, and two names for the same members
        assert_eq!(hosts.receive(0, group(1, NUMBERED, "a", &[0, 3], b"x")), Ok(vec![]));
        assert_eq!(hosts.receive(0, group(2, NUMBERED, "a", &[1, 2], b"y")), Ok(vec![]));
        assert_eq!(hosts.receive(0, group(3, NUMBERED, "b", &[0, 3], b"")), Ok(vec![]));
        let first = hosts.receive(2, group(9, NUMBERED, "b", &[0, 3], b"z")).unwrap();
        assert_eq!(first, [(0, made(3, Some(1), b"z")), (2, made(9, Some(1), b"z"))]);
        let second = hosts.receive(1, group(4, NUMBERED, "a", &[1, 2], b"")).unwrap();
        assert_eq!(second, [(0, made(2, Some(2), b"y")), (1, made(4, Some(2), b"y"))]);
        // the act is part of what it is: one that dissolves a group does not meet those that make it
        assert_eq!(hosts.receive(2, group(5, GroupAct::Destruct, "a", &[0, 3], b"")), Ok(vec![]));
        let third = hosts.receive(2, group(6, NUMBERED, "a", &[0, 3], b"")).unwrap();
        assert_eq!(third, [(0, made(1, Some(3), b"x")), (2, made(6, Some(3), b"x"))]);
        let gone = hosts.receive(0, group(7, GroupAct::Destruct, "a", &[0, 3], b"")).unwrap();
        assert_eq!(gone, [(0, made(7, None, b"")), (2, made(5, None, b""))]);
    }

    #[test]
    fn a_group_is_numbered_if_one_host_wants_it() {
        let mut hosts = exchange();
        let plain = GroupAct::Construct { numbered: false };
        assert_eq!(hosts.receive(0, group(1, plain, "a", &[0, 2], b"")), Ok(vec![]));
        let both = hosts.receive(1, group(2, NUMBERED, "a", &[0, 2], b"")).unwrap();
        assert_eq!(both, [(0, made(1, Some(1), b"")), (1, made(2, Some(1), b""))]);
        let one = hosts.receive(1, group(3, plain, "a", &[2], b"")).unwrap();
        assert_eq!(one, [(1, made(3, None, b""))]);
    }

    fn broken(ticket: u64) -> Gives {
        Gives::Broken { ticket }
    }

    #[test]
    fn what_a_rank_that_has_ended_takes_part_in_is_broken_for_all_others() {
        let mut hosts = exchange();
        assert_eq!(hosts.receive(0, group(1, NUMBERED, "a", &[0, 2, 3], b"")), Ok(vec![]));
        assert_eq!(hosts.receive(2, group(2, NUMBERED, "a", &[0, 2, 3], b"")), Ok(vec![]));
        assert_eq!(hosts.receive(0, fence(3, &[], b"")), Ok(vec![]));
        assert_eq!(hosts.receive(0, group(4, NUMBERED, "b", &[0, 3], b"")), Ok(vec![]));
        assert_eq!(hosts.ended(2), [(0, broken(1)), (2, broken(2)), (0, broken(3))]);
        assert_eq!(hosts.ended(2), [], "they are given once");
        // later ones are broken at once, and others are not
        assert_eq!(
            hosts.receive(2, group(5, GroupAct::Destruct, "a", &[2, 3], b"")),
            Ok(vec![(2, broken(5))])
        );
        assert_eq!(hosts.receive(2, fence(6, &[], b"")), Ok(vec![(2, broken(6))]));
        let other = hosts.receive(2, group(7, NUMBERED, "b", &[0, 3], b"")).unwrap();
        assert_eq!(other, [(0, made(4, Some(1), b"")), (2, made(7, Some(1), b""))]);
    }

    #[test]
    fn a_host_of_which_a_rank_has_left_breaks_the_group_for_the_others() {
        let mut hosts = exchange();
        let left = |ticket| Wants::Group {
            ticket,
            act: NUMBERED,
            name: b"a".to_vec(),
            ranks: vec![0, 3, 4],
            data: Vec::new(),
            whole: false,
        };
        assert_eq!(hosts.receive(0, group(1, NUMBERED, "a", &[0, 3, 4], b"")), Ok(vec![]));
        assert_eq!(hosts.receive(0, group(2, NUMBERED, "b", &[0, 3, 4], b"")), Ok(vec![]));
        assert_eq!(hosts.receive(2, left(8)), Ok(vec![(0, broken(1)), (2, broken(8))]));
        // the other way round: a host that comes later does not wait either
        assert_eq!(hosts.receive(2, left(9)), Ok(vec![(2, broken(9))]));
        let late = hosts.receive(0, group(3, NUMBERED, "a", &[0, 3, 4], b""));
        assert_eq!(late, Ok(vec![(0, broken(3))]));
        assert_eq!(hosts.fences.len(), 1, "what all know to be broken is forgotten");
        let other = hosts.receive(2, group(7, NUMBERED, "b", &[0, 3, 4], b"")).unwrap();
        assert_eq!(other, [(0, made(2, Some(1), b"")), (2, made(7, Some(1), b""))]);
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
        // an answer that nothing waits for
        assert_eq!(hosts.receive(2, Wants::Fetched { agent: 1, ticket: 8, data: None }), Ok(vec![]));
    }

    #[test]
    fn nothing_waits_for_what_a_rank_puts_that_has_ended() {
        let mut hosts = exchange();
        let nothing = |ticket| Gives::Data { ticket, data: None };
        assert_eq!(hosts.receive(1, Wants::Fetch { ticket: 8, rank: 4 }).unwrap().len(), 1);
        assert_eq!(hosts.receive(0, Wants::Fetch { ticket: 9, rank: 3 }).unwrap().len(), 1);
        assert_eq!(hosts.ended(4), [(1, nothing(8))]);
        assert_eq!(hosts.receive(0, Wants::Fetch { ticket: 10, rank: 4 }), Ok(vec![(0, nothing(10))]));
        let late = Wants::Fetched { agent: 1, ticket: 8, data: Some(b"late".to_vec()) };
        assert_eq!(hosts.receive(2, late), Ok(vec![]), "it was answered");
        let other = Wants::Fetched { agent: 0, ticket: 9, data: Some(b"port".to_vec()) };
        assert_eq!(hosts.receive(2, other), Ok(vec![(0, data(9, b"port"))]));
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
