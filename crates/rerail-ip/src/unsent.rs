//! Bytes that TCP keeps although it could send them. Owns: which connections may have such bytes, and when to look again.
//!
//! Where a node's own queue is full (a shaped rail, `tc` tbf, a small `fq`) it refuses a segment, and TCP takes that for a sign of
//! congestion. With segments in flight the next acknowledgement makes it try again. With none in flight only the timer
//! for probing a closed window does, which is set to the retransmission time-out: 200 ms at least
//! (`tcp_check_probe_timer`, tcp(7); measured: 205 to 212 ms, with the queue empty again after 30). The connection and
//! its rail are sound, but the connection stalls.
//!
//! A further write makes TCP try again, but the engine may have no more to write, or no room. Setting `TCP_NODELAY`
//! again does the same: the kernel then pushes what is pending (tcp(7)).

use crate::sys;
use rerail_rail::StreamId;
use std::os::fd::RawFd;
use std::time::{Duration, Instant};

/// Time between two looks at a connection. A queue that was full takes some milliseconds to have room; what goes out at once is
/// never looked at more than once.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The connections that were written to since the kernel was last seen to have sent everything.
#[derive(Default)]
pub(crate) struct Unsent {
    streams: Vec<StreamId>,
    look_at: Option<Instant>,
}

impl Unsent {
    /// A connection was written to that was not among them.
    pub fn add(&mut self, stream: StreamId) {
        self.streams.push(stream);
    }

    /// Looks at them if it is time, and makes TCP try again on those that stall. `socket` gives a connection's
    /// descriptor; `None`: it is gone. Returns those of which everything is sent.
    pub fn look(&mut self, socket: impl Fn(StreamId) -> Option<RawFd>) -> Vec<StreamId> {
        if self.streams.is_empty() {
            return Vec::new();
        }
        let now = Instant::now();
        let due = *self.look_at.get_or_insert(now + LOOK_EVERY);
        if now < due {
            return Vec::new();
        }
        let mut sent = Vec::new();
        self.streams.retain(|&stream| {
            let Some(fd) = socket(stream) else { return false };
            let stands = match sys::unsent(fd) {
                None | Some(0) => {
                    sent.push(stream);
                    return false;
                }
                Some(_) => sys::in_flight(fd) == Some(0),
            };
            if stands {
                let _ = sys::push(fd);
            }
            true
        });
        self.look_at = (!self.streams.is_empty()).then(|| now + LOOK_EVERY);
        sent
    }
}
