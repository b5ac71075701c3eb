//! Memory that peers or the engine use: registered regions, the one-sided operations on them, copies and spare buffers.

pub mod atomic;
pub(crate) mod copies;
pub(crate) mod grants;
pub(crate) mod loans;
pub(crate) mod orders;
pub(crate) mod regions;
pub(crate) mod served;
pub(crate) mod spare;
