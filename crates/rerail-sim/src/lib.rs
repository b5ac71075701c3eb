//! Discrete-event simulator that runs the engine in virtual time.
//!
//! A [`World`] holds processes with the very same [`rerail_core::Engine`] that the provider uses, and everything around
//! them: clocks, applications, kernels' buffers, links, switches, and what goes wrong. Nothing in it reads a real clock, so
//! the same seed gives the same history to the last bit. Safety is checked from outside the engine while faults come and
//! go ([`memory`], [`oracle`]); then everything is healed, and everything must complete. Model: TigerBeetle's simulator;
//! swarm testing (Groce and others, ISSTA 2012).

pub mod case;
pub mod cipher;
mod draw;
pub mod fabric;
pub mod hotspots;
pub mod link;
pub mod memory;
pub mod moment;
pub mod oracle;
pub mod ordinals;
pub mod planted;
pub mod region;
pub mod remedy;
pub mod rng;
pub mod run;
pub mod rwapi;
pub mod scenario;
pub mod script;
pub mod shrink;
pub mod swarm;
pub mod theme;
mod trace;
pub mod world;

pub use world::{adapter, aim, app, collective, fault, onesided, process, stream};

pub use app::{Phase, RecvSpec, SendSpec, Traffic};
pub use collective::Collective;
pub use fault::{Fault, FaultPlan};
pub use onesided::OneSided;
pub use process::Mode;
pub use run::{Failure, Report, run_seed, run_seeds};
pub use world::{Config, Family, NetSpec, World};
