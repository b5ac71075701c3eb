//! The part of a job that this process is. Owns: its runtime, its node, and what it has from its launcher.
//!
//! Locks: the node's, then the engine's inside the runtime. The runtime's own thread takes only the engine's: what it brings stays in the
//! completion queue until the program calls.

use crate::block::{self, Block};
use crate::error::Error;
use parking_lot::{Mutex, MutexGuard};
use rerail_core::wire::Address;
use rerail_core::{Engine, Time, unknown_options};
use rerail_runtime::{Bell, Runtime, Setup, fork};
use rerail_rwapi::{Left, Net, Node, Port, Received, Refused, Sid, Small};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// What an address begins with that nodes exchange: so programs of another version are found out.
const VERSION: &[u8] = b"rwapi 1 ";
/// Messages that are taken in a row without a look at the network.
const TAKES_PER_PROGRESS: u64 = 16;
/// Longest sleep of a call that waits: it looks again at least this often.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What the calls of all threads share.
pub(crate) struct Shared {
    runtime: Arc<Runtime>,
    node: Mutex<Node>,
    bell: Arc<Bell>,
    /// [`Node::changes`] when a wait last returned.
    seen: AtomicU64,
    takes: AtomicU64,
    rank: usize,
    size: usize,
    generation: u32,
}

/// The part of a job that this process is.
pub struct Job {
    shared: Arc<Shared>,
    /// `None` once the job was finalized.
    joined: Mutex<Option<rerail_join::Job>>,
}

fn start_error(what: impl std::fmt::Display) -> Error {
    Error::Start(what.to_string())
}

impl Job {
    /// Joins the job that this process was started for, with the rails and options (`FI_RERAIL_…`) of its environment. All nodes call it.
    ///
    /// # Errors
    /// [`Error::Start`], with a sentence.
    pub fn init() -> Result<Job, Error> {
        let mut joined = rerail_join::join().map_err(start_error)?;
        let (rank, size) = (joined.rank(), joined.size());
        warn_of_unknown_options();
        let lookup = |row: &rerail_core::OptionRow| {
            std::env::var(format!("FI_RERAIL_{}", row.name.to_uppercase())).ok()
        };
        let mut options = rerail_runtime::read_options(lookup).map_err(start_error)?;
        options.silent_probe_max = rerail_rwapi::SILENT_PROBE_MAX;
        let rails = rerail_kinds::attach_with_shm(&options).map_err(start_error)?;
        let runtime = Runtime::start(Setup { options, rails, log: None }).map_err(start_error)?;
        let port = runtime.open_endpoint_by(Port::open).map_err(start_error)?;
        let own = runtime.inspect(|e| e.address(port.endpoint()).to_bytes())?;
        let all = joined.exchange(&[VERSION, &own].concat()).map_err(start_error)?;
        let address = |bytes: &Vec<u8>| Address::parse(bytes.strip_prefix(VERSION)?).ok();
        let addresses: Vec<Address> = all.iter().map_while(address).collect();
        if addresses.len() != size {
            return Err(start_error("a process of this job is no RWAPI program of this version"));
        }
        let node = runtime.with(|e, now| Node::join(e, port, rank, &addresses, now))?.map_err(start_error)?;
        let bell = Arc::new(Bell::new().map_err(start_error)?);
        let generation = fork::generation();
        let shared = Shared {
            runtime,
            node: Mutex::new(node),
            bell,
            seen: AtomicU64::new(0),
            takes: AtomicU64::new(0),
            rank,
            size,
            generation,
        };
        Ok(Job { shared: Arc::new(shared), joined: Mutex::new(Some(joined)) })
    }

    /// The number of this node.
    pub fn rank(&self) -> usize {
        self.shared.rank
    }

    /// Nodes of the job, those that are gone among them.
    pub fn size(&self) -> usize {
        self.shared.size
    }

    /// Memory that all nodes may write, zeroed.
    ///
    /// # Errors
    /// [`Refused::Empty`], [`Refused::Block`] (more than 8 TiB), [`Error::NoMemory`].
    pub fn alloc(&self, bytes: usize) -> Result<Block, Error> {
        let (ptr, net) = self.alloc_raw(bytes)?;
        Ok(Block::new(self.shared.clone(), ptr, bytes, net))
    }

    /// The same, given back with [`Job::free_raw`].
    pub(crate) fn alloc_raw(&self, bytes: usize) -> Result<(*mut u8, Net), Error> {
        if bytes == 0 {
            return Err(Refused::Empty.into());
        }
        let ptr = block::map(bytes)?;
        // SAFETY: the memory is unmapped only after the node has given it back.
        let added = self.shared.with(|node, e, _| unsafe { node.add_block(e, ptr, bytes) });
        match added.and_then(|added| added.map_err(Error::from)) {
            Ok(net) => Ok((ptr, net)),
            Err(why) => {
                block::unmap(vec![rerail_rwapi::Unused { ptr, bytes }]);
                Err(why)
            }
        }
    }

    /// Gives back a block of [`Job::alloc_raw`].
    pub(crate) fn free_raw(&self, ptr: *mut u8) -> Result<(), Error> {
        self.shared.free(ptr)
    }

    /// Sends a small message. Never blocks.
    ///
    /// # Errors
    /// [`Refused::Again`]: there is no room now, because the node has not received 512 messages of this one; [`Refused::NoSuchNode`],
    /// [`Refused::Gone`].
    pub fn send(&self, to: usize, small: &Small) -> Result<(), Error> {
        self.shared.check()?;
        let mut node = self.shared.node.lock();
        let Some(peer) = node.peer(to) else { return Err(Refused::NoSuchNode.into()) };
        let rt = &self.shared.runtime;
        let sent = rt.post_message(peer, small.len(), |e, now| node.send(e, to, small, now))?;
        if sent != Err(Refused::Again) {
            return Ok(sent?);
        }
        self.shared.advance(&mut node)?;
        Ok(rt.post_message(peer, small.len(), |e, now| node.send(e, to, small, now))??)
    }

    /// The same, waiting for room.
    ///
    /// It receives nothing meanwhile: two nodes that send to each other without end, and receive only then, wait for ever. It suits
    /// programs with fewer than 512 messages under way from a node to another.
    ///
    /// # Errors
    /// As [`Job::send`], without [`Refused::Again`].
    pub fn send_when_possible(&self, to: usize, small: &Small) -> Result<(), Error> {
        self.when_possible(|| self.send(to, small))
    }

    /// Makes a call such as [`Job::write`] again until there is room for it, and sleeps in between. As [`Job::send_when_possible`], it receives
    /// nothing meanwhile.
    ///
    /// ```no_run
    /// # fn example(job: &rwapi::Job, block: &rwapi::Block, there: rwapi::Net) -> Result<(), rwapi::Error> {
    /// let sid = job.when_possible(|| job.write(1, block.net(), there, 4096))?;
    /// job.wait_sent(sid)
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the call, without [`Refused::Again`].
    pub fn when_possible<T>(&self, mut call: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        self.retry(|| match call() {
            Err(e) if e.is_again() => Ok(None),
            done => done.map(Some),
        })
    }

    /// Writes a range of a block of this process into a range of a block of `to`. Never blocks. Up to 8 KiB are copied in the call.
    ///
    /// # Errors
    /// See [`Refused`].
    pub fn write(&self, to: usize, local: Net, remote: Net, bytes: usize) -> Result<Sid, Error> {
        self.post(bytes, |node, e, now| node.write(e, to, local, remote, bytes, now))
    }

    /// The same, and a small message behind it: both or neither.
    ///
    /// # Errors
    /// As [`Job::write`].
    pub fn write_notify(
        &self,
        to: usize,
        local: Net,
        remote: Net,
        bytes: usize,
        small: &Small,
    ) -> Result<Sid, Error> {
        self.post(bytes, |node, e, now| node.write_notify(e, to, local, remote, bytes, small, now))
    }

    fn post(
        &self,
        bytes: usize,
        mut f: impl FnMut(&mut Node, &mut Engine, Time) -> Result<Sid, Refused>,
    ) -> Result<Sid, Error> {
        self.shared.check()?;
        let mut node = self.shared.node.lock();
        let posted = self.shared.runtime.post(bytes, |e, now| f(&mut node, e, now))?;
        if posted != Err(Refused::Again) {
            return Ok(posted?);
        }
        self.shared.advance(&mut node)?;
        Ok(self.shared.runtime.post(bytes, |e, now| f(&mut node, e, now))??)
    }

    /// Whether a write is done: its bytes are in place at the target, and the local memory may be used again.
    ///
    /// # Errors
    /// [`Error::TargetRefused`], [`Refused::Gone`], [`Error::NoSuchSid`].
    pub fn is_sent(&self, sid: Sid) -> Result<bool, Error> {
        self.shared.check()?;
        let mut node = self.shared.node.lock();
        if !node.is_sent(sid)? {
            self.shared.advance(&mut node)?;
            return Ok(node.is_sent(sid)?);
        }
        Ok(true)
    }

    /// Waits until a write is done.
    ///
    /// # Errors
    /// As [`Job::is_sent`].
    pub fn wait_sent(&self, sid: Sid) -> Result<(), Error> {
        self.retry(|| Ok(self.is_sent(sid)?.then_some(())))
    }

    /// The oldest small message that was not received, or the news that a node is gone (once for each, after its last message). Never blocks.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Failed`].
    pub fn receive(&self) -> Result<Option<Received>, Error> {
        let shared = &*self.shared;
        shared.check()?;
        let mut node = shared.node.lock();
        let mut found = node.take();
        let takes = shared.takes.fetch_add(1, Ordering::Relaxed);
        if found.is_none() || takes % TAKES_PER_PROGRESS == 0 || node.owes_credit() {
            shared.advance(&mut node)?;
            found = found.or_else(|| node.take());
        }
        if node.owes_credit() {
            shared.runtime.with(|e, now| node.post_credits(e, now))?;
        }
        Ok(found)
    }

    /// The same, waiting for it: for programs that go on when a node is gone.
    ///
    /// # Errors
    /// As [`Job::receive`].
    pub fn next_received(&self) -> Result<Received, Error> {
        self.retry(|| self.receive())
    }

    /// Waits for the next small message: for programs that end when a node is gone.
    ///
    /// # Errors
    /// [`Error::Gone`]: a node is gone. Else as [`Job::receive`].
    pub fn next_message(&self) -> Result<(usize, Small), Error> {
        match self.next_received()? {
            Received::Message(node, small) => Ok((node, small)),
            Received::Gone(node) => Err(Error::Gone(node)),
        }
    }

    /// Sleeps until something arrived or changed since the last wait returned: a message, a write that is done, room for more, a node that is gone.
    /// False: the time is over.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Failed`].
    pub fn wait(&self, most: Option<Duration>) -> Result<bool, Error> {
        let changed =
            |node: &Node| node.has_news() || node.changes() != self.shared.seen.load(Ordering::Relaxed);
        self.shared.sleep_until(most, changed, |node| {
            self.shared.seen.store(node.changes(), Ordering::Relaxed);
        })
    }

    /// Waits until all living nodes have arrived here, and the bytes of all writes that they made before are in place.
    ///
    /// # Errors
    /// [`Error::Forked`], [`Error::Failed`].
    pub fn barrier(&self) -> Result<(), Error> {
        self.shared.sleep_until(None, Node::is_flushed, |_| ())?;
        let number = self.shared.with(|node, e, now| node.arrive(e, now))?;
        self.shared.sleep_until(None, |node| node.passed() >= number, |_| ())?;
        Ok(())
    }

    /// Ends this node's part: delivers what is under way, and waits until all living nodes have come as far. Nothing writes into blocks any
    /// more. All nodes call it.
    ///
    /// # Errors
    /// [`Error::NoJob`]: it was called before. [`Error::Start`]: the launcher does not take the end. Else as [`Job::barrier`].
    pub fn finalize(&self) -> Result<(), Error> {
        // what has an owner is given back by it
        self.end().map(|left| block::unmap(left.freed))
    }

    /// The same; gives the memory that is left.
    pub(crate) fn end(&self) -> Result<Left, Error> {
        self.shared.check()?;
        let Some(joined) = self.joined.lock().take() else { return Err(Error::NoJob) };
        self.shared.sleep_until(None, Node::is_flushed, |_| ())?;
        let number = self.shared.with(|node, e, now| {
            node.leave();
            node.arrive(e, now)
        })?;
        self.shared.sleep_until(None, |node| node.passed() >= number && node.is_flushed(), |_| ())?;
        let left = self.shared.with(|node, e, now| node.end(e, now))?;
        let endpoint = self.shared.node.lock().endpoint();
        self.shared.runtime.close_endpoint(endpoint)?;
        joined.finalize().map_err(start_error)?;
        Ok(left)
    }

    /// The process exits without [`Job::finalize`]: what it has sent is delivered, and the others learn that it is gone.
    pub(crate) fn exit(&self) {
        if self.shared.check().is_ok() && self.joined.lock().is_some() {
            self.shared.runtime.exit();
        }
    }

    /// Calls `f` until it finds something, and sleeps in between until something changes.
    ///
    /// This is not [`Job::wait`], which returns at once while a message waits to be received, and shares its memory of what was seen with all
    /// threads: a sender without room would burn a processor, or sleep through the change that another thread's wait has taken.
    fn retry<T>(&self, mut f: impl FnMut() -> Result<Option<T>, Error>) -> Result<T, Error> {
        loop {
            // read before the call, so that no change after it is slept through
            let before = self.shared.changes()?;
            if let Some(found) = f()? {
                return Ok(found);
            }
            // bounded: room in the engine for a copy is no change of the node
            self.shared.sleep_until(Some(LOOK_AGAIN), |node| node.changes() != before, |_| ())?;
        }
    }
}

impl Drop for Job {
    fn drop(&mut self) {
        self.exit();
    }
}

impl Shared {
    /// Before any lock is taken: a forked child may find them held for ever.
    fn check(&self) -> Result<(), Error> {
        if fork::generation() == self.generation { Ok(()) } else { Err(Error::Forked) }
    }

    /// See [`Node::changes`].
    fn changes(&self) -> Result<u64, Error> {
        self.check()?;
        Ok(self.node.lock().changes())
    }

    /// Gives `f` node and engine, and sends what it posts.
    fn with<R>(&self, f: impl FnOnce(&mut Node, &mut Engine, Time) -> R) -> Result<R, Error> {
        self.check()?;
        let mut node = self.node.lock();
        Ok(self.runtime.with(|e, now| f(&mut node, e, now))?)
    }

    /// A piece of progress.
    fn advance(&self, node: &mut MutexGuard<'_, Node>) -> Result<(), Error> {
        let queue = node.queue();
        let news = self.runtime.progress_for(queue, |e, now| {
            node.advance(e, now);
            e.has_output()
        })?;
        if news {
            // credits, news of deaths, barriers: others wait for them
            self.runtime.with(|_, _| ())?;
        }
        block::unmap(node.take_unused());
        Ok(())
    }

    pub(crate) fn free(&self, ptr: *mut u8) -> Result<(), Error> {
        let unused = self.with(|node, e, now| node.free(e, ptr, now).map(|()| node.take_unused()))?;
        block::unmap(unused?);
        Ok(())
    }

    /// Makes progress and sleeps in turn until `done`, then calls `then` under the same lock. False: the time is over.
    fn sleep_until(
        &self,
        most: Option<Duration>,
        done: impl Fn(&Node) -> bool,
        then: impl FnOnce(&Node),
    ) -> Result<bool, Error> {
        self.check()?;
        let end = most.and_then(|most| Instant::now().checked_add(most));
        loop {
            let mut node = self.node.lock();
            self.advance(&mut node)?;
            if done(&node) {
                then(&node);
                return Ok(true);
            }
            let (queue, held) = (node.queue(), node.held());
            drop(node);
            let left = end.map_or(LOOK_AGAIN, |end| end.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(false);
            }
            // messages that stand behind writes are let through when the last byte is in place, which completes nothing here
            let ready = move |e: &Engine| {
                e.cq_len(queue) > 0 || held.iter().any(|(peer, behind)| !e.awaits_write(*peer, *behind))
            };
            self.runtime.wait_for(&self.bell, left.min(LOOK_AGAIN), ready)?;
        }
    }
}

/// Mistyped options: one process of each host warns.
fn warn_of_unknown_options() {
    if rerail_runtime::local_rank().is_none_or(|rank| rank == 0) {
        let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
        for sentence in unknown_options(variables) {
            rerail_runtime::tell(&format!("rwapi: warning: {sentence}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_runtime::RuntimeError;

    /// Without it the other nodes saw a death in place of an end, and those that still closed waited three seconds for it.
    #[test]
    fn a_node_that_finalizes_says_goodbye() {
        let job = Job::init().unwrap();
        assert_eq!(job.shared.runtime.check_usable(), Ok(()));
        job.finalize().unwrap();
        assert_eq!(job.shared.runtime.check_usable(), Err(RuntimeError::Closed));
    }
}
