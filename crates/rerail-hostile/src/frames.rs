//! How many frames of each kind the third party of `insider` got past the engine's first look: what a run did not send it has not tested.
//!
//! Owns: one counter for each kind of frame, for the life of the process. A frame counts when its packet, or the frame of its
//! stream, was not refused as malformed, old, corrupt or foreign.

use crate::tally::Tally;
use rerail_wire::frame::flags;
use rerail_wire::onesided::{Order, OrderKind};
use rerail_wire::{FrameHeader, FrameType};

/// Kinds of frames, as they are counted: eager messages and announcements by what they are for.
const KINDS: [&str; 37] = [
    "eager message",
    "eager order: write",
    "eager order: write of a message",
    "eager order: read",
    "eager order: atomic",
    "eager order: answer",
    "eager order: not an order",
    "eager bytes of a write",
    "eager bytes of a read",
    "eager collective",
    "eager word of a failure",
    "announced message",
    "announced order",
    "announced bytes of a write",
    "announced bytes of a read",
    "announced collective",
    "grant",
    "fragment",
    "acknowledgement",
    "acknowledgement of another lane",
    "mask",
    "refusal",
    "query",
    "answer to a query",
    "verdict",
    "configuration",
    "goodbye",
    "rejection",
    "withdrawal",
    "key",
    "notice of placed bytes",
    "fence",
    "fence of another lane",
    "fenced",
    "request to leave a stream",
    "stream that is left",
    REPORT,
];

/// A query that says that none was answered, and that led to another route.
const REPORT: &str = "query without answers";

/// See the module.
pub static TALLY: Tally<{ KINDS.len() }> = Tally::new(KINDS);

fn kind(f: &FrameHeader, payload: &[u8]) -> &'static str {
    let one_sided = f.flags & flags::ONE_SIDED != 0;
    let (tagged, data) = (f.flags & flags::TAGGED != 0, f.flags & flags::CQ_DATA != 0);
    let collective = f.flags & flags::COLLECTIVE != 0;
    match f.kind {
        FrameType::Eager if one_sided && tagged && data => "eager bytes of a read",
        FrameType::Eager if one_sided && tagged => "eager bytes of a write",
        FrameType::Eager if one_sided => match Order::parse(payload).map(|o| o.0.kind) {
            Ok(OrderKind::Write) => "eager order: write",
            Ok(OrderKind::WriteMessage) => "eager order: write of a message",
            Ok(OrderKind::Read) => "eager order: read",
            Ok(OrderKind::Atomic) => "eager order: atomic",
            Ok(OrderKind::Answer) => "eager order: answer",
            Err(_) => "eager order: not an order",
        },
        FrameType::Eager if collective && data => "eager word of a failure",
        FrameType::Eager if collective => "eager collective",
        FrameType::Eager => "eager message",
        FrameType::Rts if one_sided && tagged && data => "announced bytes of a read",
        FrameType::Rts if one_sided && tagged => "announced bytes of a write",
        FrameType::Rts if one_sided => "announced order",
        FrameType::Rts if collective => "announced collective",
        FrameType::Rts => "announced message",
        FrameType::Cts => "grant",
        FrameType::Frag => "fragment",
        FrameType::Ack if f.b >> 24 & 0xff != 0 => "acknowledgement of another lane",
        FrameType::Ack => "acknowledgement",
        FrameType::Vack => "mask",
        FrameType::Refuse => "refusal",
        FrameType::Ping => "query",
        FrameType::Pong => "answer to a query",
        FrameType::Verdict => "verdict",
        FrameType::Config => "configuration",
        FrameType::Goodbye => "goodbye",
        FrameType::Reject => "rejection",
        FrameType::Withdraw => "withdrawal",
        FrameType::Key => "key",
        FrameType::Placed => "notice of placed bytes",
        FrameType::Fence if f.x != 0 => "fence of another lane",
        FrameType::Fence => "fence",
        FrameType::Fenced => "fenced",
        FrameType::Leave => "request to leave a stream",
        FrameType::Left => "stream that is left",
    }
}

/// A frame was taken.
pub(crate) fn count(f: &FrameHeader, payload: &[u8]) {
    TALLY.count(kind(f, payload), 1);
}

/// An engine leads datagrams over another route.
pub(crate) fn led() {
    TALLY.count(REPORT, 1);
}
