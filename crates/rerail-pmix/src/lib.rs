//! libpmix, loaded at run time: building needs neither it nor its headers. Its structures ([`abi`]), and where it is looked for ([`library`]).
//!
//! Clients (`rerail-join`) and servers (`rerail-launch`) name the functions that they use by [`functions!`].

#![warn(missing_docs)]

pub mod abi;
pub mod library;
