//! The calls of an address vector.

use super::{Av, Inserted, Shared, readable};
use crate::errno::{BUSY, Errno, INVALID, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::names::{self, Family, Format};
use crate::object::{Reply, give, guard, guard_close, head, object, ops, take_back};
use crate::{av_set, domain, eq, log, params};
use libc::{c_char, c_int, c_void};
use parking_lot::RwLock;
use std::borrow::Cow;
use std::ffi::CStr;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

static FID_OPS: fi_ops = fi_ops { bind: Some(bind), ..ops(close) };
static OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: Some(av_set::open),
};

/// `fi_av_open`.
pub unsafe extern "C" fn open(
    domain: *mut fid_domain,
    attr: *mut fi_av_attr,
    out: *mut *mut fid_av,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and the caller's attributes.
        let (domain, attr) =
            unsafe { (object::<domain::Domain, _>(domain)?.shared(), attr.as_mut().ok_or(INVALID)?) };
        // Vectors that processes share by name, and numbers of the program's choice, are not there.
        if !attr.name.is_null() {
            return Err(NOT_IMPLEMENTED);
        }
        if attr.flags & FI_AV_USER_ID != 0 {
            return Err(log::refused("fi_av_open", FI_AV_USER_ID, NOT_IMPLEMENTED));
        }
        if attr.type_ > FI_AV_TABLE || !(0..=32).contains(&attr.rx_ctx_bits) {
            return Err(INVALID);
        }
        let av = Av {
            fid: fid_av { fid: head(FI_CLASS_AV, context, &FID_OPS), ops: (&raw const OPS).cast_mut() },
            shared: Arc::new(Shared {
                format: domain.format,
                _domain: domain,
                table: RwLock::default(),
                index_mask: u64::MAX >> attr.rx_ctx_bits,
                encrypts: params::options()?.encrypt,
            }),
            events: attr.flags & FI_EVENT != 0,
            eq: OnceLock::new(),
        };
        if attr.type_ == FI_AV_UNSPEC {
            attr.type_ = FI_AV_TABLE; // fi_av(3): an open choice is returned
        }
        // SAFETY: the caller's place for the handle.
        unsafe { give(av, out) }
    })
}

unsafe extern "C" fn close(fid: *mut fid) -> c_int {
    guard_close::<Av>(fid, || {
        // SAFETY: a handle of ours.
        let av: &Av = unsafe { object(fid) }?;
        if Arc::strong_count(&av.shared) > 1 {
            return Err(BUSY);
        }
        // SAFETY: nothing depends on it, and the caller gives it up.
        drop(unsafe { take_back::<Av, _>(fid) }?);
        Ok(0)
    })
}

/// An event queue: insertions are reported through it if the vector was opened with FI_EVENT.
unsafe extern "C" fn bind(fid: *mut fid, with: *mut fid, _flags: u64) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and one of libfabric's.
        let (av, eq): (&Av, &eq::Eq) = unsafe { (object(fid)?, object(with)?) };
        if av.events {
            av.eq.set(eq.shared()).map_err(|_| INVALID)?;
        }
        Ok(0)
    })
}

/// The host and the service that a caller names, and the kind of address that is meant; only where endpoints have names.
///
/// # Safety
/// What is not null is a handle of ours and C strings.
unsafe fn named<'a>(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
) -> Result<(Cow<'a, str>, Cow<'a, str>, Family)> {
    // SAFETY: the caller's promise.
    let Format::Name(family) = unsafe { object::<Av, _>(av) }?.shared.format else {
        return Err(NOT_IMPLEMENTED);
    };
    if node.is_null() || service.is_null() {
        return Err(INVALID);
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { (CStr::from_ptr(node).to_string_lossy(), CStr::from_ptr(service).to_string_lossy(), family) })
}

/// Inserts an endpoint by host and port.
unsafe extern "C" fn insertsvc(
    av: *mut fid_av,
    node: *const c_char,
    service: *const c_char,
    out: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's arguments.
        let (node, service, family) = unsafe { named(av, node, service) }?;
        let blob = names::to_bytes(names::resolve(&node, Some(&service), family)?);
        // SAFETY: one address, and the caller's other arguments.
        Ok(unsafe { insert(av, blob.as_ptr().cast(), 1, out, flags, context) })
    })
}

/// Inserts endpoints at consecutive hosts, each with consecutive ports.
unsafe extern "C" fn insertsym(
    av: *mut fid_av,
    node: *const c_char,
    nodes: usize,
    service: *const c_char,
    services: usize,
    out: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: the caller's arguments.
        let (node, service, family) = unsafe { named(av, node, service) }?;
        let first: u16 = service.parse().map_err(|_| INVALID)?;
        let beyond = usize::from(first).checked_add(services).filter(|&p| p <= 1 << 16);
        let ports = beyond.map(|p| first as usize..p).ok_or(INVALID)?;
        // before any host is queried, and before memory for all of them is allocated
        if nodes > 0 && names::later_host(&node, nodes - 1).is_none() {
            return Err(INVALID);
        }
        let mut blobs = Vec::new();
        for i in 0..nodes {
            let host = names::resolve(&names::later_host(&node, i).ok_or(INVALID)?, None, family)?;
            for port in ports.clone() {
                blobs.extend(names::to_bytes(SocketAddr::new(host.ip(), port as u16)));
            }
        }
        let count = blobs.len() / Format::Name(family).bytes();
        // SAFETY: `count` addresses, and the caller's other arguments.
        Ok(unsafe { insert(av, blobs.as_ptr().cast(), count, out, flags, context) })
    })
}

unsafe extern "C" fn insert(
    av: *mut fid_av,
    addr: *const c_void,
    count: usize,
    out: *mut fi_addr_t,
    flags: u64,
    context: *mut c_void,
) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let av: &Av = unsafe { object(av) }?;
        if (addr.is_null() && count > 0) || c_int::try_from(count).is_err() {
            return Err(INVALID);
        }
        let unwanted = flags & (FI_AV_USER_ID | if av.events { FI_SYNC_ERR } else { 0 });
        if unwanted != 0 {
            return Err(log::refused("fi_av_insert", unwanted, Errno(FI_EBADFLAGS)));
        }
        let eq = if av.events { Some(av.eq.get().ok_or(Errno(FI_ENOEQ))?) } else { None };
        let errors = if flags & FI_SYNC_ERR != 0 { context.cast::<c_int>() } else { std::ptr::null_mut() };
        let mut inserted = 0;
        for i in 0..count {
            let bytes = av.shared.format.bytes();
            // SAFETY: the caller passes `count` addresses of the length that `fi_getname` told, one after the other.
            let blob = unsafe { std::slice::from_raw_parts(addr.cast::<u8>().add(i * bytes), bytes) };
            let (index, error) = match av.shared.insert(blob) {
                Ok(index) => {
                    inserted += 1;
                    (index, 0)
                }
                Err(e) => {
                    if let Some(eq) = eq {
                        let (fid, context) = (&raw const av.fid as usize, context as usize);
                        eq.report_failure(eq::Failure {
                            fid,
                            context,
                            data: i as u64,
                            error: e,
                            prov_errno: 0,
                        });
                    }
                    (FI_ADDR_NOTAVAIL, e.0)
                }
            };
            if !out.is_null() {
                // SAFETY: the caller's array of `count` places.
                unsafe { out.add(i).write(index) };
            }
            if !errors.is_null() {
                // SAFETY: with FI_SYNC_ERR the context is an array of `count` numbers.
                unsafe { errors.add(i).write(error) };
            }
        }
        if let Some(eq) = eq {
            // Reported before the call returns: it has made all queries.
            eq.report(FI_AV_COMPLETE, &raw const av.fid as usize, context as usize, inserted);
            return Ok(0);
        }
        Ok(inserted as c_int)
    })
}

unsafe extern "C" fn remove(av: *mut fid_av, addr: *mut fi_addr_t, count: usize, _flags: u64) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours.
        let av: &Av = unsafe { object(av) }?;
        if addr.is_null() && count > 0 {
            return Err(INVALID);
        }
        let mut table = av.shared.table.write();
        let mut all_there = true;
        for i in 0..count {
            // SAFETY: the caller's array of `count` addresses.
            let at = unsafe { addr.add(i).read() };
            all_there &= table.remove(at & av.shared.index_mask);
        }
        if all_there { Ok(0) } else { Err(INVALID) }
    })
}

unsafe extern "C" fn lookup(av: *mut fid_av, addr: fi_addr_t, out: *mut c_void, len: *mut usize) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and the caller's length.
        let (av, len): (&Av, _) = unsafe { (object(av)?, len.as_mut().ok_or(INVALID)?) };
        let table = av.shared.table.read();
        let entry = table.entry(addr & av.shared.index_mask).ok_or(INVALID)?;
        let whole: &[u8] = match (entry.inserted, &entry.address) {
            (Inserted::Name(name), _) => &names::to_bytes(name),
            (Inserted::Address, address) => &address.as_ref().ok_or(INVALID)?.to_bytes(),
        };
        let room = (*len).min(whole.len());
        if !out.is_null() {
            // SAFETY: the caller has `len` bytes there.
            unsafe { std::ptr::copy_nonoverlapping(whole.as_ptr(), out.cast(), room) };
        }
        *len = whole.len();
        Ok(0)
    })
}

/// Copies `text` as a C string, cut to the room there is; `len` becomes the room that it needs.
///
/// # Safety
/// `buf` is null or has `*len` bytes.
unsafe fn copy_text(text: &str, buf: *mut c_char, len: &mut usize) {
    if !buf.is_null() && *len > 0 {
        let n = text.len().min(*len - 1);
        // SAFETY: `n + 1` bytes are within the caller's room.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buf.cast(), n);
            buf.add(n).write(0);
        }
    }
    *len = text.len() + 1;
}

unsafe extern "C" fn straddr(
    av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    if addr.is_null() || len.is_null() {
        return buf;
    }
    // SAFETY: a handle of ours; an address has the length of its format; `buf` has `*len` bytes.
    guard::<Text>(|| unsafe {
        let format = object::<Av, _>(av)?.shared.format;
        let blob = std::slice::from_raw_parts(addr.cast::<u8>(), format.bytes());
        let text = match format {
            Format::Own => readable(blob),
            // As libfabric writes them.
            Format::Name(family) => {
                let kind = match family {
                    Family::V4 => "fi_sockaddr_in",
                    Family::V6 => "fi_sockaddr_in6",
                };
                format.parse(blob).map_or_else(|| format!("{kind}://?"), |n| format!("{kind}://{n}"))
            }
        };
        copy_text(&text, buf, &mut *len);
        Ok(Text(buf))
    })
    .0
}

/// A C string as a reply.
struct Text(*const c_char);

impl Reply for Text {
    fn failed(_: Errno) -> Self {
        Text(std::ptr::null())
    }
}
