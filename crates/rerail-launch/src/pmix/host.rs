//! What the library calls in its server: `pmix_server_module_t`. Owns: the library's calls that wait for an answer.
//!
//! The library calls from a thread of its own, and passes nothing by which to find this program's state; hence a static. No call blocks: each is written to
//! the agent, and answered when the agent has answered. A panic here ends the process, which its agent reports.

use crate::message::{Bytes, GroupAct, Wants};
use crate::pmix::group::{Directives, Grouped, Reply};
use crate::pmix::library::Done;
use crate::pmix::message::{Act, FromServer, send};
use rerail_pmix::abi::{
    BAD_PARAM, ERROR, Info, LOST_CONNECTION, NOT_FOUND, NOT_SUPPORTED, OPERATION_SUCCEEDED, Proc,
    RANK_WILDCARD, Release, SUCCESS, Status,
};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::io::Result;
use std::os::unix::net::UnixStream;
use std::ptr::{null, null_mut};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

/// `pmix_modex_cbfunc_t`: status, bytes, how many, the library's own, a function that frees the bytes, its argument.
type Deliver = unsafe extern "C" fn(Status, *const c_char, usize, *mut c_void, Option<Release>, *mut c_void);
/// `pmix_dmodex_response_fn_t`: status, bytes, how many, the caller's own.
pub type Response = unsafe extern "C" fn(Status, *mut c_char, usize, *mut c_void);

type OnRank = unsafe extern "C" fn(*const Proc, *mut c_void, Option<Done>, *mut c_void) -> Status;
type OnAbort = unsafe extern "C" fn(
    *const Proc,
    *mut c_void,
    Status,
    *const c_char,
    *const Proc,
    usize,
    Option<Done>,
    *mut c_void,
) -> Status;
type OnFence = unsafe extern "C" fn(
    *const Proc,
    usize,
    *const Info,
    usize,
    *mut c_char,
    usize,
    Option<Deliver>,
    *mut c_void,
) -> Status;
type OnFetch = unsafe extern "C" fn(*const Proc, *const Info, usize, Option<Deliver>, *mut c_void) -> Status;
type OnConnect =
    unsafe extern "C" fn(*const Proc, usize, *const Info, usize, Option<Done>, *mut c_void) -> Status;
type OnGroup = unsafe extern "C" fn(
    c_int,
    *const c_char,
    *const Proc,
    usize,
    *const Info,
    usize,
    Option<Grouped>,
    *mut c_void,
) -> Status;
type OnControl = unsafe extern "C" fn(
    *const Proc,
    *const Proc,
    usize,
    *const Info,
    usize,
    *mut c_void,
    *mut c_void,
) -> Status;

/// Words of a module. The library copies as many as its own release has: 28 in 4.2, 29 in 5.0. Those that are null are not served.
const MODULE_WORDS: usize = 64;
/// Which of them is `connect`; `disconnect` follows.
const CONNECT: usize = 9;
/// Which of them is `job_control`.
const JOB_CONTROL: usize = 19;
/// Which of them is `group`.
const GROUP: usize = 25;
/// `PMIX_GROUP_DESTRUCT`, a `pmix_group_operation_t`. The other one is `PMIX_GROUP_CONSTRUCT`, 0.
const DESTRUCT: c_int = 1;

/// `pmix_server_module_t`, with room for what later releases append.
#[repr(C)]
pub struct Module {
    connected: OnRank,
    finalized: OnRank,
    abort: OnAbort,
    fence: OnFence,
    direct_modex: OnFetch,
    /// `publish` to `spawn`.
    publish_to_spawn: [*mut c_void; CONNECT - 5],
    connect: OnConnect,
    disconnect: OnConnect,
    /// `register_events` to `allocate`.
    events_to_allocate: [*mut c_void; JOB_CONTROL - CONNECT - 2],
    job_control: OnControl,
    /// `monitor` to `push_stdin`.
    monitor_to_stdin: [*mut c_void; GROUP - JOB_CONTROL - 1],
    group: OnGroup,
    more: [*mut c_void; MODULE_WORDS - GROUP - 1],
}

impl Module {
    /// The functions below.
    pub fn new() -> Self {
        Self {
            connected,
            finalized,
            abort,
            fence,
            direct_modex,
            publish_to_spawn: [null_mut(); CONNECT - 5],
            connect,
            disconnect: connect,
            events_to_allocate: [null_mut(); JOB_CONTROL - CONNECT - 2],
            job_control,
            monitor_to_stdin: [null_mut(); GROUP - JOB_CONTROL - 1],
            group: on_group,
            more: [null_mut(); MODULE_WORDS - GROUP - 1],
        }
    }
}

/// What the library passes and wants back.
struct Own(*mut c_void);

// SAFETY: it is passed back to the library, which may be called from every thread, and used for nothing else.
unsafe impl Send for Own {}

/// A call that waits.
enum Call {
    Operation(Done, Own),
    Data(Deliver, Own),
    /// With the members of the group.
    Group(Grouped, Own, Vec<Proc>),
}

impl Call {
    /// Ends it with an error.
    fn fail(self, status: Status) {
        // SAFETY: the library's own function and argument, used once; there is nothing to free.
        unsafe {
            match self {
                Call::Operation(done, own) => done(status, own.0),
                Call::Data(deliver, own) => deliver(status, null(), 0, own.0, None, null_mut()),
                Call::Group(grouped, own, _) => grouped(status, null_mut(), 0, own.0, None, null_mut()),
            }
        }
    }
}

#[cfg(target_pointer_width = "64")]
const _: () = {
    use std::mem::offset_of;
    assert!(offset_of!(Module, connect) == 8 * CONNECT && offset_of!(Module, group) == 8 * GROUP);
    assert!(offset_of!(Module, job_control) == 8 * JOB_CONTROL);
    assert!(size_of::<Module>() == 8 * MODULE_WORDS);
};

/// The state of the server.
pub struct Host {
    /// The job.
    namespace: CString,
    size: u32,
    to_agent: Mutex<UnixStream>,
    calls: Mutex<(u64, HashMap<u64, Call>)>,
}

static HOST: OnceLock<Host> = OnceLock::new();

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Host {
    /// The one of this process, before the library is initialized.
    pub fn begin(namespace: CString, size: u32, to_agent: UnixStream) -> &'static Host {
        let calls = Mutex::new((0, HashMap::new()));
        HOST.get_or_init(|| Host { namespace, size, to_agent: Mutex::new(to_agent), calls })
    }

    /// Writes to the agent.
    ///
    /// # Errors
    /// That of the system: the agent is gone.
    pub fn send(&self, message: &FromServer) -> Result<()> {
        send(&mut *locked(&self.to_agent), message)
    }

    fn wait(&self, call: Call) -> u64 {
        let mut calls = locked(&self.calls);
        calls.0 += 1;
        let ticket = calls.0;
        calls.1.insert(ticket, call);
        ticket
    }

    fn answered(&self, ticket: u64) -> Option<Call> {
        locked(&self.calls).1.remove(&ticket)
    }

    /// The agent has noted what a rank did.
    pub fn noted(&self, ticket: u64) {
        if let Some(Call::Operation(done, own)) = self.answered(ticket) {
            // SAFETY: the library's own function and argument, used once.
            unsafe { done(SUCCESS, own.0) };
        }
    }

    /// What other servers gave; nothing: they have nothing.
    pub fn deliver(&self, ticket: u64, data: Option<Bytes>) {
        let Some(Call::Data(deliver, own)) = self.answered(ticket) else { return };
        let status = if data.is_some() { SUCCESS } else { NOT_FOUND };
        let data = Box::new(data.unwrap_or_default());
        let (bytes, size) = (data.as_ptr().cast(), data.len());
        // SAFETY: the library's own function and argument, used once; the bytes live until it calls `release`.
        unsafe { deliver(status, bytes, size, own.0, Some(release), Box::into_raw(data).cast()) };
    }

    /// All members have made or dissolved a group.
    pub fn made(&self, ticket: u64, number: Option<u64>, data: &[u8]) {
        let Some(Call::Group(grouped, own, members)) = self.answered(ticket) else { return };
        Reply::new(members, number, data).give(grouped, own.0);
    }

    /// A rank that takes part in what a call waits for has ended.
    pub fn broken(&self, ticket: u64) {
        if let Some(call) = self.answered(ticket) {
            call.fail(LOST_CONNECTION);
        }
    }

    /// The ranks that these processes are, sorted; none: all of the job. `None`: some are of no job that is known.
    ///
    /// # Safety
    /// It points to as many processes.
    unsafe fn ranks(&self, procs: *const Proc, count: usize) -> Option<Vec<u32>> {
        let mut ranks = Vec::new();
        for n in 0..count {
            // SAFETY: by the caller.
            match unsafe { self.rank(procs.add(n)) } {
                Some(RANK_WILDCARD) => return Some(Vec::new()),
                Some(rank) if rank < self.size => ranks.push(rank),
                _ => return None,
            }
        }
        ranks.sort_unstable();
        ranks.dedup();
        Some(ranks)
    }

    /// The processes that these ranks are; none: all.
    fn procs(&self, ranks: &[u32]) -> Vec<Proc> {
        let proc = |rank| Proc::new(&self.namespace, rank);
        if ranks.is_empty() {
            (0..self.size).map(proc).collect()
        } else {
            ranks.iter().copied().map(proc).collect()
        }
    }

    /// Whether a process is of this job, and which.
    ///
    /// # Safety
    /// It points to a process, or is null.
    unsafe fn rank(&self, proc: *const Proc) -> Option<u32> {
        // SAFETY: by the caller; a namespace ends in 0 within its room.
        let (proc, name) = unsafe {
            let proc = proc.as_ref()?;
            (proc, CStr::from_ptr(proc.namespace.as_ptr()))
        };
        (name == self.namespace.as_c_str()).then_some(proc.rank)
    }

    /// A rank does something, and its call waits until that is noted. Releases before 5 do not wait for the first one.
    fn acts(&self, rank: u32, act: Act, done: Option<Done>, own: *mut c_void) -> Status {
        let ticket = done.map(|done| self.wait(Call::Operation(done, Own(own))));
        match (self.send(&FromServer::Act { ticket, rank, act }), ticket) {
            (Err(_), ticket) => {
                ticket.and_then(|ticket| self.answered(ticket));
                ERROR
            }
            (Ok(()), Some(_)) => SUCCESS,
            (Ok(()), None) => OPERATION_SUCCEEDED,
        }
    }

    fn wants(&self, deliver: Option<Deliver>, own: *mut c_void, of: impl FnOnce(u64) -> Wants) -> Status {
        let Some(deliver) = deliver else { return ERROR };
        let ticket = self.wait(Call::Data(deliver, Own(own)));
        match self.send(&FromServer::Wants(of(ticket))) {
            Ok(()) => SUCCESS,
            Err(_) => {
                self.answered(ticket);
                ERROR
            }
        }
    }
}

/// Frees what [`Host::deliver`] gave.
///
/// # Safety
/// The library calls it once, with what it was given.
unsafe extern "C" fn release(data: *mut c_void) {
    // SAFETY: by the caller.
    drop(unsafe { Box::from_raw(data.cast::<Bytes>()) });
}

/// # Safety
/// As the library calls it.
unsafe extern "C" fn connected(
    proc: *const Proc,
    _: *mut c_void,
    done: Option<Done>,
    own: *mut c_void,
) -> Status {
    // SAFETY: the library passes a process.
    unsafe { act(proc, Act::Begins, done, own) }
}

/// # Safety
/// As the library calls it.
unsafe extern "C" fn finalized(
    proc: *const Proc,
    _: *mut c_void,
    done: Option<Done>,
    own: *mut c_void,
) -> Status {
    // SAFETY: the library passes a process.
    unsafe { act(proc, Act::Finalizes, done, own) }
}

/// # Safety
/// As the library calls it. Whichever processes a rank wants to end, all are: a job without some of its ranks is none.
unsafe extern "C" fn abort(
    proc: *const Proc,
    _: *mut c_void,
    status: Status,
    _: *const c_char,
    _: *const Proc,
    _: usize,
    done: Option<Done>,
    own: *mut c_void,
) -> Status {
    // SAFETY: the library passes a process.
    unsafe { act(proc, Act::Aborts(status), done, own) }
}

/// # Safety
/// `proc` points to a process, or is null.
unsafe fn act(proc: *const Proc, act: Act, done: Option<Done>, own: *mut c_void) -> Status {
    let Some(host) = HOST.get() else { return ERROR };
    // SAFETY: by the caller.
    match unsafe { host.rank(proc) } {
        Some(rank) => host.acts(rank, act, done, own),
        None => NOT_FOUND,
    }
}

/// All ranks of this host that take part in a fence are at it, and `data` is what they have put.
///
/// # Safety
/// As the library calls it.
unsafe extern "C" fn fence(
    procs: *const Proc,
    count: usize,
    _: *const Info,
    _: usize,
    data: *mut c_char,
    size: usize,
    deliver: Option<Deliver>,
    own: *mut c_void,
) -> Status {
    let Some(host) = HOST.get() else { return ERROR };
    let mut bytes = Vec::new();
    if !data.is_null() {
        // SAFETY: as many bytes as it says, allocated by malloc, which the server is to free.
        unsafe {
            bytes.extend_from_slice(std::slice::from_raw_parts(data.cast::<u8>(), size));
            libc::free(data.cast());
        }
    }
    // SAFETY: as many processes as it says.
    let Some(ranks) = (unsafe { host.ranks(procs, count) }) else {
        // there is no other job
        return NOT_FOUND;
    };
    host.wants(deliver, own, |ticket| Wants::Fence { ticket, ranks, data: bytes })
}

/// A rank of this host wants what one of another host has put.
///
/// # Safety
/// As the library calls it.
unsafe extern "C" fn direct_modex(
    proc: *const Proc,
    _: *const Info,
    _: usize,
    deliver: Option<Deliver>,
    own: *mut c_void,
) -> Status {
    let Some(host) = HOST.get() else { return ERROR };
    // SAFETY: the library passes a process.
    match unsafe { host.rank(proc) }.filter(|rank| *rank < host.size) {
        Some(rank) => host.wants(deliver, own, |ticket| Wants::Fetch { ticket, rank }),
        None => NOT_FOUND,
    }
}

/// All ranks of this host that are members of a group make or dissolve it.
///
/// It never returns an error: the library would give it to the last of them only, and the others would wait for ever.
///
/// # Safety
/// As the library calls it.
unsafe extern "C" fn on_group(
    operation: c_int,
    name: *const c_char,
    procs: *const Proc,
    count: usize,
    infos: *const Info,
    infos_count: usize,
    grouped: Option<Grouped>,
    own: *mut c_void,
) -> Status {
    let (Some(host), Some(grouped)) = (HOST.get(), grouped) else { return ERROR };
    // SAFETY: a string, as many processes and as many attributes as it says; all are only read.
    let (name, ranks, directives) = unsafe {
        let name = name.as_ref().map(|name| CStr::from_ptr(name).to_bytes().to_vec());
        (name, host.ranks(procs, count), Directives::of(infos, infos_count))
    };
    let destructs = operation == DESTRUCT;
    if destructs && directives.local {
        // The library of 5.0 calls twice for one that has to be answered, and its second call is for memory that it may have freed.
        return OPERATION_SUCCEEDED;
    }
    let (Some(name), Some(ranks)) = (name, ranks) else {
        // not before this function returns
        let call = Call::Group(grouped, Own(own), Vec::new());
        std::thread::spawn(move || call.fail(BAD_PARAM));
        return SUCCESS;
    };
    let ticket = host.wait(Call::Group(grouped, Own(own), host.procs(&ranks)));
    let act = match destructs {
        true => GroupAct::Destruct,
        false => GroupAct::Construct { numbered: directives.numbered },
    };
    let Directives { data, whole, .. } = directives;
    match host.send(&FromServer::Wants(Wants::Group { ticket, act, name, ranks, data, whole })) {
        Ok(()) => SUCCESS,
        Err(_) => {
            // the agent is gone, and this process and all ranks with it
            host.answered(ticket);
            ERROR
        }
    }
}

/// Ranks connect or disconnect. It has to be there: without it the library gives an error to the last of them only, and the others wait for ever.
///
/// # Safety
/// As the library calls it.
unsafe extern "C" fn connect(
    _: *const Proc,
    _: usize,
    _: *const Info,
    _: usize,
    _: Option<Done>,
    _: *mut c_void,
) -> Status {
    NOT_SUPPORTED
}

/// Requests of a rank about processes. It has to be there: without it the library does not keep the list of files that ranks want removed after them.
///
/// # Safety
/// As the library calls it.
unsafe extern "C" fn job_control(
    _: *const Proc,
    _: *const Proc,
    _: usize,
    _: *const Info,
    _: usize,
    _: *mut c_void,
    _: *mut c_void,
) -> Status {
    NOT_SUPPORTED
}

/// Which request a [`Response`] answers.
struct Asked {
    /// The agent whose rank wants it.
    agent: u32,
    /// That agent's own.
    ticket: u64,
}

/// What a rank of this host has put, for another host. A `Response`.
///
/// # Safety
/// The library calls it once for each request, with its `Asked`.
pub unsafe extern "C" fn fetched(status: Status, data: *mut c_char, size: usize, asked: *mut c_void) {
    // SAFETY: by the caller.
    let asked = unsafe { Box::from_raw(asked.cast::<Asked>()) };
    let Some(host) = HOST.get() else { return };
    let bytes = (status == SUCCESS).then(|| match data.is_null() {
        true => Vec::new(),
        // SAFETY: as many bytes as it says, which the library frees afterwards.
        false => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), size) }.to_vec(),
    });
    let wants = Wants::Fetched { agent: asked.agent, ticket: asked.ticket, data: bytes };
    // an agent that is gone needs nothing
    let _ = host.send(&FromServer::Wants(wants));
}

/// The argument of a request that [`fetched`] answers.
pub fn asked(agent: u32, ticket: u64) -> *mut c_void {
    Box::into_raw(Box::new(Asked { agent, ticket })).cast()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pmix::message::receive;
    use rerail_pmix::abi::ByteObject;
    use std::sync::mpsc::{Sender, channel};

    type Got = Sender<(Status, Vec<u8>)>;

    /// # Safety
    /// `own` is a sender, and `release` frees the bytes.
    unsafe extern "C" fn got(
        status: Status,
        bytes: *const c_char,
        size: usize,
        own: *mut c_void,
        release: Option<Release>,
        data: *mut c_void,
    ) {
        // SAFETY: by the caller.
        unsafe {
            let bytes = match bytes.is_null() {
                true => Vec::new(),
                false => std::slice::from_raw_parts(bytes.cast::<u8>(), size).to_vec(),
            };
            (*own.cast::<Got>()).send((status, bytes)).unwrap();
            if let Some(release) = release {
                release(data);
            }
        }
    }

    /// # Safety
    /// `own` is a sender.
    unsafe extern "C" fn done(status: Status, own: *mut c_void) {
        // SAFETY: by the caller.
        unsafe { (*own.cast::<Got>()).send((status, Vec::new())).unwrap() };
    }

    /// What a server answered for a group: status, members, number, data.
    type Made = (Status, Vec<u32>, Option<usize>, Vec<u8>);

    /// # Safety
    /// `own` is a sender of what it gets, and `release` frees it.
    unsafe extern "C" fn grouped(
        status: Status,
        infos: *mut Info,
        count: usize,
        own: *mut c_void,
        release: Option<Release>,
        reply: *mut c_void,
    ) {
        let (mut members, mut number, mut bytes) = (Vec::new(), None, Vec::new());
        for n in 0..count {
            // SAFETY: by the caller: as many attributes as it says, of the types that their names have.
            unsafe {
                let Info { key, value, .. } = &mut *infos.add(n);
                match CStr::from_ptr(key.as_ptr()).to_str().unwrap() {
                    "pmix.grp.mbrs" => {
                        let array = &*value.data.array;
                        let procs = std::slice::from_raw_parts(array.array.cast::<Proc>(), array.size);
                        members.extend(procs.iter().map(|proc| proc.rank));
                    }
                    "pmix.grp.ctxid" => number = Some(value.data.size),
                    "pmix.grp.endpt" => {
                        // as the library does: it takes the bytes over
                        let object = std::ptr::replace(
                            &raw mut value.data.byte_object,
                            ByteObject { bytes: null_mut(), size: 0 },
                        );
                        bytes.extend_from_slice(std::slice::from_raw_parts(
                            object.bytes.cast::<u8>(),
                            object.size,
                        ));
                        libc::free(object.bytes.cast());
                    }
                    name => panic!("{name}"),
                }
            }
        }
        // SAFETY: by the caller.
        unsafe {
            if let Some(release) = release {
                release(reply);
            }
            // one of its own: from another thread the test may be over, and its sender gone, as soon as it has the message
            let to = (*own.cast::<Sender<Made>>()).clone();
            to.send((status, members, number, bytes)).unwrap();
        }
    }

    fn groups(host: &Host, agent: &mut UnixStream) {
        let (mut to, from) = channel::<Made>();
        let own: *mut c_void = (&raw mut to).cast();
        let call = |operation, procs: &[Proc], infos: &[Info]| {
            let (name, call) = (c"name".as_ptr(), Some(grouped as Grouped));
            // SAFETY: a string, as many processes and attributes as it says, and a sender that outlives the call.
            unsafe {
                on_group(operation, name, procs.as_ptr(), procs.len(), infos.as_ptr(), infos.len(), call, own)
            }
        };
        let some = [Proc::new(c"job7", 2), Proc::new(c"job7", 0)];
        let numbered = [Info::flag(c"pmix.grp.actxid")];
        for (operation, wanted) in [(0, GroupAct::Construct { numbered: true }), (1, GroupAct::Destruct)] {
            assert_eq!(call(operation, &some, &numbered), SUCCESS);
            let message: FromServer = receive(agent).unwrap();
            let FromServer::Wants(Wants::Group { ticket, act, name, ranks, data, whole }) = message else {
                panic!()
            };
            assert_eq!((act, name.as_slice(), ranks, data), (wanted, &b"name"[..], vec![0, 2], vec![]));
            assert!(whole && from.try_recv().is_err(), "it waits");
            host.made(ticket, Some(7), b"ab");
            assert_eq!(from.try_recv().unwrap(), (SUCCESS, vec![0, 2], Some(7), b"ab".to_vec()));
            host.made(ticket, Some(8), b"");
            assert!(from.try_recv().is_err(), "an answer is taken once");
        }
        // all ranks of the job, and one of them ends
        assert_eq!(call(0, &[Proc::new(c"job7", RANK_WILDCARD)], &[]), SUCCESS);
        let message: FromServer = receive(agent).unwrap();
        let FromServer::Wants(Wants::Group { ticket, ranks, act, .. }) = message else { panic!() };
        assert_eq!((act, ranks), (GroupAct::Construct { numbered: false }, vec![]));
        host.broken(ticket);
        assert_eq!(from.try_recv().unwrap(), (LOST_CONNECTION, vec![], None, vec![]));
        assert_eq!(call(0, &[Proc::new(c"job7", RANK_WILDCARD)], &[]), SUCCESS);
        let message: FromServer = receive(agent).unwrap();
        let FromServer::Wants(Wants::Group { ticket, .. }) = message else { panic!() };
        host.made(ticket, None, b"");
        assert_eq!(from.try_recv().unwrap(), (SUCCESS, vec![0, 1, 2], None, vec![]));
        // members that there are not: the error is for all that wait, so that it comes by the callback
        for strange in [Proc::new(c"job8", 0), Proc::new(c"job7", 3)] {
            assert_eq!(call(0, &[strange], &[]), SUCCESS);
            assert_eq!(from.recv().unwrap().0, BAD_PARAM);
        }
        // one that is the library's own is dissolved without a callback
        assert_eq!(call(1, &some, &[Info::flag(c"pmix.grp.lcl")]), OPERATION_SUCCEEDED);
        assert!(from.try_recv().is_err());
    }

    /// One test for all calls, because a process has one server.
    #[test]
    fn calls_of_the_library_are_passed_on_and_end_when_they_are_answered() {
        let (ours, mut agent) = UnixStream::pair().unwrap();
        let host = Host::begin(c"job7".into(), 3, ours);
        let (mut to, from) = channel::<(Status, Vec<u8>)>();
        let own: *mut c_void = (&raw mut to).cast();
        let all = [Proc::new(c"job7", RANK_WILDCARD)];
        let some = [Proc::new(c"job7", 2), Proc::new(c"job7", 0)];
        let strange = Proc::new(c"job8", 0);
        let fence = |procs: &[Proc]| {
            // SAFETY: bytes that the server frees, and a sender that outlives the call.
            unsafe {
                let data = libc::strdup(c"ab".as_ptr());
                let attributes = std::ptr::null();
                super::fence(procs.as_ptr(), procs.len(), attributes, 0, data, 2, Some(got), own)
            }
        };
        for (procs, ranks) in [(&all[..], vec![]), (&some, vec![0, 2]), (&[], vec![])] {
            assert_eq!(fence(procs), SUCCESS);
            let message: FromServer = receive(&mut agent).unwrap();
            let FromServer::Wants(Wants::Fence { ticket, ranks: passed, data }) = message else { panic!() };
            assert_eq!((passed, data.as_slice()), (ranks, &b"ab"[..]));
            assert!(from.try_recv().is_err(), "it waits");
            host.deliver(ticket, Some(b"abcd".to_vec()));
            assert_eq!(from.try_recv().unwrap(), (SUCCESS, b"abcd".to_vec()));
            host.deliver(ticket, None);
            assert!(from.try_recv().is_err(), "an answer is taken once");
        }
        assert_eq!(fence(std::slice::from_ref(&strange)), NOT_FOUND);
        assert_eq!(fence(&some), SUCCESS);
        let message: FromServer = receive(&mut agent).unwrap();
        let FromServer::Wants(Wants::Fence { ticket, .. }) = message else { panic!() };
        host.broken(ticket);
        assert_eq!(from.try_recv().unwrap(), (LOST_CONNECTION, vec![]));
        groups(host, &mut agent);
        let Module { connect, disconnect, .. } = Module::new();
        for call in [connect, disconnect] {
            // SAFETY: it reads nothing.
            let status = unsafe { call(all.as_ptr(), 1, null(), 0, Some(done), own) };
            assert_eq!(status, NOT_SUPPORTED, "an error at once");
        }

        let modex = |proc: &Proc| {
            // SAFETY: a process, and a sender that outlives the call.
            unsafe { direct_modex(proc, std::ptr::null(), 0, Some(got), own) }
        };
        assert_eq!((modex(&strange), modex(&all[0])), (NOT_FOUND, NOT_FOUND));
        assert_eq!(modex(&some[0]), SUCCESS);
        let message: FromServer = receive(&mut agent).unwrap();
        let FromServer::Wants(Wants::Fetch { ticket, rank: 2 }) = message else { panic!("{message:?}") };
        host.deliver(ticket, None);
        assert_eq!(from.try_recv().unwrap().0, NOT_FOUND);

        // SAFETY: a process, and a sender that outlives the call.
        assert_eq!(unsafe { finalized(&some[1], null_mut(), Some(done), own) }, SUCCESS);
        let message: FromServer = receive(&mut agent).unwrap();
        let FromServer::Act { ticket: Some(ticket), rank: 0, act: Act::Finalizes } = message else {
            panic!()
        };
        assert!(from.try_recv().is_err(), "the rank waits");
        host.noted(ticket);
        assert_eq!(from.try_recv().unwrap().0, SUCCESS);
        // releases before 5 pass nothing to call
        // SAFETY: a process.
        assert_eq!(unsafe { connected(&some[1], null_mut(), None, null_mut()) }, OPERATION_SUCCEEDED);
    }
}
