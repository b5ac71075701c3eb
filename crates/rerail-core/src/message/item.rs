//! What a packet or a stream frame carries and that must arrive.

use crate::event::Witness;
use crate::lane::name::LaneName;
use crate::types::{Epoch, PathId, RemoteKey};

/// Something that one packet or stream frame carries and that must arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Item {
    /// A whole eager message.
    Eager { seq: u64 },
    /// The announcement of a message.
    Rts { seq: u64 },
    /// Our grant for the peer's message.
    Cts { seq: u64 },
    /// The peer announces a message again that is over, or here in full: nothing more of it is granted.
    Over { seq: u64 },
    /// We keep the envelope of the peer's message, not its payload.
    Refuse { seq: u64 },
    /// We do not want the peer's message at all. `taken`: the application has received it, or looked at it and thrown it away.
    Reject { seq: u64, taken: bool },
    /// Our announced message will not come.
    Withdraw { seq: u64 },
    /// Bytes of a message: a fragment, or a piece of one.
    Frag { seq: u64, at: u64, len: u32 },
    /// A path is out of service.
    Verdict { path: PathId, epoch: Epoch, witness: Witness },
    /// The peer's adapter may write the memory of its message, on a path, by this key.
    Key { seq: u64, path: PathId, key: RemoteKey },
    /// The peer is to fence a stream.
    Fence { lane: LaneName },
    /// A stream is fenced.
    Fenced { lane: LaneName },
    /// The peer is to give a stream nothing new, because its lane is to take another route.
    Leave { lane: LaneName },
    /// Nothing of ours is under way on such a stream.
    Left { lane: LaneName },
    /// Our node configuration.
    Config,
    /// We close for good.
    Goodbye,
}

impl Item {
    /// The message whose payload it carries or announces, and where in it that begins.
    pub fn place(&self) -> Option<(u64, u64)> {
        match *self {
            Item::Eager { seq } | Item::Rts { seq } => Some((seq, 0)),
            Item::Frag { seq, at, .. } => Some((seq, at)),
            _ => None,
        }
    }
}
