//! The agent: the parent of a host's ranks. Owns: the processes of its host, and their conversation with PMI.
//!
//! It reads its key and the launcher's addresses from its standard input, connects, and starts the ranks that the launcher names. When the connection breaks
//! it makes the next one; meanwhile the ranks go on. When the launcher's host refuses it for [`REFUSED_MAX`], the launcher is gone, and the ranks are ended.
//!
//! Other processes, above all the *guard*, kill what is left when the agent ends, however that ends: [`crate::guard`].

use crate::guard::{self, EXIT_FAILED, PidNamespace, Role, kill_rest};
use crate::link::{self, Connection, Ends, News, keep};
use crate::message::{Bytes, Ended, Start, Stream, ToAgent, ToLauncher, read, write};
use crate::pmi::{Answer, LINE_BYTES_MAX, Pmi};
use crate::pmix::message::FromServer;
use crate::pmix::serving::{self, Follows, Serving};
use crate::proof::Key;
use crate::rank;
use std::io::{BufRead, ErrorKind};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::{Child, ChildStdin};
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// Refusals for so long mean that there is no launcher any more.
const REFUSED_MAX: Duration = Duration::from_secs(2);
/// Time between two attempts to reach the launcher.
const AGAIN: Duration = Duration::from_millis(200);
/// So long the streams of a rank that has ended are read, if something else keeps them open.
const LEFT_OPEN: Duration = Duration::from_millis(500);
/// Bytes of a rank's output in one message.
const OUTPUT_BYTES_MAX: usize = 32 << 10;

/// What an agent is given on its standard input, in one line.
#[derive(Debug, Clone)]
pub struct Orders {
    /// Its number.
    pub agent: u32,
    /// Its key.
    pub key: Key,
    /// Seconds without the launcher after which it ends its ranks.
    pub patience: Duration,
    /// Whether its ranks get a process-id namespace.
    pub pid_namespace: PidNamespace,
    /// Where the launcher listens.
    pub addresses: Vec<SocketAddr>,
}

impl Orders {
    /// As a line.
    pub fn to_line(&self) -> String {
        let mut words = vec![self.agent.to_string(), self.key.to_hex(), self.patience.as_secs().to_string()];
        words.push(self.pid_namespace.word().to_owned());
        words.extend(self.addresses.iter().map(SocketAddr::to_string));
        words.join(" ") + "\n"
    }

    /// Reads them; `None`: these are none.
    pub fn from_line(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let agent = words.next()?.parse().ok()?;
        let key = Key::from_hex(words.next()?)?;
        let patience = Duration::from_secs(words.next()?.parse().ok()?);
        let pid_namespace = PidNamespace::of_word(words.next()?)?;
        let addresses: Option<Vec<SocketAddr>> = words.map(|word| word.parse().ok()).collect();
        let addresses = addresses.filter(|all| !all.is_empty())?;
        Some(Self { agent, key, patience, pid_namespace, addresses })
    }
}

/// Runs the agent, with its guard; returns the exit code.
pub fn run() -> i32 {
    let mut line = String::new();
    let orders = match std::io::stdin().lock().read_line(&mut line) {
        Ok(_) => Orders::from_line(&line),
        Err(_) => None,
    };
    let Some(orders) = orders else {
        eprintln!("rerail: an agent is started by `rerail launch`, which gives it its orders");
        return EXIT_FAILED;
    };
    let directory = serving::directory(&link::random());
    match guard::split(orders.pid_namespace, &directory) {
        Role::Ended(code) => code,
        Role::Failed(why) => {
            eprintln!("rerail: the agent cannot be started: {why}");
            EXIT_FAILED
        }
        Role::Agent => {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            match runtime {
                Ok(runtime) => {
                    let code = runtime.block_on(work(orders, directory));
                    drop(runtime);
                    kill_rest();
                    code
                }
                Err(why) => {
                    eprintln!("rerail: the agent cannot be started: {why}");
                    EXIT_FAILED
                }
            }
        }
    }
}

/// What happens at an agent.
enum Event {
    News(News),
    /// From the PMIx server.
    Server(serving::News),
    /// A rank has written a line for its launcher; nothing: it has closed the pair.
    Line(usize, Option<String>),
    /// A rank has ended, and everything that it wrote is read. The answer is whether PMI lets it end.
    Exited(usize, oneshot::Sender<bool>),
    /// The launcher will know how a rank has ended.
    Reported(usize),
    /// There is no launcher any more, because of this.
    Alone(String),
}

/// How far the end of the ranks is.
enum Stage {
    Runs,
    /// They may end by themselves until then.
    Ending(Instant),
    Killed,
}

/// The ranks, once they were started.
struct Job {
    start: Start,
    pmi: Pmi,
    to_ranks: Vec<Option<OwnedWriteHalf>>,
    groups: Vec<u32>,
    /// What rank 0 is to read; the launcher bounds it.
    input: Option<UnboundedSender<Bytes>>,
    running: Vec<bool>,
    stage: Stage,
    /// The PMIx server, if the ranks need one.
    serving: Option<Serving>,
}

/// What the ranks' variables for PMIx are, by the rank of this host.
type Variables = Vec<Vec<(Bytes, Bytes)>>;

/// How far an agent is.
enum Phase {
    /// The launcher has not said what to start.
    Waits,
    /// The ranks' PMIx server is not ready yet.
    Prepares(Box<Start>, Serving),
    /// The ranks were started.
    Runs(Box<Job>),
}

/// Why an agent ends before its ranks, or without any.
enum Stop {
    /// There is nothing to do.
    Over,
    /// A sentence for the user, and the exit code.
    Refused(String, i32),
}

impl Job {
    fn signal(&self, signal: i32) {
        for (group, _) in self.groups.iter().zip(&self.running).filter(|(_, running)| **running) {
            rank::signal(*group, signal);
        }
    }

    /// Ends the ranks that are left: at first they may do it by themselves.
    fn end(&mut self, signal: i32) {
        if matches!(self.stage, Stage::Runs) {
            self.signal(signal);
            self.signal(libc::SIGCONT);
            self.stage = Stage::Ending(Instant::now() + Duration::from_millis(self.start.grace_ms));
        }
    }

    fn kill(&mut self) {
        self.signal(libc::SIGKILL);
        self.stage = Stage::Killed;
    }

    fn kill_at(&self) -> Option<Instant> {
        if let Stage::Ending(at) = self.stage { Some(at) } else { None }
    }

    fn is_over(&self) -> bool {
        self.running.iter().all(|running| !running)
    }

    /// A message from the launcher.
    fn receive(&mut self, message: ToAgent, urgent: &UnboundedSender<Vec<u8>>) {
        match message {
            ToAgent::Fenced(values) => {
                let answers = self.pmi.fenced(values);
                self.answer(answers, urgent);
            }
            ToAgent::Pmix(gives) => drop(self.serving.as_ref().map(|serving| serving.give(gives))),
            ToAgent::Input(bytes) if bytes.is_empty() => self.input = None,
            // one that has ended reads nothing
            ToAgent::Input(bytes) => drop(self.input.as_ref().map(|input| input.send(bytes))),
            ToAgent::Signal(signal) => self.signal(signal),
            ToAgent::End(signal) => self.end(signal),
            // there is one for each agent
            ToAgent::Start(_) => {}
        }
    }

    fn answer(&mut self, answers: Vec<Answer>, urgent: &UnboundedSender<Vec<u8>>) {
        let send = |message: &ToLauncher| drop(urgent.send(write(message)));
        for answer in answers {
            match answer {
                Answer::Line(rank, text) => {
                    let Some(to) = &self.to_ranks[rank] else { continue };
                    let line = format!("{text}\n");
                    // a rank that reads no answers must not stop the others
                    if to.try_write(line.as_bytes()).ok() != Some(line.len()) {
                        self.to_ranks[rank] = None;
                    }
                }
                Answer::Fence(put) => send(&ToLauncher::Fence(put)),
                Answer::Abort(rank, code) => send(&ToLauncher::Abort(self.start.first + rank, code)),
                Answer::Wrong(why) => send(&ToLauncher::Note(why)),
            }
        }
    }

    fn may_end(&self, rank: usize) -> bool {
        self.pmi.may_end(rank) && self.serving.as_ref().is_none_or(|serving| serving.may_end(rank))
    }

    /// A message of the PMIx server.
    fn served(&mut self, message: FromServer, urgent: &UnboundedSender<Vec<u8>>) {
        let Some(serving) = &mut self.serving else { return };
        let message = match serving.receive(message) {
            Follows::Nothing => return,
            Follows::Abort(rank, code) => ToLauncher::Abort(rank as usize, code),
            Follows::Wants(wants) => ToLauncher::Pmix(wants),
            Follows::TooMuch(why) => ToLauncher::Refused(why, EXIT_FAILED),
        };
        let _ = urgent.send(write(&message));
    }
}

/// An agent: its phase, and where it sends.
struct Agent {
    phase: Phase,
    directory: PathBuf,
    events: mpsc::Sender<Event>,
    urgent: UnboundedSender<Vec<u8>>,
    bulk: mpsc::Sender<Vec<u8>>,
    /// News of the PMIx server.
    from_server: Option<mpsc::Receiver<serving::News>>,
}

impl Agent {
    fn is_over(&self) -> bool {
        matches!(&self.phase, Phase::Runs(job) if job.is_over())
    }

    fn kill_at(&self) -> Option<Instant> {
        if let Phase::Runs(job) = &self.phase { job.kill_at() } else { None }
    }

    /// A message of the launcher.
    fn receive(&mut self, message: ToAgent) -> Result<(), Stop> {
        match (message, &mut self.phase) {
            (ToAgent::Start(start), Phase::Waits) if start.pmix.is_some() => {
                let (serving, news) = serving::start(&start, &self.directory).map_err(|why| {
                    let why = format!("cannot start a PMIx server in {}: {why}", self.directory.display());
                    Stop::Refused(why, EXIT_FAILED)
                })?;
                self.from_server = Some(news);
                self.phase = Phase::Prepares(start, serving);
                Ok(())
            }
            (ToAgent::Start(start), Phase::Waits) => self.begin(*start, None),
            (ToAgent::End(_), Phase::Waits | Phase::Prepares(..)) => Err(Stop::Over),
            (message, Phase::Runs(job)) => {
                job.receive(message, &self.urgent);
                Ok(())
            }
            // a signal for ranks that are not there yet
            _ => Ok(()),
        }
    }

    fn begin(&mut self, start: Start, pmix: Option<(Serving, Variables)>) -> Result<(), Stop> {
        let begun = begin(start, pmix, &self.events, &self.bulk, &self.urgent);
        let job = begun.map_err(|(why, exit)| Stop::Refused(why, exit))?;
        self.phase = Phase::Runs(Box::new(job));
        Ok(())
    }

    /// News of the PMIx server.
    fn served(&mut self, news: serving::News) -> Result<(), Stop> {
        match (news, std::mem::replace(&mut self.phase, Phase::Waits)) {
            (serving::News::Message(FromServer::Ready(variables)), Phase::Prepares(start, serving)) => {
                let mut start = *start;
                // before the user's own, which override them
                let own = serving.variables().into_iter().map(|(name, value)| (name.into(), value));
                start.env.splice(0..0, own);
                self.begin(start, Some((serving, variables)))
            }
            (serving::News::Message(message), Phase::Runs(mut job)) => {
                job.served(message, &self.urgent);
                self.phase = Phase::Runs(job);
                Ok(())
            }
            (serving::News::Ended(why), Phase::Runs(job)) => {
                // the launcher ends all ranks
                let _ = self.urgent.send(write(&ToLauncher::Refused(why, EXIT_FAILED)));
                self.phase = Phase::Runs(job);
                Ok(())
            }
            (serving::News::Ended(why), _) => Err(Stop::Refused(why, EXIT_FAILED)),
            // a server has nothing to say before it serves
            (serving::News::Message(_), phase) => {
                self.phase = phase;
                Ok(())
            }
        }
    }

    /// What happens at the ranks.
    fn of_rank(&mut self, event: Event) {
        let Phase::Runs(job) = &mut self.phase else { return };
        match event {
            Event::Line(rank, Some(line)) => {
                let answers = job.pmi.line(rank, &line);
                job.answer(answers, &self.urgent);
            }
            Event::Line(rank, None) => job.to_ranks[rank] = None,
            Event::Exited(rank, answer) => drop(answer.send(job.may_end(rank))),
            Event::Reported(rank) => {
                job.running[rank] = false;
                if let Some(serving) = &job.serving {
                    serving.ended(rank);
                }
                // what it has started
                rank::signal(job.groups[rank], libc::SIGKILL);
            }
            Event::News(_) | Event::Server(_) | Event::Alone(_) => {}
        }
    }

    /// Ends what is beside the ranks.
    async fn finish(self) {
        let serving = match self.phase {
            Phase::Waits => None,
            Phase::Prepares(_, serving) => Some(serving),
            Phase::Runs(job) => job.serving,
        };
        // what it reports of its end is expected
        drop(self.from_server);
        if let Some(serving) = serving {
            serving.finish().await;
        }
    }
}

async fn news_of(server: &mut Option<mpsc::Receiver<serving::News>>) -> serving::News {
    let news = match server {
        Some(server) => server.recv().await,
        None => None,
    };
    match news {
        Some(news) => news,
        None => std::future::pending().await,
    }
}

async fn work(orders: Orders, directory: PathBuf) -> i32 {
    let (urgent, from_urgent) = mpsc::unbounded_channel();
    let (bulk, from_bulk) = mpsc::channel(16);
    let (connections, from_connections) = mpsc::channel(1);
    let (news, mut from_news) = mpsc::channel(16);
    let (events, mut happens) = mpsc::channel::<Event>(64);
    let ends = Ends { urgent: from_urgent, bulk: from_bulk, connections: from_connections, news };
    let mut kept = tokio::spawn(keep(ends));
    let call = || drop(tokio::spawn(reach(orders.clone(), connections.clone(), events.clone())));
    call();
    let Ok(mut term) = signal(SignalKind::terminate()) else { return EXIT_FAILED };
    let events = events.clone();
    let mut agent =
        Agent { phase: Phase::Waits, directory, events, urgent: urgent.clone(), bulk, from_server: None };
    let mut alone = false;
    let mut code = 0;
    while !agent.is_over() {
        let kill_at = agent.kill_at();
        let event = tokio::select! {
            Some(event) = happens.recv() => event,
            Some(found) = from_news.recv() => Event::News(found),
            news = news_of(&mut agent.from_server) => Event::Server(news),
            _ = term.recv() => Event::Alone("the agent was terminated".into()),
            () = async { sleep_until(kill_at.expect("it is set")).await }, if kill_at.is_some() => {
                if let Phase::Runs(job) = &mut agent.phase { job.kill() }
                continue;
            }
        };
        let done = match event {
            Event::News(News::Connected) => Ok(()),
            Event::News(News::Lost) => {
                call();
                Ok(())
            }
            // an agent of another version is the launcher's to report
            Event::News(News::Message(message)) => {
                read::<ToAgent>(&message).map_or(Ok(()), |message| agent.receive(message))
            }
            Event::Server(news) => agent.served(news),
            Event::Alone(why) => {
                eprintln!("rerail: {why}: the ranks of this host are ended");
                alone = true;
                match &mut agent.phase {
                    Phase::Runs(job) => {
                        job.end(libc::SIGTERM);
                        Ok(())
                    }
                    _ => Err(Stop::Over),
                }
            }
            event => {
                agent.of_rank(event);
                Ok(())
            }
        };
        match done {
            Ok(()) => {}
            Err(Stop::Over) => break,
            Err(Stop::Refused(why, exit)) => {
                let _ = urgent.send(write(&ToLauncher::Refused(why, exit)));
                code = exit;
                break;
            }
        }
    }
    agent.finish().await;
    if alone {
        // no launcher is there to know
        return EXIT_FAILED;
    }
    let _ = urgent.send(write(&ToLauncher::Done));
    drop(urgent);
    // the rest of the output, and the last message
    loop {
        tokio::select! {
            _ = &mut kept => return code,
            found = from_news.recv() => if found == Some(News::Lost) { call() },
            Some(event) = happens.recv() => if matches!(event, Event::Alone(_)) { return code },
        }
    }
}

/// Connects to the launcher, as often as it takes.
async fn reach(orders: Orders, connections: mpsc::Sender<Connection>, events: mpsc::Sender<Event>) {
    let begun = Instant::now();
    let mut refused: Option<Instant> = None;
    loop {
        let why = match link::call(&orders.addresses, &orders.key, orders.agent).await {
            Ok(connection) => {
                let _ = connections.send(connection).await;
                return;
            }
            Err(why) => why,
        };
        let gone = match why.kind() {
            ErrorKind::ConnectionRefused => refused.get_or_insert_with(Instant::now).elapsed() > REFUSED_MAX,
            ErrorKind::PermissionDenied => true,
            _ => {
                refused = None;
                false
            }
        };
        if gone || begun.elapsed() > orders.patience {
            let why = match gone {
                true => "the launcher is gone".to_owned(),
                false => format!("the launcher was not reached for {} s ({why})", orders.patience.as_secs()),
            };
            let _ = events.send(Event::Alone(why)).await;
            return;
        }
        sleep(AGAIN).await;
    }
}

/// Starts the ranks of this host; with a sentence and an exit code where that fails.
fn begin(
    start: Start,
    pmix: Option<(Serving, Variables)>,
    events: &mpsc::Sender<Event>,
    bulk: &mpsc::Sender<Vec<u8>>,
    urgent: &UnboundedSender<Vec<u8>>,
) -> Result<Job, (String, i32)> {
    let pmi = Pmi::new(&start.job, start.size, start.first, start.count, &start.mapping);
    let mut ranks = Vec::new();
    let (serving, variables) = pmix.unzip();
    for local in 0..start.count {
        let variables = variables.as_ref().map(|all| all.get(local).map_or(&[][..], Vec::as_slice));
        match rank::start(&start, local, variables) {
            Ok(rank) => ranks.push(rank),
            Err(why) => {
                for rank in &mut ranks {
                    let _ = rank.child.start_kill();
                }
                return Err(refusal(&start, &why));
            }
        }
    }
    let mut job = Job {
        pmi,
        to_ranks: Vec::new(),
        groups: Vec::new(),
        input: None,
        running: vec![true; start.count],
        stage: Stage::Runs,
        serving,
        start,
    };
    for (local, mut rank) in ranks.into_iter().enumerate() {
        job.groups.push(rank.child.id().unwrap_or(0));
        if let Some(input) = rank.child.stdin.take() {
            let (bytes, from_launcher) = mpsc::unbounded_channel();
            // not a sender that keeps the session: a rank that has ended takes nothing
            tokio::spawn(feed(input, from_launcher, urgent.downgrade()));
            job.input = Some(bytes);
        }
        let (from, to) = rank.pmi.into_split();
        job.to_ranks.push(Some(to));
        let listens = tokio::spawn(listen(local, from, events.clone()));
        tokio::spawn(follow(job.start.first, local, rank.child, listens, events.clone(), bulk.clone()));
    }
    Ok(job)
}

fn refusal(start: &Start, why: &std::io::Error) -> (String, i32) {
    let program = start.program.first().map(|p| String::from_utf8_lossy(p).into_owned()).unwrap_or_default();
    let directory = String::from_utf8_lossy(&start.directory).into_owned();
    match why.kind() {
        ErrorKind::NotFound if !std::path::Path::new(&directory).is_dir() => (
            format!(
                "there is no directory `{directory}`: start from one that all hosts have, or name one with --wdir"
            ),
            127,
        ),
        ErrorKind::NotFound => (format!("cannot start `{program}`: there is no such program"), 127),
        _ => (format!("cannot start `{program}`: {why}"), 126),
    }
}

/// Reads what a rank writes to its launcher.
async fn listen(local: usize, from: OwnedReadHalf, events: mpsc::Sender<Event>) {
    let mut from = BufReader::new(from);
    loop {
        let mut line = Vec::new();
        let got = (&mut from).take(LINE_BYTES_MAX as u64).read_until(b'\n', &mut line).await;
        let text =
            matches!(got, Ok(n) if n > 0).then(|| String::from_utf8_lossy(&line).trim_end().to_owned());
        let over = text.is_none();
        if events.send(Event::Line(local, text)).await.is_err() || over {
            return;
        }
    }
}

/// Writes what rank 0 is to read. Once it reads no more the rest is taken all the same.
async fn feed(
    mut input: ChildStdin,
    mut bytes: mpsc::UnboundedReceiver<Bytes>,
    urgent: mpsc::WeakUnboundedSender<Vec<u8>>,
) {
    let mut reads = true;
    while let Some(bytes) = bytes.recv().await {
        reads = reads && input.write_all(&bytes).await.is_ok();
        let Some(urgent) = urgent.upgrade() else { return };
        let _ = urgent.send(write(&ToLauncher::Took));
    }
}

/// Passes on what a rank writes, then how it has ended. `listens` reads the pair to it.
async fn follow(
    first: usize,
    local: usize,
    mut child: Child,
    listens: JoinHandle<()>,
    events: mpsc::Sender<Event>,
    bulk: mpsc::Sender<Vec<u8>>,
) {
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let rank = first + local;
    let outputs = async {
        let _ =
            tokio::join!(pump(rank, Stream::Out, out, &bulk), pump(rank, Stream::Err, err, &bulk), listens);
    };
    let mut outputs = std::pin::pin!(outputs);
    let status = tokio::select! {
        () = &mut outputs => child.wait().await,
        status = child.wait() => {
            // what it has started may keep them open
            let _ = timeout(LEFT_OPEN, &mut outputs).await;
            status
        }
    };
    let (answer, may_end) = oneshot::channel();
    let _ = events.send(Event::Exited(local, answer)).await;
    let how = status.map_or(Ended::Code(1), rank::ended);
    let finalized = may_end.await.unwrap_or(true);
    let _ = bulk.send(write(&ToLauncher::Ended { rank, how, finalized })).await;
    let _ = events.send(Event::Reported(local)).await;
}

async fn pump<R: AsyncRead + Unpin>(
    rank: usize,
    stream: Stream,
    from: Option<R>,
    bulk: &mpsc::Sender<Vec<u8>>,
) {
    let Some(mut from) = from else { return };
    let mut room = vec![0; OUTPUT_BYTES_MAX];
    loop {
        match from.read(&mut room).await {
            Ok(n) if n > 0 => {
                let bytes: Bytes = room[..n].to_vec();
                if bulk.send(write(&ToLauncher::Output(rank, stream, bytes))).await.is_err() {
                    return;
                }
            }
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_one_line_and_nothing_else_is() {
        let orders = Orders {
            agent: 3,
            key: Key::new([9; 32]),
            patience: Duration::from_secs(60),
            pid_namespace: PidNamespace::Off,
            addresses: vec!["10.0.0.1:4000".parse().unwrap(), "[fd00::1]:4000".parse().unwrap()],
        };
        let line = orders.to_line();
        let read = Orders::from_line(&line).unwrap();
        assert_eq!(read.pid_namespace, PidNamespace::Off);
        assert_eq!((read.to_line(), line.lines().count()), (line.clone(), 1));
        let words: Vec<&str> = line.split_whitespace().collect();
        for n in 0..5 {
            assert!(Orders::from_line(&words[..n].join(" ")).is_none(), "{n} words");
        }
        for (word, wrong) in [("10.0.0.1:4000", "somewhere"), (" off ", " perhaps ")] {
            assert!(Orders::from_line(&line.replace(word, wrong)).is_none(), "{wrong}");
        }
    }
}
