//! The agent's end of its host's PMIx server. Owns: the process of the server, its directory, and which ranks are between their first and their last
//! word to it.
//!
//! A rank waits until the agent has noted its end, so that the end of the process never overtakes it.

use crate::message::{Bytes, Gives, Start, Wants, read};
use crate::pmix::message::{Act, FromServer, ToServer, frame};
use std::ffi::OsStr;
use std::io::{Error, ErrorKind, Result};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::process::Command;
use tokio::sync::mpsc::{self, UnboundedReceiver, UnboundedSender};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// The hidden command that is the server.
pub const COMMAND: &str = "launch-pmix";
/// A server has so long to describe the job to its library, which also looks at the host's hardware.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// A server that is not needed any more has so long to end.
const ENDS_WITHIN: Duration = Duration::from_secs(2);
/// Bytes that the ranks of one host may put before a fence, so that those of all fit into a message.
pub const DATA_BYTES_MAX: usize = crate::message::MESSAGE_BYTES_MAX / 2;

/// Variables that name where Open MPI puts files for shared memory. It would leave them in `/dev/shm` when its ranks are killed.
const OF_FILES: [&str; 5] = [
    "OMPI_MCA_btl_sm_backing_directory",
    "OMPI_MCA_btl_vader_backing_directory",
    "OMPI_MCA_osc_sm_backing_directory",
    "OMPI_MCA_osc_rdma_backing_directory",
    "OMPI_MCA_osc_ucx_backing_directory",
];

/// What comes from a server.
pub enum News {
    /// A message.
    Message(FromServer),
    /// It has ended, or never served: a sentence for the user.
    Ended(String),
}

/// A server.
pub struct Serving {
    to: UnboundedSender<ToServer>,
    first: u32,
    /// By the rank of this host.
    begun: Vec<bool>,
    process: JoinHandle<()>,
    directory: Directory,
}

/// A directory for this job on this host, which is removed with all that ranks have put into it.
pub struct Directory(PathBuf);

impl Directory {
    fn make(path: &Path, start: &Start) -> Result<Self> {
        let mut builder = std::fs::DirBuilder::new();
        // one that is there already is of another process
        builder.mode(0o700).create(path)?;
        let directory = Self(path.to_path_buf());
        for local in 0..start.count {
            let rank = path.join("job").join((start.first + local).to_string());
            builder.recursive(true).create(rank)?;
        }
        Ok(directory)
    }
}

/// The name of an agent's directory, by a random number. It is made only for a job that needs it.
pub fn directory(random: &[u8; 32]) -> PathBuf {
    // shared memory of ranks belongs there
    let memory = Path::new("/dev/shm");
    let above = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    let name: String = random[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    above.join(format!("rerail-launch-{name}"))
}

impl Drop for Directory {
    fn drop(&mut self) {
        remove(&self.0);
    }
}

/// Removes a directory of a job. That it is not there is no error.
pub fn remove(path: &Path) {
    let _ = std::fs::remove_dir_all(path);
}

/// Starts a server. Its news begin with [`FromServer::Ready`], or are one end.
///
/// # Errors
/// That of the system.
pub fn start(start: &Start, directory: &Path) -> Result<(Serving, mpsc::Receiver<News>)> {
    let directory = Directory::make(directory, start)?;
    let path = directory.0.to_str().ok_or(ErrorKind::InvalidData)?.to_owned();
    let (ours, theirs) = std::os::unix::net::UnixStream::pair()?;
    let mut command = Command::new(std::env::current_exe()?);
    let text = |bytes: &Vec<u8>| OsStr::from_bytes(bytes).to_owned();
    command.arg(COMMAND).env_clear().envs(start.env.iter().map(|(name, value)| (text(name), text(value))));
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).kill_on_drop(true).process_group(0);
    let agent = std::process::id();
    // SAFETY: only calls that are safe between fork and exec (signal-safety(7)), and no memory is taken.
    unsafe {
        command.pre_exec(move || {
            libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
            if libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) != 0 {
                return Err(Error::last_os_error());
            }
            // the agent may have died before that
            if libc::getppid() as u32 != agent {
                return Err(ErrorKind::BrokenPipe.into());
            }
            Ok(())
        });
    }
    let mut child = command.spawn()?;
    // the command keeps the server's end of the pair
    drop(command);
    ours.set_nonblocking(true)?;
    let (from, into) = UnixStream::from_std(ours)?.into_split();
    let (to, requests) = mpsc::unbounded_channel();
    let (news, from_server) = mpsc::channel(64);
    let _ = to.send(ToServer::Serve(Box::new(start.clone()), path));
    tokio::spawn(pass(into, requests));
    let process = tokio::spawn(async move {
        listen(from, &news).await;
        let status = child.wait().await;
        // nothing wants it if the server is not needed any more
        let _ = news.send(News::Ended(why_ended(status))).await;
    });
    let serving =
        Serving { to, first: start.first as u32, begun: vec![false; start.count], process, directory };
    Ok((serving, from_server))
}

fn why_ended(status: Result<ExitStatus>) -> String {
    let how = status.map_or_else(|why| why.to_string(), |status| status.to_string());
    format!(
        "the PMIx server of this host has ended ({how}): see what it printed before; without it Open MPI's ranks cannot go on"
    )
}

/// Writes to the server, until nothing more is to be written.
async fn pass(mut to: OwnedWriteHalf, mut requests: UnboundedReceiver<ToServer>) {
    while let Some(request) = requests.recv().await {
        if to.write_all(&frame(&request)).await.is_err() {
            return;
        }
    }
}

/// Reads what the server writes, until it closes.
async fn listen(mut from: OwnedReadHalf, news: &mpsc::Sender<News>) {
    let Ok(first) = timeout(READY_WITHIN, receive(&mut from)).await else {
        let seconds = READY_WITHIN.as_secs();
        let why =
            format!("Open MPI's libpmix was not ready in {seconds} s: try `mpirun hostname` on this host");
        let _ = news.send(News::Ended(why)).await;
        return;
    };
    let mut next = first;
    while let Some(message) = next {
        let news = match message {
            FromServer::Failed(why) => news.send(News::Ended(why)),
            message => news.send(News::Message(message)),
        };
        if news.await.is_err() {
            return;
        }
        next = receive(&mut from).await;
    }
}

async fn receive(from: &mut OwnedReadHalf) -> Option<FromServer> {
    let mut length = [0; 4];
    from.read_exact(&mut length).await.ok()?;
    let mut bytes = vec![0; u32::from_le_bytes(length) as usize];
    from.read_exact(&mut bytes).await.ok()?;
    read(&bytes)
}

/// What follows from a message of the server.
#[derive(Debug, PartialEq, Eq)]
pub enum Follows {
    /// Nothing.
    Nothing,
    /// A rank, over the job, ends it with this code.
    Abort(u32, i32),
    /// The servers of other hosts are concerned.
    Wants(Wants),
    /// More than fits: a sentence for the user.
    TooMuch(String),
}

impl Serving {
    /// A message of the server, after the first.
    pub fn receive(&mut self, message: FromServer) -> Follows {
        match message {
            FromServer::Act { ticket, rank, act } => {
                let local = rank.checked_sub(self.first).map(|local| local as usize);
                if let Some(begun) = local.and_then(|local| self.begun.get_mut(local)) {
                    *begun = act != Act::Finalizes;
                }
                if let Some(ticket) = ticket {
                    let _ = self.to.send(ToServer::Noted(ticket));
                }
                if let Act::Aborts(code) = act { Follows::Abort(rank, code) } else { Follows::Nothing }
            }
            FromServer::Wants(wants) => match bytes_of(&wants) {
                bytes if bytes > DATA_BYTES_MAX => Follows::TooMuch(format!(
                    "the ranks of this host publish {bytes} bytes by PMIx, and {DATA_BYTES_MAX} is the most: start fewer ranks on a host"
                )),
                _ => Follows::Wants(wants),
            },
            FromServer::Ready(_) | FromServer::Failed(_) => Follows::Nothing,
        }
    }

    /// From the servers of other hosts.
    pub fn give(&self, gives: Gives) {
        // a server that has ended is reported by its news
        let _ = self.to.send(ToServer::Gives(gives));
    }

    /// A rank of this host has ended.
    pub fn ended(&self, rank: usize) {
        let _ = self.to.send(ToServer::Ended(self.first + rank as u32));
    }

    /// Variables for every rank, which the user's own override: its files are in the directory, and ranks that share processors yield them.
    pub fn variables(&self) -> Vec<(&'static str, Bytes)> {
        let directory = self.directory.0.as_os_str().as_bytes();
        let mut all: Vec<_> = OF_FILES.iter().map(|name| (*name, directory.to_vec())).collect();
        let processors = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        if self.begun.len() > processors {
            // what `mpirun --oversubscribe` does
            all.push(("OMPI_MCA_mpi_yield_when_idle", b"1".to_vec()));
        }
        all
    }

    /// Whether a rank may end now: it has finalized, or never used PMIx.
    pub fn may_end(&self, rank: usize) -> bool {
        !self.begun[rank]
    }

    /// Ends the server, and removes what is left of the ranks' files.
    pub async fn finish(self) {
        let Self { to, mut process, directory, .. } = self;
        // it ends when nothing more is to come
        drop(to);
        if timeout(ENDS_WITHIN, &mut process).await.is_err() {
            process.abort();
            let _ = process.await;
        }
        drop(directory);
    }
}

/// Bytes that go through the launcher.
fn bytes_of(wants: &Wants) -> usize {
    match wants {
        Wants::Fence { ranks, data, .. } => 4 * ranks.len() + data.len(),
        Wants::Fetch { .. } => 0,
        Wants::Fetched { data, .. } => data.as_ref().map_or(0, Vec::len),
        Wants::Group { name, ranks, data, .. } => name.len() + 4 * ranks.len() + data.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::GroupAct;

    fn serving() -> (Serving, UnboundedReceiver<ToServer>) {
        let (to, requests) = mpsc::unbounded_channel();
        let directory = Directory(directory(&crate::link::random()));
        let process = tokio::spawn(async {});
        (Serving { to, first: 4, begun: vec![false; 2], process, directory }, requests)
    }

    fn act(rank: u32, act: Act) -> FromServer {
        FromServer::Act { ticket: Some(u64::from(rank)), rank, act }
    }

    #[tokio::test]
    async fn a_rank_may_end_before_its_first_and_after_its_last_word() {
        let (mut serving, mut requests) = serving();
        serving.ended(1);
        assert_eq!(requests.recv().await, Some(ToServer::Ended(5)), "ranks are counted over the job");
        assert!(serving.may_end(1));
        assert_eq!(serving.receive(act(5, Act::Begins)), Follows::Nothing);
        assert!(serving.may_end(0) && !serving.may_end(1));
        assert_eq!(requests.recv().await, Some(ToServer::Noted(5)), "it goes on when that is noted");
        assert_eq!(serving.receive(act(5, Act::Finalizes)), Follows::Nothing);
        assert!(serving.may_end(1));
        assert_eq!(requests.recv().await, Some(ToServer::Noted(5)));
        assert_eq!(serving.receive(act(4, Act::Aborts(9))), Follows::Abort(4, 9));
        assert_eq!(serving.receive(act(9, Act::Begins)), Follows::Nothing, "none of this host");
    }

    #[tokio::test]
    async fn more_than_a_message_holds_is_refused() {
        let (mut serving, _requests) = serving();
        let mut fence = |bytes| {
            let data = vec![0; bytes];
            serving.receive(FromServer::Wants(Wants::Fence { ticket: 1, ranks: Vec::new(), data }))
        };
        assert!(matches!(fence(DATA_BYTES_MAX), Follows::Wants(_)));
        assert!(matches!(fence(DATA_BYTES_MAX + 1), Follows::TooMuch(_)));
        let mut group = |name, ranks, bytes| {
            let act = GroupAct::Destruct;
            let (name, ranks, data) = (vec![b'n'; name], vec![0; ranks], vec![0; bytes]);
            let group = Wants::Group { ticket: 1, act, name, ranks, data, whole: true };
            serving.receive(FromServer::Wants(group))
        };
        assert!(matches!(group(4, 1, DATA_BYTES_MAX - 8), Follows::Wants(_)));
        assert!(matches!(group(4, 1, DATA_BYTES_MAX - 7), Follows::TooMuch(_)));
    }

    #[tokio::test]
    async fn the_directory_is_removed_with_what_ranks_have_left() {
        let path = directory(&crate::link::random());
        let start: Start = Start {
            job: "job".into(),
            size: 3,
            first: 1,
            count: 2,
            mapping: String::new(),
            program: Vec::new(),
            directory: Vec::new(),
            env: Vec::new(),
            grace_ms: 0,
            pmix: None,
        };
        let made = Directory::make(&path, &start).unwrap();
        assert!(path.join("job/2").is_dir() && !path.join("job/0").exists());
        assert!(Directory::make(&path, &start).is_err(), "one that is there is not taken");
        std::fs::write(path.join("job/2/segment"), "left").unwrap();
        drop(made);
        assert!(!path.exists());
    }
}
