//! The adapter: two threads for each stream, which move memory by themselves. Owns: the sockets of streams, and the
//! regions that peers may write.
//!
//! A stream carries records: a header of five words (kind, key of two words, offset, length), and as many bytes. A record is either
//! bytes of the stream or a write into the peer's memory.
//!
//! Invariant: a thread holds the [`Line`] or the [`Region`] whose memory it touches. The last that lets go of it reports
//! its end, so that report is true.

use parking_lot::Mutex;
use rerail_rail::thread::{ReportOnDrop, Reports};
use rerail_rail::{IoVec, Locator, MemId, Place, RailId, RemoteKey, StreamEvent};
use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::slice::from_raw_parts;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender};

/// Most bytes that are received at once.
const PART_BYTES_MAX: usize = 16 << 10;
/// Records with bytes of a stream that wait to be sent, and parts of them that wait to be read. More waits with the
/// caller and in the sockets.
pub(crate) const WAITING_MAX: usize = 16;

/// Kinds of records.
const BYTES: u64 = 0;
const WRITE: u64 = 1;

/// Memory that peers may write on a rail by a key.
pub(crate) struct Region {
    pub id: MemId,
    pub memory: IoVec,
    /// [`StreamEvent::Invalidated`]
    pub _end: ReportOnDrop,
}

/// One rail.
pub(crate) struct Rail {
    pub at: Locator,
    pub listener: UnixListener,
    pub regions: Mutex<HashMap<RemoteKey, Arc<Region>>>,
}

/// Called before a part of a peer's write lands.
pub(crate) type BeforeLanding = Box<dyn Fn(RailId) + Send + Sync>;

/// What the rails of a process share.
pub(crate) struct Shared {
    pub rails: Vec<Rail>,
    pub reports: Arc<Reports>,
    pub before_landing: BeforeLanding,
}

/// What waits to be sent.
pub(crate) enum Outgoing {
    Bytes(Vec<u8>),
    Write(Place),
}

/// One stream, as its threads see it.
pub(crate) struct Line {
    pub shared: Arc<Shared>,
    pub rail: RailId,
    pub socket: Arc<UnixStream>,
    /// Records that wait to be sent.
    pub waiting: AtomicUsize,
    /// [`StreamEvent::Closed`], as it was requested.
    pub _end: ReportOnDrop,
}

impl Line {
    /// Ends both threads when all that has arrived has landed.
    pub fn end(&self) {
        // It fails for a connection that broke.
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    /// Sends what waits, until the connection is over.
    pub fn send(&self, waiting: &Receiver<Outgoing>) -> io::Result<()> {
        for next in waiting {
            let (kind, key, offset, bytes) = match &next {
                Outgoing::Bytes(bytes) => (BYTES, RemoteKey(0), 0, &bytes[..]),
                Outgoing::Write(Place { source, key, offset, .. }) => {
                    // SAFETY: the source is lent until `Placed`, or until the end of this line, is reported.
                    (WRITE, *key, *offset, unsafe { from_raw_parts(source.ptr, source.len) })
                }
            };
            let (low, high) = key.words();
            let header = [kind, low, high, offset, bytes.len() as u64].map(u64::to_le_bytes);
            (&*self.socket).write_all(header.as_flattened())?;
            (&*self.socket).write_all(bytes)?;
            let left = self.waiting.fetch_sub(1, Ordering::Relaxed) - 1;
            match next {
                Outgoing::Write(place) => self.shared.reports.report(StreamEvent::Placed(place.work)),
                Outgoing::Bytes(_) if left == WAITING_MAX / 2 => self.shared.reports.update(|_| ()),
                Outgoing::Bytes(_) => {}
            }
        }
        Ok(())
    }

    /// Puts what arrives where it belongs, until the connection is over or the peer breaks a rule.
    pub fn receive(&self, arrived: &SyncSender<Vec<u8>>) -> Option<()> {
        let mut buffer = vec![0; PART_BYTES_MAX];
        loop {
            let mut header = [[0; 8]; 5];
            (&*self.socket).read_exact(header.as_flattened_mut()).ok()?;
            let [kind, low, high, offset, len] = header.map(u64::from_le_bytes);
            for at in (0..len).step_by(PART_BYTES_MAX) {
                let part = &mut buffer[..(len - at).min(PART_BYTES_MAX as u64) as usize];
                (&*self.socket).read_exact(part).ok()?;
                if kind == BYTES {
                    // It fails when the engine has closed the stream, and reads no more.
                    let _ = arrived.send(part.to_vec());
                    self.shared.reports.update(|_| ());
                    continue;
                }
                let regions = &self.shared.rails[usize::from(self.rail.0)].regions;
                let region = regions.lock().get(&RemoteKey::of(low, high)).filter(|_| kind == WRITE)?.clone();
                // the whole write must fit, before its first byte lands
                offset.checked_add(len).filter(|end| *end <= region.memory.len as u64)?;
                (self.shared.before_landing)(self.rail);
                // SAFETY: the memory is valid for writes until the end of the region is reported, and the part is inside.
                // No reference is made to it.
                unsafe {
                    let to = region.memory.ptr.add((offset + at) as usize);
                    std::ptr::copy_nonoverlapping(part.as_ptr(), to, part.len());
                }
            }
        }
    }
}
