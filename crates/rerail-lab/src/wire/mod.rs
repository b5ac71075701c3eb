//! A rail as a cable in user space: TAP interfaces in the nodes, and a process that carries every frame from one to the others, or
//! does not.
//!
//! A veth pair can be cut, but this kernel has nothing that loses, corrupts or reorders what passes (no netem). The wire has: it
//! sees every frame. And a corruption that it makes gets past the kernel, as that of a faulty switch or adapter does which computes
//! the checksum after it has spoilt the data: the case for which an own checksum exists.
//!
//! * [`faults`] – what a wire does to the frames, and how it is written
//! * `packet` – which bytes of a frame are payload, and a checksum that fits the spoilt payload
//! * `fate` – what becomes of the n-th frame: decided by seed and number alone
//! * `line` – frames that are under way: delayed, held back, standing still
//! * `tap` – the interfaces
//! * `copier` – the process

mod copier;
mod fate;
pub mod faults;
mod line;
mod packet;
mod tap;

pub(crate) use copier::Copier;
pub use copier::Counts;
