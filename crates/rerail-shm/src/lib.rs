//! The shortcut over shared memory: what two processes on one host send each other over a rail goes through memory that both have
//! mapped, and not through the kernel's sockets.
//!
//! It is a layer over the ports of any kind of rail ([`over`]), and no rail of its own: the engine sees the rails that it saw before, with
//! their names, paths, health and faults, and gives the same guarantees by the same means. What changes is how fast they are between
//! neighbours. Whatever the shortcut cannot do (a neighbour that does not offer it, no memory, no room, another user's process)
//! goes the long way through the rail itself, connection by connection and datagram by datagram. Rails that write into the memory of
//! peers by themselves are left alone.
//!
//! # How neighbours meet
//!
//! A process listens on an abstract Unix socket whose name is the port number of its rails. Such names belong to a network namespace, as port
//! numbers do: containers and the nodes of the lab do not meet. A process that opens a stream to an address of its own
//! host connects there, and sends a [`Hello`](hello::Hello) with a memory file that is sealed against changes of its
//! size. The kernel reports to both sides the user and the process at the other end; only processes of the same user
//! connect. After that the socket carries nothing but *bells*, single bytes that wake a sleeper, and its end, which the
//! kernel brings about when the other process is gone.
//!
//! # Sleep and bells
//!
//! A thread that makes progress looks into the rings. A thread that is going to sleep sets a flag in them
//! ([`before_sleep`](rerail_rail::DatagramPort::before_sleep)), and looks once more; the other side rings the bell only
//! then. So a message between two processes that are awake costs no system call.

#![warn(missing_docs)]

mod connection;
mod control;
mod datagrams;
mod hello;
mod lent;
mod loan;
mod ring;
mod segment;
mod shared;
mod sleepers;
mod streams;

/// Where the files that are tried in every order take their atomics: the models have others.
mod sync {
    pub use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
}

use rerail_rail::Rails;
use shared::Shared;
use std::io;
use std::sync::Arc;

/// Puts the shortcut over `rails`. With `single_copy`, a process copies large pieces right out of its neighbour's memory, where the kernel
/// allows that.
///
/// # Errors
/// The rails, as they were, and why there is no shortcut: another process has the name, or the system gives no sockets.
/// Everything works without it.
// Called once in a process, and the rails are the caller's either way.
#[allow(clippy::result_large_err)]
pub fn over(rails: Rails, single_copy: bool) -> Result<Rails, (Rails, io::Error)> {
    if rails.rails.iter().all(|r| r.places_max > 0) {
        // nothing goes through memory of ours
        return Ok(rails);
    }
    let made = Shared::new(&rails, single_copy).and_then(|shared| {
        let shared = Arc::new(shared);
        let watched = (rails.datagrams.fd(), rails.streams.fd());
        let datagram_epoll = shared.bells_and(watched.0)?;
        let stream_epoll = shared.bells_and(watched.1)?;
        let doors = streams::ShmStreams::doors(&shared, &stream_epoll)?;
        Ok((shared, datagram_epoll, stream_epoll, doors))
    });
    match made {
        Err(why) => Err((rails, why)),
        Ok((shared, datagram_epoll, stream_epoll, doors)) => {
            let Rails { rails, datagrams, streams, links, notes } = rails;
            Ok(Rails {
                datagrams: Arc::new(datagrams::ShmDatagrams::new(shared.clone(), datagrams, datagram_epoll)),
                streams: Box::new(streams::ShmStreams::new(shared, streams, stream_epoll, doors)),
                rails,
                links,
                notes,
            })
        }
    }
}
