//! What belongs to one rail for as long as the process lives: the adapter's context, its protection domain, and memory that is
//! registered with it. Owns: these, and the order in which they go.
//!
//! Everything made of a context holds an `Arc` of its [`Adapter`], so the domain goes last.

use crate::abi::*;
use crate::device::Device;
use crate::library::Library;
use crate::network::Network;
use rerail_rail::{IoVec, Kind};
use std::cell::UnsafeCell;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;

/// An adapter as one rail uses it.
pub struct Adapter {
    pub library: &'static Library,
    /// librdmacm opened it, and closes it only when the device was removed and no identifier has it. The listener of the
    /// rail has it. Without RDMA-CM it is that of `device`.
    pub context: *mut ibv_context,
    pub domain: *mut ibv_pd,
    /// The adapter's port.
    pub port: u8,
    /// Where what comes from the rail's address leaves.
    pub gid_index: u8,
    /// How peers are addressed.
    pub network: Network,
    kind: Kind,
    /// Last: the context is closed after everything else.
    _device: Option<Arc<Device>>,
}

// SAFETY: libibverbs allows every call from any thread; the pointers are valid until the value is dropped.
unsafe impl Send for Adapter {}
// SAFETY: as above.
unsafe impl Sync for Adapter {}

/// What a call of libibverbs that returns a pointer reports by errno.
pub fn made<T>(pointer: *mut T) -> io::Result<*mut T> {
    if pointer.is_null() { Err(io::Error::last_os_error()) } else { Ok(pointer) }
}

/// What a call of librdmacm reports by -1 and errno, and one of libibverbs by an error number.
pub fn done(result: i32) -> io::Result<()> {
    match result {
        0 => Ok(()),
        -1 => Err(io::Error::last_os_error()),
        error => Err(io::Error::from_raw_os_error(error.abs())),
    }
}

impl Adapter {
    /// # Safety
    /// The context is open, and stays so.
    pub unsafe fn new(
        library: &'static Library,
        context: *mut ibv_context,
        port: u8,
        gid_index: u8,
        kind: Kind,
    ) -> io::Result<Adapter> {
        // SAFETY: the caller's promise.
        let domain = made(unsafe { (library.ibv_alloc_pd)(context) })?;
        let network = Network::Ethernet;
        Ok(Adapter { library, context, domain, port, gid_index, network, kind, _device: None })
    }

    /// The port of a device that this process has opened by itself.
    ///
    /// # Errors
    /// The adapter has no room for a protection domain.
    pub fn of_device(
        library: &'static Library,
        device: &Arc<Device>,
        (port, gid_index): (u8, u8),
        network: Network,
        kind: Kind,
    ) -> io::Result<Adapter> {
        // SAFETY: it is open as long as the device is kept, below.
        let mut adapter = unsafe { Adapter::new(library, device.context(), port, gid_index, kind) }?;
        adapter.network = network;
        adapter._device = Some(device.clone());
        Ok(adapter)
    }

    /// Whether its completion queues report on request only what is to wake a sleeper. The kernel's software adapter for
    /// iWARP reports nothing then.
    pub fn tells_solicited(&self) -> bool {
        self.kind != Kind::IWARP
    }

    /// Whether the end of what was sent shows that the peer's adapter has it. Over iWARP it may mean that this side's
    /// TCP has it.
    pub fn acknowledges(&self) -> bool {
        self.kind != Kind::IWARP
    }

    /// Whether it guarantees that the bytes of a peer's write are placed in order (hazard H22). A library that cannot be asked
    /// means no.
    ///
    /// # Safety
    /// The queue pair lives.
    pub unsafe fn places_in_order(&self, qp: *mut ibv_qp) -> bool {
        let query = self.library.ibv_query_qp_data_in_order;
        // SAFETY: the caller's promise.
        query.is_some_and(|query| unsafe { query(qp, IBV_WR_RDMA_WRITE, 0) } != 0)
    }

    /// What the port reports of itself now.
    pub fn port_state(&self) -> io::Result<ibv_port_attr> {
        // SAFETY: numbers only, for which 0 is valid.
        let mut attr: ibv_port_attr = unsafe { std::mem::zeroed() };
        // SAFETY: the context lives, and the structure is no shorter than that of any version of the call.
        done(unsafe { (self.library.ibv_query_port)(self.context, self.port, &raw mut attr) })?;
        Ok(attr)
    }

    /// Makes memory known to the adapter. `base` is what the first byte is called by peers; it must agree with the
    /// address in the offset into its page.
    ///
    /// # Errors
    /// The limit of locked memory (`ulimit -l`), for instance.
    ///
    /// # Safety
    /// The memory stays mapped until the value is dropped.
    pub unsafe fn register(
        self: &Arc<Self>,
        memory: IoVec,
        base: u64,
        peers_write: bool,
    ) -> io::Result<Registration> {
        // A source is only read, and may be read-only memory.
        let access = if peers_write { IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE } else { 0 };
        // SAFETY: the domain lives, and the caller's promise about the memory.
        let region = made(unsafe {
            (self.library.ibv_reg_mr_iova)(self.domain, memory.ptr.cast(), memory.len, base, access)
        })?;
        Ok(Registration { adapter: self.clone(), region })
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        // SAFETY: nothing is left that was made of it. It fails when something is: then it stays until the process ends.
        unsafe { (self.library.ibv_dealloc_pd)(self.domain) };
    }
}

/// Memory that an adapter knows. When it is dropped the adapter touches the memory no more.
pub struct Registration {
    adapter: Arc<Adapter>,
    region: *mut ibv_mr,
}

// SAFETY: as for `Adapter`.
unsafe impl Send for Registration {}

impl Registration {
    /// By which this process names it.
    pub fn local_key(&self) -> u32 {
        // SAFETY: it lives as long as this.
        unsafe { (*self.region).lkey }
    }

    /// By which peers name it.
    pub fn remote_key(&self) -> u32 {
        // SAFETY: as above.
        unsafe { (*self.region).rkey }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        // SAFETY: it is not used any more.
        unsafe { (self.adapter.library.ibv_dereg_mr)(self.region) };
    }
}

/// Memory of this crate that an adapter reads and writes: slots of one size, one behind the other.
pub struct Slots {
    // before the memory: dropped first
    registration: Registration,
    memory: Box<[UnsafeCell<u8>]>,
    bytes: usize,
}

// SAFETY: bytes are read and written by the slot's owner only, which `slot_of_owner` demands.
unsafe impl Sync for Slots {}

impl Slots {
    /// Of `count` slots of `bytes` each.
    pub fn new(adapter: &Arc<Adapter>, count: usize, bytes: usize) -> io::Result<Slots> {
        let memory: Box<[UnsafeCell<u8>]> = (0..count * bytes).map(|_| UnsafeCell::new(0)).collect();
        let piece = IoVec::new(memory.as_ptr().cast::<u8>().cast_mut(), memory.len());
        // Local writes, which the adapter makes into slots that receive, come with those of peers. No peer learns the key.
        // SAFETY: the memory is kept beside the registration, and goes after it.
        let registration = unsafe { adapter.register(piece, piece.ptr as u64, true) }?;
        Ok(Slots { registration, memory, bytes })
    }

    /// The bytes of a slot.
    pub fn slot(&self, slot: usize) -> &[u8] {
        let cells = &self.memory[slot * self.bytes..][..self.bytes];
        // SAFETY: the slot's owner reads them, and does not write meanwhile; the adapter has given it back.
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast(), cells.len()) }
    }

    /// The same, to be written.
    pub fn slot_mut(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: nothing else has a reference.
        unsafe { self.slot_of_owner(slot) }
    }

    /// The same where slots have several owners.
    ///
    /// # Safety
    /// The caller owns the slot, and has no other reference to its bytes.
    #[allow(clippy::mut_from_ref)]
    pub unsafe fn slot_of_owner(&self, slot: usize) -> &mut [u8] {
        let cells = &self.memory[slot * self.bytes..][..self.bytes];
        // SAFETY: the caller's promise; cells may be written through a shared reference.
        unsafe { std::slice::from_raw_parts_mut(UnsafeCell::raw_get(cells.as_ptr()), cells.len()) }
    }

    /// The first bytes of a slot, for the adapter.
    pub fn element(&self, slot: usize, bytes: usize) -> ibv_sge {
        assert!(bytes <= self.bytes);
        ibv_sge {
            addr: self.memory[slot * self.bytes..][..self.bytes].as_ptr() as u64,
            length: bytes as u32,
            lkey: self.registration.local_key(),
        }
    }
}

/// Descriptors of an adapter, which a forked child closes.
pub fn descriptors(adapter: &Adapter, out: &mut Vec<RawFd>) {
    // SAFETY: the context is open.
    unsafe { out.extend([(*adapter.context).cmd_fd, (*adapter.context).async_fd]) };
}

/// Bytes of a message that the processor may copy into the work itself, so that the adapter does not fetch them: enough for
/// control and short messages. More would make each entry of the queue larger.
const INLINE_BYTES: u32 = 128;

/// Makes a queue pair with this room for bytes in the work itself, or without it where the adapter has none. Also returns
/// how many bytes fit.
pub fn with_inline<T>(
    mut attributes: ibv_qp_init_attr,
    mut make: impl FnMut(&mut ibv_qp_init_attr) -> io::Result<T>,
) -> io::Result<(T, usize)> {
    let mut without = attributes;
    attributes.cap.max_inline_data = INLINE_BYTES;
    let (made, attributes) = match make(&mut attributes) {
        Ok(made) => (made, attributes),
        Err(_) => (make(&mut without)?, without),
    };
    // The call has written what there is.
    Ok((made, attributes.cap.max_inline_data as usize))
}

/// The flag for a message of so many bytes.
pub fn inline_flag(bytes: usize, inline_max: usize) -> u32 {
    if bytes <= inline_max { IBV_SEND_INLINE } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::null_mut;

    fn attributes() -> ibv_qp_init_attr {
        let cap = ibv_qp_cap {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 0,
        };
        ibv_qp_init_attr {
            qp_context: null_mut(),
            send_cq: null_mut(),
            recv_cq: null_mut(),
            srq: null_mut(),
            cap,
            qp_type: IBV_QPT_RC,
            sq_sig_all: 0,
        }
    }

    #[test]
    fn an_adapter_without_inline_data_is_used_without_it() {
        let taken = with_inline(attributes(), |a| {
            a.cap.max_inline_data += 60;
            Ok(())
        });
        assert_eq!(taken.unwrap().1, INLINE_BYTES as usize + 60, "what the adapter has is used");
        let refused = with_inline(attributes(), |a| match a.cap.max_inline_data {
            0 => Ok(()),
            _ => Err(io::ErrorKind::InvalidInput.into()),
        });
        assert_eq!(refused.unwrap().1, 0);
        assert!(with_inline(attributes(), |_| Err::<(), _>(io::Error::other("no memory"))).is_err());
        assert_eq!((inline_flag(100, 100), inline_flag(101, 100)), (IBV_SEND_INLINE, 0));
    }
}
