//! The libfabric provider librerail-fi.so.
