//! One bounded piece of progress: reads what arrived, lets the engine do what is due, sends what became sendable.
//!
//! The runtime and the simulator run this code, so what the simulator proves about the order and the bounds of a piece holds
//! for the provider. The driver owns the order of the calls, the buffers between engine and ports, and when the streams and
//! the links are polled. It has no threads, no locks, no system calls and no clock of its own:
//!
//! * [`Machine`] is what it calls of the engine ([`rerail_core::Engine`] implements it, tests put a script in its place);
//! * [`Ports`] is what it calls of the world: datagrams, streams, links, and the engine's actions and events;
//! * [`Clock`] is the time, read as rarely as the result allows: once in a piece that finds nothing.
//!
//! All three are type parameters, so a piece of progress has no dynamic dispatch but what the ports have of their own.
//!
//! # The order within a piece
//!
//! 1. What other threads have read meanwhile: changes of the links, then datagrams ([`Ports::take_waiting`]).
//! 2. Datagrams, at most [`DATAGRAMS_MAX`].
//! 3. Streams, if anything is expected of them: connections, reads, room for writes.
//! 4. Timers, with everything that had arrived in hand. After an absence the bound of 2 is lifted: a deadline is looked at
//!    only when all that came before it was read (hazard H12).
//! 5. Output, control first: datagrams, then trains of bulk, actions, writes to streams; and once more what these made
//!    sendable. Events come last.
//!
//! Each step has a bound; [`Progress::more`] reports that one was reached, and then the caller should call again at once.

#![warn(missing_docs)]

mod bounds;
mod driver;
mod machine;
mod ports;
mod streams;
#[cfg(test)]
mod tests;

pub use bounds::*;
pub use driver::{Driver, Progress, ProgressOptions};
pub use machine::Machine;
pub use ports::{Clock, Ports, Waiting};
pub use rerail_rail::{
    Alternate, ArrivedTrain, Closing, Condition, Moved, Posted, SendOutcome, StreamEvent, TrainOutcome,
};
