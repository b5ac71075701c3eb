//! The control socket: through it the command `rerail` sends requests of the user to a running process.
//!
//! One request, one answer, then the connection is closed. Both are text. A request is a line `rerail VERSION WORD ARGUMENTS…`
//! of at most [`REQUEST_BYTES_MAX`] bytes; an answer is `rerail VERSION ok` or `rerail VERSION error SENTENCE`,
//! followed by lines of data. A new word needs no new version; a changed meaning of an existing word does.
//!
//! Owns: the socket, its file, and the one connection that is served at a time. The service thread serves it and takes
//! the engine's lock with `Inner::try_enter`, so a client never delays a message. Invariants: only the user can enter
//! the file's directory, and only the user can access the file. A process removes its file when it closes. The next
//! process that starts, and the command `rerail`, remove the files of killed processes.
//!
//! A path and not an abstract name: abstract names belong to a network namespace, and containers have their own.
//!
//! Processes of several process-id namespaces share a directory (`rerail launch` makes one for each host of a job). The number in a file's name is that
//! of the process in its own namespace, and means another process here, or none. So only a refused connect proves that a process is gone, and the kernel
//! says the number that a process has here. A file gets its name when its socket listens: one that does not listen yet refuses connects, too.

use crate::Inner;
use crate::faults;
use crate::sys;
use rerail_core::{Control, Engine, InAdapter, MigrateError, MigrationReport, Time};
use std::fmt::Write as _;
use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Version of requests and answers.
pub const VERSION: u32 = 1;
/// Longest request.
const REQUEST_BYTES_MAX: usize = 1024;
/// Longest answer: it fits into a socket's buffer, so the server never waits for the client to read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;
/// How long after a connect the server waits for the request and for the engine's lock.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long a client waits for an answer.
const CLIENT_PATIENCE: Duration = Duration::from_secs(3);
/// Connections that are served in one go.
const SERVED_MAX: usize = 16;
/// End of the name of every socket.
const SUFFIX: &str = ".sock";
/// The same of a socket that does not listen yet. As long as the other, so that a path has room for both.
const UNFINISHED: &str = ".bind";
/// An unfinished socket this old belongs to a process that was killed.
const UNFINISHED_MAX: Duration = Duration::from_secs(60);
/// Sockets that a process tries when it starts, of those that are not of a process that it sees under their number. The others of its
/// host start at the same time, and each connect costs the listener some microseconds.
const TRIED_MAX: usize = 16;

/// The requests.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Request {
    /// The state of paths and carriers.
    Paths,
    /// What rail `from` carries is to move to rail `to`.
    Migrate {
        /// Name of the rail to leave.
        from: String,
        /// Name of the rail to use.
        to: String,
    },
    /// Earlier requests to migrate are taken back.
    Home,
    /// The faults that are planted are to be shown.
    FaultsShow,
    /// These faults are to be planted, in the place of all earlier ones.
    FaultsSet(String),
    /// No more faults are to be planted.
    FaultsClear,
}

impl Request {
    /// As it is sent: one line, its end included.
    pub fn line(&self) -> String {
        match self {
            Request::Paths => format!("rerail {VERSION} paths\n"),
            Request::Migrate { from, to } => format!("rerail {VERSION} migrate {from} {to}\n"),
            Request::Home => format!("rerail {VERSION} home\n"),
            Request::FaultsShow => format!("rerail {VERSION} faults show\n"),
            // one line, whatever blanks the user had between the words
            Request::FaultsSet(text) => {
                let words: Vec<&str> = text.split_ascii_whitespace().collect();
                format!("rerail {VERSION} faults set {}\n", words.join(" "))
            }
            Request::FaultsClear => format!("rerail {VERSION} faults clear\n"),
        }
    }

    /// Parses a line without its newline.
    ///
    /// # Errors
    /// A sentence for the sender.
    pub fn parse(line: &[u8]) -> Result<Request, String> {
        let text = std::str::from_utf8(line).map_err(|_| "a request is text".to_owned())?;
        let words: Vec<&str> = text.split_ascii_whitespace().collect();
        let ["rerail", version, ref rest @ ..] = words[..] else {
            return Err(format!("a request is a line \"rerail {VERSION} WORD\""));
        };
        if version.parse() != Ok(VERSION) {
            return Err(format!("this process understands version {VERSION} of requests"));
        }
        match *rest {
            ["paths"] => Ok(Request::Paths),
            ["home"] => Ok(Request::Home),
            ["migrate", from, to] => Ok(Request::Migrate { from: from.to_owned(), to: to.to_owned() }),
            ["faults", "show"] => Ok(Request::FaultsShow),
            ["faults", "set", first, ref rest @ ..] => {
                Ok(Request::FaultsSet([&[first], rest].concat().join(" ")))
            }
            ["faults", "clear"] => Ok(Request::FaultsClear),
            _ => Err("this process understands: paths, migrate FROM TO, home, faults show, faults set FAULTS, faults clear"
                .to_owned()),
        }
    }
}

// ---- the server ------------------------------------------------------------------------------------------------

/// A client that is being served.
struct Client {
    stream: UnixStream,
    said: Vec<u8>,
    since: Time,
}

/// The socket of this process.
pub(crate) struct Server {
    listener: UnixListener,
    path: PathBuf,
    client: Option<Client>,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Server {
    /// Makes the socket; `None` when the option turns it off.
    pub fn open(option: &Control) -> Result<Option<Server>, String> {
        let dir = match option {
            Control::Off => return Ok(None),
            Control::Auto => directories().swap_remove(0),
            Control::Directory(d) => PathBuf::from(d),
        };
        let tell = |e: io::Error| format!("no control socket in {}: {e}", dir.display());
        own_directory(&dir)?;
        let mut word = [0; 4];
        sys::random(&mut word).map_err(tell)?;
        let word = u32::from_le_bytes(word);
        sweep(&dir, TRIED_MAX, word as usize);
        let pid = std::process::id();
        let started = sys::started_at(pid).unwrap_or(0);
        let name = |suffix| dir.join(format!("{pid}-{started}-{word:08x}{suffix}"));
        let path = name(UNFINISHED);
        let listener = UnixListener::bind(&path).map_err(tell)?;
        // from here on the file goes with it
        let mut server = Server { listener, path, client: None };
        fs::set_permissions(&server.path, Permissions::from_mode(0o600)).map_err(tell)?;
        server.listener.set_nonblocking(true).map_err(tell)?;
        let path = name(SUFFIX);
        fs::rename(&server.path, &path).map_err(tell)?;
        server.path = path;
        Ok(Some(server))
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The descriptor that lives as long as the server.
    pub fn listener_fd(&self) -> RawFd {
        self.listener.as_raw_fd()
    }

    /// What to sleep on.
    pub fn fd(&self) -> RawFd {
        self.client.as_ref().map_or_else(|| self.listener.as_raw_fd(), |c| c.stream.as_raw_fd())
    }

    /// Whether an accepted client has no answer yet.
    pub fn has_client(&self) -> bool {
        self.client.is_some()
    }

    /// Serves the clients that it can serve without waiting, at most [`SERVED_MAX`].
    pub fn serve(&mut self, inner: &Inner) {
        for _ in 0..SERVED_MAX {
            let now = sys::now();
            if self.client.is_none() {
                let Ok((stream, _)) = self.listener.accept() else { return };
                if stream.set_nonblocking(true).is_err() {
                    continue;
                }
                self.client = Some(Client { stream, said: Vec::new(), since: now });
            }
            let Some(client) = &mut self.client else { return };
            let Some(request) = client.listen() else {
                if now.since(client.since) < PATIENCE {
                    return;
                }
                self.client = None;
                continue;
            };
            let late = now.since(client.since) >= PATIENCE;
            let answer = match request.map(|r| answer(inner, &r)) {
                Ok(None) if !late => return,
                Ok(None) => Err("the process is busy: try again".to_owned()),
                Ok(Some(a)) => a,
                Err(why) => Err(why),
            };
            client.tell(&answer);
            self.client = None;
        }
    }
}

impl Client {
    /// The request; `None` while it is incomplete. An error sentence for an invalid request or a broken connection.
    fn listen(&mut self) -> Option<Result<Request, String>> {
        let mut b = [0; REQUEST_BYTES_MAX];
        loop {
            if let Some(end) = self.said.iter().position(|&c| c == b'\n') {
                return Some(Request::parse(&self.said[..end]));
            }
            if self.said.len() > REQUEST_BYTES_MAX {
                return Some(Err(format!("a request has at most {REQUEST_BYTES_MAX} bytes")));
            }
            match self.stream.read(&mut b) {
                Ok(0) => return Some(Err("the request ends without a newline".to_owned())),
                Ok(n) => self.said.extend_from_slice(&b[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return None,
                Err(_) => return Some(Err("the connection broke".to_owned())),
            }
        }
    }

    fn tell(&mut self, answer: &Result<String, String>) {
        let text = match answer {
            Ok(lines) => format!("rerail {VERSION} ok\n{lines}"),
            Err(why) => format!("rerail {VERSION} error {why}\n"),
        };
        // a client that does not read gets what fits
        sys::send_now(self.stream.as_raw_fd(), text.as_bytes());
    }
}

/// Carries out a request; `None`: the engine's lock is not free.
fn answer(inner: &Inner, request: &Request) -> Option<Result<String, String>> {
    if let Err(e) = inner.usable() {
        return Some(Err(e.to_string()));
    }
    // These need no engine.
    match request {
        Request::FaultsShow => return Some(Ok(faults::show(inner))),
        Request::FaultsClear => return Some(Ok(faults::clear(inner))),
        _ => {}
    }
    let mut state = inner.try_enter()?;
    let now = sys::now();
    if let Request::FaultsSet(text) = request {
        let done = faults::set(inner, &mut state, text);
        drop(state);
        if done.is_ok() {
            faults::announce(inner);
        }
        return Some(done);
    }
    let engine = &mut state.engine;
    let done = match request {
        Request::Paths => Ok(paths(engine, inner)),
        Request::Migrate { from, to } => migrate(engine, from, to, now).map_err(|e| e.to_string()),
        Request::Home => Ok(told(&engine.migrate_home(now))),
        Request::FaultsShow | Request::FaultsSet(_) | Request::FaultsClear => unreachable!("answered above"),
    };
    state.flush(&inner.outside, now);
    Some(done)
}

fn migrate(engine: &mut Engine, from: &str, to: &str, now: Time) -> Result<String, MigrateError> {
    let (from, to) = (engine.rail_named(from)?, engine.rail_named(to)?);
    engine.migrate(None, from, to, now).map(|report| told(&report))
}

fn told(r: &MigrationReport) -> String {
    let mut s = format!("moved={} peers={} refused={}\n", r.moved, r.peers, r.refused);
    if let Some(why) = &r.why {
        let _ = writeln!(s, "refused: {why}");
    }
    s
}

/// Rates of lanes in MB/s, with `-` for one that has no stream.
fn lanes(rates: &[Option<u64>]) -> String {
    let rate = |r: &Option<u64>| r.map_or_else(|| "-".into(), |r| (r / 1_000_000).to_string());
    rates.iter().map(rate).collect::<Vec<String>>().join(",")
}

fn paths(engine: &Engine, inner: &Inner) -> String {
    let name = |r: rerail_core::RailId| inner.rails.get(usize::from(r.0)).map_or("?", |x| x.name.as_str());
    let lines = engine
        .paths()
        .into_iter()
        .map(|x| {
            format!(
                "path peer={:08x} rail={} to={} peer_rail={} state={} epoch={} streams={}/{} lanes_mb_s={} datagrams={} route={} rtt_us={} rate_mb_s={} sent_bytes={} \
                 checksum={} corrupt={} quarantined={} stands_by_for={}\n",
                x.peer_name,
                name(x.rail),
                x.remote,
                x.remote_name,
                x.health.name(),
                x.epoch.0,
                x.streams,
                x.lanes,
                lanes(&x.lane_rates),
                if x.datagrams { "yes" } else { "no" },
                x.route,
                x.rtt.as_micros(),
                x.rate / 1_000_000,
                x.bytes_sent,
                x.coverage.name(),
                x.corrupt,
                if x.quarantined { "yes" } else { "no" },
                x.stands_by_for.map_or("-", name)
            )
        })
        .chain(engine.carriers().into_iter().map(|c| {
            format!(
                "carrier peer={:08x} home={} rail={} alternate={} state={} requested={} adapter={} over={}\n",
                c.peer_name,
                name(c.home),
                name(c.path.1),
                c.alternate.map_or("-", |a| name(a.1)),
                c.state.name(),
                if c.pinned { "yes" } else { "no" },
                match c.adapter {
                    InAdapter { armed: Some(_), .. } => "armed",
                    InAdapter { loading: true, .. } => "loading",
                    InAdapter { refused: true, .. } => "refused",
                    _ => "-",
                },
                c.adapter.away.map_or("-", name)
            )
        }));
    let mut out = String::new();
    let mut left_out = 0;
    for line in lines {
        if out.len() + line.len() < ANSWER_BYTES_MAX {
            out.push_str(&line);
        } else {
            left_out += 1;
        }
    }
    if left_out > 0 {
        let _ = writeln!(out, "left_out={left_out}");
    }
    out
}

// ---- directories -----------------------------------------------------------------------------------------------

/// Directories that may hold sockets. This process would use the first; a process with another environment may have
/// used another.
fn directories() -> Vec<PathBuf> {
    let mut v = Vec::new();
    if let Some(d) = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from) {
        // it must exist and be ours: launchers hand the variable on to nodes and users where it means nothing
        if d.is_absolute() && fs::metadata(&d).is_ok_and(|m| m.is_dir() && m.uid() == sys::user()) {
            v.push(d.join("rerail"));
        }
    }
    v.push(PathBuf::from(format!("/tmp/rerail-{}", sys::user())));
    v
}

/// Makes a directory if it is missing, and checks that only this user can enter it.
fn own_directory(dir: &Path) -> Result<(), String> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
        Err(e) => return Err(format!("no control socket: cannot make {}: {e}", dir.display())),
    }
    let m = fs::symlink_metadata(dir).map_err(|e| format!("no control socket: {}: {e}", dir.display()))?;
    if !m.is_dir() || m.uid() != sys::user() || m.mode() & 0o077 != 0 {
        return Err(format!(
            "no control socket: {} is not a directory that is yours alone; set FI_RERAIL_CONTROL to one, or to off",
            dir.display()
        ));
    }
    Ok(())
}

/// A socket in a directory, and what its name says of its process.
struct Named {
    pid: u32,
    /// See [`sys::started_at`].
    started: u64,
    path: PathBuf,
}

/// Sockets in a directory, with this end of their names.
fn sockets(dir: &Path, suffix: &str) -> Vec<Named> {
    let Ok(entries) = fs::read_dir(dir) else { return Vec::new() };
    let mut v: Vec<Named> = entries
        .flatten()
        .filter_map(|e| {
            let name = e.file_name().into_string().ok()?;
            let mut parts = name.strip_suffix(suffix)?.split('-');
            let (pid, started) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
            Some(Named { pid, started, path: e.path() })
        })
        .collect();
    v.sort_by(|a, b| (a.pid, &a.path).cmp(&(b.pid, &b.path)));
    v
}

/// Removes the sockets of killed processes: those that refuse a connect. When the number and the start time in its
/// name belong to a process of this namespace, a socket is kept without a connect, because many processes may start at
/// once. Of the others `tries_max` are tried, from one on that `from` chooses.
fn sweep(dir: &Path, tries_max: usize, from: usize) {
    let mut unseen = sockets(dir, SUFFIX);
    unseen.retain(|s| sys::started_at(s.pid) != Some(s.started));
    let from = from.checked_rem(unseen.len()).unwrap_or(0);
    unseen.rotate_left(from);
    let old = |s: &Named| {
        let age = fs::symlink_metadata(&s.path).ok()?.modified().ok()?.elapsed().ok()?;
        (age > UNFINISHED_MAX).then_some(())
    };
    let mut unfinished = sockets(dir, UNFINISHED);
    unfinished.retain(|s| old(s).is_some());
    for s in unseen.into_iter().chain(unfinished).take(tries_max) {
        if sys::listener_at(&s.path).is_err_and(|e| e.kind() == ErrorKind::ConnectionRefused) {
            let _ = fs::remove_file(s.path);
        }
    }
}

// ---- the client ------------------------------------------------------------------------------------------------

/// A process that listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number as it is seen from here. `None`: it is in a namespace that is not seen from here.
    pub pid: Option<u32>,
    /// Its number as it sees it itself; `None`: the name of its socket does not say it.
    pub own_pid: Option<u32>,
    /// Its socket.
    pub socket: PathBuf,
}

impl Process {
    /// The one at a socket, whether or not it listens.
    pub fn at(socket: PathBuf) -> Process {
        Process { pid: sys::listener_at(&socket).unwrap_or(None), own_pid: None, socket }
    }
}

impl std::fmt::Display for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let pid = self.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        write!(f, "process pid={pid} socket={}", self.socket.display())
    }
}

/// The user's processes. Removes the sockets of killed ones.
pub fn list(dir: Option<&Path>) -> Vec<Process> {
    let dirs = dir.map_or_else(directories, |d| vec![d.to_owned()]);
    dirs.iter()
        .filter(|d| own_directory_exists(d))
        .flat_map(|d| {
            sweep(d, usize::MAX, 0);
            sockets(d, SUFFIX).into_iter().map(|s| {
                let seen_as_named = || (sys::started_at(s.pid) == Some(s.started)).then_some(s.pid);
                // it is named when the kernel cannot say more, because too many clients wait for the process
                let pid = sys::listener_at(&s.path).unwrap_or_else(|_| seen_as_named());
                Process { pid, own_pid: Some(s.pid), socket: s.path }
            })
        })
        .collect()
}

/// Those of `list` that are process `pid`. A process in another namespace has two numbers. The number that
/// is seen from here is compared first; when there is none, the number that the process has in its own namespace.
pub fn of_process(list: Vec<Process>, pid: u32) -> Vec<Process> {
    let (from_here, mut others): (Vec<_>, Vec<_>) = list.into_iter().partition(|p| p.pid == Some(pid));
    others.retain(|p| p.own_pid == Some(pid) && from_here.is_empty());
    from_here.into_iter().chain(others).collect()
}

fn own_directory_exists(dir: &Path) -> bool {
    fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir() && m.uid() == sys::user())
}

/// Sends a request to the process behind a socket, and returns its answer.
///
/// # Errors
/// A sentence for the user: the process has ended, it does not answer, or the error that it reports.
pub fn ask(socket: &Path, request: &Request) -> Result<String, String> {
    let who = socket.display();
    let mut stream = match UnixStream::connect(socket) {
        Ok(s) => s,
        Err(e) if matches!(e.kind(), ErrorKind::ConnectionRefused | ErrorKind::NotFound) => {
            return Err(format!("no process listens at {who}: it has ended"));
        }
        Err(e) => return Err(format!("cannot connect to {who}: {e}")),
    };
    let silent = |e: io::Error| match e.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("no answer from {who}: is the process stopped?")
        }
        _ => format!("{who}: {e}"),
    };
    stream.set_read_timeout(Some(CLIENT_PATIENCE)).map_err(silent)?;
    stream.set_write_timeout(Some(CLIENT_PATIENCE)).map_err(silent)?;
    stream.write_all(request.line().as_bytes()).map_err(silent)?;
    let mut answer = String::new();
    // twice the longest answer: a faulty server must not make us read without end
    (&mut stream).take(2 * ANSWER_BYTES_MAX as u64).read_to_string(&mut answer).map_err(silent)?;
    let (first, rest) = answer.split_once('\n').unwrap_or((&answer, ""));
    match first.splitn(4, ' ').collect::<Vec<_>>()[..] {
        ["rerail", _, "ok"] => Ok(rest.to_owned()),
        ["rerail", _, "error", why] => Err(why.to_owned()),
        _ => Err(format!("{who} gave no answer that is understood here")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lane_without_a_stream_has_no_rate() {
        assert_eq!(lanes(&[Some(24_900_000), None, Some(0)]), "24,-,0");
    }

    #[test]
    fn requests_are_read_as_they_are_written() {
        for r in [
            Request::Paths,
            Request::Home,
            Request::Migrate { from: "eth0".into(), to: "eth1.5".into() },
            Request::FaultsShow,
            Request::FaultsClear,
            Request::FaultsSet("eth0: loss=1%; all: dark for=1s".into()),
        ] {
            assert_eq!(Request::parse(r.line().trim_end().as_bytes()), Ok(r));
        }
    }

    #[test]
    fn what_is_no_request_is_answered_by_a_sentence() {
        for (line, says) in [
            (&b""[..], "a line"),
            (b"\xff\xfe", "text"),
            (b"GET / HTTP/1.1", "a line"),
            (b"rerail 2 paths", "version 1"),
            (b"rerail x paths", "version 1"),
            (b"rerail 1", "understands"),
            (b"rerail 1 migrate eth0", "understands"),
            (b"rerail 1 paths now", "understands"),
            (b"rerail 1 home\0", "understands"),
            (b"rerail 1 faults", "understands"),
            (b"rerail 1 faults set", "understands"),
            (b"rerail 1 faults show all", "understands"),
        ] {
            let why = Request::parse(line).unwrap_err();
            assert!(why.contains(says), "{line:?}: {why}");
        }
    }

    struct Place(PathBuf);

    impl Place {
        fn new(word: &str) -> Place {
            let d = std::env::temp_dir().join(format!("rerail-control-test-{word}-{}", std::process::id()));
            let _ = fs::remove_dir_all(&d);
            Place(d)
        }
    }

    impl Drop for Place {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_socket_is_its_users_alone_and_goes_with_its_server() {
        let place = Place::new("alone");
        let option = Control::Directory(place.0.to_str().unwrap().to_owned());
        let server = Server::open(&option).unwrap().unwrap();
        let path = server.path().to_owned();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::metadata(&place.0).unwrap().mode() & 0o777, 0o700);
        let own = Some(std::process::id());
        assert_eq!(list(Some(&place.0)), [Process { pid: own, own_pid: own, socket: path.clone() }]);
        drop(server);
        assert!(!path.exists());
        assert!(Server::open(&Control::Off).unwrap().is_none());
    }

    #[test]
    fn a_directory_that_others_can_enter_is_refused() {
        let place = Place::new("open");
        fs::create_dir(&place.0).unwrap();
        fs::set_permissions(&place.0, Permissions::from_mode(0o755)).unwrap();
        let option = Control::Directory(place.0.to_str().unwrap().to_owned());
        let why = Server::open(&option).err().unwrap();
        assert!(why.contains("yours alone") && why.contains("FI_RERAIL_CONTROL"), "{why}");
    }

    #[test]
    fn what_a_killed_process_left_is_removed_and_nothing_else() {
        let place = Place::new("stale");
        let option = Control::Directory(place.0.to_str().unwrap().to_owned());
        let living = Server::open(&option).unwrap().unwrap();
        // no process has this number: it is above what the kernel gives out
        let dead = place.0.join(format!("{}-7-00000000{SUFFIX}", 1 << 30));
        drop(UnixListener::bind(&dead).unwrap());
        // its number was given to another process, here this one, which started later
        let taken = place.0.join(format!("{}-1-00000002{SUFFIX}", std::process::id()));
        drop(UnixListener::bind(&taken).unwrap());
        // a process of another namespace listens, so no process here has its number
        let elsewhere = place.0.join(format!("{}-7-00000001{SUFFIX}", 1 << 30));
        let _listener = UnixListener::bind(&elsewhere).unwrap();
        fs::write(place.0.join("notes"), "").unwrap();
        let second = Server::open(&option).unwrap().unwrap();
        assert!(!dead.exists() && !taken.exists());
        for p in [living.path(), second.path(), &elsewhere, &place.0.join("notes")] {
            assert!(p.exists(), "{}", p.display());
        }
    }

    #[test]
    fn a_socket_that_does_not_listen_yet_is_left_until_it_is_old() {
        let place = Place::new("unfinished");
        own_directory(&place.0).unwrap();
        let fresh = place.0.join(format!("{}-7-00000001{UNFINISHED}", 1 << 30));
        drop(UnixListener::bind(&fresh).unwrap());
        let old = place.0.join(format!("{}-7-00000002{UNFINISHED}", 1 << 30));
        drop(UnixListener::bind(&old).unwrap());
        let hour_ago = std::time::SystemTime::now() - Duration::from_secs(3600);
        sys::set_modified(&old, hour_ago);
        assert_eq!(list(Some(&place.0)), []);
        assert!(fresh.exists() && !old.exists());
    }

    #[test]
    fn a_process_that_starts_tries_few_sockets_of_processes_that_it_does_not_see() {
        let place = Place::new("many");
        own_directory(&place.0).unwrap();
        let left = || sockets(&place.0, SUFFIX).len();
        for n in 0..2 * TRIED_MAX + 3 {
            let path = place.0.join(format!("{}-7-{n:08x}{SUFFIX}", 1 << 30));
            drop(UnixListener::bind(&path).unwrap());
        }
        let option = Control::Directory(place.0.to_str().unwrap().to_owned());
        let server = Server::open(&option).unwrap().unwrap();
        assert_eq!(left(), TRIED_MAX + 3 + 1);
        assert_eq!(list(Some(&place.0)).len(), 1, "a command tries all");
        drop(server);
        assert_eq!(left(), 0);
    }

    #[test]
    fn a_process_that_is_stopped_with_many_clients_is_neither_waited_for_nor_removed() {
        let place = Place::new("busy");
        own_directory(&place.0).unwrap();
        let busy = place.0.join(format!("{}-7-00000001{SUFFIX}", 1 << 30));
        let listener = UnixListener::bind(&busy).unwrap();
        sys::listen_for(listener.as_raw_fd(), 0);
        let mut waiting = Vec::new();
        while let Ok(client) = sys::connect_now(&busy) {
            waiting.push(client);
            assert!(waiting.len() < 100, "a full queue refuses nothing");
        }
        let found = list(Some(&place.0));
        assert_eq!(found, [Process { pid: None, own_pid: Some(1 << 30), socket: busy }]);
    }

    #[test]
    fn a_process_is_found_by_the_number_that_is_seen_from_here_and_then_by_its_own() {
        let place = Place::new("numbers");
        own_directory(&place.0).unwrap();
        let own = std::process::id();
        // in a namespace of its own it is number 1, and another there has the number that this one has here
        let first = place.0.join(format!("1-7-00000001{SUFFIX}"));
        let _first = UnixListener::bind(&first).unwrap();
        let of = |pid| -> Vec<PathBuf> {
            of_process(list(Some(&place.0)), pid).into_iter().map(|p| p.socket).collect()
        };
        assert_eq!(of(own), std::slice::from_ref(&first));
        assert_eq!(of(1), std::slice::from_ref(&first), "no process here has that number and a socket");
        assert_eq!(of(1 << 30), [] as [PathBuf; 0]);
        let second = place.0.join(format!("{own}-7-00000002{SUFFIX}"));
        let _second = UnixListener::bind(&second).unwrap();
        assert_eq!(of(own), [first, second], "both listen in this process");
    }
}
