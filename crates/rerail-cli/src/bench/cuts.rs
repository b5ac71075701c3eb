//! The cuts of `--rwapi`: while a figure is measured, each rail in turn goes dark and is healed.

use super::test::Test;

/// Before the first cut.
const LEAD_MS: u32 = 100;
/// How long a rail is dark: longer than it takes to leave it, so that a standstill of this length means that nothing took over.
const DARK_MS: u32 = 300;
/// From a repair to the next cut. A path that was given up is tried again after 300 ms at the latest, so that the next cut finds it in
/// service; one that has flapped is held down for longer, and is tried when the other is silent.
const REST_MS: u32 = 350;

/// The lab's schedule: a phase for each figure, which the program announces.
pub fn schedule(tests: &[Test], rails: usize) -> String {
    let mut items = Vec::new();
    for test in tests {
        for size in &test.sizes {
            let phase = format!("{}-{size}", test.kind.name());
            for rail in 0..rails {
                let at = LEAD_MS + rail as u32 * (DARK_MS + REST_MS);
                items.push(format!("{phase}+{at}ms cut rail{rail} dark"));
                items.push(format!("{phase}+{}ms heal rail{rail}", at + DARK_MS));
            }
        }
    }
    items.join("; ")
}

/// How long a figure is measured so that all of its cuts are in it.
pub fn length_ms(rails: usize, ms: u32) -> u32 {
    ms.max(LEAD_MS + rails as u32 * (DARK_MS + REST_MS))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::test::chosen_of_rwapi;
    use rerail_lab::rate::Rate;
    use rerail_lab::schedule::Schedule;
    use rerail_lab::topology::{RailPlan, Topology};

    #[test]
    fn every_rail_is_cut_and_healed_in_every_measurement() {
        let tests = chosen_of_rwapi(&["put".into(), "one-way".into()], &[4, 1024]).unwrap();
        let text = schedule(&tests, 2);
        let first = "one-way-4+100ms cut rail0 dark; one-way-4+400ms heal rail0; \
            one-way-4+750ms cut rail1 dark; one-way-4+1050ms heal rail1; one-way-1024+100ms cut rail0 dark";
        assert!(text.starts_with(first), "{text}");
        assert_eq!(text.split(';').count(), 2 * 2 * 2 * 2);
        let rails = vec![RailPlan::veth(Rate::Unshaped); 2];
        let topology = Topology { nodes: 2, rails, congctl: None, rdma: None, fabric: None };
        Schedule::parse(&text, &topology).unwrap();
        assert_eq!((length_ms(2, 20), length_ms(2, 5000)), (1400, 5000));
    }
}
