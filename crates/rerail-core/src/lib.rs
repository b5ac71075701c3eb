//! The Rerail engine, sans-IO: no sockets, threads, environment or clock. Time, randomness and bytes are arguments.
//!
//! [`Engine`] is all the endpoints of one process. The world around it (the runtime, or the simulator) does three things:
//!
//! * hands it what happened: [`Engine::handle_datagram`], [`Engine::handle_rail`], [`Engine::stream_connected`],
//!   [`Engine::stream_rx_done`], [`Engine::stream_tx_done`], [`Engine::handle_timeout`], …;
//! * fetches what is to be done: [`Engine::poll_datagram`], [`Engine::poll_train`], [`Engine::poll_writable`], [`Engine::poll_action`],
//!   [`Engine::poll_event`], [`Engine::poll_timeout`];
//! * posts operations ([`Engine::send`], [`Engine::recv`], …) and reads completions ([`Engine::cq_pop`]).
//!
//! Partial reads and writes of streams are events of the engine ([`Engine::stream_rx_window`],
//! [`Engine::stream_tx_window`]), so that the simulator sees half-written and half-read frames (hazards H1, H2).

mod api;
mod checksum;
mod cipher;
mod clock;
mod congestion;
mod engine;
mod event;
mod health;
mod lane;
mod marks;
mod matching;
mod memory;
mod message;
mod migration;
mod node;
mod options;
mod output;
mod pacing;
mod pairing;
mod path;
mod peer;
mod peers;
mod policy;
mod rails;
mod ranges;
mod rate;
mod remedies;
mod report;
mod responder;
mod rest;
mod rng;
mod stream;
mod streams;
mod timers;
mod toy;
mod types;
mod unknown;

pub use api::completion::{AccessError, Completion, CompletionError, CompletionKind};
pub use api::endpoint::OpCounts;
pub use api::endpoints::ENDPOINTS_MAX;
pub use checksum::Checksums;
pub use cipher::{Identity, KeyAgreement, KeysUpdate, SecretKey, Session, SessionIds};
pub use engine::collective::{MEMBERS_MAX, reduction};
pub use engine::{Engine, EngineConfig};
pub use event::{DeathProof, Direction, Event, EventKind, Witness};
pub use health::{Health, HealthEvent, TRANSITIONS, Transition};
pub use memory::atomic;
pub use memory::orders::INLINE_MAX;
pub use message::envelope::{ENVELOPE_BYTES, MESSAGE_BYTES_MAX};
pub use migration::{
    MIGRATION_STEPS, MigrateError, Migration, MigrationCause, MigrationEvent, MigrationReport, MigrationStep,
};
pub use options::{BulkMode, Control, OPTION_TABLE, OptionError, OptionRow, Options, ShmMode};
pub use policy::Policy;
pub use remedies::{PLANTED_BUGS, Remedies};
pub use report::{CarrierReport, Counters, InAdapter, PathReport};
pub use rerail_wire as wire;
pub use responder::{Answerer, Respond, Responder, ResponderUpdate, Whereabouts};
pub use types::*;
pub use unknown::unknown_options;
