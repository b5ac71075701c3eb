//! The launcher: starts an agent on each host, and brings a job to its end. Owns: which agents there are, and how the job ends.
//!
//! A job ends well when every rank has ended with 0. It ends badly with the first rank that does not, that is killed, or that ends without
//! finalizing PMI; then the others are signalled, and get [`Spec::grace`] to end. Its exit code is that rank's. With [`Spec::keep_going`] the
//! others go on.
//!
//! An agent that cannot be reached goes on with its ranks, and is waited for ([`Spec::patience`]); one the remote shell of which has ended as well is
//! gone.

use crate::agent::Orders;
use crate::exchange::Exchange;
use crate::guard::PidNamespace;
use crate::hosts::{Host, mapping};
use crate::link::{Connection, Ends, News, accept, keep, random};
use crate::message::{
    Bytes, Ended, PmixJob, PmixLibrary, Start, Stream, ToAgent, ToLauncher, Wants, read, write,
};
use crate::proof::Key;
use crate::rank::signal_name;
use std::collections::VecDeque;
use std::io::{ErrorKind, Result};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpSocket};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// The exit code of a launcher that could not do its work, as that of `timeout` and of `rerail lab`.
pub const EXIT_FAILED: i32 = 125;
/// An agent the remote shell of which has ended has so long to show that it is there.
const GONE_AFTER: Duration = Duration::from_secs(3);
/// A remote shell and its agent have so long to be there.
const STARTS_WITHIN: Duration = Duration::from_secs(40);
/// Beyond the grace of ranks: until an agent has killed and reported them, or is given up.
const REPORTS_WITHIN: Duration = Duration::from_secs(6);
/// Time for the last acknowledgements.
const LAST_ACKS: Duration = Duration::from_secs(1);
/// Lines of a remote shell that are kept for the sentence on why it has failed.
const LINES_KEPT: usize = 4;
/// Handshakes at a time: strangers can hold no more.
const STRANGERS_MAX: usize = 256;
/// Bytes of standard input in one message, and messages that rank 0 has not taken yet.
const INPUT_BYTES_MAX: usize = 32 << 10;
const INPUTS_MAX: usize = 8;
/// Bytes of an unfinished line that wait for their end, with prefixes.
const LINE_BYTES_MAX: usize = 64 << 10;

/// A job to be.
#[derive(Debug, Clone)]
pub struct Spec {
    /// Which ranks run where.
    pub placed: Vec<(Host, Range<usize>)>,
    /// The program and its arguments.
    pub program: Vec<Bytes>,
    /// Where it runs.
    pub directory: Bytes,
    /// Its environment.
    pub env: Vec<(Bytes, Bytes)>,
    /// The remote shell and its arguments; a host's name and a command follow. `None`: this host's agents are started without one, the others by ssh.
    pub rsh: Option<Vec<String>>,
    /// This executable, as hosts have it.
    pub executable: PathBuf,
    /// Where agents are to call. Not used where all ranks are on this host and none was started by a remote shell.
    pub addresses: Vec<IpAddr>,
    /// Each line of output begins with the rank's number.
    pub prefix: bool,
    /// The death of a rank ends it alone.
    pub keep_going: bool,
    /// How long an agent that cannot be reached is waited for.
    pub patience: Duration,
    /// Time between the signal that ends ranks and the one that kills them.
    pub grace: Duration,
    /// Ranks get a PMIx server, whose library is there; `None`: they get none.
    pub pmix: Option<PmixLibrary>,
    /// Whether the ranks of each host get a process-id namespace.
    pub pid_namespace: PidNamespace,
}

/// What happens.
enum Event {
    /// An agent's connection.
    Connection(u32, Connection),
    /// From an agent.
    News(u32, News),
    /// A remote shell has written this on its standard error.
    Shell(u32, String),
    /// A remote shell has ended, so.
    ShellEnded(u32, std::process::ExitStatus),
    /// A signal for the job.
    Signal(i32),
    /// Standard input for rank 0.
    Input(Bytes),
}

struct Agent {
    host: Host,
    ranks: Range<usize>,
    urgent: mpsc::UnboundedSender<Vec<u8>>,
    connections: mpsc::Sender<Connection>,
    /// What its remote shell wrote last.
    shell_lines: VecDeque<String>,
    shell_ended: Option<std::process::ExitStatus>,
    came: bool,
    /// Not reached since then.
    lost: Option<Instant>,
    /// Its ranks wait at a barrier, and have put these values.
    fence: Option<Vec<(String, String)>>,
    done: bool,
}

struct Job {
    spec: Spec,
    agents: Vec<Agent>,
    sessions: JoinSet<()>,
    exchange: Exchange,
    /// Number of ranks.
    size: usize,
    /// It ends: agents are waited for until then.
    ends_by: Option<Instant>,
    /// The exit code, once it is known that it is not 0.
    code: Option<i32>,
    interrupted: bool,
    begun: Instant,
    input_room: Arc<Semaphore>,
    /// Where agents call, for sentences.
    called_at: String,
    lines: Vec<[Vec<u8>; 2]>,
}

/// Runs a job; returns the exit code. Problems go to standard error, a sentence each.
///
/// # Errors
/// What the system refuses to the launcher itself.
pub fn run(spec: Spec) -> Result<i32> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let code = runtime.block_on(work(spec));
    // a thread may still wait for standard input
    runtime.shutdown_background();
    code
}

fn is_here(host: &Host) -> bool {
    let own = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    ["localhost", "127.0.0.1", "::1", own.trim()].contains(&host.name.as_str())
}

async fn work(spec: Spec) -> Result<i32> {
    let secret = Key::new(random());
    let alone = spec.rsh.is_none() && spec.placed.iter().all(|(host, _)| is_here(host));
    let listener = listen(alone)?;
    let port = listener.local_addr()?.port();
    let addresses: Vec<SocketAddr> = match alone {
        true => vec![(Ipv4Addr::LOCALHOST, port).into()],
        false => spec.addresses.iter().map(|ip| (*ip, port).into()).collect(),
    };
    let (events, mut happens) = mpsc::channel(256);
    tokio::spawn(take(listener, secret.clone(), events.clone()));
    let called_at: Vec<String> = addresses.iter().map(SocketAddr::to_string).collect();
    let mut job = Job::new(spec, called_at.join(" or "), &events);
    let mut shells = JoinSet::new();
    for (n, agent) in job.agents.iter().enumerate() {
        let n = n as u32;
        let orders = Orders {
            agent: n,
            key: secret.of_agent(n),
            patience: job.spec.patience,
            pid_namespace: job.spec.pid_namespace,
            addresses: addresses.clone(),
        };
        let command = shell(&job.spec, &agent.host);
        shells.spawn(watch_shell(n, command, orders, events.clone()));
    }
    let name = format!("rerail-{}", &secret.of_agent(u32::MAX).to_hex()[..16]);
    for n in 0..job.agents.len() {
        // it is the first message of the session, whenever the agent comes
        let start = job.start(&name, n);
        job.send(n, &ToAgent::Start(Box::new(start)));
    }
    tokio::spawn(pass_signals(events.clone()));
    tokio::spawn(pass_input(events, job.input_room.clone()));
    let mut look = tokio::time::interval(Duration::from_millis(250));
    loop {
        let ends_by = job.ends_by;
        let event = tokio::select! {
            Some(event) = happens.recv() => event,
            _ = look.tick() => {
                job.look();
                if job.is_over() { break }
                continue;
            }
            () = async { sleep_until(ends_by.expect("it is set")).await }, if ends_by.is_some() => break,
        };
        match event {
            Event::Connection(n, connection) => {
                let Some(agent) = job.agents.get_mut(n as usize) else { continue };
                agent.came = true;
                let _ = agent.connections.send(connection).await;
            }
            Event::News(n, news) => job.news(n as usize, news).await,
            Event::Shell(n, line) => job.shell_wrote(n as usize, line),
            Event::ShellEnded(n, status) => job.agents[n as usize].shell_ended = Some(status),
            Event::Signal(signal) => job.signal(signal),
            Event::Input(bytes) => job.send(0, &ToAgent::Input(bytes)),
        }
        if job.is_over() {
            break;
        }
    }
    job.flush().await;
    for agent in job.agents.drain(..).filter(|a| !a.done && a.came) {
        eprintln!(
            "rerail launch: the agent on {} did not report any more: it ends its ranks by itself",
            agent.host.name
        );
    }
    // sessions end when the last messages of their agents are acknowledged
    let _ = timeout(LAST_ACKS, async { while job.sessions.join_next().await.is_some() {} }).await;
    shells.shutdown().await;
    Ok(job.code.unwrap_or(0))
}

impl Job {
    fn new(spec: Spec, called_at: String, events: &mpsc::Sender<Event>) -> Self {
        let size: usize = spec.placed.iter().map(|(_, ranks)| ranks.len()).sum();
        let mut sessions = JoinSet::new();
        let agents = spec.placed.iter().enumerate().map(|(n, (host, ranks))| {
            let (urgent, from_urgent) = mpsc::unbounded_channel();
            let (connections, from_connections) = mpsc::channel(1);
            let (news, mut from_news) = mpsc::channel(16);
            let (_, bulk) = mpsc::channel(1);
            sessions.spawn(keep(Ends { urgent: from_urgent, bulk, connections: from_connections, news }));
            let events = events.clone();
            tokio::spawn(async move {
                while let Some(found) = from_news.recv().await {
                    if events.send(Event::News(n as u32, found)).await.is_err() {
                        return;
                    }
                }
            });
            Agent {
                host: host.clone(),
                ranks: ranks.clone(),
                urgent,
                connections,
                shell_lines: VecDeque::new(),
                shell_ended: None,
                came: false,
                lost: None,
                fence: None,
                done: false,
            }
        });
        Self {
            exchange: Exchange::new(spec.placed.iter().map(|(_, ranks)| ranks.clone())),
            agents: agents.collect(),
            sessions,
            size,
            ends_by: None,
            code: None,
            interrupted: false,
            begun: Instant::now(),
            input_room: Arc::new(Semaphore::new(INPUTS_MAX)),
            called_at,
            lines: vec![Default::default(); if spec.prefix { size } else { 0 }],
            spec,
        }
    }

    fn start(&self, name: &str, n: usize) -> Start {
        let agent = &self.agents[n];
        Start {
            job: name.to_owned(),
            size: self.size,
            first: agent.ranks.start,
            count: agent.ranks.len(),
            mapping: mapping(&self.spec.placed),
            program: self.spec.program.clone(),
            directory: self.spec.directory.clone(),
            env: self.spec.env.clone(),
            grace_ms: self.spec.grace.as_millis() as u64,
            pmix: self.spec.pmix.as_ref().map(|library| {
                let hosts = self.agents.iter().map(|agent| (agent.host.name.clone(), agent.ranks.len()));
                PmixJob { library: library.clone(), hosts: hosts.collect(), host: n }
            }),
        }
    }

    fn send(&self, n: usize, message: &ToAgent) {
        // one whose session is over needs nothing any more
        let _ = self.agents[n].urgent.send(write(message));
    }

    fn send_all(&self, message: &ToAgent) {
        (0..self.agents.len()).for_each(|n| self.send(n, message));
    }

    fn is_over(&self) -> bool {
        self.agents.iter().all(|agent| agent.done)
    }

    /// The job ends badly, with this exit code.
    fn fail(&mut self, code: i32) {
        self.end(code, libc::SIGTERM);
    }

    /// The same, and ranks get this signal.
    fn end(&mut self, code: i32, signal: i32) {
        self.code.get_or_insert(code);
        if self.ends_by.is_none() {
            self.send_all(&ToAgent::End(signal));
            self.ends_by = Some(Instant::now() + self.spec.grace + REPORTS_WITHIN);
            for agent in self.agents.iter_mut().filter(|agent| !agent.came) {
                // it has no ranks
                agent.done = true;
            }
        }
    }

    async fn news(&mut self, n: usize, news: News) {
        let agent = &mut self.agents[n];
        let message = match news {
            News::Connected => {
                if agent.lost.take().is_some_and(|at| at.elapsed() > Duration::from_secs(1)) {
                    eprintln!("rerail launch: the agent on {} is reached again", agent.host.name);
                }
                return;
            }
            News::Lost => {
                if !agent.done {
                    agent.lost = Some(Instant::now());
                }
                return;
            }
            News::Message(message) => message,
        };
        let Some(message) = read::<ToLauncher>(&message) else {
            eprintln!(
                "rerail launch: the agent on {} is of another version of Rerail: install the same everywhere",
                agent.host.name
            );
            return self.fail(EXIT_FAILED);
        };
        match message {
            ToLauncher::Refused(why, code) => {
                let name = agent.host.name.clone();
                if self.code.is_none() {
                    eprintln!("rerail launch: {name}: {why}");
                }
                self.fail(code);
            }
            ToLauncher::Output(rank, stream, bytes) => self.output(rank, stream, bytes).await,
            ToLauncher::Fence(put) => {
                agent.fence = Some(put);
                if self.agents.iter().all(|agent| agent.fence.is_some()) {
                    let all = self
                        .agents
                        .iter_mut()
                        .flat_map(|agent| agent.fence.take().unwrap_or_default())
                        .collect();
                    self.send_all(&ToAgent::Fenced(all));
                }
            }
            ToLauncher::Pmix(wants) => self.exchange(n, wants),
            ToLauncher::Took => self.input_room.add_permits(1),
            ToLauncher::Abort(rank, code) => {
                if self.code.is_none() {
                    eprintln!(
                        "rerail launch: rank {rank} on {} aborts the job with exit code {code}",
                        agent.host.name
                    );
                }
                self.fail(code);
            }
            ToLauncher::Ended { rank, how, finalized } => self.rank_ended(n, rank, how, finalized),
            ToLauncher::Note(why) => eprintln!("rerail launch: {}: {why}", agent.host.name),
            ToLauncher::Done => {
                agent.done = true;
                agent.lost = None;
            }
        }
    }

    /// A message of a host's PMIx server.
    fn exchange(&mut self, n: usize, wants: Wants) {
        match self.exchange.receive(n, wants) {
            Ok(answers) => {
                answers.into_iter().for_each(|(agent, gives)| self.send(agent, &ToAgent::Pmix(gives)));
            }
            Err(why) => {
                if self.code.is_none() {
                    eprintln!("rerail launch: {why}");
                }
                self.fail(EXIT_FAILED);
            }
        }
    }

    fn rank_ended(&mut self, n: usize, rank: usize, how: Ended, finalized: bool) {
        let clean = how == Ended::Code(0) && finalized;
        if clean || self.spec.keep_going {
            // the others go on, and must not wait for it
            for (agent, gives) in self.exchange.ended(rank as u32) {
                self.send(agent, &ToAgent::Pmix(gives));
            }
        }
        if clean {
            return;
        }
        let host = &self.agents[n].host.name;
        let what = match how {
            Ended::Code(0) => "ended before its part of the job (MPI_Finalize, rwapi_finalize)".to_owned(),
            Ended::Code(code) => format!("ended with exit code {code}"),
            Ended::Signal(signal) => format!("was killed by {}", signal_name(signal)),
        };
        let code = match how.exit_code() {
            0 => 1,
            code => code,
        };
        if self.code.is_none() || self.spec.keep_going {
            let rest = match (self.spec.keep_going, self.size) {
                (_, 1) => "",
                (true, _) => "; the others go on",
                (false, _) => "; the others are ended",
            };
            eprintln!("rerail launch: rank {rank} on {host} {what}{rest}");
        }
        if self.spec.keep_going {
            self.code.get_or_insert(code);
        } else {
            self.fail(code);
        }
    }

    fn shell_wrote(&mut self, n: usize, line: String) {
        let agent = &mut self.agents[n];
        // before an agent comes it may be why; afterwards it is for the user
        if agent.came {
            eprintln!("{line}");
        } else {
            agent.shell_lines.push_back(line);
            if agent.shell_lines.len() > LINES_KEPT {
                agent.shell_lines.pop_front();
            }
        }
    }

    /// Gives up agents that are gone.
    fn look(&mut self) {
        let mut gone = None;
        for agent in self.agents.iter_mut().filter(|agent| !agent.done) {
            let why = match (agent.shell_ended, agent.came) {
                (Some(status), false) => {
                    let mut why = agent.shell_lines.make_contiguous().join(" / ");
                    if why.is_empty() {
                        why = format!("the remote shell ended with {status}");
                    }
                    format!("no agent could be started on {}: {why}", agent.host.name)
                }
                (shell, true) => {
                    let patience = if shell.is_some() { GONE_AFTER } else { self.spec.patience };
                    if agent.lost.is_none_or(|at| at.elapsed() <= patience) {
                        continue;
                    }
                    format!("the agent on {} is gone, and its ranks with it", agent.host.name)
                }
                (None, false) if self.begun.elapsed() <= STARTS_WITHIN => continue,
                (None, false) => format!(
                    "no agent has come from {} in {} s: either the remote shell waits, or {} cannot be reached from there (name an address with --address)",
                    agent.host.name,
                    STARTS_WITHIN.as_secs(),
                    self.called_at
                ),
            };
            agent.done = true;
            gone.get_or_insert(why);
        }
        if let Some(why) = gone {
            if self.code.is_none() {
                eprintln!("rerail launch: {why}");
            }
            self.fail(EXIT_FAILED);
        }
    }

    fn signal(&mut self, signal: i32) {
        let ends = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT].contains(&signal);
        if !ends {
            return self.send_all(&ToAgent::Signal(signal));
        }
        if !std::mem::replace(&mut self.interrupted, true) {
            eprintln!("rerail launch: {}: the ranks are ended; once more to kill them", signal_name(signal));
            self.end(128 + signal, signal);
        } else {
            self.send_all(&ToAgent::Signal(libc::SIGKILL));
        }
    }

    async fn output(&mut self, rank: usize, stream: Stream, bytes: Bytes) {
        let Some(lines) = self.lines.get_mut(rank) else { return put(stream, &bytes).await };
        let line = &mut lines[usize::from(stream == Stream::Err)];
        line.extend(bytes);
        let whole = match line.iter().rposition(|b| *b == b'\n') {
            Some(end) => end + 1,
            None if line.len() >= LINE_BYTES_MAX => line.len(),
            None => return,
        };
        let mut text = Vec::new();
        for one in line[..whole].split_inclusive(|b| *b == b'\n') {
            text.extend(format!("[{rank}] ").bytes());
            text.extend(one);
        }
        line.drain(..whole);
        put(stream, &text).await;
    }

    /// Lines without an end.
    async fn flush(&mut self) {
        for rank in 0..self.lines.len() {
            for stream in [Stream::Out, Stream::Err] {
                if !self.lines[rank][usize::from(stream == Stream::Err)].is_empty() {
                    self.output(rank, stream, b"\n".to_vec()).await;
                }
            }
        }
    }
}

async fn put(stream: Stream, bytes: &[u8]) {
    // a reader that has gone is not the job's end
    match stream {
        Stream::Out => {
            let mut out = tokio::io::stdout();
            let _ = out.write_all(bytes).await;
            let _ = out.flush().await;
        }
        Stream::Err => {
            let mut err = tokio::io::stderr();
            let _ = err.write_all(bytes).await;
            let _ = err.flush().await;
        }
    }
}

fn listen(alone: bool) -> Result<TcpListener> {
    if alone {
        let socket = TcpSocket::new_v4()?;
        socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
        return socket.listen(1024);
    }
    // all addresses of both families; a host without IPv6 has only the others
    let (socket, any): (_, IpAddr) = match TcpSocket::new_v6() {
        Ok(socket) => (socket, Ipv6Addr::UNSPECIFIED.into()),
        Err(_) => (TcpSocket::new_v4()?, Ipv4Addr::UNSPECIFIED.into()),
    };
    match socket.bind((any, 0).into()) {
        Ok(()) => socket.listen(1024),
        Err(_) => {
            let socket = TcpSocket::new_v4()?;
            socket.bind((Ipv4Addr::UNSPECIFIED, 0).into())?;
            socket.listen(1024)
        }
    }
}

/// Takes connections; what does not prove itself in time is dropped without a word.
async fn take(listener: TcpListener, secret: Key, events: mpsc::Sender<Event>) {
    let room = Arc::new(Semaphore::new(STRANGERS_MAX));
    loop {
        let Ok(permit) = room.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let (secret, events) = (secret.clone(), events.clone());
        tokio::spawn(async move {
            if let Ok((agent, connection)) = accept(stream, &secret).await {
                let _ = events.send(Event::Connection(agent, connection)).await;
            }
            drop(permit);
        });
    }
}

/// In quotes for a POSIX shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// The command that starts the agent of a host.
fn shell(spec: &Spec, host: &Host) -> Command {
    let executable = spec.executable.to_string_lossy().into_owned();
    let mut command = match &spec.rsh {
        None if is_here(host) => {
            let mut command = Command::new(&spec.executable);
            command.arg("launch-agent");
            command
        }
        rsh => {
            // no questions: its standard input is the agent's orders
            let ssh =
                ["ssh", "-x", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"].map(str::to_owned).to_vec();
            let words = rsh.clone().unwrap_or(ssh);
            let mut command = Command::new(&words[0]);
            command
                .args(&words[1..])
                .arg(&host.name)
                .arg(format!("exec {} launch-agent", quoted(&executable)));
            command
        }
    };
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true);
    // Ctrl-C at the terminal is the launcher's to pass on
    command.process_group(0);
    command
}

async fn watch_shell(n: u32, mut command: Command, orders: Orders, events: mpsc::Sender<Event>) {
    let mut child: Child = match command.spawn() {
        Ok(child) => child,
        Err(why) => {
            let name = command.as_std().get_program().to_string_lossy().into_owned();
            let why = match why.kind() {
                ErrorKind::NotFound => {
                    format!("there is no `{name}`: install it, or name another remote shell with --rsh")
                }
                _ => format!("cannot start `{name}`: {why}"),
            };
            let _ = events.send(Event::Shell(n, why)).await;
            let status = std::os::unix::process::ExitStatusExt::from_raw(127 << 8);
            let _ = events.send(Event::ShellEnded(n, status)).await;
            return;
        }
    };
    let input = child.stdin.take();
    if let Some(mut input) = input {
        let _ = input.write_all(orders.to_line().as_bytes()).await;
    }
    if let Some(err) = child.stderr.take() {
        let mut lines = BufReader::new(err).lines();
        let events = events.clone();
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                if events.send(Event::Shell(n, line)).await.is_err() {
                    return;
                }
            }
        });
    }
    if let Ok(status) = child.wait().await {
        // its last lines come first
        sleep(Duration::from_millis(50)).await;
        let _ = events.send(Event::ShellEnded(n, status)).await;
    }
}

async fn pass_signals(events: mpsc::Sender<Event>) {
    let all = [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGQUIT, libc::SIGUSR1, libc::SIGUSR2];
    for number in all {
        let Ok(mut signals) = signal(SignalKind::from_raw(number)) else { continue };
        let events = events.clone();
        tokio::spawn(async move {
            while signals.recv().await.is_some() {
                if events.send(Event::Signal(number)).await.is_err() {
                    return;
                }
            }
        });
    }
}

async fn pass_input(events: mpsc::Sender<Event>, input_room: Arc<Semaphore>) {
    let mut input = tokio::io::stdin();
    let mut room = vec![0; INPUT_BYTES_MAX];
    loop {
        let Ok(permit) = input_room.acquire().await else { return };
        permit.forget();
        let bytes = match input.read(&mut room).await {
            Ok(n) => room[..n].to_vec(),
            Err(_) => Vec::new(),
        };
        let over = bytes.is_empty();
        if events.send(Event::Input(bytes)).await.is_err() || over {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_quotes_is_one_word_of_the_remote_shell() {
        assert_eq!(quoted("/usr/it's here/rerail"), r"'/usr/it'\''s here/rerail'");
    }
}
