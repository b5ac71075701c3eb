//! What the project's commands share: where things are ([`workspace`]), the MPIs ([`mpi`]) and the C programs ([`programs`]) that
//! `setup` installs and compiles, and the optimized build. `rerail-trial` uses it as well as the command itself.

pub mod build;
pub mod mpi;
pub mod programs;
pub mod setup;
pub mod workspace;
