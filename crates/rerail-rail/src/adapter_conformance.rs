//! What every adapter must do, as tests. A crate calls [`adapter_conformance_tests!`](crate::adapter_conformance_tests) with a function that
//! makes two sides which reach each other, rail 0 of the one from rail 0 of the other, and something that breaks their connections.
//!
//! The suite lends memory that it looks at while the adapter may write to it, by raw pointers and single bytes, as a process does whose
//! memory a peer writes.

use crate::conformance::eventually;
use crate::{
    AdapterEvent, AdapterPort, Caps, IoVec, LaneId, Locator, MemId, Op, Posted, RailId, RemoteKey,
    RemotePlace, Rights, WorkId,
};

/// Two sides, and what breaks every connection between them while packets are under way.
pub struct Adapters {
    /// One side.
    pub a: Box<dyn AdapterPort>,
    /// The other.
    pub b: Box<dyn AdapterPort>,
    /// Breaks the connections. What is under way may arrive later.
    pub cut: Box<dyn FnMut()>,
}

/// Makes the two sides of a test.
pub type Factory = fn() -> Adapters;

/// Defines one `#[test]` for each requirement; `$factory` is a [`Factory`].
#[macro_export]
macro_rules! adapter_conformance_tests {
    ($factory:expr) => {
        $crate::adapter_conformance_tests!(@each $factory;
            adapter_rails_are_described,
            connecting_names_the_rail_and_the_place,
            messages_arrive_whole_and_in_order,
            writes_land_before_their_notice,
            a_write_outside_of_what_was_granted_touches_nothing,
            memory_that_is_not_registered_is_not_lent,
            nothing_lands_after_invalidation,
            every_work_ends_once_whatever_breaks,
            nothing_lands_after_the_fence,
            a_fence_is_answered_each_time,
        );
    };
    (@each $factory:expr; $($name:ident,)*) => {
        $(#[test] fn $name() { $crate::adapter_conformance::$name($factory); })*
    };
}

/// Polls in a row in which an adapter that is late would show it.
const LONG: usize = 5000;

/// A side with what it has said.
struct Side {
    port: Box<dyn AdapterPort>,
    said: Vec<AdapterEvent>,
    regions: u32,
}

impl Side {
    fn new(port: Box<dyn AdapterPort>) -> Self {
        Self { port, said: Vec::new(), regions: 0 }
    }

    fn poll(&mut self) {
        self.port.poll(&mut self.said);
    }

    fn has(&self, e: AdapterEvent) -> bool {
        self.said.contains(&e)
    }

    fn locator(&self) -> Locator {
        self.port.rails()[0].locator
    }

    /// How often work was reported as over, and whether as done.
    fn ends(&self, lane: LaneId, work: WorkId) -> Vec<bool> {
        let end = |e: &AdapterEvent| match *e {
            AdapterEvent::Done { lane: l, work: w, .. } => ((l, w) == (lane, work)).then_some(true),
            AdapterEvent::Failed { lane: l, work: w } => ((l, w) == (lane, work)).then_some(false),
            _ => None,
        };
        self.said.iter().filter_map(end).collect()
    }
}

/// Memory that an adapter may touch: never borrowed, so that nobody claims to be alone with it.
struct Lent {
    base: *mut u8,
    len: usize,
}

impl Lent {
    fn new(len: usize, fill: u8) -> Self {
        let bytes = vec![fill; len].into_boxed_slice();
        Self { base: Box::into_raw(bytes).cast(), len }
    }

    fn iov(&self) -> IoVec {
        IoVec::new(self.base, self.len)
    }

    fn part(&self, from: usize, len: usize) -> IoVec {
        assert!(from + len <= self.len);
        // SAFETY: inside the allocation, as asserted.
        IoVec::new(unsafe { self.base.add(from) }, len)
    }

    fn get(&self, i: usize) -> u8 {
        assert!(i < self.len);
        // SAFETY: inside the allocation, as asserted; nobody else runs at the same time.
        unsafe { self.base.add(i).read_volatile() }
    }

    fn all(&self) -> Vec<u8> {
        (0..self.len).map(|i| self.get(i)).collect()
    }

    fn is(&self, fill: u8) -> bool {
        (0..self.len).all(|i| self.get(i) == fill)
    }

    fn pattern(len: usize, seed: u8) -> Self {
        let l = Self::new(len, 0);
        for i in 0..len {
            // SAFETY: inside the allocation, which nobody knows yet.
            unsafe {
                l.base.add(i).write(seed.wrapping_add((i as u32).wrapping_mul(0x9e37_79b9).to_be_bytes()[0]))
            };
        }
        l
    }
}
// The memory is never freed: an adapter that breaks its promise writes to it, and not to what came after it.

const LA: LaneId = LaneId(1);
const LB: LaneId = LaneId(1001);

fn sides(factory: Factory) -> (Side, Side, Box<dyn FnMut()>) {
    let Adapters { a, b, cut } = factory();
    (Side::new(a), Side::new(b), cut)
}

fn connect(a: &mut Side, b: &mut Side) {
    let to = b.locator();
    a.port.connect(LA, RailId(0), &to);
    let from = eventually("the connection comes in", || {
        b.poll();
        let mut who = None;
        if b.has(AdapterEvent::Incoming) {
            b.port.accept(&mut |rail, from| {
                who = Some((rail, from));
                LB
            });
        }
        who
    });
    assert_eq!(from.0, RailId(0), "an accepted connection names its rail");
    assert!(from.1.same_place(&a.locator()), "and where it comes from");
    eventually("the connection is made", || {
        a.poll();
        b.poll();
        (a.has(AdapterEvent::Connected(LA)) && b.has(AdapterEvent::Connected(LB))).then_some(())
    });
}

fn register(side: &mut Side, memory: IoVec, rights: Rights) -> (MemId, RemoteKey) {
    side.regions += 1;
    let region = MemId(side.regions);
    // SAFETY: memory of the suite is never freed.
    unsafe { side.port.register(region, memory, rights) };
    let key = eventually("the memory is registered", || {
        side.poll();
        side.said.iter().find_map(|e| match *e {
            AdapterEvent::Registered { region: r, key } if r == region => Some(key),
            _ => None,
        })
    });
    (region, key)
}

/// Posts until there is room.
fn post(side: &mut Side, other: &mut Side, lane: LaneId, work: u64, op: Op<'_>) {
    eventually("there is room", || {
        // SAFETY: memory of the suite is never freed, and it is read and written by single bytes only.
        match unsafe { side.port.post(lane, WorkId(work), op) } {
            Posted::Lent => Some(()),
            Posted::Full => {
                side.poll();
                other.poll();
                None
            }
            Posted::Refused => panic!("work {work} is refused"),
        }
    });
}

fn until(what: &str, a: &mut Side, b: &mut Side, done: impl Fn(&Side, &Side) -> bool) {
    eventually(what, || {
        a.poll();
        b.poll();
        done(a, b).then_some(())
    });
}

/// There are rails that can write, at places of their own.
pub fn adapter_rails_are_described(factory: Factory) {
    let (a, b, _) = sides(factory);
    for side in [&a, &b] {
        assert!(!side.port.rails().is_empty());
        for r in side.port.rails() {
            assert!(!r.name.is_empty() && !r.locator.place().is_empty(), "{r:?}");
            assert!(r.caps.contains(Caps::WRITE), "{r:?}");
        }
    }
    assert_ne!(a.locator(), b.locator());
}

/// Both sides are told, and a place where nobody is breaks the lane.
pub fn connecting_names_the_rail_and_the_place(factory: Factory) {
    let (mut a, mut b, _cut) = sides(factory);
    connect(&mut a, &mut b);
    let nobody = b.locator().with_service(0);
    a.port.connect(LaneId(2), RailId(0), &nobody);
    until("it is refused", &mut a, &mut b, |a, _| {
        a.said.iter().any(|e| matches!(e, AdapterEvent::Broken(LaneId(2), _)))
    });
    assert!(!b.port.accept(&mut |_, _| panic!("nobody came")));
}

/// Of several pieces, into several pieces; a message waits for its receive.
pub fn messages_arrive_whole_and_in_order(factory: Factory) {
    let (mut a, mut b, _cut) = sides(factory);
    connect(&mut a, &mut b);
    let (source, target) = (Lent::pattern(40_000, 3), Lent::new(40_000, 0));
    register(&mut a, source.iov(), Rights::Local);
    register(&mut b, target.iov(), Rights::Local);
    for i in 0..4 {
        let from = [source.part(i * 10_000, 3000), source.part(i * 10_000 + 3000, 7000)];
        post(&mut a, &mut b, LA, i as u64, Op::Send(&from));
    }
    for _ in 0..LONG / 10 {
        a.poll();
        b.poll();
    }
    assert!(target.is(0), "nothing is received without a receive");
    for i in 0..4 {
        let to = [target.part(i * 10_000, 9999), target.part(i * 10_000 + 9999, 1)];
        post(&mut b, &mut a, LB, i as u64, Op::Recv(&to));
    }
    until("all messages are there", &mut a, &mut b, |a, b| {
        (0..4).all(|i| a.ends(LA, WorkId(i)) == [true] && b.ends(LB, WorkId(i)) == [true])
    });
    assert!(b.has(AdapterEvent::Done { lane: LB, work: WorkId(0), bytes: 10_000 }));
    assert!(source.all() == target.all());
}

/// The notice of the last of several writes speaks for all of them.
pub fn writes_land_before_their_notice(factory: Factory) {
    let (mut a, mut b, _cut) = sides(factory);
    connect(&mut a, &mut b);
    let (source, target) = (Lent::pattern(60_000, 5), Lent::new(70_000, 0xee));
    register(&mut a, source.iov(), Rights::Local);
    let (_, key) = register(&mut b, target.iov(), Rights::RemoteWrite);
    for i in 0..3u64 {
        let pieces = [source.part(i as usize * 20_000, 20_000)];
        let to = RemotePlace { key, offset: 5000 + i * 20_000 };
        let notice = (i == 2).then_some(77);
        post(&mut a, &mut b, LA, i, Op::Write { pieces: &pieces, to, notice });
    }
    until("the notice comes", &mut a, &mut b, |_, b| b.has(AdapterEvent::Written { lane: LB, notice: 77 }));
    let now = target.all();
    assert!(now[5000..65_000] == source.all()[..], "all bytes are there before the notice");
    assert!(now[..5000].iter().chain(&now[65_000..]).all(|&x| x == 0xee), "and no others");
    until("the writes are done", &mut a, &mut b, |a, _| (0..3).all(|i| a.ends(LA, WorkId(i)) == [true]));
    assert_eq!(b.said.iter().filter(|e| matches!(e, AdapterEvent::Written { .. })).count(), 1);
}

/// A forged key, memory that peers may not write, and a place outside of the region: the write fails.
pub fn a_write_outside_of_what_was_granted_touches_nothing(factory: Factory) {
    for case in 0..4 {
        let (mut a, mut b, _cut) = sides(factory);
        connect(&mut a, &mut b);
        let (source, target) = (Lent::new(1000, 1), Lent::new(3000, 0));
        register(&mut a, source.iov(), Rights::Local);
        let (_, key) = register(&mut b, target.part(1000, 1000), Rights::RemoteWrite);
        let (_, local) = register(&mut b, target.part(0, 1000), Rights::Local);
        assert_ne!(key, local, "keys differ");
        let to = match case {
            0 => RemotePlace { key: RemoteKey(key.0 ^ 1), offset: 0 },
            1 => RemotePlace { key: local, offset: 0 },
            2 => RemotePlace { key, offset: 1 },
            _ => RemotePlace { key, offset: u64::MAX - 10 },
        };
        post(&mut a, &mut b, LA, 1, Op::Write { pieces: &[source.iov()], to, notice: Some(1) });
        until("the write fails", &mut a, &mut b, |a, _| a.ends(LA, WorkId(1)) == [false]);
        for _ in 0..LONG / 10 {
            a.poll();
            b.poll();
        }
        assert!(target.is(0), "case {case}");
        assert!(!b.said.iter().any(|e| matches!(e, AdapterEvent::Written { .. })));
    }
}

/// Where registration is needed.
pub fn memory_that_is_not_registered_is_not_lent(factory: Factory) {
    let (mut a, mut b, _cut) = sides(factory);
    if !a.port.rails()[0].caps.contains(Caps::NEEDS_REGISTRATION) {
        return;
    }
    connect(&mut a, &mut b);
    let memory = Lent::new(100, 1);
    register(&mut a, memory.part(0, 99), Rights::Local);
    // SAFETY: memory of the suite is never freed.
    let posted = unsafe { a.port.post(LA, WorkId(1), Op::Send(&[memory.iov()])) };
    assert_eq!(posted, Posted::Refused, "one byte of it is not registered");
    // SAFETY: as above.
    let posted = unsafe { a.port.post(LaneId(9), WorkId(1), Op::Send(&[memory.part(0, 9)])) };
    assert_eq!(posted, Posted::Refused, "there is no such lane");
}

/// While writes keep coming: none lands after the word, and the key is good for nothing any more.
pub fn nothing_lands_after_invalidation(factory: Factory) {
    let (mut a, mut b, _cut) = sides(factory);
    connect(&mut a, &mut b);
    let (source, target) = (Lent::new(50_000, 1), Lent::new(50_000, 0));
    register(&mut a, source.iov(), Rights::Local);
    let (region, key) = register(&mut b, target.iov(), Rights::RemoteWrite);
    post(
        &mut a,
        &mut b,
        LA,
        1,
        Op::Write { pieces: &[source.iov()], to: RemotePlace { key, offset: 0 }, notice: None },
    );
    for _ in 0..3 {
        a.poll();
    }
    b.port.invalidate(region);
    until("it is invalid", &mut a, &mut b, |_, b| b.has(AdapterEvent::Invalidated { region }));
    let then = target.all();
    for _ in 0..LONG {
        a.poll();
        b.poll();
    }
    assert!(target.all() == then, "nothing lands in memory that was given back");
    b.port.invalidate(MemId(999));
    until("unknown is invalid too", &mut a, &mut b, |_, b| {
        b.has(AdapterEvent::Invalidated { region: MemId(999) })
    });
}

/// Done or failed, never both, never twice, never not at all.
pub fn every_work_ends_once_whatever_breaks(factory: Factory) {
    for patience in [0, 1, 5, 20, 80] {
        let (mut a, mut b, mut cut) = sides(factory);
        connect(&mut a, &mut b);
        let (source, target) = (Lent::pattern(8000, 1), Lent::new(8000, 0));
        register(&mut a, source.iov(), Rights::Local);
        let (_, key) = register(&mut b, target.iov(), Rights::RemoteWrite);
        post(&mut b, &mut a, LB, 0, Op::Recv(&[target.part(0, 1000)]));
        post(&mut b, &mut a, LB, 1, Op::Recv(&[target.part(1000, 1000)]));
        post(&mut a, &mut b, LA, 0, Op::Send(&[source.part(0, 1000)]));
        for i in 1..8 {
            let to = RemotePlace { key, offset: 1000 * i };
            post(&mut a, &mut b, LA, i, Op::Write { pieces: &[source.part(0, 1000)], to, notice: None });
        }
        for _ in 0..patience {
            a.poll();
            b.poll();
        }
        cut();
        until("everything ends", &mut a, &mut b, |a, b| {
            (0..8).all(|i| !a.ends(LA, WorkId(i)).is_empty())
                && (0..2).all(|i| !b.ends(LB, WorkId(i)).is_empty())
        });
        for _ in 0..LONG / 10 {
            a.poll();
            b.poll();
        }
        for (side, lane, works) in [(&a, LA, 8), (&b, LB, 2)] {
            assert!(side.said.iter().any(|e| matches!(e, AdapterEvent::Broken(l, _) if *l == lane)));
            for i in 0..works {
                assert_eq!(side.ends(lane, WorkId(i)).len(), 1, "work {i} after {patience} polls");
            }
        }
        // SAFETY: memory of the suite is never freed.
        let posted = unsafe { a.port.post(LA, WorkId(99), Op::Send(&[source.part(0, 1)])) };
        assert_eq!(posted, Posted::Refused, "a broken lane takes nothing");
    }
}

/// The initiator was told that its write failed, and the target fences the lane: what was under way is gone.
pub fn nothing_lands_after_the_fence(factory: Factory) {
    for patience in 0..40 {
        let (mut a, mut b, mut cut) = sides(factory);
        connect(&mut a, &mut b);
        let (source, target) = (Lent::new(100_000, 1), Lent::new(100_000, 0));
        register(&mut a, source.iov(), Rights::Local);
        let (_, key) = register(&mut b, target.iov(), Rights::RemoteWrite);
        let to = RemotePlace { key, offset: 0 };
        post(&mut a, &mut b, LA, 1, Op::Write { pieces: &[source.iov()], to, notice: Some(1) });
        for _ in 0..patience {
            a.poll();
        }
        cut();
        b.port.fence(LB);
        until("it is fenced", &mut a, &mut b, |_, b| b.has(AdapterEvent::Fenced { lane: LB }));
        let then = target.all();
        let said = b.said.len();
        for _ in 0..LONG {
            a.poll();
            b.poll();
        }
        assert!(target.all() == then, "nothing lands after the fence ({patience} polls before)");
        assert!(!b.said[said..].iter().any(|e| matches!(e, AdapterEvent::Written { .. })));
    }
}

/// Of a lane with work on it, of one that is over, and of one that never was. Everything posted has ended before.
pub fn a_fence_is_answered_each_time(factory: Factory) {
    let (mut a, mut b, _cut) = sides(factory);
    connect(&mut a, &mut b);
    let memory = Lent::new(1000, 1);
    register(&mut a, memory.iov(), Rights::Local);
    post(&mut a, &mut b, LA, 1, Op::Recv(&[memory.iov()]));
    for (lane, times) in [(LA, 1), (LA, 2), (LaneId(55), 1)] {
        a.port.fence(lane);
        until("it is fenced", &mut a, &mut b, |a, _| {
            a.said.iter().filter(|e| **e == AdapterEvent::Fenced { lane }).count() == times
        });
    }
    assert_eq!(a.ends(LA, WorkId(1)), [false]);
    let at = |e: AdapterEvent| a.said.iter().position(|x| *x == e);
    assert!(
        at(AdapterEvent::Failed { lane: LA, work: WorkId(1) }) < at(AdapterEvent::Fenced { lane: LA }),
        "the memory of the work is given back before the fence is told"
    );
    // SAFETY: memory of the suite is never freed.
    let posted = unsafe { a.port.post(LA, WorkId(2), Op::Recv(&[memory.iov()])) };
    assert_eq!(posted, Posted::Refused);
}
