//! Sizes and numbers that the provider promises, and does not exceed.

/// Largest message. The engine takes 2^48; this leaves room below every sum of lengths.
pub const MESSAGE_BYTES_MAX: usize = 1 << 40;
/// Largest injected message unless more is asked for. With its envelope it fits one datagram on any rail (1280 bytes of IPv6
/// at least, 1500 usually), so an inject never waits for a stream or a grant.
pub const INJECT_BYTES: usize = 1024;
/// Largest inject that is granted on demand: the default eager limit, so that an injected message is never a rendezvous.
pub const INJECT_BYTES_MAX: usize = 16384;
/// Operations that may be outstanding. Nothing is allocated for it; the engine says -FI_EAGAIN when its memory is used up.
pub const QUEUE_ENTRIES: usize = 4096;
/// The same, of a program that asks for more.
pub const QUEUE_ENTRIES_MAX: usize = 1 << 20;
/// Most pieces of one message.
pub const IOV_MAX: usize = 8;
/// What is told of them to a program that has no wish: as many as libfabric's `tcp` takes. With six pieces `fi_ubertest` makes a message of 17
/// bytes where it wants 16 (it rounds each length), and blames the provider.
pub const IOV_TOLD: usize = 4;
/// Bytes of CQ data.
pub const CQ_DATA_BYTES: usize = 8;
/// Endpoints of one process: an index in the address has 16 bits; this many are plenty and leave room.
pub const ENDPOINTS_MAX: usize = 4096;
/// Objects of any other kind.
pub const OBJECTS_MAX: usize = 65536;
/// Bytes of a memory key.
pub const KEY_BYTES: usize = 8;
