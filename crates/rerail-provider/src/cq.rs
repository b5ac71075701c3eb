//! `struct fid_cq`: completion queues. Owns: the format in which completions are reported; the entries themselves are
//! the engine's.
//!
//! A queue belongs to a runtime once an endpoint that uses it is enabled ([`Shared::attach`]); before that, and after the
//! last endpoint of the process was closed, it is simply empty.

use crate::av;
use crate::deadline::Deadline;
use crate::domain;
use crate::errno::{self, AGAIN, BUSY, Errno, INVALID, Result};
use crate::ffi::*;
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use crate::signal::Signal;
use crate::wait::Wait;
use libc::{c_char, c_int, c_void};
use parking_lot::Mutex;
use rerail_core::{Completion, CompletionError, CompletionKind, CqId, Engine, EpId, Protocol};
use rerail_runtime::{Runtime, RuntimeError};
use std::sync::Arc;
use std::time::Duration;

/// Entries of a queue, unless the program asks for more. Only multi-receives are held back by a full queue (hazard
/// H15).
const ENTRIES_DEFAULT: usize = 32768;

/// What endpoints keep of a queue.
pub struct Shared {
    _domain: Arc<domain::Shared>,
    api_version: u32,
    format: fi_cq_format,
    entries: usize,
    state: Mutex<State>,
    wait: Wait,
    /// Calls that block wait for the number of entries that they are given, not only for the next one.
    threshold: bool,
    signal: Arc<Signal>,
}

#[derive(Default)]
struct State {
    live: Option<(Arc<Runtime>, CqId)>,
    /// Address vectors of the endpoints that use the queue: they turn a sender into an `fi_addr_t`.
    sources: Vec<(EpId, Arc<av::Shared>)>,
    /// Kept from call to call, so that reading allocates nothing.
    scratch: Vec<Completion>,
}

impl State {
    fn source(&self, c: &Completion) -> fi_addr_t {
        let av = self.sources.iter().find(|(ep, _)| *ep == c.ep).map(|(_, av)| av);
        match (av, c.src) {
            (Some(av), Some(src)) => av.addr_of(src),
            _ => FI_ADDR_NOTAVAIL,
        }
    }
}

impl Shared {
    /// The queue in `rt`, made there if it has not been.
    ///
    /// # Errors
    /// The runtime does not work any more.
    pub fn attach(&self, rt: &Arc<Runtime>) -> Result<CqId> {
        let mut state = self.state.lock();
        if let Some((live, id)) = &state.live {
            if Arc::ptr_eq(live, rt) {
                return Ok(*id);
            }
        }
        let id = rt.inspect(|e| e.open_cq(self.entries))?;
        state.sources.clear();
        state.live = Some((rt.clone(), id));
        // Wakes the sleepers: they slept on a queue without a runtime and must look again.
        self.wait.ring();
        Ok(id)
    }

    /// Completions of `ep` name their senders by `av`.
    pub fn add_source(&self, ep: EpId, av: Arc<av::Shared>) {
        let mut state = self.state.lock();
        if state.sources.iter().all(|(e, _)| *e != ep) {
            state.sources.push((ep, av));
        }
    }

    /// `ep` is closed.
    pub fn remove_source(&self, ep: EpId) {
        self.state.lock().sources.retain(|(e, _)| *e != ep);
    }

    fn detach(&self) {
        if let Some((rt, id)) = self.state.lock().live.take() {
            if let Some(bell) = self.wait.bell_if_made() {
                rt.disarm(bell);
            }
            let _ = rt.inspect(|e| e.close_cq(id));
        }
    }

    /// Reads up to `count` entries into `buf`, and their sources into `sources`.
    ///
    /// # Safety
    /// `buf` has room for `count` entries of the queue's format, `sources` is null or has room for `count` addresses.
    unsafe fn read(&self, buf: *mut c_void, count: usize, sources: *mut fi_addr_t) -> Result<isize> {
        if buf.is_null() && count > 0 {
            return Err(INVALID);
        }
        let state = &mut *self.state.lock();
        let Some((rt, id)) = &state.live else { return Err(AGAIN) };
        state.scratch.clear();
        let popped = match rt.progress_and_pop(*id, count, &mut state.scratch) {
            Ok(popped) => popped,
            // Every endpoint is closed: nothing more will come.
            Err(RuntimeError::Closed) => return Err(AGAIN),
            Err(e) => return Err(e.into()),
        };
        for (i, c) in state.scratch.iter().enumerate() {
            // SAFETY: `i < count`, as the runtime was told.
            unsafe { write_entry(self.format, buf, i, c) };
            if !sources.is_null() {
                // SAFETY: as above.
                unsafe { sources.add(i).write(state.source(c)) };
            }
        }
        match (popped.count, popped.error_next) {
            (0, true) => Err(Errno(FI_EAVAIL)),
            (0, false) => Err(AGAIN),
            (n, _) => Ok(n as isize),
        }
    }

    /// Takes the error entry at the head, if there is one.
    fn take_error(&self) -> Result<(Completion, CompletionError, fi_addr_t)> {
        let state = self.state.lock();
        let Some((rt, id)) = &state.live else { return Err(AGAIN) };
        let taken = rt.inspect(|e| {
            let error = e.cq_head(*id)?.error?;
            Some((e.cq_pop(*id)?, error))
        });
        let (c, error) = taken?.ok_or(AGAIN)?;
        let source = state.source(&c);
        Ok((c, error, source))
    }

    /// Makes progress, and returns whether so many entries are there, or an error.
    fn has(&self, entries: usize) -> Result<bool> {
        let state = self.state.lock();
        let Some((rt, id)) = &state.live else { return Ok(false) };
        match rt.progress_with(|e, _| has(e, *id, entries)) {
            Ok(has) => Ok(has),
            Err(RuntimeError::Closed) => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// Whether there may be something to read.
    pub fn has_some(&self) -> Result<bool> {
        self.has(1)
    }

    /// Sleeps until so many entries are there, or an error or a signal, or `max` has passed; may return early.
    fn sleep(&self, entries: usize, max: Duration) -> Result<()> {
        let bell = self.wait.bell()?;
        let state = self.state.lock();
        let live = state.live.clone().filter(|(rt, _)| rt.check_usable() != Err(RuntimeError::Closed));
        let Some((rt, id)) = live else {
            // Silenced under the lock under which `attach` rings it.
            bell.silence();
            drop(state);
            if !self.signal.is_up() {
                bell.wait(max);
            }
            return Ok(());
        };
        drop(state);
        let signal = self.signal.clone();
        let ready = move |e: &Engine| has(e, id, entries) || signal.is_up();
        match rt.wait_for(bell, max, ready) {
            Err(RuntimeError::Closed) => Ok(()),
            done => Ok(done?),
        }
    }

    /// Whether the program may sleep on the descriptor (`fi_trywait`).
    pub fn may_sleep(&self) -> Result<bool> {
        let bell = self.wait.bell_outside()?;
        // Held to the end: otherwise the ring for a runtime that comes in between could be lost.
        let state = self.state.lock();
        let armed = match &state.live {
            Some((rt, id)) => {
                let id = *id;
                // What has arrived is seen now, and not after the first sleep.
                match rt.progress().and_then(|()| rt.arm(bell, move |e| has(e, id, 1))) {
                    Err(RuntimeError::Closed) => None,
                    armed => Some(armed?),
                }
            }
            None => None,
        };
        if armed.is_none() {
            bell.silence();
        }
        if self.signal.take() {
            bell.ring();
            return Ok(false);
        }
        Ok(armed != Some(false))
    }
}

/// Whether so many entries are there, or an error.
fn has(e: &Engine, cq: CqId, entries: usize) -> bool {
    e.cq_head(cq).is_some_and(|head| head.error.is_some() || entries <= 1 || e.cq_len(cq) >= entries)
}

/// The flags that describe a completion.
pub fn flags(c: &Completion) -> u64 {
    if c.released_only {
        // No message: FI_RECV would make MPICH look for one in the buffer.
        return FI_MULTI_RECV;
    }
    let protocol = match c.protocol {
        Protocol::Msg => FI_MSG,
        Protocol::Tagged => FI_TAGGED,
        Protocol::Collective => 0,
    };
    let data = if c.data.is_some() { FI_REMOTE_CQ_DATA } else { 0 };
    let given_back = c.multi_released || (c.multi && c.error == Some(CompletionError::Canceled));
    match c.kind {
        CompletionKind::Send => FI_SEND | protocol,
        CompletionKind::Recv | CompletionKind::Peek => {
            FI_RECV | protocol | data | if given_back { FI_MULTI_RECV } else { 0 }
        }
        CompletionKind::Write => FI_RMA | FI_WRITE,
        CompletionKind::Read => FI_RMA | FI_READ,
        CompletionKind::AtomicWrite => FI_ATOMIC | FI_WRITE,
        CompletionKind::AtomicRead => FI_ATOMIC | FI_READ,
        CompletionKind::RemoteWrite => FI_RMA | FI_REMOTE_WRITE | data,
        CompletionKind::Collective => FI_COLLECTIVE,
    }
}

/// Writes one entry.
///
/// # Safety
/// `buf` has room for `i + 1` entries of `format`.
unsafe fn write_entry(format: fi_cq_format, buf: *mut c_void, i: usize, c: &Completion) {
    let op_context = c.context as *mut c_void;
    // SAFETY: the caller's promise; the entries of each format are an array.
    unsafe {
        match format {
            FI_CQ_FORMAT_MSG => buf.cast::<fi_cq_msg_entry>().add(i).write(fi_cq_msg_entry {
                op_context,
                flags: flags(c),
                len: c.len,
            }),
            FI_CQ_FORMAT_DATA => buf.cast::<fi_cq_data_entry>().add(i).write(fi_cq_data_entry {
                op_context,
                flags: flags(c),
                len: c.len,
                buf: c.buf as *mut c_void,
                data: c.data.unwrap_or(0),
            }),
            FI_CQ_FORMAT_TAGGED => buf.cast::<fi_cq_tagged_entry>().add(i).write(fi_cq_tagged_entry {
                op_context,
                flags: flags(c),
                len: c.len,
                buf: c.buf as *mut c_void,
                data: c.data.unwrap_or(0),
                tag: c.tag,
            }),
            _ => buf.cast::<fi_cq_entry>().add(i).write(fi_cq_entry { op_context }),
        }
    }
}

/// A completion queue.
#[repr(C)]
pub struct Cq {
    fid: fid_cq,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Cq {
    const CLASS: usize = FI_CLASS_CQ;
}

impl Cq {
    /// What endpoints keep.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }
}

static FID_OPS: fi_ops = fi_ops { control: Some(control), ..ops(close) };
static OPS: fi_ops_cq = fi_ops_cq {
    size: size_of::<fi_ops_cq>(),
    read: Some(read),
    readfrom: Some(readfrom),
    readerr: Some(readerr),
    sread: Some(sread),
    sreadfrom: Some(sreadfrom),
    signal: Some(signal),
    strerror: Some(strerror),
};

/// `fi_cq_open`.
pub unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_cq_attr,
    out: *mut *mut fid_cq,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let domain = unsafe { object::<crate::domain::Domain, _>(domain) }?.shared();
        // SAFETY: null or the caller's attributes.
        let attr = unsafe { attr.as_ref() };
        let (kind, set) = attr.map_or((FI_WAIT_NONE, std::ptr::null_mut()), |a| (a.wait_obj, a.wait_set));
        // SAFETY: libfabric passes the caller's wait set, which is of the same fabric.
        let wait = unsafe { Wait::new(kind, set) }?;
        let threshold = match attr.map_or(FI_CQ_COND_NONE, |a| a.wait_cond) {
            FI_CQ_COND_NONE => false,
            FI_CQ_COND_THRESHOLD => true,
            _ => return Err(INVALID),
        };
        let format = match attr.map_or(FI_CQ_FORMAT_UNSPEC, |a| a.format) {
            FI_CQ_FORMAT_UNSPEC => FI_CQ_FORMAT_CONTEXT,
            f @ FI_CQ_FORMAT_CONTEXT..=FI_CQ_FORMAT_TAGGED => f,
            _ => return Err(INVALID),
        };
        let cq = Cq {
            fid: fid_cq { fid: head(FI_CLASS_CQ, context, &FID_OPS), ops: (&raw const OPS).cast_mut() },
            shared: Arc::new(Shared {
                api_version: domain.api_version(),
                _domain: domain,
                format,
                entries: attr.map_or(0, |a| a.size).max(ENTRIES_DEFAULT),
                state: Mutex::default(),
                wait,
                threshold,
                signal: Arc::default(),
            }),
        };
        cq.shared.wait.join(&cq.shared, Shared::may_sleep);
        // SAFETY: the caller's place for the handle.
        unsafe { give(cq, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Cq>(fid, || {
        // SAFETY: a handle of ours.
        let cq: &Cq = unsafe { object(fid) }?;
        if Arc::strong_count(&cq.shared) > 1 {
            return Err(BUSY);
        }
        cq.shared.detach();
        // SAFETY: nothing depends on it, and the caller gives it up.
        drop(unsafe { take_back::<Cq, _>(fid) }?);
        Ok(0)
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: a handle of ours, and what libfabric passes with the command.
    guard(|| unsafe { object::<Cq, _>(fid)?.shared.wait.control(command, arg) })
}

unsafe extern "C" fn read(cq: *mut fid_cq, buf: *mut c_void, count: usize) -> isize {
    // SAFETY: a handle of ours, and room as libfabric documents the call.
    guard(|| unsafe { object::<Cq, _>(cq)?.shared.read(buf, count, std::ptr::null_mut()) })
}

unsafe extern "C" fn readfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
) -> isize {
    // SAFETY: as `read`.
    guard(|| unsafe { object::<Cq, _>(cq)?.shared.read(buf, count, sources) })
}

unsafe extern "C" fn sread(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    cond: *const c_void,
    timeout_ms: c_int,
) -> isize {
    // SAFETY: the same arguments.
    unsafe { sreadfrom(cq, buf, count, std::ptr::null_mut(), cond, timeout_ms) }
}

unsafe extern "C" fn sreadfrom(
    cq: *mut fid_cq,
    buf: *mut c_void,
    count: usize,
    sources: *mut fi_addr_t,
    cond: *const c_void,
    timeout_ms: c_int,
) -> isize {
    guard(|| {
        // SAFETY: a handle of ours.
        let cq = &unsafe { object::<Cq, _>(cq) }?.shared;
        // The condition is a number in the place of a pointer. No more than fit are waited for.
        let wanted = if cq.threshold { (cond as usize).min(count).min(cq.entries) } else { 1 };
        let end = Deadline::after(timeout_ms);
        let mut last = false;
        loop {
            if wanted <= 1 || last || cq.has(wanted)? {
                // SAFETY: as `read`.
                match unsafe { cq.read(buf, count, sources) } {
                    Err(AGAIN) if !last => {}
                    done => return done,
                }
            }
            match end.left() {
                Some(left) if !cq.signal.take() => cq.sleep(wanted, left)?,
                // Fewer than were wanted are better than none.
                _ if wanted > 1 => last = true,
                _ => return Err(AGAIN),
            }
        }
    })
}

unsafe extern "C" fn signal(cq: *mut fid_cq) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let cq = &unsafe { object::<Cq, _>(cq) }?.shared;
        cq.signal.raise(|| cq.wait.ring());
        Ok(0)
    })
}

unsafe extern "C" fn readerr(cq: *mut fid_cq, out: *mut fi_cq_err_entry, _flags: u64) -> isize {
    guard(|| {
        // SAFETY: a handle of ours.
        let cq = &unsafe { object::<Cq, _>(cq) }?.shared;
        if out.is_null() {
            return Err(INVALID);
        }
        let (c, error, source) = cq.take_error()?;
        let (err, prov_errno) = errno::of_completion(error);
        // Field by field: the caller's structure may be older and shorter, and its other fields are its own.
        // SAFETY: the fields up to `prov_errno` exist in every version.
        unsafe {
            (*out).op_context = c.context as *mut c_void;
            (*out).flags = flags(&c);
            (*out).len = c.len;
            (*out).buf = c.buf as *mut c_void;
            (*out).data = c.data.unwrap_or(0);
            (*out).tag = c.tag;
            (*out).olen = if let CompletionError::Truncated { over } = error { over } else { 0 };
            (*out).err = err.0;
            (*out).prov_errno = prov_errno;
        }
        if cq.api_version >= version(1, 5) {
            // SAFETY: the field exists since 1.5. `err_data` may be a buffer of the caller: left alone, with nothing in it.
            unsafe { (*out).err_data_size = 0 };
        }
        if cq.api_version >= version(1, 20) {
            // SAFETY: the field exists since 1.20.
            unsafe { (*out.cast::<fi_cq_err_entry_1_20>()).src_addr = source };
        }
        Ok(1)
    })
}

unsafe extern "C" fn strerror(
    _cq: *mut fid_cq,
    prov_errno: c_int,
    _err_data: *const c_void,
    buf: *mut c_char,
    len: usize,
) -> *const c_char {
    let text = errno::describe(prov_errno);
    // SAFETY: the caller's room.
    unsafe { errno::copy(text, buf, len) };
    text.as_ptr()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_core::{EndpointId, PeerId};

    fn completion(kind: CompletionKind, protocol: Protocol) -> Completion {
        Completion {
            kind,
            protocol,
            ep: EpId(0),
            context: 0x1000,
            len: 42,
            buf: 0x2000,
            data: Some(7),
            tag: 9,
            src: Some(EndpointId { peer: PeerId(1), ep: 0 }),
            multi: false,
            multi_released: false,
            released_only: false,
            error: None,
        }
    }

    #[test]
    fn flags_say_what_completed() {
        let c = completion(CompletionKind::Recv, Protocol::Tagged);
        assert_eq!(flags(&c), FI_RECV | FI_TAGGED | FI_REMOTE_CQ_DATA);
        let c = completion(CompletionKind::Send, Protocol::Msg);
        assert_eq!(flags(&c), FI_SEND | FI_MSG, "the data went to the other side");
        let c = Completion { data: None, ..completion(CompletionKind::Peek, Protocol::Tagged) };
        assert_eq!(flags(&c), FI_RECV | FI_TAGGED);
    }

    #[test]
    fn one_sided_operations_say_which_they_were() {
        let kinds = [
            (CompletionKind::Write, FI_RMA | FI_WRITE),
            (CompletionKind::Read, FI_RMA | FI_READ),
            (CompletionKind::AtomicWrite, FI_ATOMIC | FI_WRITE),
            (CompletionKind::AtomicRead, FI_ATOMIC | FI_READ),
            (CompletionKind::RemoteWrite, FI_RMA | FI_REMOTE_WRITE | FI_REMOTE_CQ_DATA),
        ];
        for (kind, expected) in kinds {
            assert_eq!(flags(&completion(kind, Protocol::Msg)), expected, "{kind:?}");
        }
    }

    #[test]
    fn a_multi_receive_that_is_given_back_says_so() {
        let c = Completion { multi: true, data: None, ..completion(CompletionKind::Recv, Protocol::Msg) };
        assert_eq!(flags(&c), FI_RECV | FI_MSG);
        assert_eq!(flags(&Completion { multi_released: true, ..c }), FI_RECV | FI_MSG | FI_MULTI_RECV);
        let only = Completion { multi_released: true, released_only: true, ..c };
        assert_eq!(flags(&only), FI_MULTI_RECV, "no message, so no FI_RECV");
        let canceled = Completion { error: Some(CompletionError::Canceled), ..c };
        assert_eq!(flags(&canceled), FI_RECV | FI_MSG | FI_MULTI_RECV, "as Intel MPI expects at finalize");
    }

    #[test]
    fn every_format_writes_its_own_entries_and_nothing_behind_them() {
        let c = completion(CompletionKind::Recv, Protocol::Tagged);
        let sizes = [
            (FI_CQ_FORMAT_CONTEXT, size_of::<fi_cq_entry>()),
            (FI_CQ_FORMAT_MSG, size_of::<fi_cq_msg_entry>()),
            (FI_CQ_FORMAT_DATA, size_of::<fi_cq_data_entry>()),
            (FI_CQ_FORMAT_TAGGED, size_of::<fi_cq_tagged_entry>()),
        ];
        for (format, bytes) in sizes {
            let mut room = [0xaaaa_aaaa_aaaa_aaaa_u64; 32];
            // SAFETY: the array has room for two entries of any format.
            unsafe { write_entry(format, room.as_mut_ptr().cast(), 1, &c) };
            let words = bytes / 8;
            assert_eq!(room[words], 0x1000, "context of the second entry");
            assert!(room[..words].iter().chain(&room[2 * words..]).all(|w| *w == 0xaaaa_aaaa_aaaa_aaaa));
        }
    }
}
