//! Which message goes into which receive.

pub(crate) mod matcher;
pub(crate) mod multi;
