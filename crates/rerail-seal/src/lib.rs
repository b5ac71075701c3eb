//! Encryption of everything that passes the ports of a rail, for `FI_RERAIL_ENCRYPT=1`.
//!
//! * [`Keyring`] – the sessions of this process, as the engine says ([`rerail_core::KeysUpdate`])
//! * [`X25519`] – how two processes agree on a secret
//! * [`SealedDatagrams`], [`SealedStreams`] – layers over [`DatagramPort`](rerail_rail::DatagramPort) and
//!   [`StreamPort`](rerail_rail::StreamPort)
//!
//! # What is used
//!
//! Nothing of our own making: AES-256-GCM (NIST SP 800-38D) from `ring`, X25519 (RFC 7748) from `x25519-dalek`, key derivation from
//! BLAKE3. What is put together here:
//!
//! * *Agreement.* The engine agrees on the secret of each session ([`rerail_core::Identity`], by [`X25519`] here): from
//!   key pairs of both processes that last for the session, and from those that last for their lives, of which the
//!   tokens of their addresses are hashes. A session that is made again has another secret. When only the peer has
//!   begun a new session, the counter goes on.
//! * *Keys.* Each direction, and each stream, has a key of its own, so that nothing can be sent back to its sender or into another
//!   stream. After 2^22 messages a key is replaced by the next, far below the 2^23 that RFC 9001 §6.6 allows; which one it is follows
//!   from the counter.
//! * *Nonces.* A counter, which no two messages under a key share: of the process for a peer (datagrams), of the stream (records).
//!
//! Form on the wire: [`rerail_wire::sealed`]. The handshake goes in clear. What is left to see: ids of sessions, counters, lengths, times.
//!
//! # Replay
//!
//! A datagram that comes twice opens twice: the engine detects that, as it has to in any case (packet numbers). On a
//! stream the records are counted, and what is replayed, left out or exchanged does not open.

#![warn(missing_docs)]

mod datagrams;
mod keys;
mod streams;
#[cfg(test)]
mod tests;

pub use datagrams::SealedDatagrams;
pub use keys::{Keyring, X25519};
pub use streams::SealedStreams;
