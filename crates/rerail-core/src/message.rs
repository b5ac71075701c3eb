//! Messages on their way: what the sender keeps until it is acknowledged, and what the receiver has of it.

pub(crate) mod body;
pub(crate) mod envelope;
pub(crate) mod fragments;
pub(crate) mod incoming;
pub(crate) mod iov;
pub(crate) mod item;
pub(crate) mod kept;
pub(crate) mod levels;
pub(crate) mod outgoing;
pub(crate) mod receiving;
pub(crate) mod rx;
pub(crate) mod target;
pub(crate) mod tx;
