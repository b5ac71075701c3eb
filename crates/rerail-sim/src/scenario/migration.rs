//! APM: alternates are specified, loaded, migrated to, and armed again.

use super::policy::{all_received, rounds, sent_by, world};
use super::{Story, received};
use crate::app::{RecvSpec, SendSpec};
use crate::fault::Fault;
use crate::link::MS;
use crate::world::World;
use rerail_core::{
    CarrierReport, EventKind, Health, MigrateError, Migration, MigrationCause, MigrationReport, RailId,
};

const ONE_RAIL: &[(&str, &str)] = &[("policy", "primary-standby")];

fn carriers(w: &World) -> Vec<CarrierReport> {
    w.procs[0].engine.as_ref().map_or_else(Vec::new, |e| e.carriers())
}

/// Asks process 0 to move what rail `from` carries to rail `to`.
fn migrate(w: &mut World, from: u8, to: u8) -> Result<MigrationReport, MigrateError> {
    w.with_engine(0, |_, e, now| e.migrate(None, RailId(from), RailId(to), now))
}

fn settle(w: &mut World, what: &str, f: impl Fn(&World) -> bool) {
    assert!(w.run_finely(3_000 * MS, |w| f(w)), "live: {what}: {}", w.describe());
}

/// Names of the events about carriers since `from`, with what they say.
fn story_of(w: &World, from: usize) -> Vec<String> {
    w.events[from..]
        .iter()
        .filter(|e| e.1 == 0)
        .filter_map(|(_, _, e)| {
            let on = e.path.map_or(9, |p| p.1.0);
            match e.kind {
                EventKind::Rearm { alternate } => Some(format!("rearm {on}>{}", alternate.0)),
                EventKind::Armed { alternate } => Some(format!("armed {on}>{}", alternate.0)),
                EventKind::Migrated { from, cause } => Some(format!("{} {}>{on}", cause.name(), from.0)),
                EventKind::PathDown { .. } => Some(format!("down {on}")),
                EventKind::PathUp { .. } => Some(format!("up {on}")),
                _ => None,
            }
        })
        .collect()
}

/// The rail that carries breaks: the armed alternate takes over, the next alternate is specified and loaded at once while a third
/// rail is there, and the broken one when it is back.
pub fn fault(story: &Story) {
    for silent in [false, true] {
        let mut w = world(story, 1, &[10_000; 3], ONE_RAIL);
        settle(&mut w, "no alternate is armed", |w| carriers(w).iter().all(|c| c.state == Migration::Armed));
        let c = &carriers(&w)[0];
        assert_eq!((c.path.1, c.alternate.map(|a| a.1)), (RailId(0), Some(RailId(1))), "{c:?}");
        let standby: Vec<Health> = w.paths(0).iter().map(|x| x.health).collect();
        assert_eq!(standby, [Health::Up, Health::Standby, Health::Standby]);
        let from = w.events.len();
        let cut = |w: &mut World, net| {
            if silent {
                w.begin(Fault::Dark { host: 1, net, inward: true, outward: true })
            } else {
                w.begin(Fault::IfDown { host: 0, net, peers: true })
            }
        };
        let first = cut(&mut w, 0);
        settle(&mut w, "nothing migrates", |w| w.counters(0).migrations_fault == 1);
        rounds(&mut w, 2, &[1 << 20, 500]);
        assert_eq!(story_of(&w, from), ["down 0", "fault 0>1", "rearm 1>2", "armed 1>2"]);
        // and again, with nothing to arm until the first is repaired
        let from = w.events.len();
        let second = cut(&mut w, 1);
        settle(&mut w, "nothing migrates", |w| w.counters(0).migrations_fault == 2);
        rounds(&mut w, 2, &[1 << 20, 500]);
        let told = story_of(&w, from);
        assert_eq!(told[..2], ["down 1", "fault 1>2"], "{told:?}");
        assert_eq!(carriers(&w)[0].state, Migration::Rearm);
        w.end_fault(first);
        w.end_fault(second);
        settle(&mut w, "the carrier is not armed again", |w| carriers(w)[0].state == Migration::Armed);
        assert_eq!(carriers(&w)[0].path.1, RailId(2), "between equal rails it stays where it is");
        w.heal_and_finish();
    }
}

/// An alternate that breaks while it is idle is found by its probes and replaced: an armed alternate is one that works.
pub fn idle_alternate(story: &Story) {
    let mut w = world(story, 1, &[10_000; 3], ONE_RAIL);
    settle(&mut w, "no alternate is armed", |w| carriers(w).iter().all(|c| c.state == Migration::Armed));
    let from = w.events.len();
    let cut = w.begin(Fault::Dark { host: 1, net: 1, inward: true, outward: true });
    settle(&mut w, "a dead alternate stays armed", |w| {
        let c = &carriers(w)[0];
        c.state == Migration::Armed && c.alternate.is_some_and(|a| a.1 == RailId(2))
    });
    settle(&mut w, "nobody finds out", |w| story_of(w, from).contains(&"down 1".to_owned()));
    assert_eq!(w.counters(0).migrations_fault, 0);
    w.end_fault(cut);
    w.heal_and_finish();
}

/// What the user names is the alternate, although another rail is faster; when it is broken the other stands in for it, and
/// gives way when it is repaired.
pub fn named_alternate(story: &Story) {
    let mut w = world(story, 1, &[10_000, 1_000, 10_000], &[("alternate", "net0>net1")]);
    let alternate_of_0 = |w: &World| {
        let c = carriers(w).into_iter().find(|c| c.home == RailId(0)).expect("net0 carries");
        (c.state == Migration::Armed).then_some(c.alternate.map(|a| a.1.0)).flatten()
    };
    settle(&mut w, "the named alternate is not armed", |w| alternate_of_0(w) == Some(1));
    rounds(&mut w, 2, &[4 << 20; 2]);
    let sent = sent_by(&w);
    assert!(sent[1] < 1000 && sent[2] > 1 << 20, "policy: a rail kept as an alternate carried: {sent:?}");
    let cut = w.begin(Fault::IfDown { host: 1, net: 1, peers: true });
    settle(&mut w, "nothing stands in", |w| alternate_of_0(w) == Some(2));
    w.end_fault(cut);
    settle(&mut w, "the named alternate is not armed again", |w| alternate_of_0(w) == Some(1));
    let cut = w.begin(Fault::IfDown { host: 0, net: 0, peers: true });
    rounds(&mut w, 1, &[4 << 20]);
    let before = sent_by(&w);
    rounds(&mut w, 2, &[4 << 20; 2]);
    let after = sent_by(&w);
    assert!(
        after[1] > before[1] + (1 << 19),
        "policy: the alternate did not take over: {before:?} {after:?}"
    );
    w.end_fault(cut);
    w.heal_and_finish();
}

/// Under load the user moves traffic to the other rail and back: nothing is sent again, nothing lost, and the rail that was left
/// carries nothing new.
pub fn on_request(story: &Story) {
    for (seed, set) in
        [&[][..], ONE_RAIL, &[("policy", "even")], &[("policy", "round-robin")]].iter().enumerate()
    {
        let mut w = world(story, seed as u64, &[10_000; 2], set);
        settle(&mut w, "no alternate is armed", |w| carriers(w).iter().all(|c| c.state == Migration::Armed));
        for k in 0..24 {
            let len = [3 << 20, 900, 60_000][k % 3];
            w.recv(RecvSpec::class(1, 1, len));
            w.send_soon(SendSpec::tagged(0, 1, 1, len));
        }
        w.run_for(MS);
        let done = migrate(&mut w, 0, 1);
        let done = done.unwrap_or_else(|e| panic!("migration: refused: {e}: {}", w.describe()));
        assert_eq!((done.moved, done.peers, done.refused), (1, 1, 0));
        all_received(&mut w);
        let before = sent_by(&w);
        rounds(&mut w, 2, &[1 << 20, 20_000, 300]);
        let after = sent_by(&w);
        assert_eq!(after[0], before[0], "migration: the rail that was left still carries");
        assert!(carriers(&w).iter().all(|c| c.path.1 == RailId(1)));
        let c = w.counters(0);
        assert_eq!((c.bytes_resent, c.migrations_request, c.migrations_fault), (0, 1, 0));

        // the rail that was chosen breaks: the request is forgotten, the traffic saved
        let cut = w.begin(Fault::IfDown { host: 0, net: 1, peers: true });
        rounds(&mut w, 1, &[1 << 20, 300]);
        w.end_fault(cut);
        settle(&mut w, "not armed again", |w| carriers(w).iter().all(|c| c.state == Migration::Armed));
        assert!(carriers(&w).iter().all(|c| !c.pinned));

        // there and back at the user's request
        let used = carriers(&w)[0].path.1.0;
        migrate(&mut w, used, 1 - used).expect("both rails work");
        rounds(&mut w, 1, &[1 << 20, 300]);
        w.with_engine(0, |_, e, now| e.migrate_home(now));
        assert!(carriers(&w).iter().all(|c| c.path.1 == c.home), "{:?}", carriers(&w));
        rounds(&mut w, 1, &[1 << 20, 300]);
        w.heal_and_finish();
    }
}

/// A request that cannot be met is refused with the reason, and changes nothing.
pub fn refused(story: &Story) {
    let mut w = world(story, 1, &[10_000; 2], ONE_RAIL);
    settle(&mut w, "no alternate is armed", |w| carriers(w).iter().all(|c| c.state == Migration::Armed));
    let says = |w: &mut World, from, to, wanted: &str| {
        let before = carriers(w)[0].path;
        let e = migrate(w, from, to).expect_err("this cannot be done").to_string();
        assert!(e.contains(wanted), "migration: {e:?} does not say {wanted:?}");
        assert_eq!(carriers(w)[0].path, before, "migration: refused and yet moved");
    };
    says(&mut w, 1, 0, "rail \"net1\" carries nothing now");
    says(&mut w, 0, 0, "named twice");
    let e = w.with_engine(0, |_, e, _| e.rail_named("ib7").unwrap_err().to_string());
    assert_eq!(e, "there is no rail \"ib7\": the rails of this process are net0, net1");
    let cut = w.begin(Fault::IfDown { host: 0, net: 1, peers: true });
    settle(&mut w, "the link is down and the path is not", |w| w.paths(0)[1].health == Health::Down);
    says(&mut w, 0, 1, "over rail \"net1\" to peer");
    says(&mut w, 0, 1, "is down: it can be migrated to when");
    w.end_fault(cut);
    settle(&mut w, "not armed again", |w| carriers(w)[0].state == Migration::Armed);
    assert!(migrate(&mut w, 0, 1).is_ok());
    let told: Vec<_> = w.events_of(0, |e| matches!(e, EventKind::Migrated { .. }));
    assert!(
        matches!(told[..], [(_, EventKind::Migrated { from: RailId(0), cause: MigrationCause::Request })]),
        "{told:?}"
    );
    w.heal_and_finish();
}

/// The network goes, and comes back on the rail that was in standby only. The carrier must find it.
pub fn blackout(story: &Story) {
    for set in [ONE_RAIL, &[("policy", "binding"), ("local_rank", "0")]] {
        let mut w = world(story, 1, &[10_000; 2], set);
        let dark = w.begin(Fault::Blackout { host: 0 });
        w.recv(RecvSpec::class(1, 1, 1 << 20));
        let id = w.send_soon(SendSpec::tagged(0, 1, 1, 1 << 20));
        w.run_for(1_500 * MS);
        let first = w.begin(Fault::Dark { host: 0, net: 0, inward: true, outward: true });
        w.end_fault(dark);
        assert!(w.run_finely(2_000 * MS, |w| received(w, id)), "live: {}", w.describe());
        w.end_fault(first);
        settle(&mut w, "not armed again", |w| carriers(w)[0].state == Migration::Armed);
        w.heal_and_finish();
    }
}

/// After a cable was pulled and put back, both sides are notified within 4 ms. A side whose hello was lost meanwhile
/// must not sit out its waiting time.
pub fn quick_return(story: &Story) {
    for seed in 0..12 {
        let mut w = world(story, seed, &[10_000; 2], &[]);
        let cut = w.begin(Fault::IfDown { host: 0, net: 0, peers: true });
        w.run_for((100 + 17 * seed) * MS);
        w.end_fault(cut);
        let from = w.now;
        settle(&mut w, "the rail does not come back", |w| {
            (0..2).all(|p| w.paths(p).iter().all(|x| x.health == Health::Up))
        });
        let late = (w.now - from) / MS;
        assert!(late < 20, "evidence: the rail was back, and used again {late} ms later (seed {seed})");
        w.heal_and_finish();
    }
}
