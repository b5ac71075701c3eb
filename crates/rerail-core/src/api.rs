//! What the application sees of the engine: completion queues and what they hold.

pub(crate) mod completion;
pub(crate) mod queues;
