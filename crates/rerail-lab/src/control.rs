//! Talking to a lab that runs: the requests, and how a client finds it.
//!
//! The socket is an abstract one in the host's network namespace: it has no file, so it cannot outlive the lab.
//! Its name carries the user, and both ends check by the kernel's credentials that the other is the same user.
//! Inside the lab, where abstract sockets of the host are out of reach, the same requests go through a socket file
//! on the lab's own tmpfs.

use crate::cut::RailState;
use crate::error::Attempt;
use crate::link::LinkState;
use crate::rate::Rate;
use crate::schedule::Action;
use crate::topology::Topology;
use crate::wire::Counts;
use crate::wire::faults::Faults;
use crate::{LabError, RUN_DIR, sys};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Names the socket file to programs inside a lab.
pub const CONTROL_ENV: &str = "RERAIL_LAB_CONTROL";
/// How long the supervisor waits for a client that has connected but sends nothing. Only the same user can connect.
const CLIENT_PATIENCE: Duration = Duration::from_millis(500);
/// How long a lab may take to end. The kernel kills its processes, and takes down its interfaces, within some milliseconds.
const END_PATIENCE: Duration = Duration::from_secs(20);

/// What a client asks for.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "request", rename_all = "kebab-case")]
pub enum Request {
    /// Cut, heal or shape.
    Act {
        /// What to do.
        action: Action,
    },
    /// Tell how things stand.
    Status,
    /// End the lab. The answer brings a descriptor that is readable when the lab has ended.
    Down,
    /// Hand over the namespaces of a node.
    Enter {
        /// Its number.
        node: usize,
    },
}

/// The answer.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Reply {
    /// Why the request failed.
    pub error: Option<String>,
    /// To [`Request::Status`].
    pub status: Option<Status>,
    /// To [`Request::Enter`]: whether the first descriptor is a user namespace to enter first.
    pub rootless: bool,
    /// To [`Request::Enter`]: whether the command is to run in the node's guest.
    #[serde(default)]
    pub guest: bool,
    /// To [`Request::Enter`]: the cores of the node, when nodes are pinned.
    pub cores: Option<Vec<usize>>,
    /// To [`Request::Enter`]: the environment that tells a program where it is.
    pub env: Vec<(String, String)>,
}

/// How a lab stands.
#[derive(Debug, Serialize, Deserialize)]
pub struct Status {
    /// The lab's name.
    pub name: String,
    /// Its shape at the start.
    pub topology: Topology,
    /// Its rails, in order.
    pub rails: Vec<RailStatus>,
    /// The links inside the fabrics behind them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub links: Vec<LinkStatus>,
}

impl Status {
    /// As JSON, for scripts.
    pub fn to_json(&self) -> String {
        let mut text = serde_json::to_string_pretty(self).expect("a status is plain data");
        text.push('\n');
        text
    }
}

/// How a rail stands.
#[derive(Debug, Serialize, Deserialize)]
pub struct RailStatus {
    /// Its name.
    pub rail: String,
    /// Its rate now.
    pub rate: Rate,
    /// What is broken.
    pub state: RailState,
    /// If it is a wire: what it does to frames, and has done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wire: Option<WireStatus>,
    /// What each node has received and sent, in order of nodes.
    pub traffic: Vec<Traffic>,
}

/// How a link of a fabric stands.
#[derive(Debug, Serialize, Deserialize)]
pub struct LinkStatus {
    /// Its name, such as `rail0/leaf0-spine1`.
    pub link: String,
    /// Its rate now.
    pub rate: Rate,
    /// What is broken.
    pub state: LinkState,
    /// Sent by the leaf, in bytes.
    pub up_bytes: u64,
    /// Sent by the spine, in bytes.
    pub down_bytes: u64,
}

/// How a wire stands.
#[derive(Debug, Serialize, Deserialize)]
pub struct WireStatus {
    /// Its faults now.
    pub faults: Faults,
    /// What it has done since the start.
    pub counts: Counts,
}

/// Counters of one interface, from the kernel.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Traffic {
    /// Received, in bytes.
    pub received_bytes: u64,
    /// Received, in packets.
    pub received_packets: u64,
    /// Sent, in bytes.
    pub sent_bytes: u64,
    /// Sent, in packets.
    pub sent_packets: u64,
}

/// The supervisor's end of a lab's socket.
pub(crate) struct Server(UnixListener);

impl Server {
    /// Takes the name, or the first free one of lab, lab2, lab3, …
    pub fn bind(name: Option<&str>) -> Result<(Server, String), LabError> {
        if let Some(name) = name {
            check_name(name)?;
            return match bind_abstract(name) {
                Ok(server) => Ok((server, name.to_string())),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(LabError::Input(format!(
                    "a lab named `{name}` is running already: choose another --name, or end it with `rerail lab down --name {name}`"
                ))),
                Err(error) => Err(error).attempt(|| "open the lab's control socket".into()),
            };
        }
        for number in 1.. {
            let name = match number {
                1 => "lab".to_string(),
                _ => format!("lab{number}"),
            };
            match bind_abstract(&name) {
                Ok(server) => return Ok((server, name)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(error).attempt(|| "open the lab's control socket".into()),
            }
        }
        unreachable!("some number is free")
    }

    /// The socket file for programs inside the lab.
    pub fn bind_inside() -> Result<Server, LabError> {
        UnixListener::bind(inside_path())
            .map(Server)
            .attempt(|| "open the control socket inside the lab".into())
    }

    /// Serves one client: `handle` answers with a reply and descriptors to hand over.
    pub fn serve(&self, handle: impl FnOnce(Request) -> (Reply, Vec<OwnedFd>)) {
        // A client that goes away in the middle gets no report; the lab goes on.
        let _ = self.try_serve(handle);
    }

    fn try_serve(&self, handle: impl FnOnce(Request) -> (Reply, Vec<OwnedFd>)) -> io::Result<()> {
        let (stream, _) = self.0.accept()?;
        stream.set_read_timeout(Some(CLIENT_PATIENCE))?;
        let (reply, fds) = if sys::peer_uid(stream.as_fd())? != sys::effective_uid() {
            let error = Some("this lab belongs to another user: control it as that user".into());
            let reply = Reply { error, ..Reply::default() };
            (reply, Vec::new())
        } else {
            let mut line = String::new();
            BufReader::new(&stream).read_line(&mut line)?;
            handle(serde_json::from_str(&line)?)
        };
        let mut bytes = serde_json::to_vec(&reply)?;
        bytes.push(b'\n');
        let fds: Vec<BorrowedFd<'_>> = fds.iter().map(|fd| fd.as_fd()).collect();
        sys::send_with_fds(stream.as_fd(), &bytes, &fds)
    }
}

impl From<OwnedFd> for Server {
    fn from(socket: OwnedFd) -> Server {
        Server(UnixListener::from(socket))
    }
}

impl AsFd for Server {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sends a request to a lab: the named one, or the only one there is.
pub fn ask(name: Option<&str>, request: &Request) -> Result<(Reply, Vec<OwnedFd>), LabError> {
    let mut stream = connect(name)?;
    let what = || "talk to the lab".to_string();
    let mut line = serde_json::to_vec(request).expect("a request is plain data");
    line.push(b'\n');
    stream.write_all(&line).attempt(what)?;
    let (mut bytes, fds) = sys::receive_with_fds(stream.as_fd()).attempt(what)?;
    if bytes.last() != Some(&b'\n') {
        stream.read_to_end(&mut bytes).attempt(what)?;
    }
    if bytes.is_empty() {
        return Err(LabError::Refused("the lab ended before it answered: look at its own terminal".into()));
    }
    let reply: Reply = serde_json::from_slice(&bytes).map_err(io::Error::from).attempt(what)?;
    match reply.error {
        Some(error) => Err(LabError::Input(error)),
        None => Ok((reply, fds)),
    }
}

/// Ends a lab: the named one, or the only one there is. Returns when it is gone: its name is free, and no process of it runs.
///
/// # Errors
/// As [`ask`]; a lab that does not end within [`END_PATIENCE`].
pub fn down(name: Option<&str>) -> Result<(), LabError> {
    let (_, fds) = ask(name, &Request::Down)?;
    // A lab of an older version sends no descriptor: then its word has to do.
    let Some(end) = fds.first() else { return Ok(()) };
    if sys::wait_readable(&[end.as_fd()], Some(END_PATIENCE))[0] {
        return Ok(());
    }
    Err(LabError::Refused(format!(
        "the lab was told to end and still runs after {} s: look at its processes (`ps`), one of them may be stuck in the kernel",
        END_PATIENCE.as_secs()
    )))
}

/// The names of this user's labs.
pub fn list() -> Result<Vec<String>, LabError> {
    let table = fs::read_to_string("/proc/net/unix").attempt(|| "read /proc/net/unix".into())?;
    let prefix = format!("@{}", abstract_name(""));
    // A connection being served shows the listener's name once more, hence the set.
    let names: BTreeSet<&str> = table
        .lines()
        .filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix(prefix.as_str()))
        .collect();
    Ok(names.into_iter().map(String::from).collect())
}

fn connect(name: Option<&str>) -> Result<UnixStream, LabError> {
    if name.is_none() {
        // Inside a lab its own socket is the one meant; outside, the variable is absent or leads nowhere.
        let inside = std::env::var_os(CONTROL_ENV).map(UnixStream::connect);
        if let Some(Ok(stream)) = inside {
            return Ok(stream);
        }
    }
    let name = match name {
        Some(name) => name.to_string(),
        None => {
            let labs = list()?;
            match labs.as_slice() {
                [] => {
                    return Err(LabError::Input(
                        "no lab is running: start one with `rerail lab up` or `rerail lab run`".into(),
                    ));
                }
                [only] => only.clone(),
                several => {
                    return Err(LabError::Input(format!(
                        "several labs are running: choose one with --name ({})",
                        several.join(", ")
                    )));
                }
            }
        }
    };
    check_name(&name)?;
    let address =
        SocketAddr::from_abstract_name(abstract_name(&name)).attempt(|| format!("find the lab `{name}`"))?;
    let stream = UnixStream::connect_addr(&address).map_err(|error| {
        if error.kind() != io::ErrorKind::ConnectionRefused {
            return LabError::System { what: format!("reach the lab `{name}`"), source: error };
        }
        let labs = list().unwrap_or_default();
        let running = match labs.as_slice() {
            [] => "none is running".to_string(),
            labs => format!("running: {}", labs.join(", ")),
        };
        LabError::Input(format!("there is no lab named `{name}`: {running}"))
    })?;
    let owner = sys::peer_uid(stream.as_fd()).attempt(|| "see whose lab it is".into())?;
    if owner != sys::effective_uid() {
        return Err(LabError::Refused(format!(
            "the socket of the lab `{name}` is held by another user (id {owner}): choose another --name"
        )));
    }
    Ok(stream)
}

fn bind_abstract(name: &str) -> io::Result<Server> {
    let address = SocketAddr::from_abstract_name(abstract_name(name))?;
    UnixListener::bind_addr(&address).map(Server)
}

fn abstract_name(name: &str) -> String {
    format!("rerail-lab/{}/{name}", sys::effective_uid())
}

/// The socket file, seen from inside.
pub(crate) fn inside_path() -> PathBuf {
    Path::new(RUN_DIR).join("control")
}

fn check_name(name: &str) -> Result<(), LabError> {
    let fits = (1..=32).contains(&name.len());
    if fits && name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return Ok(());
    }
    Err(LabError::Input(format!("`{name}` cannot name a lab: use 1 to 32 letters, digits, `-`, `_` or `.`")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_labs_are_checked() {
        check_name("lab-2").unwrap();
        for name in ["", "a b", "a/b", &"x".repeat(33)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
