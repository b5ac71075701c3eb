//! Calls that wait for the network. Owns: a thread for each rail, which makes them.
//!
//! soft-iWARP connects inside of the call, which on a dark path takes as long as TCP tries. And the kernel lets go of a
//! connection that waits for its peer's answer only when that has come, or after five seconds (`iwcm.c` and `siw_cm.c` of
//! Linux 6.1). A manager that waited itself would accept nothing meanwhile, and two of them would wait for each other.
//!
//! Calls of one rail are made one after the other: a connection is destroyed after the call that connects it.

use rerail_rail::RailId;
use rerail_rail::thread::spawn;
use std::io;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

/// A call, and what follows from it.
pub type BlockingCall = Box<dyn FnOnce() + Send>;

/// See above. When it is dropped it waits for the calls that were asked for.
pub struct BlockingCalls {
    rails: Vec<(Option<Sender<BlockingCall>>, JoinHandle<()>)>,
}

impl BlockingCalls {
    /// For so many rails.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn new(rails: usize) -> io::Result<BlockingCalls> {
        let thread = |_| {
            let (calls, asked) = channel::<BlockingCall>();
            let thread = spawn("rerail-verbs", move || asked.into_iter().for_each(|call| call()))?;
            Ok((Some(calls), thread))
        };
        Ok(BlockingCalls { rails: (0..rails).map(thread).collect::<io::Result<_>>()? })
    }

    /// Behind those of this rail that were asked for before.
    pub fn make(&self, rail: RailId, call: BlockingCall) {
        let (calls, _) = &self.rails[usize::from(rail.0)];
        // The thread ends only when the sender is dropped.
        let _ = calls.as_ref().expect("until it is dropped").send(call);
    }
}

impl Drop for BlockingCalls {
    fn drop(&mut self) {
        self.rails.iter_mut().for_each(|(calls, _)| *calls = None);
        for (_, thread) in self.rails.drain(..) {
            // One that panicked has printed why.
            drop(thread.join());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_that_waits_holds_up_those_of_its_own_rail_only() {
        let (go, gate) = channel::<()>();
        let (told, order) = channel();
        let calls = BlockingCalls::new(2).unwrap();
        let tell = |name: &'static str| {
            let told = told.clone();
            move || told.send(name).unwrap()
        };
        let first = tell("first");
        calls.make(
            RailId(0),
            Box::new(move || {
                gate.recv().unwrap();
                first();
            }),
        );
        calls.make(RailId(0), Box::new(tell("second")));
        calls.make(RailId(1), Box::new(tell("other")));
        assert_eq!(order.recv(), Ok("other"));
        go.send(()).unwrap();
        drop(calls);
        assert_eq!(order.try_iter().collect::<Vec<_>>(), ["first", "second"]);
    }
}
