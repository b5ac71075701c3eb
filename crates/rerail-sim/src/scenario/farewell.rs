//! H5: the last message and the last acknowledgement.

use super::{Story, warm_up};
use crate::app::SendSpec;
use crate::fault::Fault;
use crate::link::MS;
use crate::world::Config;

/// H5. Eager sends complete, every rail of the sender goes dark for a while, and the process leaves. And the other way round:
/// only the receiver's last acknowledgements are lost.
pub fn lost_farewell(story: &Story) {
    for outward in [true, false] {
        let mut w = story.world(Config::quiet(1, 2));
        warm_up(&mut w);
        let faults: Vec<usize> =
            (0..2).map(|net| w.begin(Fault::Dark { host: 0, net, inward: true, outward })).collect();
        for k in 0..20 {
            w.send(SendSpec::tagged(0, 1, 1, 100 * k)).expect("there is room");
        }
        w.leave(0);
        w.run_for(700 * MS);
        for f in faults {
            w.end_fault(f);
        }
        w.run_for(500 * MS);
        w.heal_and_finish();
    }
}
