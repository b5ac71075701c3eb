//! The Rerail engine, sans-IO.
