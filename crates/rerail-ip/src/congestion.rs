//! Which congestion control a connection has. Owns: the choice, and what was lost since it was made.
//!
//! BBR measures the rate and sends no faster, by a timer for each burst. On a link with round trips of microseconds the timers are the limit:
//! measured in docs/notes/performance-2026-11.md, a third to a tenth of what loss-based control reaches. On a link that
//! loses at random BBR is several times as fast. So where the machine's choice is BBR a connection begins with Reno,
//! which every kernel has and allows every process (tcp(7), `tcp_allowed_congestion_control`). When it loses more than
//! [`LOSSY_PER_MILLE`], it gets the machine's choice back.

use crate::sys;
use socket2::Socket;
use std::os::fd::AsRawFd;

/// What the user wants.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Congestion {
    /// The machine's, but not BBR where nothing is lost.
    Auto,
    /// The machine's.
    System,
    /// The one that the kernel knows by this name.
    Named(String),
}

impl From<&str> for Congestion {
    fn from(wish: &str) -> Self {
        match wish {
            "auto" => Self::Auto,
            "system" => Self::System,
            name => Self::Named(name.to_owned()),
        }
    }
}

/// What a link with short queues loses to Reno itself stays below this; one that loses one in a hundred is far beyond.
const LOSSY_PER_MILLE: u64 = 3;
/// Losses are looked at after this many bytes: often enough, and a look costs a system call.
const LOOK_BYTES: u64 = 4 << 20;

/// A connection that does not have the machine's congestion control, because nothing was lost so far.
pub(crate) struct Lossless {
    machines: Vec<u8>,
    bytes: u64,
    resent: u64,
}

/// Chooses for a connection.
pub(crate) fn choose(s: &Socket, wish: &Congestion) -> Option<Lossless> {
    match wish {
        Congestion::System => None,
        Congestion::Named(name) => {
            // tried when the rails were opened: what fails now costs speed, and nothing else
            let _ = s.set_tcp_congestion(name.as_bytes());
            None
        }
        Congestion::Auto => {
            let mut machines = s.tcp_congestion().ok()?;
            machines.truncate(machines.iter().position(|b| *b == 0).unwrap_or(machines.len()));
            if !machines.starts_with(b"bbr") {
                return None;
            }
            s.set_tcp_congestion(b"reno").ok()?;
            Some(Lossless { machines, bytes: 0, resent: 0 })
        }
    }
}

/// Whether the kernel lets this process have it.
///
/// # Errors
/// A sentence for the user.
pub(crate) fn check(wish: &Congestion) -> Result<(), String> {
    let Congestion::Named(name) = wish else { return Ok(()) };
    let s = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
        .map_err(|e| format!("a socket cannot be opened: {e}"))?;
    s.set_tcp_congestion(name.as_bytes()).map_err(|e| {
        let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
        let allowed = allowed.map_or(String::new(), |a| format!(" (it allows {})", a.trim().replace(' ', ", ")));
        format!("FI_RERAIL_TCP_CONGESTION: the kernel refuses the congestion control `{name}`: {e}; choose auto, system or one that it allows{allowed}")
    })
}

/// Whether a connection that sent so many segments lost too many of them.
fn too_lossy(lost: u64, sent: u64) -> bool {
    lost * 1000 > sent * LOSSY_PER_MILLE
}

impl Lossless {
    /// `bytes` more were written. False: it loses, has the machine's congestion control from now on, and needs no more
    /// calls.
    pub fn wrote(&mut self, s: &Socket, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        if self.bytes < LOOK_BYTES {
            return true;
        }
        let Some((resent, segment)) = sys::resent(s.as_raw_fd()) else { return true };
        let sent = self.bytes / u64::from(segment.max(1));
        let lost = resent.saturating_sub(self.resent);
        (self.bytes, self.resent) = (0, resent);
        if !too_lossy(lost, sent) {
            return true;
        }
        let _ = s.set_tcp_congestion(&self.machines);
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket() -> Socket {
        Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap()
    }

    fn name(s: &Socket) -> String {
        let name = s.tcp_congestion().unwrap();
        String::from_utf8_lossy(&name).trim_end_matches('\0').to_owned()
    }

    #[test]
    fn in_the_place_of_bbr_reno_and_of_nothing_else() {
        let s = socket();
        s.set_tcp_congestion(b"reno").unwrap();
        assert!(choose(&s, &Congestion::Auto).is_none(), "the machine's is good enough");
        if s.set_tcp_congestion(b"bbr").is_err() {
            eprintln!("SKIPPED: this kernel has no BBR");
            return;
        }
        assert!(choose(&s, &Congestion::System).is_none());
        assert_eq!(name(&s), "bbr", "the user wants the machine's");
        let chosen = choose(&s, &Congestion::Auto).unwrap();
        assert_eq!((name(&s).as_str(), chosen.machines.as_slice()), ("reno", &b"bbr"[..]));
    }

    #[test]
    fn what_the_kernel_does_not_have_is_told_before_any_connection() {
        assert_eq!(check(&Congestion::Named("reno".into())), Ok(()));
        let why = check(&Congestion::from("nonsense")).unwrap_err();
        assert!(
            why.contains("FI_RERAIL_TCP_CONGESTION") && why.contains("nonsense") && why.contains("reno"),
            "{why}"
        );
    }

    #[test]
    fn a_connection_that_loses_gets_the_machines_back() {
        // one that sent nothing again: the kernel says so after as many bytes
        let s = socket();
        let mut l = Lossless { machines: b"reno".to_vec(), bytes: 0, resent: 0 };
        assert!(l.wrote(&s, 1000) && l.wrote(&s, LOOK_BYTES as usize));
        assert_eq!(l.bytes, 0, "it was looked at");
        assert!(!too_lossy(3, 1000) && too_lossy(4, 1000) && !too_lossy(0, 0));
    }
}
