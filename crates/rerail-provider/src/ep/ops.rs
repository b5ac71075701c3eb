//! The calls of an endpoint: opening, binding, options (`struct fi_ops_ep`), its name (`struct fi_ops_cm`). Those that move data have a
//! file for each of their tables.

use super::{Ep, Side};
use crate::errno::{BAD_STATE, BUSY, Errno, INVALID, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::names::{self, Family, Format};
use crate::object::{give, guard, guard_close, head, object, ops, refuse, take_back};
use crate::{atomic, av, caps, cntr, collective, cq, domain, eq, limits, log, mc, msg, rma, tagged};
use libc::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Free space below which a multi-receive buffer is given back, unless the program sets its own (FI_OPT_MIN_MULTI_RECV).
const MULTI_RECV_MIN_DEFAULT: usize = 64;

static FID_OPS: fi_ops = fi_ops { bind: Some(bind), control: Some(control), ..ops(close) };
static OPS: fi_ops_ep = fi_ops_ep {
    size: size_of::<fi_ops_ep>(),
    cancel: Some(cancel),
    getopt: Some(getopt),
    setopt: Some(setopt),
    tx_ctx: Some(tx_ctx),
    rx_ctx: Some(rx_ctx),
    rx_size_left: Some(rx_size_left),
    tx_size_left: Some(tx_size_left),
};
static CM_OPS: fi_ops_cm = fi_ops_cm {
    size: size_of::<fi_ops_cm>(),
    setname: Some(setname),
    getname: Some(getname),
    getpeer: Some(getpeer),
    connect: Some(connect),
    listen: Some(listen),
    accept: Some(accept),
    reject: Some(reject),
    shutdown: Some(shutdown),
    join: Some(mc::join),
};

fn handle(context: *mut c_void) -> fid_ep {
    fid_ep {
        fid: head(FI_CLASS_EP, context, &FID_OPS),
        ops: (&raw const OPS).cast_mut(),
        cm: (&raw const CM_OPS).cast_mut(),
        msg: (&raw const msg::OPS).cast_mut(),
        rma: (&raw const rma::OPS).cast_mut(),
        tagged: (&raw const tagged::OPS).cast_mut(),
        atomic: (&raw const atomic::OPS).cast_mut(),
        collective: (&raw const collective::OPS).cast_mut(),
    }
}

impl Ep {
    /// An alias: the flags name the direction, and are then the default flags of that direction.
    fn another(&self, flags: u64) -> Result<Ep> {
        let flags_of =
            |own: u64, direction: u64| if flags & direction == 0 { own } else { flags & !direction };
        if (flags & FI_TRANSMIT == 0) == (flags & FI_RECV == 0) {
            return Err(Errno(FI_EBADFLAGS));
        }
        Ok(Ep {
            fid: handle(self.fid.fid.context),
            domain: self.domain.clone(),
            source: self.source,
            caps: self.caps,
            inject_bytes: self.inject_bytes,
            queue_entries: self.queue_entries,
            tx_flags: AtomicU64::new(flags_of(self.tx_flags(), FI_TRANSMIT)),
            rx_flags: AtomicU64::new(flags_of(self.rx_flags(), FI_RECV)),
            multi_recv_min: self.multi_recv_min.clone(),
            bound: self.bound.clone(),
            active: self.active.clone(),
            alias: true,
        })
    }
}

/// `fi_endpoint`.
pub unsafe extern "C" fn open(
    domain: *mut fid_domain,
    info: *mut fi_info,
    out: *mut *mut fid_ep,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, the caller's info, and what hangs from it.
        let (domain, info, tx, rx, ep) = unsafe {
            let info = info.as_ref().ok_or(INVALID)?;
            let (tx, rx, ep) = (info.tx_attr.as_ref(), info.rx_attr.as_ref(), info.ep_attr.as_ref());
            (object::<domain::Domain, _>(domain)?.shared(), info, tx, rx, ep)
        };
        if ep.is_some_and(|e| !matches!(e.type_, FI_EP_UNSPEC | FI_EP_RDM)) {
            return Err(INVALID);
        }
        if info.caps & !caps::CAPS != 0 {
            return Err(Errno(FI_EOPNOTSUPP));
        }
        let or = |wish: usize, default: usize| if wish == 0 { default } else { wish };
        if Format::of(info.addr_format).is_none_or(|f| info.addr_format != 0 && f != domain.format) {
            return Err(INVALID);
        }
        // SAFETY: the caller's address, of this length.
        let source = unsafe { names::read(info.src_addr, info.src_addrlen) };
        let source = source.filter(|s| domain.format == Format::Name(Family::of(s.ip())));
        let inject_bytes = or(tx.map_or(0, |t| t.inject_size), limits::INJECT_BYTES);
        if inject_bytes > limits::INJECT_BYTES_MAX {
            return Err(INVALID);
        }
        let ep = Ep {
            fid: handle(context),
            domain,
            source,
            caps: caps::all_named(info.caps),
            inject_bytes,
            queue_entries: (
                or(tx.map_or(0, |t| t.size), limits::QUEUE_ENTRIES),
                or(rx.map_or(0, |r| r.size), limits::QUEUE_ENTRIES),
            ),
            // As the program has them: what it puts here itself, it gets (H14 is about what `fi_getinfo` echoes).
            tx_flags: AtomicU64::new(tx.map_or(0, |t| t.op_flags)),
            rx_flags: AtomicU64::new(rx.map_or(0, |r| r.op_flags)),
            multi_recv_min: Arc::new(AtomicUsize::new(MULTI_RECV_MIN_DEFAULT)),
            bound: Arc::default(),
            active: Arc::default(),
            alias: false,
        };
        // SAFETY: the caller's place for the handle.
        unsafe { give(ep, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Ep>(fid, || {
        // SAFETY: a handle of ours.
        let ep: &Ep = unsafe { object(fid) }?;
        if !ep.alias && Arc::strong_count(&ep.active) > 1 {
            return Err(BUSY);
        }
        // SAFETY: the caller gives it up.
        let ep = unsafe { take_back::<Ep, _>(fid) }?;
        if let Some(active) = ep.active.get().filter(|_| !ep.alias) {
            active.leave();
        }
        Ok(0)
    })
}

unsafe extern "C" fn bind(fid: *mut fid, with: *mut fid, flags: u64) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and one of libfabric's.
        let (ep, class): (&Ep, _) = unsafe { (object(fid)?, with.as_ref().ok_or(INVALID)?.fclass) };
        if ep.active.get().is_some() {
            return Err(BAD_STATE);
        }
        let mut bound = ep.bound.lock();
        match class {
            FI_CLASS_AV => {
                // SAFETY: the class says so.
                bound.av = Some(unsafe { object::<av::Av, _>(with) }?.shared());
            }
            FI_CLASS_CQ => {
                if flags & (FI_TRANSMIT | FI_RECV) == 0 {
                    return Err(Errno(FI_EBADFLAGS));
                }
                // SAFETY: the class says so.
                let cq = unsafe { object::<cq::Cq, _>(with) }?.shared();
                let side = Side { cq, selective: flags & FI_SELECTIVE_COMPLETION != 0 };
                if flags & FI_TRANSMIT != 0 {
                    bound.tx = Some(side.clone());
                }
                if flags & FI_RECV != 0 {
                    bound.rx = Some(side);
                }
            }
            FI_CLASS_CNTR => {
                const COUNTED: u64 =
                    FI_SEND | FI_RECV | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE;
                if flags & !COUNTED != 0 {
                    let call = "fi_ep_bind of a counter";
                    return Err(log::refused(call, flags & !COUNTED, Errno(FI_EBADFLAGS)));
                }
                if flags == 0 {
                    return Err(Errno(FI_EBADFLAGS));
                }
                // SAFETY: the class says so.
                let counter = unsafe { object::<cntr::Cntr, _>(with) }?.shared();
                bound.counters.push((counter, flags));
            }
            FI_CLASS_EQ => {
                // SAFETY: the class says so.
                let eq = unsafe { object::<eq::Eq, _>(with) }?.shared();
                // Without groups nothing is ever reported, and the queue may be closed first.
                bound.eq = Some(eq).filter(|_| ep.caps & FI_COLLECTIVE != 0);
            }
            _ => return Err(INVALID),
        }
        Ok(0)
    })
}

unsafe extern "C" fn control(fid: *mut fid, command: c_int, arg: *mut c_void) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let ep: &Ep = unsafe { object(fid) }?;
        match command {
            FI_ENABLE => ep.enable(),
            FI_ALIAS => {
                // SAFETY: the command comes with this structure.
                let wish = unsafe { arg.cast::<fi_alias>().as_ref() }.ok_or(INVALID)?;
                // SAFETY: the caller's place for the handle.
                unsafe { give(ep.another(wish.flags)?, wish.fid) }
            }
            FI_GETOPSFLAG | FI_SETOPSFLAG => {
                // SAFETY: both commands come with a number.
                let arg = unsafe { arg.cast::<u64>().as_mut() }.ok_or(INVALID)?;
                let direction = *arg & (FI_TRANSMIT | FI_RECV);
                let flags = match direction {
                    FI_TRANSMIT => &ep.tx_flags,
                    FI_RECV => &ep.rx_flags,
                    _ => return Err(INVALID),
                };
                if command == FI_GETOPSFLAG {
                    *arg = flags.load(Ordering::Relaxed);
                } else {
                    flags.store(*arg & !direction, Ordering::Relaxed);
                }
                Ok(0)
            }
            _ => Err(NOT_IMPLEMENTED),
        }
    })
}

unsafe extern "C" fn cancel(fid: *mut fid, context: *mut c_void) -> isize {
    guard(|| {
        // SAFETY: a handle of ours.
        let active = unsafe { object::<Ep, _>(fid) }?.active()?;
        let found = active.rt.with(|e, _| e.cancel(active.id, context as usize))?;
        if found { Ok(0) } else { Err(Errno(FI_ENOENT)) }
    })
}

/// Writes a `size_t` option.
///
/// # Safety
/// `value` is null or has `*len` bytes.
unsafe fn give_size(size: usize, value: *mut c_void, len: *mut usize) -> Result<c_int> {
    if value.is_null() || len.is_null() {
        return Err(INVALID);
    }
    // SAFETY: checked for null; the caller's promise for the length.
    unsafe {
        let room = *len;
        *len = size_of::<usize>();
        if room < size_of::<usize>() {
            return Err(Errno(FI_ETOOSMALL));
        }
        value.cast::<usize>().write_unaligned(size);
    }
    Ok(0)
}

unsafe extern "C" fn getopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut usize,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let ep: &Ep = unsafe { object(fid) }?;
        let size = match (level, name) {
            (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) => ep.multi_recv_min.load(Ordering::Relaxed),
            // No connections, so no data with them.
            (FI_OPT_ENDPOINT, FI_OPT_CM_DATA_SIZE) => 0,
            (FI_OPT_ENDPOINT, FI_OPT_TX_SIZE) => ep.queue_entries.0,
            (FI_OPT_ENDPOINT, FI_OPT_RX_SIZE) => ep.queue_entries.1,
            _ => return Err(Errno(FI_ENOPROTOOPT)),
        };
        // SAFETY: the caller's room.
        unsafe { give_size(size, value, len) }
    })
}

unsafe extern "C" fn setopt(
    fid: *mut fid,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: usize,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let ep: &Ep = unsafe { object(fid) }?;
        if (level, name) != (FI_OPT_ENDPOINT, FI_OPT_MIN_MULTI_RECV) {
            return Err(Errno(FI_ENOPROTOOPT));
        }
        if value.is_null() || len != size_of::<usize>() {
            return Err(INVALID);
        }
        // SAFETY: checked for null and length.
        let bytes = unsafe { value.cast::<usize>().read_unaligned() };
        ep.multi_recv_min.store(bytes, Ordering::Relaxed);
        if let Some(active) = ep.active.get() {
            active.rt.inspect(|e| e.set_multi_recv_min(active.id, bytes))?;
        }
        Ok(0)
    })
}

/// The address to publish. The usual two steps: with too little room the call says how much is needed.
unsafe extern "C" fn getname(fid: *mut fid, addr: *mut c_void, len: *mut usize) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and the caller's length.
        let (ep, len): (&Ep, _) = unsafe { (object(fid)?, len.as_mut().ok_or(INVALID)?) };
        let active = ep.active()?;
        let bytes = ep.domain.format.bytes();
        let room = std::mem::replace(len, bytes);
        if room < bytes || addr.is_null() {
            return Err(Errno(FI_ETOOSMALL));
        }
        let blob: &[u8] = match &active.name {
            None => &active.rt.inspect(|e| e.address(active.id))?.to_bytes(),
            Some((_, called)) => &names::to_bytes(*called),
        };
        // SAFETY: there is room for it.
        unsafe { std::ptr::copy_nonoverlapping(blob.as_ptr(), addr.cast(), bytes) };
        Ok(0)
    })
}

unsafe extern "C" fn tx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: a handle of ours.
    guard(|| Ok(unsafe { object::<Ep, _>(ep) }?.queue_entries.0 as isize))
}

unsafe extern "C" fn rx_size_left(ep: *mut fid_ep) -> isize {
    // SAFETY: a handle of ours.
    guard(|| Ok(unsafe { object::<Ep, _>(ep) }?.queue_entries.1 as isize))
}

refuse! {
    fn tx_ctx(*mut fid_ep, c_int, *mut fi_tx_attr, *mut *mut fid_ep, *mut c_void) -> c_int = FI_ENOSYS;
    fn rx_ctx(*mut fid_ep, c_int, *mut fi_rx_attr, *mut *mut fid_ep, *mut c_void) -> c_int = FI_ENOSYS;
    fn setname(*mut fid, *mut c_void, usize) -> c_int = FI_ENOSYS;
    fn getpeer(*mut fid_ep, *mut c_void, *mut usize) -> c_int = FI_ENOSYS;
    fn connect(*mut fid_ep, *const c_void, *const c_void, usize) -> c_int = FI_ENOSYS;
    fn listen(*mut fid_pep) -> c_int = FI_ENOSYS;
    fn accept(*mut fid_ep, *const c_void, usize) -> c_int = FI_ENOSYS;
    fn reject(*mut fid_pep, *mut fid, *const c_void, usize) -> c_int = FI_ENOSYS;
    fn shutdown(*mut fid_ep, u64) -> c_int = FI_ENOSYS;
}
