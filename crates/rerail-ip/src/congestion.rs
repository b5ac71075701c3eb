//! Which congestion control a connection has. Owns: the choice, and what was lost since it was made.
//!
//! BBR measures the rate and sends no faster, by a timer for each burst. On a link with round trips of microseconds the timers are the limit:
//! measured in docs/performance.md, a third to a tenth of what loss-based control reaches. On a link that loses at random it is BBR
//! that is several times as fast. So where the machine's choice is BBR a connection begins with Reno, which every kernel has and allows
//! everybody (tcp(7), `tcp_allowed_congestion_control`), and gets the machine's back when it loses more than [`LOSSY_PER_MILLE`].

use crate::sys;
use rerail_core::TcpCongestion;
use socket2::Socket;
use std::os::fd::AsRawFd;

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
pub(crate) fn choose(s: &Socket, wish: &TcpCongestion) -> Option<Lossless> {
    match wish {
        TcpCongestion::System => None,
        TcpCongestion::Named(name) => {
            // tried when the rails were opened: what fails now costs speed, and nothing else
            let _ = s.set_tcp_congestion(name.as_bytes());
            None
        }
        TcpCongestion::Auto => {
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
pub(crate) fn check(wish: &TcpCongestion) -> Result<(), String> {
    let TcpCongestion::Named(name) = wish else { return Ok(()) };
    let s = Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None)
        .map_err(|e| format!("a socket cannot be opened: {e}"))?;
    s.set_tcp_congestion(name.as_bytes()).map_err(|e| {
        let allowed = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_allowed_congestion_control");
        let allowed = allowed.map_or(String::new(), |a| format!(" (it allows {})", a.trim().replace(' ', ", ")));
        format!("FI_RERAIL_TCP_CONGESTION: the kernel refuses the congestion control `{name}`: {e}; choose auto, system or one that it allows{allowed}")
    })
}

impl Lossless {
    /// `bytes` more were written. False: it loses, has the machine's congestion control from now on, and need not be told any more.
    pub fn wrote(&mut self, s: &Socket, bytes: usize) -> bool {
        self.bytes += bytes as u64;
        if self.bytes < LOOK_BYTES {
            return true;
        }
        let Some((resent, segment)) = sys::resent(s.as_raw_fd()) else { return true };
        let sent = self.bytes / u64::from(segment.max(1));
        let lost = resent.saturating_sub(self.resent);
        (self.bytes, self.resent) = (0, resent);
        if lost * 1000 <= sent * LOSSY_PER_MILLE {
            return true;
        }
        let _ = s.set_tcp_congestion(&self.machines);
        false
    }
}
