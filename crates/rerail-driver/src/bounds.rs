//! The bounds of a piece of progress, and the times that decide what a piece looks at.

use std::time::Duration;

/// Datagrams (or trains of them) handled in one piece. Enough to make a wake-up worth while, few enough to go on to streams and timers.
pub const DATAGRAMS_MAX: usize = 32;
/// The same after an absence, when everything that arrived has to be seen before any deadline is. More than a receive buffer
/// holds, so only a bound against a flood.
pub const DATAGRAMS_MAX_AFTER_ABSENCE: usize = 16_384;
/// As many are handled within a few microseconds: the clock is not read again after them.
pub const FEW_DATAGRAMS: usize = 4;
/// A pause of this length between two pieces is an absence.
pub const ABSENCE: Duration = Duration::from_millis(10);
/// After as long without a piece everything that lies there is read, whatever the caller waits for: on a machine with more ranks than
/// cores one piece is all that a rank gets in a turn, and with one message for each turn all wait for each other.
pub const READ_ON_AFTER: Duration = Duration::from_micros(50);
/// Bytes read from one stream before the others get their turn.
pub const READ_BYTES_MAX: usize = 1 << 20;
/// Bytes written in one piece, summed over the streams; the stream that passes it still writes its window.
pub const WRITE_BYTES_MAX: usize = 4 << 20;
/// Datagrams sent in one go; the rest goes with the next.
pub const SEND_MAX: usize = 1024;
/// Trains of bulk datagrams sent before control has its turn again.
pub const TRAINS_MAX: usize = 8;
/// Rounds of output in one piece: an action or a written frame may make the next datagram sendable, and two more rounds settle that.
pub const OUTPUT_ROUNDS_MAX: usize = 3;
/// Polls of the datagram port for one of the stream port when no bulk is expected: bounds how late an incoming connection is
/// taken, at a thirty-second of the price of a poll.
pub const STREAM_POLL_EVERY: u32 = 32;
/// The stream port is polled as well when it was not for this long: where more ranks than cores take turns, pieces are rare, and 32 of
/// them took so long that what lay unread in a connection made it look stuck.
pub const STREAM_POLL_AFTER: Duration = Duration::from_micros(100);
/// Pieces that go on polling the streams after something came in on one: what comes by stream comes in trains.
pub const STREAM_WARM: u32 = 256;
/// How often a piece looks for link events: their budget is 1 ms, and another thread that watches them may have to wait longer than
/// that for a core.
pub const LINK_LOOK_EVERY: Duration = Duration::from_micros(500);
/// Connections accepted in one piece.
pub const ACCEPT_MAX: usize = 64;
/// Largest datagram, or train of them, that is received.
pub const DATAGRAM_BYTES_MAX: usize = 65_536;
/// Datagrams that wait for the engine at most, when it is locked: as many as make a window of several peers.
pub const STASH_MAX: usize = 4096;
