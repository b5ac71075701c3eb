//! The contract of a rail and its channels.
