//! How far an adapter's order of placing bytes is relied on (hazard H22).

/// Whether small datagrams over connections are written into memory of the receiver, which finds them by looking. Each has a
/// checksum, so that it is never taken before it is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum InOrderPlacement {
    /// Where the receiver's adapter guarantees that bytes are placed in order.
    #[default]
    Auto,
    /// By any adapter.
    On,
    /// Never.
    Off,
}
