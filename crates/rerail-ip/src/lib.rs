//! The rail over IP: UDP and TCP channels.
