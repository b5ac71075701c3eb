//! Two ends of a lane over the mock of the verbs calls.

use super::mock::{self, connected, events, fails_to_migrate, fault, manners, paths, ports, traffic};
use super::*;
use std::time::Duration;

/// The lane, as the side that opened it and as the other one names it.
const LANES: [LaneNumber; 2] = [4, 5];
const OTHER: RailId = RailId(1);

/// Two ends of a lane, and what became of each.
struct Ends {
    sides: [Alternates; 2],
    qps: [*mut ibv_qp; 2],
    now: Instant,
    told: [Vec<Effect>; 2],
    /// Messages that are on their way are lost.
    dark: bool,
}

impl Ends {
    fn new() -> Ends {
        manners(false, false);
        events();
        let qps = connected();
        let mut sides = [Alternates::new(ports(1)), Alternates::new(ports(2))];
        for side in 0..2 {
            // SAFETY: they live until `forget`.
            unsafe { sides[side].made(LANES[side], RailId(0), qps[side]) };
        }
        Ends { sides, qps, now: Instant::now(), told: Default::default(), dark: false }
    }

    fn number(&self, side: usize) -> u32 {
        // SAFETY: it lives.
        unsafe { (*self.qps[side]).qp_num }
    }

    /// What the peer's rail 1 is called.
    fn alternate(&self) -> Alternate {
        Alternate { rail: OTHER, to: self.sides[1].ports[1].own }
    }

    fn load(&mut self, number: u32, alternate: Option<Alternate>) {
        let effects = self.sides[0].load(LANES[0], number, alternate);
        self.carry_out(0, effects);
    }

    /// Messages cross, and what else there is is kept.
    fn carry_out(&mut self, side: usize, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Send(_) if self.dark => {}
                Effect::Send(message) => {
                    let message = Message::read(&message.to_bytes()).expect("what is sent is read");
                    let answers = self.sides[1 - side].receive(LANES[1 - side], message);
                    self.carry_out(1 - side, answers);
                }
                _ => self.told[side].push(effect),
            }
        }
    }

    /// Time passes, and the manager looks at what is due.
    fn wait(&mut self) {
        self.now += Duration::from_secs(2);
        for side in 0..2 {
            let effects = self.sides[side].ask(self.now);
            self.carry_out(side, effects.into_iter().map(|(_, effect)| effect).collect());
        }
    }

    /// Events reach both managers: each looks at its own.
    fn deliver(&mut self) {
        let all = events();
        for side in 0..2 {
            let effects = self.sides[side].events(Some(all.clone()), self.now);
            self.carry_out(side, effects.into_iter().map(|(_, effect)| effect).collect());
        }
    }

    fn told(&mut self) -> [Vec<Effect>; 2] {
        std::mem::take(&mut self.told)
    }

    /// Loaded and armed, and both told.
    fn armed() -> Ends {
        let mut ends = Ends::new();
        let alternate = ends.alternate();
        ends.load(1, Some(alternate));
        traffic(ends.number(0));
        ends.wait();
        assert_eq!(ends.told(), [1, 1].map(|number| vec![Effect::Armed(number, OTHER)]));
        ends
    }
}

impl Drop for Ends {
    fn drop(&mut self) {
        for (side, lane) in LANES.into_iter().enumerate() {
            self.sides[side].forget(lane);
            // SAFETY: made by the mock, and forgotten.
            unsafe { mock::destroy(self.qps[side]) };
        }
    }
}

#[test]
fn both_ends_load_and_are_armed_when_a_packet_has_passed() {
    let mut ends = Ends::new();
    let alternate = ends.alternate();
    ends.load(1, Some(alternate));
    for side in 0..2 {
        let (primary, alternate, state) = paths(ends.number(side));
        assert_eq!(
            (primary, alternate, state),
            ((1, 101), (2, 102), IBV_MIG_REARM),
            "ports and the peer's LIDs"
        );
    }
    ends.wait();
    assert_eq!(ends.told(), [vec![], vec![]], "no packet has passed");
    assert!(ends.sides[0].patience(ends.now).is_some_and(|wait| wait <= ASK_AFTER.1));
    traffic(ends.number(1));
    ends.wait();
    assert_eq!(ends.told(), [vec![Effect::Armed(1, OTHER)], vec![Effect::Armed(1, OTHER)]]);
    assert_eq!(ends.sides[0].patience(ends.now), None, "what is armed is not asked");
}

#[test]
fn one_side_refuses_and_neither_is_armed() {
    let mut ends = Ends::new();
    let elsewhere = [
        // another adapter of the peer; no rail of the peer; the peer's rail that the lane goes over
        ends.sides[1].ports[2].own,
        Locator::of_ip(rerail_rail::Kind::ROCE, [10, 9, 9, 9].into(), 71),
        ends.sides[1].ports[0].own,
    ];
    for (number, to) in (1..).zip(elsewhere) {
        ends.load(number, Some(Alternate { rail: OTHER, to }));
        assert_eq!(ends.told(), [vec![Effect::Unloaded(number)], vec![]]);
    }
    for rail in [0, 2, 9] {
        let to = ends.alternate().to;
        ends.load(7, Some(Alternate { rail: RailId(rail), to }));
        assert_eq!(
            ends.told(),
            [vec![Effect::Unloaded(7)], vec![]],
            "{rail} is no other port of the adapter"
        );
    }
    assert_eq!([0, 1].map(|side| paths(ends.number(side)).2), [IBV_MIG_MIGRATED; 2]);
    // the kernel refuses, as for RoCE
    manners(true, false);
    let alternate = ends.alternate();
    ends.load(8, Some(alternate));
    assert_eq!(ends.told(), [vec![Effect::Unloaded(8)], vec![]]);
    let (one, other) = (&ends.sides[0].ports[0], &ends.sides[0].ports[1]);
    assert_eq!(one.address().unwrap().lid, 101);
    assert_ne!(one.address().unwrap(), other.address().unwrap());
}

#[test]
fn the_end_that_cannot_load_has_the_other_one_unload() {
    let mut ends = Ends::new();
    let alternate = ends.alternate();
    let Some(Effect::Send(load)) = ends.sides[0].load(LANES[0], 1, Some(alternate)).pop() else { panic!() };
    let Some(Effect::Send(loaded)) = ends.sides[1].receive(LANES[1], load).pop() else { panic!() };
    manners(true, false);
    let effects = ends.sides[0].receive(LANES[0], loaded);
    manners(false, false);
    ends.carry_out(0, effects);
    assert_eq!(ends.told(), [vec![Effect::Unloaded(1)], vec![Effect::Unloaded(1)]]);
    assert_eq!(paths(ends.number(1)).1, (1, 101), "its own path, loaded again");
}

#[test]
fn a_fault_migrates_both_ends_and_they_are_armed_again() {
    let mut ends = Ends::armed();
    fault(ends.number(0));
    ends.deliver();
    assert_eq!(
        ends.told(),
        [vec![Effect::Migrated(OTHER)], vec![]],
        "the other end knows with the next packet"
    );
    traffic(ends.number(0));
    ends.deliver();
    assert_eq!(ends.told(), [vec![], vec![Effect::Migrated(OTHER)]]);
    // home again
    let home = Alternate { rail: RailId(0), to: ends.sides[1].ports[0].own };
    ends.load(2, Some(home));
    traffic(ends.number(0));
    ends.wait();
    assert_eq!(ends.told(), [0, 1].map(|_| vec![Effect::Armed(2, RailId(0))]));
    ends.sides[0].migrate(LANES[0]);
    traffic(ends.number(0));
    ends.deliver();
    assert_eq!(ends.told(), [0, 1].map(|_| vec![Effect::Migrated(RailId(0))]));
    assert_eq!(paths(ends.number(0)).0, (1, 101));
}

#[test]
fn on_request_either_end_migrates_if_it_is_armed() {
    let mut ends = Ends::new();
    ends.sides[0].migrate(LANES[0]);
    ends.deliver();
    assert_eq!(ends.told(), [vec![], vec![]], "nothing is loaded");
    for (side, lane) in LANES.into_iter().enumerate() {
        let mut ends = Ends::armed();
        ends.sides[side].migrate(lane);
        traffic(ends.number(side));
        ends.deliver();
        assert_eq!(ends.told(), [0, 1].map(|_| vec![Effect::Migrated(OTHER)]));
        ends.sides[side].migrate(lane);
        ends.deliver();
        assert_eq!(ends.told(), [vec![], vec![]], "it is not armed any more");
    }
}

#[test]
fn an_adapter_that_cannot_migrate_has_its_alternate_taken_away() {
    let mut ends = Ends::armed();
    fails_to_migrate(ends.number(0));
    ends.deliver();
    assert_eq!(ends.told(), [vec![Effect::Unloaded(1)], vec![Effect::Unloaded(1)]]);
    assert_eq!([0, 1].map(|side| paths(ends.number(side)).1), [(1, 101); 2]);
    // and what the accepting end reports takes it away here only
    let mut ends = Ends::armed();
    fails_to_migrate(ends.number(1));
    ends.deliver();
    assert_eq!(ends.told(), [vec![], vec![Effect::Unloaded(1)]]);
}

#[test]
fn the_event_of_a_queue_pair_that_is_gone_means_nothing() {
    let mut ends = Ends::armed();
    fault(ends.number(0));
    ends.sides[0].forget(LANES[0]);
    ends.deliver();
    assert_eq!(ends.told(), [vec![], vec![]]);
    // nor for the one that has its number now: its own state is asked for
    // SAFETY: it lives until the end of the test.
    unsafe { ends.sides[0].made(LANES[0] + 4, RailId(0), ends.qps[0]) };
    let stale = PathEvent { number: ends.number(0), failed: false };
    assert_eq!(ends.sides[0].events(Some(vec![stale]), ends.now), []);
    ends.sides[0].forget(LANES[0] + 4);
}

#[test]
fn what_is_unloaded_migrates_nowhere_and_the_peer_is_told() {
    let mut ends = Ends::armed();
    ends.load(2, None);
    assert_eq!(ends.told(), [vec![], vec![Effect::Unloaded(2)]]);
    traffic(ends.number(0));
    fault(ends.number(0));
    ends.deliver();
    assert_eq!(ends.told(), [vec![], vec![]]);
    assert_eq!(paths(ends.number(0)).0, (1, 101), "from its own path to its own path");
    ends.load(3, None);
    assert_eq!(ends.told(), [vec![], vec![]], "there is nothing to unload");
}

#[test]
fn an_adapter_that_takes_no_other_path_while_it_is_armed_may_still_migrate() {
    let mut ends = Ends::armed();
    manners(false, true);
    ends.load(2, None);
    assert_eq!(ends.told(), [vec![], vec![Effect::Unloaded(2)]]);
    // the same path is wanted again: it is still there
    let alternate = ends.alternate();
    ends.load(3, Some(alternate));
    ends.wait();
    assert_eq!(ends.told(), [0, 1].map(|_| vec![Effect::Armed(3, OTHER)]));
    ends.load(4, None);
    ends.told();
    fault(ends.number(0));
    ends.deliver();
    assert_eq!(ends.told(), [vec![Effect::Migrated(OTHER)], vec![]], "it is reported all the same");
}

#[test]
fn an_order_that_is_overtaken_is_not_answered() {
    let mut ends = Ends::new();
    let alternate = ends.alternate();
    ends.dark = true;
    ends.load(1, Some(alternate));
    ends.load(2, Some(alternate));
    ends.dark = false;
    let late = Message::Loaded { number: 1, at: Address { lid: 102, gid: [2; 16] } };
    let effects = ends.sides[0].receive(LANES[0], late);
    assert_eq!(effects, [], "the answer to the first order");
    assert_eq!(paths(ends.number(0)).2, IBV_MIG_MIGRATED, "and nothing is loaded by it");
    assert_eq!(ends.sides[0].receive(LANES[0], Message::Refused { number: 1 }), []);
    ends.load(3, Some(alternate));
    traffic(ends.number(0));
    ends.wait();
    assert_eq!(ends.told(), [0, 1].map(|_| vec![Effect::Armed(3, OTHER)]));
}

#[test]
fn each_side_hears_only_what_is_for_it() {
    let mut ends = Ends::new();
    let address = ends.sides[0].ports[1].address().unwrap();
    let to = (place(&ends.sides[0].ports[1].own), ends.sides[0].ports[1].own.service());
    let load = Message::Load { number: 1, from: address, to };
    assert_eq!(ends.sides[0].receive(LANES[0], load), [], "this side opened the lane");
    assert_eq!(ends.sides[0].receive(LANES[0], Message::Unload { number: 1 }), []);
    assert_eq!(ends.sides[1].receive(LANES[1], Message::Loaded { number: 1, at: address }), []);
    assert_eq!(ends.sides[1].receive(LANES[1], Message::Refused { number: 1 }), []);
    assert_eq!([0, 1].map(|side| paths(ends.number(side)).2), [IBV_MIG_MIGRATED; 2]);
    assert_eq!(ends.sides[1].receive(99, load), [], "no such lane");
}

#[test]
fn what_an_adapter_does_is_tried_and_not_read_from_what_it_says() {
    let fake = ports(1);
    let completions = crate::fake::no_completions(&fake[0].adapter);
    manners(true, false);
    let refused = probe(&fake[0], &fake[1], &completions).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EINVAL));
    manners(false, false);
    probe(&fake[0], &fake[1], &completions).unwrap();
}

#[test]
fn of_too_many_events_every_queue_pair_is_looked_at() {
    let wake = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
    let kept = PathEvents::new(Arc::new(wake));
    assert_eq!(kept.take(), None);
    let event = PathEvent { number: 1, failed: false };
    (0..EVENTS_MAX).for_each(|_| kept.put(event));
    assert_eq!(kept.take().flatten().map(|events| events.len()), Some(EVENTS_MAX));
    (0..EVENTS_MAX + 5).for_each(|_| kept.put(event));
    assert_eq!(kept.take(), Some(None));
    let mut ends = Ends::armed();
    fault(ends.number(0));
    let effects = ends.sides[0].events(None, ends.now);
    assert_eq!(effects, [(LANES[0], Effect::Migrated(OTHER))]);
}

#[test]
fn a_lane_whose_adapter_has_no_other_port_is_not_looked_at() {
    let [qp, _] = connected();
    let mut side = Alternates::new(ports(1));
    // SAFETY: they are not used behind this function.
    unsafe {
        [RailId(0), RailId(2)].into_iter().zip([2, 4]).for_each(|(rail, lane)| side.made(lane, rail, qp))
    };
    assert_eq!(side.pairs.keys().copied().collect::<Vec<_>>(), [2], "rail 2 is the only port of its adapter");
}
