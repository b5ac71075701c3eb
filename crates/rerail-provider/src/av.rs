//! `struct fid_av`: address vectors. Owns: published addresses, their index, and who they are in the engine.
//!
//! An `fi_addr_t` is the index of the insertion, from 0, for both AV types, and is never given out a second time: a late
//! message for a removed peer cannot reach another one (hazard H18). The same address may be inserted several times;
//! messages from it then carry the lowest index that is left.
//!
//! Addresses can be inserted before an endpoint is enabled, so before there is an engine that could name them. The vector
//! keeps the addresses, and names them when an endpoint attaches it to a runtime.

use crate::domain;
use crate::errno::{BUSY, Errno, INVALID, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::log;
use crate::object::{Object, give, guard, guard_close, head, object, ops, refuse, take_back};
use crate::params;
use libc::{c_char, c_int, c_void};
use parking_lot::RwLock;
use rerail_core::{EndpointId, Engine};
use rerail_runtime::Runtime;
use rerail_wire::address::{ADDRESS_BYTES, Address};
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::sync::Arc;

/// What the engine knows of an address.
type Named = Option<EndpointId>;

struct Entry {
    address: Address,
    /// `None` as long as no runtime is attached.
    endpoint: Named,
}

/// The addresses of one vector.
#[derive(Default)]
struct Table {
    entries: Vec<Option<Entry>>,
    /// Lowest index of every endpoint that is in the vector.
    index: FxHashMap<EndpointId, u64>,
    runtime: Option<Arc<Runtime>>,
}

impl Table {
    fn insert(&mut self, address: Address, name: impl FnOnce(&Address) -> Named) -> u64 {
        let at = self.entries.len() as u64;
        let endpoint = name(&address);
        if let Some(e) = endpoint {
            self.index.entry(e).or_insert(at);
        }
        self.entries.push(Some(Entry { address, endpoint }));
        at
    }

    fn remove(&mut self, at: u64) -> bool {
        let slot = usize::try_from(at).ok().and_then(|i| self.entries.get_mut(i));
        let Some(gone) = slot.and_then(Option::take) else { return false };
        let Some(endpoint) = gone.endpoint else { return true };
        if self.index.get(&endpoint) == Some(&at) {
            self.index.remove(&endpoint);
            let same = |e: &Option<Entry>| e.as_ref().is_some_and(|e| e.endpoint == Some(endpoint));
            if let Some(next) = self.entries.iter().position(same) {
                self.index.insert(endpoint, next as u64);
            }
        }
        true
    }

    fn entry(&self, at: u64) -> Option<&Entry> {
        self.entries.get(usize::try_from(at).ok()?)?.as_ref()
    }

    fn name_all(&mut self, mut name: impl FnMut(&Address) -> EndpointId) {
        self.index.clear();
        for (at, entry) in self.entries.iter_mut().enumerate() {
            if let Some(entry) = entry {
                let endpoint = name(&entry.address);
                entry.endpoint = Some(endpoint);
                self.index.entry(endpoint).or_insert(at as u64);
            }
        }
    }
}

/// What endpoints and queues keep of an address vector.
pub struct Shared {
    _domain: Arc<domain::Shared>,
    table: RwLock<Table>,
    /// Bits of an `fi_addr_t` that are the index (`fi_rx_addr` puts a context into the others).
    index_mask: u64,
    /// Whether this process encrypts: it talks only to those that do as it does.
    encrypts: bool,
}

impl Shared {
    /// Whom `addr` names.
    #[inline]
    pub fn endpoint(&self, addr: fi_addr_t) -> Option<EndpointId> {
        self.table.read().entry(addr & self.index_mask)?.endpoint
    }

    /// The index of `endpoint`, FI_ADDR_NOTAVAIL when it was not inserted.
    pub fn addr_of(&self, endpoint: EndpointId) -> fi_addr_t {
        self.table.read().index.get(&endpoint).copied().unwrap_or(FI_ADDR_NOTAVAIL)
    }

    /// Names all addresses for `rt`, unless that is done.
    ///
    /// # Errors
    /// The runtime does not work any more.
    pub fn attach(&self, rt: &Arc<Runtime>) -> Result<()> {
        let mut table = self.table.write();
        if table.runtime.as_ref().is_some_and(|r| Arc::ptr_eq(r, rt)) {
            return Ok(());
        }
        rt.inspect(|engine: &mut Engine| table.name_all(|a| engine.endpoint_of(a)))?;
        table.runtime = Some(rt.clone());
        Ok(())
    }

    /// Inserts one published address.
    fn insert(&self, blob: &[u8]) -> std::result::Result<fi_addr_t, Errno> {
        let address = Address::parse(blob).map_err(|why| {
            log::complain(&format!(
                "fi_av_insert: this is no address of a process with the same version of rerail ({why}): install the same one on every node"
            ));
            INVALID
        })?;
        if address.encrypts != self.encrypts {
            let (own, other) = if self.encrypts { ("1", "0") } else { ("0", "1") };
            log::complain(&format!(
                "FI_RERAIL_ENCRYPT is {own} here and {other} in the process at {}: set it alike for all processes of the job",
                readable(blob)
            ));
            return Err(INVALID);
        }
        let mut table = self.table.write();
        let rt = table.runtime.clone();
        let name = |a: &Address| rt.and_then(|rt| rt.inspect(|e| e.endpoint_of(a)).ok());
        Ok(table.insert(address, name))
    }
}

/// An address vector.
#[repr(C)]
pub struct Av {
    fid: fid_av,
    shared: Arc<Shared>,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Av {
    const CLASS: usize = FI_CLASS_AV;
}

impl Av {
    /// What endpoints keep.
    pub fn shared(&self) -> Arc<Shared> {
        self.shared.clone()
    }
}

static FID_OPS: fi_ops = fi_ops { bind: Some(bind), ..ops(close) };
static OPS: fi_ops_av = fi_ops_av {
    size: size_of::<fi_ops_av>(),
    insert: Some(insert),
    insertsvc: Some(insertsvc),
    insertsym: Some(insertsym),
    remove: Some(remove),
    lookup: Some(lookup),
    straddr: Some(straddr),
    av_set: Some(av_set),
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
            unsafe { (object::<crate::domain::Domain, _>(domain)?.shared(), attr.as_ref().ok_or(INVALID)?) };
        // Vectors that processes share by name, insertion reported as an event, and numbers of the program's choice are
        // not there.
        if !attr.name.is_null() || attr.flags & (FI_EVENT | FI_AV_USER_ID) != 0 {
            return Err(NOT_IMPLEMENTED);
        }
        if attr.type_ > FI_AV_TABLE || !(0..=32).contains(&attr.rx_ctx_bits) {
            return Err(INVALID);
        }
        let av = Av {
            fid: fid_av { fid: head(FI_CLASS_AV, context, &FID_OPS), ops: (&raw const OPS).cast_mut() },
            shared: Arc::new(Shared {
                _domain: domain,
                table: RwLock::default(),
                index_mask: u64::MAX >> attr.rx_ctx_bits,
                encrypts: params::options()?.encrypt,
            }),
        };
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

/// An event queue may be bound; insertion is never reported through it.
unsafe extern "C" fn bind(fid: *mut fid, with: *mut fid, _flags: u64) -> c_int {
    guard(|| {
        // SAFETY: a handle of ours, and one of libfabric's.
        let (_, with): (&Av, _) = unsafe { (object(fid)?, with.as_ref().ok_or(INVALID)?) };
        if with.fclass == FI_CLASS_EQ { Ok(0) } else { Err(INVALID) }
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
        if flags & FI_AV_USER_ID != 0 {
            return Err(Errno(FI_EBADFLAGS));
        }
        let errors = if flags & FI_SYNC_ERR != 0 { context.cast::<c_int>() } else { std::ptr::null_mut() };
        let mut inserted = 0;
        for i in 0..count {
            // SAFETY: the caller passes `count` addresses of the length that `fi_getname` told, one after the other.
            let blob = unsafe {
                std::slice::from_raw_parts(addr.cast::<u8>().add(i * ADDRESS_BYTES), ADDRESS_BYTES)
            };
            let (index, error) = match av.shared.insert(blob) {
                Ok(index) => {
                    inserted += 1;
                    (index, 0)
                }
                Err(e) => (FI_ADDR_NOTAVAIL, e.0),
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
        Ok(inserted)
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
        let room = (*len).min(ADDRESS_BYTES);
        if !out.is_null() {
            // SAFETY: the caller has `len` bytes there.
            unsafe { std::ptr::copy_nonoverlapping(entry.address.to_bytes().as_ptr(), out.cast(), room) };
        }
        *len = ADDRESS_BYTES;
        Ok(0)
    })
}

/// An address for people: rails, port and endpoint. Not the token, which is a capability and must not get into logs.
pub fn readable(blob: &[u8]) -> String {
    let Ok(address) = Address::parse(blob) else { return "rerail://?".to_owned() };
    let mut text = "rerail://".to_owned();
    for (i, rail) in address.rails.iter().enumerate() {
        let _ = write!(text, "{}{rail}", if i > 0 { "," } else { "" });
    }
    let _ = write!(text, ":{}/{}", address.port, address.endpoint);
    text
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
    _av: *mut fid_av,
    addr: *const c_void,
    buf: *mut c_char,
    len: *mut usize,
) -> *const c_char {
    if addr.is_null() || len.is_null() {
        return buf;
    }
    // SAFETY: an address is ADDRESS_BYTES long; `buf` has `*len` bytes.
    guard::<Text>(|| unsafe {
        copy_text(&readable(std::slice::from_raw_parts(addr.cast::<u8>(), ADDRESS_BYTES)), buf, &mut *len);
        Ok(Text(buf))
    })
    .0
}

/// A C string as a reply.
struct Text(*const c_char);

impl crate::object::Reply for Text {
    fn failed(_: Errno) -> Self {
        Text(std::ptr::null())
    }
}

refuse! {
    fn insertsvc(*mut fid_av, *const c_char, *const c_char, *mut fi_addr_t, u64, *mut c_void) -> c_int = FI_ENOSYS;
    fn insertsym(*mut fid_av, *const c_char, usize, *const c_char, usize, *mut fi_addr_t, u64, *mut c_void) -> c_int = FI_ENOSYS;
    fn av_set(*mut fid_av, *mut fi_av_set_attr, *mut *mut fid_av_set, *mut c_void) -> c_int = FI_ENOSYS;
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_core::PeerId;
    use rerail_wire::Token;

    fn address(n: u8) -> Address {
        Address {
            token: Token([n; 16]),
            port: 7,
            endpoint: 0,
            encrypts: false,
            rails: vec!["10.0.0.1".parse().unwrap()],
        }
    }
    fn peer(n: u8) -> EndpointId {
        EndpointId { peer: PeerId(n.into()), ep: 0 }
    }
    fn add(t: &mut Table, n: u8) -> u64 {
        t.insert(address(n), |a| Some(peer(a.token.0[0])))
    }

    #[test]
    fn indices_count_up_from_zero_and_are_never_reused() {
        let mut t = Table::default();
        assert_eq!((add(&mut t, 1), add(&mut t, 2), add(&mut t, 3)), (0, 1, 2));
        assert!(t.remove(1));
        assert!(!t.remove(1), "it is gone already");
        assert!(!t.remove(99));
        assert_eq!(add(&mut t, 4), 3);
        assert!(t.entry(1).is_none());
    }

    #[test]
    fn a_duplicate_gets_its_own_index_and_messages_carry_the_lowest() {
        let mut t = Table::default();
        assert_eq!((add(&mut t, 1), add(&mut t, 2), add(&mut t, 1)), (0, 1, 2));
        assert_eq!(t.index[&peer(1)], 0);
        assert!(t.remove(0));
        assert_eq!(t.index[&peer(1)], 2);
        assert!(t.remove(2));
        assert!(!t.index.contains_key(&peer(1)));
        assert_eq!(t.index[&peer(2)], 1);
    }

    #[test]
    fn addresses_inserted_early_are_named_when_a_runtime_comes() {
        let mut t = Table::default();
        assert_eq!(t.insert(address(1), |_| None), 0);
        assert_eq!(t.insert(address(2), |_| None), 1);
        assert!(t.index.is_empty());
        t.name_all(|a| peer(a.token.0[0]));
        assert_eq!((t.index[&peer(1)], t.index[&peer(2)]), (0, 1));
        // A new runtime numbers peers anew.
        t.name_all(|a| peer(a.token.0[0] + 10));
        assert_eq!((t.index[&peer(11)], t.index.len()), (0, 2));
    }

    #[test]
    fn readable_addresses_hide_the_token() {
        let text = readable(&address(0xab).to_bytes());
        assert_eq!(text, "rerail://10.0.0.1:7/0");
        assert_eq!(readable(&[0; 56]), "rerail://?");
    }
}
