//! Joins engine and rails: progress, service thread, options, statistics.
