//! Identifiers of RDMA-CM: listeners and ends of connections, and what the kernel reports of them.

use crate::abi::*;
use crate::adapter::{Adapter, done, made, with_inline};
use crate::hello::Hello;
use crate::library::Library;
use crate::place::socket_address;
use parking_lot::Mutex;
use std::io;
use std::net::SocketAddr;
use std::os::fd::BorrowedFd;
use std::ptr::null_mut;

/// The adapter's own patience: 4.096 µs × 2^14 = 67 ms for an acknowledgement; the kernel adds to it.
pub const ACK_TIMEOUT: u8 = 14;
/// Attempts after the first: with [`ACK_TIMEOUT`] a dead path ends the queue pair after some 0.4 s. 7 is for ever on some adapters.
pub const RETRIES: u8 = 6;
/// Connections that wait to be accepted by this process, at most.
const BACKLOG: i32 = 256;

/// The channel on which the kernel reports what becomes of connections.
pub struct Events {
    library: &'static Library,
    channel: *mut rdma_event_channel,
    /// librdmacm changes the queue pair of an identifier while it takes an event of it.
    reading: Mutex<()>,
}

// SAFETY: librdmacm allows every call from any thread.
unsafe impl Send for Events {}
// SAFETY: as above.
unsafe impl Sync for Events {}

impl Events {
    /// # Errors
    /// The kernel has no RDMA-CM, or this process no permission.
    pub fn new(library: &'static Library) -> io::Result<Events> {
        // SAFETY: no arguments.
        let channel = made(unsafe { (library.rdma_create_event_channel)() })?;
        let events = Events { library, channel, reading: Mutex::new(()) };
        rustix::io::ioctl_fionbio(events.fd(), true)?;
        rustix::io::fcntl_setfd(events.fd(), rustix::io::FdFlags::CLOEXEC)?;
        Ok(events)
    }

    /// Readable when something has happened.
    pub fn fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the descriptor lives as long as the channel.
        unsafe { BorrowedFd::borrow_raw((*self.channel).fd) }
    }

    /// A new identifier, bound to an address. That finds the adapter of the address, if it has one.
    ///
    /// # Errors
    /// No adapter has the address, or the port is taken.
    pub fn bind(&self, at: SocketAddr, context: usize) -> io::Result<Identifier> {
        let mut id = null_mut();
        let context = context as *mut _;
        // SAFETY: the channel lives; the identifier is written to.
        done(unsafe { (self.library.rdma_create_id)(self.channel, &raw mut id, context, RDMA_PS_TCP) })?;
        let id = Identifier { library: self.library, id };
        let mut at = socket_address(at);
        // SAFETY: a new identifier, and an address as the kernel wants it.
        done(unsafe { (self.library.rdma_bind_addr)(id.id, (&raw mut at).cast()) })?;
        // SAFETY: as above.
        if unsafe { (*id.id).verbs.is_null() } {
            return Err(io::ErrorKind::AddrNotAvailable.into());
        }
        Ok(id)
    }

    /// The end of a connection that a peer requests, as its event names it.
    pub fn accepted(&self, id: *mut rdma_cm_id) -> Identifier {
        Identifier { library: self.library, id }
    }

    /// Destroys an identifier by dropping something, on any thread.
    pub fn destroy<T>(&self, identifier: T) {
        let _reading = self.reading.lock();
        drop(identifier);
    }

    /// What has happened next.
    pub fn next(&self) -> Option<Event> {
        let _reading = self.reading.lock();
        let mut event = null_mut();
        // SAFETY: the channel lives and does not block.
        if unsafe { (self.library.rdma_get_cm_event)(self.channel, &raw mut event) } != 0 {
            return None;
        }
        // SAFETY: an event, valid until it is acknowledged; the private data is as long as it says.
        unsafe {
            let e = &*event;
            let conn = e.conn;
            let private = match e.event {
                RDMA_CM_EVENT_CONNECT_REQUEST if !conn.private_data.is_null() => {
                    std::slice::from_raw_parts(conn.private_data.cast::<u8>(), conn.private_data_len.into())
                }
                _ => &[],
            };
            let context = (*e.id).context as usize;
            let hello = Hello::read(private);
            let next = Event { id: e.id, context, listener: e.listen_id, kind: e.event, hello };
            // At once: an identifier cannot be destroyed before.
            (self.library.rdma_ack_cm_event)(event);
            Some(next)
        }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        // SAFETY: every identifier is gone.
        unsafe { (self.library.rdma_destroy_event_channel)(self.channel) };
    }
}

/// What has happened to an identifier.
pub struct Event {
    /// It may have been destroyed since.
    pub id: *mut rdma_cm_id,
    /// What [`Events::bind`] was given for it.
    pub context: usize,
    pub listener: *mut rdma_cm_id,
    pub kind: u32,
    pub hello: Option<Hello>,
}

/// An identifier of RDMA-CM: a listener, or one end of a connection.
pub struct Identifier {
    pub library: &'static Library,
    pub id: *mut rdma_cm_id,
}

// SAFETY: as for `Events`.
unsafe impl Send for Identifier {}

impl Identifier {
    /// The adapter of its address, and the port of that.
    pub fn device(&self) -> (*mut ibv_context, u8) {
        // SAFETY: it lives.
        unsafe { ((*self.id).verbs, (*self.id).port_num) }
    }

    /// Accepts connections from now on.
    pub fn listen(&self) -> io::Result<()> {
        // SAFETY: it lives and is bound.
        done(unsafe { (self.library.rdma_listen)(self.id, BACKLOG) })
    }

    /// A path that is dead ends its queue pair soon, and not after the half-minute that some kernels choose.
    pub fn be_impatient(&self) {
        let mut timeout = ACK_TIMEOUT;
        // It fails where the adapter has no such time (iWARP).
        // SAFETY: one byte, as the option wants.
        unsafe {
            (self.library.rdma_set_option)(
                self.id,
                RDMA_OPTION_ID,
                RDMA_OPTION_ID_ACK_TIMEOUT,
                (&raw mut timeout).cast(),
                1,
            )
        };
    }

    /// Makes its queue pair. Also returns how many bytes of a message fit into the work itself.
    pub fn make_queue_pair(
        &self,
        adapter: &Adapter,
        attributes: ibv_qp_init_attr,
    ) -> io::Result<(*mut ibv_qp, usize)> {
        let ((), inline_max) = with_inline(attributes, |attributes| {
            // SAFETY: it lives, and so do domain and completion queue.
            done(unsafe { (self.library.rdma_create_qp)(self.id, adapter.domain, attributes) })
        })?;
        // SAFETY: as above.
        Ok((unsafe { (*self.id).qp }, inline_max))
    }
}

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: the queue pair is not used any more: its lane was given back, or never made. All events are acknowledged.
        unsafe {
            if !(*self.id).qp.is_null() {
                (self.library.rdma_destroy_qp)(self.id);
            }
            (self.library.rdma_destroy_id)(self.id);
        }
    }
}
