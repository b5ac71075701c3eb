//! Trials of Rerail: real MPI programs over real kernels, rails really cut, hostile bytes, and measurements.
//!
//! One file or folder per command of the binary `rerail-trial` ([`accept`], [`campaign`], [`mod@bench`], [`fabtests`], [`fuzz`], [`swarm`],
//! [`hotspots`], [`demo`], [`short`]). What several share: [`lab`] (a run of `rerail lab run`), [`record`] (what a run left behind, and the figures in
//! it), [`picture`] (a stream as SVG), `svg` (what pictures have in common), [`child`] (how processes end), [`options`].

pub mod accept;
pub mod bench;
pub mod campaign;
pub mod child;
pub mod demo;
pub mod fabtests;
pub mod fuzz;
pub mod hotspots;
pub mod lab;
pub mod migrations;
pub mod options;
pub mod picture;
pub mod record;
pub mod short;
mod svg;
pub mod swarm;
