//! The process that serves PMIx on a host: `rerail launch-pmix`. Owns: the library, from its initialization to its end.
//!
//! Its standard input is a socket pair to the agent. It ends when the agent closes that, and is killed when the agent dies.

use crate::message::{Bytes, Gives, PmixJob, Start};
use crate::pmix::attributes::{Attributes, of_job};
use crate::pmix::host::{Host, Module, asked, fetched};
use crate::pmix::library::{Done, Library};
use crate::pmix::message::{FromServer, ToServer, receive, send};
use rerail_pmix::abi::{Proc, SUCCESS, Status};
use std::ffi::{CStr, CString, c_char, c_void};
use std::io::Result;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::ptr::null_mut;
use std::sync::{Condvar, Mutex, PoisonError};

/// The exit code of a server that cannot do its work.
const EXIT_FAILED: i32 = 125;

/// Serves; returns the exit code.
pub fn run() -> i32 {
    let begun = pair().and_then(|mut pair| Ok((receive::<ToServer>(&mut pair)?, pair)));
    let Ok((ToServer::Serve(start, directory), mut from_agent)) = begun else {
        eprintln!("rerail: a server of PMIx is started by the agent of `rerail launch`");
        return EXIT_FAILED;
    };
    let Ok(to_agent) = from_agent.try_clone() else { return EXIT_FAILED };
    let served = Server::start(&start, &directory, to_agent);
    let server = match served {
        Ok(server) => server,
        Err(why) => {
            let told = send(&mut from_agent, &FromServer::Failed(why));
            return if told.is_ok() { 0 } else { EXIT_FAILED };
        }
    };
    while let Ok(message) = receive::<ToServer>(&mut from_agent) {
        server.receive(message);
    }
    // SAFETY: the library is initialized.
    unsafe { (server.library.finalize)() };
    0
}

/// The socket to the agent.
fn pair() -> Result<UnixStream> {
    // SAFETY: descriptor 0 is open: whatever starts a program opens it; an end of file is an error at the first read.
    let own: OwnedFd = unsafe { BorrowedFd::borrow_raw(0) }.try_clone_to_owned()?;
    Ok(own.into())
}

struct Server {
    library: &'static Library,
    host: &'static Host,
    namespace: CString,
}

/// A call that the library ends from a thread of its own.
#[derive(Default)]
struct Ending {
    status: Mutex<Option<Status>>,
    changed: Condvar,
}

/// # Safety
/// `ending` is an [`Ending`] that is waited for.
unsafe extern "C" fn ended(status: Status, ending: *mut c_void) {
    // SAFETY: by the caller.
    let ending = unsafe { &*ending.cast::<Ending>() };
    let mut at = ending.status.lock().unwrap_or_else(PoisonError::into_inner);
    *at = Some(status);
    // under the lock: afterwards it may be gone
    ending.changed.notify_one();
}

/// Waits until a call has ended.
fn wait(call: impl FnOnce(Option<Done>, *mut c_void) -> Status) -> Status {
    let ending = Ending::default();
    match call(Some(ended), (&raw const ending).cast_mut().cast()) {
        SUCCESS => {}
        rerail_pmix::abi::OPERATION_SUCCEEDED => return SUCCESS,
        status => return status,
    }
    let mut at = ending.status.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        if let Some(status) = *at {
            return status;
        }
        at = ending.changed.wait(at).unwrap_or_else(PoisonError::into_inner);
    }
}

impl Server {
    /// Initializes the library, and describes the job to it. With a sentence for the user where that fails.
    fn start(start: &Start, directory: &str, to_agent: UnixStream) -> std::result::Result<Self, String> {
        let job = start.pmix.as_ref().ok_or("the agent did not describe the hosts")?;
        // it stays as long as the process
        let library: &'static Library = Box::leak(Box::new(Library::load(&job.library)?));
        let namespace = CString::new(start.job.as_str()).map_err(|why| why.to_string())?;
        let host = Host::begin(namespace.clone(), start.size as u32, to_agent);
        let server = Self { library, host, namespace };
        server.initialize(start, job, directory)?;
        let mut attributes = of_job(library, start, &job.hosts, directory)?;
        let (infos, count) = attributes.as_mut();
        // SAFETY: a string, as many attributes as it says, and an end that is waited for; they are copied or done with by then.
        let status = wait(|done, own| unsafe {
            let name = server.namespace.as_ptr();
            (server.library.register_job)(name, start.count as i32, infos, count, done, own)
        });
        server.library.check("PMIx_server_register_nspace", status)?;
        let ranks = start.first..start.first + start.count;
        let variables = ranks.map(|rank| server.admit(rank as u32)).collect::<std::result::Result<_, _>>()?;
        server.host.send(&FromServer::Ready(variables)).map_err(|why| why.to_string())?;
        Ok(server)
    }

    fn initialize(&self, start: &Start, job: &PmixJob, directory: &str) -> std::result::Result<(), String> {
        let mut about = Attributes::new(self.library);
        about.text(c"pmix.srvr.tmpdir", directory)?;
        about.text(c"pmix.sys.tmpdir", directory)?;
        // by the names of the job: what a host calls itself may be something else
        let (name, _) = job.hosts.get(job.host).ok_or("the agent has a host that is not of the job")?;
        about.text(c"pmix.hname", name)?;
        about.text(c"pmix.srv.nspace", &format!("{}-servers", start.job))?;
        about.rank(c"pmix.srv.rank", job.host as u32)?;
        let (infos, count) = about.as_mut();
        let mut module = Module::new();
        // SAFETY: the module is copied; as many attributes as it says, which are copied.
        let status = unsafe { (self.library.init)(&mut module, infos, count) };
        self.library.check("PMIx_server_init", status)
    }

    /// Lets a rank connect; the variables that it needs.
    fn admit(&self, rank: u32) -> std::result::Result<Vec<(Bytes, Bytes)>, String> {
        let proc = Proc::new(&self.namespace, rank);
        // SAFETY: `proc` is copied; there is no object of this program's own; an end that is waited for.
        let status = wait(|done, own| unsafe {
            let (user, group) = (libc::getuid(), libc::getgid());
            (self.library.register_rank)(&proc, user, group, null_mut(), done, own)
        });
        self.library.check("PMIx_server_register_client", status)?;
        let mut list: *mut *mut c_char = null_mut();
        // SAFETY: `proc` is read only; the list is empty, and the library allocates one.
        let status = unsafe { (self.library.setup_fork)(&proc, &mut list) };
        self.library.check("PMIx_server_setup_fork", status)?;
        let mut variables = Vec::new();
        // The list is not freed: releases differ in how, and it is short.
        for n in 0.. {
            // SAFETY: null, or a list of strings that ends with null.
            let text = unsafe {
                let entry = list.as_ref().map_or(null_mut(), |_| *list.add(n));
                entry.as_ref().map(|text| CStr::from_ptr(text).to_bytes())
            };
            let Some(text) = text else { break };
            if let Some(at) = text.iter().position(|b| *b == b'=') {
                variables.push((text[..at].to_vec(), text[at + 1..].to_vec()));
            }
        }
        Ok(variables)
    }

    fn receive(&self, message: ToServer) {
        match message {
            ToServer::Noted(ticket) => self.host.noted(ticket),
            ToServer::Gives(Gives::Data { ticket, data }) => self.host.deliver(ticket, data),
            ToServer::Gives(Gives::Fetch { agent, ticket, rank }) => self.fetch(agent, ticket, rank),
            ToServer::Gives(Gives::Group { ticket, number, data }) => self.host.made(ticket, number, &data),
            ToServer::Gives(Gives::Broken { ticket }) => self.host.broken(ticket),
            ToServer::Ended(rank) => self.forget(rank),
            // there is one
            ToServer::Serve(..) => {}
        }
    }

    /// Without it the library waits for the rank in every later group of which it is a member.
    fn forget(&self, rank: u32) {
        let proc = Proc::new(&self.namespace, rank);
        // SAFETY: `proc` is copied; the end is waited for.
        wait(|done, own| unsafe {
            (self.library.forget_rank)(&proc, done, own);
            SUCCESS
        });
    }

    fn fetch(&self, agent: u32, ticket: u64, rank: u32) {
        let proc = Proc::new(&self.namespace, rank);
        let asked = asked(agent, ticket);
        // SAFETY: `proc` is copied, and `fetched` gets what it needs.
        let status = unsafe { (self.library.request)(&proc, fetched, asked) };
        if status != SUCCESS {
            // SAFETY: the library does not call it then.
            unsafe { fetched(status, null_mut(), 0, asked) };
        }
    }
}
