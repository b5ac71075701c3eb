//! Collective operations: what the members of a group do together while rails break, members end, and programs err.

use super::Story;
use crate::app::RecvSpec;
use crate::collective::{Membership, RoundSpec, State};
use crate::fault::Fault;
use crate::link::{MS, SEC};
use crate::oracle::Fate;
use crate::world::{Config, Verdict, World};
use rerail_core::{CollectiveKind, CompletionError, PostError};

const KIB: usize = 1 << 10;

/// So many processes on hosts of their own, over rails of 1 Gbit/s, that have met: all are members of a group.
fn met(story: &Story, seed: u64, processes: usize, rails: usize) -> (World, usize) {
    let mut cfg = Config::quiet(seed, rails);
    cfg.nets.iter_mut().for_each(|n| n.mbps = 1000);
    cfg.hosts = vec![(0..rails).collect(); processes];
    cfg.procs = (0..processes).collect();
    let mut w = story.world(cfg);
    let group = w.make_group(&(0..processes).collect::<Vec<_>>());
    let all = RoundSpec::new(CollectiveKind::AllGather, 20 * KIB);
    let begun = begin_all(&mut w, group, all);
    finished(&mut w, &begun);
    w.run_for(20 * MS);
    (w, group)
}

fn begin_all(w: &mut World, group: usize, spec: RoundSpec) -> Vec<usize> {
    (0..w.groups.list[group].members.len()).map(|rank| w.begin_round(group, rank, spec)).collect()
}

fn state(w: &World, i: usize) -> State {
    w.groups.shares[i].state
}

fn ended(w: &mut World, list: &[usize]) {
    let done = w.run_finely(10 * SEC, |w| list.iter().all(|&i| state(w, i) != State::Open));
    assert!(done, "live: an operation of a group never ends: {}", w.describe());
}

fn finished(w: &mut World, list: &[usize]) {
    ended(w, list);
    let wrong = list.iter().find(|&&i| state(w, i) != State::Done);
    assert!(
        wrong.is_none(),
        "live: an operation of a group failed: {:?}",
        wrong.map(|&i| &w.groups.shares[i])
    );
}

/// A rail goes dark while a large all-reduce, a large all-gather and a barrier are under way at once, and comes back.
/// All complete, and every byte is right. A group that is joined meanwhile is made.
pub fn dark_rail(story: &Story) {
    for seed in 0..4 {
        let processes = 3 + seed as usize;
        let (mut w, group) = met(story, seed, processes, 2);
        let mut begun = begin_all(&mut w, group, RoundSpec::new(CollectiveKind::AllReduce, 1024 * KIB));
        begun.extend(begin_all(&mut w, group, RoundSpec::new(CollectiveKind::AllGather, 200 * KIB)));
        begun.extend(begin_all(&mut w, group, RoundSpec::new(CollectiveKind::Barrier, 0)));
        w.run_for(2 * MS);
        assert!(
            begun.iter().any(|&i| state(&w, i) == State::Open),
            "simulator: it was faster than the fault"
        );
        w.begin_for(Fault::Dark { host: 1, net: seed as usize % 2, inward: true, outward: true }, 300 * MS);
        let late = w.open_group(&(0..processes).rev().collect::<Vec<_>>(), 0);
        for rank in 0..processes {
            begun.push(w.join(late, rank));
            w.run_for(MS);
        }
        finished(&mut w, &begun);
        w.heal_and_finish();
    }
}

/// A member dies in the middle of an operation: that and later operations end at all others with an error that reports
/// the death. None of them is counted among the program's own messages. The others make a group without it, and go on.
pub fn death(story: &Story) {
    let dead = State::Failed(CompletionError::PeerDied);
    for seed in 0..4 {
        let (mut w, group) = met(story, seed, 4, 1 + seed as usize % 2);
        let victim = seed as usize;
        let spec = RoundSpec::new(CollectiveKind::AllGather, 600 * KIB);
        let mut begun = begin_all(&mut w, group, spec);
        begun.remove(victim);
        w.run_for(2 * MS);
        assert!(begun.iter().all(|&i| state(&w, i) == State::Open), "simulator: it was faster than death");
        w.kill(victim);
        ended(&mut w, &begun);
        let rest: Vec<usize> = (0..4).filter(|&p| p != victim).collect();
        for kind in [CollectiveKind::Barrier, CollectiveKind::AllReduce, CollectiveKind::AllGather] {
            for &rank in &rest {
                begun.push(w.begin_round(group, rank, RoundSpec::new(kind, 64)));
            }
        }
        ended(&mut w, &begun);
        assert!(begun.iter().all(|&i| state(&w, i) == dead), "live: nobody says who died: {}", w.describe());
        for &p in &rest {
            let n = w.with_engine(p, |w, e, _| e.op_counts(w.procs[p].eps[0]));
            assert_eq!((n.received, n.receives_failed, n.sent, n.sends_failed), (0, 0, 0, 0), "p{p}: {n:?}");
        }
        let group = w.make_group(&rest);
        let begun = begin_all(&mut w, group, RoundSpec::new(CollectiveKind::AllReduce, 64 * KIB));
        finished(&mut w, &begun);
        w.heal_and_finish();
    }
}

/// A member dies while a group is made, when some have received all that they need and one has not: those have a group,
/// and it has none. What they begin in it ends in an error. (Regression: seed 458.)
pub fn half_made(story: &Story) {
    for seed in 0..4 {
        let (mut w, _) = met(story, seed, 4, 2);
        // nothing of the last reaches the second
        w.filter = Some(Box::new(|d| if (d.src, d.dst) == (3, 1) { Verdict::Drop } else { Verdict::Pass }));
        let group = w.open_group(&[0, 1, 2, 3], 0);
        for rank in 0..4 {
            w.join(group, rank);
        }
        w.run_for(2 * MS);
        w.kill(3);
        w.filter = None;
        let is = |w: &World, rank: usize, s| w.groups.list[group].members[rank].state == s;
        assert!(
            is(&w, 0, Membership::Joined) && is(&w, 1, Membership::Joining) && is(&w, 2, Membership::Joined),
            "simulator: the story did not come about: {}",
            w.describe()
        );
        // from the one that has no group, to it, and around; some before it knows, some after
        let mut begun = Vec::new();
        for kind in [
            CollectiveKind::Broadcast { root: 1 },
            CollectiveKind::Gather { root: 1 },
            CollectiveKind::Scatter { root: 0 },
            CollectiveKind::AllReduce,
        ] {
            for rank in [0, 2] {
                begun.push(w.begin_round(group, rank, RoundSpec::new(kind, 100 * KIB)));
            }
            w.run_for(SEC * (seed % 2));
        }
        ended(&mut w, &begun);
        assert!(is(&w, 1, Membership::Failed), "live: who could not join does not know it");
        w.heal_and_finish();
    }
}

/// One member begins an operation of another size than the others: it ends everywhere, with an error where that can be told; no
/// memory is written beyond its end, and the next operation goes well.
pub fn mismatch(story: &Story) {
    let wrong = State::Failed(CompletionError::Mismatch);
    for (seed, (one, other)) in
        [(1_000, 496), (496, 1_000), (200 * KIB, 100 * KIB), (0, 80)].into_iter().enumerate()
    {
        let (mut w, group) = met(story, seed as u64, 4, 2);
        let root = 3;
        for kind in [
            CollectiveKind::AllReduce,
            CollectiveKind::AllGather,
            CollectiveKind::Broadcast { root },
            CollectiveKind::Reduce { root },
            CollectiveKind::Scatter { root },
            CollectiveKind::Gather { root },
        ] {
            let of = |rank| RoundSpec::new(kind, if rank == 1 { other } else { one });
            let begun: Vec<usize> = (0..4).map(|rank| w.begin_round(group, rank, of(rank))).collect();
            ended(&mut w, &begun);
            let told = begun.iter().filter(|&&i| state(&w, i) == wrong).count();
            let all = matches!(kind, CollectiveKind::AllReduce | CollectiveKind::AllGather);
            assert!(
                told == 4 || (told > 0 && !all),
                "never a silent error: {kind:?} of {one} and {other}: {told}"
            );
            let begun = begin_all(&mut w, group, RoundSpec::new(CollectiveKind::AllReduce, 800));
            finished(&mut w, &begun);
        }
        w.heal_and_finish();
    }
}

/// An endpoint is closed in the middle of large operations. When the call returns nothing reads or writes its memory
/// any more. The operations of the others end in an error.
pub fn closed(story: &Story) {
    let gone = State::Failed(CompletionError::PeerClosed);
    for (seed, kind) in [
        CollectiveKind::AllReduce,
        CollectiveKind::AllGather,
        CollectiveKind::Broadcast { root: 0 },
        CollectiveKind::Scatter { root: 2 },
        CollectiveKind::Gather { root: 1 },
        CollectiveKind::Gather { root: 0 },
    ]
    .into_iter()
    .enumerate()
    {
        let (mut w, group) = met(story, seed as u64, 3, 2);
        let begun = begin_all(&mut w, group, RoundSpec::new(kind, 1024 * KIB));
        w.run_for(3 * MS);
        assert!(state(&w, begun[1]) == State::Open, "simulator: it was faster than the end: {kind:?}");
        w.close_member(group, 1);
        let others = [begun[0], begun[2]];
        ended(&mut w, &others);
        let concerns = matches!(kind, CollectiveKind::AllReduce | CollectiveKind::AllGather);
        assert!(!concerns || others.iter().all(|&i| state(&w, i) == gone), "{kind:?}: {}", w.describe());
        w.run_for(SEC);
        w.memory.verify_all();
        w.heal_and_finish();
    }
}

/// Two groups of the same members in the same order are made at once: each member knows them by two names, and what is done in one
/// at some members before the other, and at others after it, never mixes. No receive of a program takes anything of it.
pub fn twins(story: &Story) {
    for seed in 0..4 {
        let (mut w, _) = met(story, seed, 3, 2);
        let wild: Vec<usize> = (0..3)
            .map(|ep| w.recv(RecvSpec { ignore: u64::MAX, ..RecvSpec::class(ep, 0, 4 * KIB) }))
            .collect();
        let twins = [w.open_group(&[2, 0, 1], 0), w.open_group(&[2, 0, 1], 0)];
        for rank in 0..3 {
            for g in twins {
                w.join(g, rank);
            }
            w.run_for(seed * MS);
        }
        let made =
            |w: &World, g: usize| w.groups.list[g].members.iter().all(|m| m.state == Membership::Joined);
        assert!(w.run_finely(SEC, |w| twins.iter().all(|&g| made(w, g))), "live: {}", w.describe());
        assert!((0..3).all(|rank| w.group_id(twins[0], rank) != w.group_id(twins[1], rank)));
        let mut begun = Vec::new();
        for rank in 0..3 {
            for k in 0..2 {
                let group = twins[(rank + k) % 2];
                for kind in [CollectiveKind::AllGather, CollectiveKind::AllReduce, CollectiveKind::Barrier] {
                    begun.push(w.begin_round(group, rank, RoundSpec::new(kind, 4 * KIB)));
                }
            }
            let again = w.with_engine(w.owner(w.groups.list[twins[0]].members[rank].ep), |w, e, _| {
                (rank < 2).then(|| e.leave(w.group_id(twins[0], rank)))
            });
            assert!(again.is_none_or(|r| r == Err(PostError::Again)), "a group is left at work");
            w.run_for(seed * MS);
        }
        finished(&mut w, &begun);
        assert!(
            wild.iter().all(|&r| w.oracle.recvs[r].fate == Fate::Posted),
            "a receive took what is none of its own"
        );
        w.heal_and_finish();
    }
}
