//! The example rail keeps the contract of adapters, and shows why a fence is needed.

use rerail_example::Network;
use rerail_rail::adapter_conformance::Adapters;
use rerail_rail::{
    AdapterEvent, AdapterPort, IoVec, LaneId, MemId, Op, Posted, RailId, RemotePlace, Rights, WorkId,
};
use std::sync::atomic::{AtomicU64, Ordering};

/// Each test has another order of events.
fn sides() -> Adapters {
    static SEED: AtomicU64 = AtomicU64::new(1);
    let seed = SEED.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let network = Network::new(seed);
    let (a, b) = (network.attach(), network.attach());
    Adapters { a: Box::new(a), b: Box::new(b), cut: Box::new(move || network.cut()) }
}

rerail_rail::adapter_conformance_tests!(sides);

/// What H19 says: the initiator was told that its write failed, and it lands after that. A target that reused the memory without a fence
/// would find foreign bytes in it.
#[test]
fn without_a_fence_a_failed_write_still_lands() {
    let mut late = 0;
    for seed in 1..40u64 {
        let network = Network::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let (mut a, mut b) = (network.attach(), network.attach());
        let to = b.rails()[0].locator;
        a.connect(LaneId(1), RailId(0), &to);
        assert!(b.accept(&mut |_, _| LaneId(2)));
        // never freed: it is written to when nobody expects it any more
        let memory = [Box::into_raw(Box::new([1_u8; 50_000])), Box::into_raw(Box::new([0_u8; 50_000]))];
        let [source, target] = memory.map(|m| IoVec::new(m.cast(), 50_000));
        // SAFETY: the memory is never freed.
        unsafe {
            a.register(MemId(1), source, Rights::Local);
            b.register(MemId(1), target, Rights::RemoteWrite);
        }
        let (mut said_a, mut said_b) = (Vec::new(), Vec::new());
        let key = loop {
            b.poll(&mut said_b);
            if let Some(key) = said_b.iter().find_map(|e| match *e {
                AdapterEvent::Registered { key, .. } => Some(key),
                _ => None,
            }) {
                break key;
            }
        };
        let op = Op::Write { pieces: &[source], to: RemotePlace { key, offset: 0 }, notice: None };
        // SAFETY: as above.
        assert_eq!(unsafe { a.post(LaneId(1), WorkId(1), op) }, Posted::Lent);
        for _ in 0..20 {
            a.poll(&mut said_a);
        }
        network.cut();
        a.poll(&mut said_a);
        if !said_a.contains(&AdapterEvent::Failed { lane: LaneId(1), work: WorkId(1) }) {
            continue;
        }
        // SAFETY: single bytes out of memory that is never freed, while nobody polls.
        let landed = || (0..50_000).filter(|&i| unsafe { target.ptr.add(i).read_volatile() } == 1).count();
        let then = landed();
        for _ in 0..2000 {
            b.poll(&mut said_b);
        }
        late += usize::from(landed() > then);
    }
    assert!(late > 0, "the example must be as late as the contract allows");
}
