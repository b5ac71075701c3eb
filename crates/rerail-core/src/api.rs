//! What the application sees of the engine: endpoints, completion queues and what they hold.

pub(crate) mod completion;
pub(crate) mod endpoint;
pub(crate) mod endpoints;
pub(crate) mod queues;
