//! `struct fid_av`: address vectors. Owns: published addresses, their index, and who they are in the engine.
//!
//! An `fi_addr_t` is the index of the insertion, from 0, for both AV types, and is never given out a second time: a late
//! message for a removed peer cannot reach another one (hazard H18). The same address may be inserted several times;
//! messages from it then carry the lowest index that is left.
//!
//! Addresses can be inserted before an endpoint is enabled, so before there is an engine that could name them. The vector
//! keeps the addresses, and names them when an endpoint attaches it to a runtime.

use crate::domain;
use crate::eq;
use crate::errno::{BUSY, Errno, INVALID, NOT_IMPLEMENTED, Result};
use crate::ffi::*;
use crate::log;
use crate::names::{self, Family, Format};
use crate::object::{Object, give, guard, guard_close, head, object, ops, take_back};
use crate::params;
use libc::{c_char, c_int, c_void};
use parking_lot::RwLock;
use rerail_core::{EndpointId, Engine};
use rerail_runtime::Runtime;
use rerail_wire::Address;
use rustc_hash::FxHashMap;
use std::borrow::Cow;
use std::ffi::CStr;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

/// What the engine knows of an address.
type Named = Option<EndpointId>;

struct Entry {
    /// What the program inserted.
    inserted: Inserted,
    /// `None` as long as nobody has answered to the name.
    address: Option<Address>,
    /// `None` as long as there is no address, or no runtime is attached.
    endpoint: Named,
}

#[derive(Clone, Copy)]
enum Inserted {
    Address,
    Name(SocketAddr),
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
    fn insert(&mut self, inserted: Inserted) -> u64 {
        self.entries.push(Some(Entry { inserted, address: None, endpoint: None }));
        self.entries.len() as u64 - 1
    }

    /// What was inserted at `at` is there.
    fn place(&mut self, at: u64, address: Address, in_engine: impl FnOnce(&Address) -> Named) -> Named {
        let slot = usize::try_from(at).ok().and_then(|i| self.entries.get_mut(i));
        let entry = slot?.as_mut()?;
        entry.endpoint = in_engine(&address);
        entry.address = Some(address);
        if let Some(e) = entry.endpoint {
            let lowest = self.index.entry(e).or_insert(at);
            *lowest = at.min(*lowest);
        }
        entry.endpoint
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
            let Some(entry) = entry else { continue };
            if let Some(address) = &entry.address {
                let endpoint = name(address);
                entry.endpoint = Some(endpoint);
                self.index.entry(endpoint).or_insert(at as u64);
            }
        }
    }
}

/// What endpoints and queues keep of an address vector.
pub struct Shared {
    _domain: Arc<domain::Shared>,
    format: Format,
    table: RwLock<Table>,
    /// Bits of an `fi_addr_t` that are the index (`fi_rx_addr` puts a context into the others).
    index_mask: u64,
    /// Whether this process encrypts: it talks only to those that do as it does.
    encrypts: bool,
}

impl Shared {
    /// Whom `addr` names. Waits only for a name that nobody has answered to yet.
    #[inline]
    pub fn endpoint(&self, addr: fi_addr_t) -> Option<EndpointId> {
        let at = addr & self.index_mask;
        let table = self.table.read();
        let entry = table.entry(at)?;
        match (entry.endpoint, entry.inserted) {
            (None, Inserted::Name(name)) if entry.address.is_none() => {
                drop(table);
                self.find(at, name)
            }
            (endpoint, _) => endpoint,
        }
    }

    /// Asks for a name that nobody answered to when it was inserted.
    #[cold]
    fn find(&self, at: u64, name: SocketAddr) -> Named {
        let Ok(Some(address)) = names::ask(name, names::PATIENCE) else {
            log::complain(&format!("no endpoint answers at {name}"));
            return None;
        };
        self.check(&address).ok()?;
        self.place(&mut self.table.write(), at, address)
    }

    fn place(&self, table: &mut Table, at: u64, address: Address) -> Named {
        let rt = table.runtime.clone();
        table.place(at, address, |a| rt.and_then(|rt| rt.inspect(|e| e.endpoint_of(a)).ok()))
    }

    /// The index of `endpoint`, FI_ADDR_NOTAVAIL when it was not inserted.
    pub fn addr_of(&self, endpoint: EndpointId) -> fi_addr_t {
        self.table.read().index.get(&endpoint).copied().unwrap_or(FI_ADDR_NOTAVAIL)
    }

    /// Whether there is an address of this index.
    pub fn holds(&self, addr: fi_addr_t) -> bool {
        self.table.read().entry(addr & self.index_mask).is_some()
    }

    /// The indices from `first` to `last`, both included, in steps of `stride`, at which there is an address.
    pub fn within(&self, first: u64, last: u64, stride: u64) -> Vec<fi_addr_t> {
        let table = self.table.read();
        let last = last.min((table.entries.len() as u64).saturating_sub(1));
        let stride = usize::try_from(stride).unwrap_or(usize::MAX).max(1);
        (first..=last).step_by(stride).filter(|&at| table.entry(at).is_some()).collect()
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

    /// Inserts one address as the program has it: a published one, or a name. Who does not answer to that soon is looked for
    /// again when the address is used.
    fn insert(&self, blob: &[u8]) -> Result<fi_addr_t> {
        let (inserted, address) = match self.format {
            Format::Own => (Inserted::Address, Some(self.parse(blob)?)),
            Format::Name(_) => {
                let name = self.format.parse(blob).filter(|n| n.port() != 0).ok_or(INVALID)?;
                (Inserted::Name(name), names::ask(name, names::PATIENCE_TO_INSERT)?)
            }
        };
        if let Some(address) = &address {
            self.check(address)?;
        }
        let mut table = self.table.write();
        let at = table.insert(inserted);
        if let Some(address) = address {
            self.place(&mut table, at, address);
        }
        Ok(at)
    }

    fn parse(&self, blob: &[u8]) -> Result<Address> {
        Address::parse(blob).map_err(|why| {
            log::complain(&format!(
                "fi_av_insert: this is no address of a process with the same version of rerail ({why}): install the same one on every node"
            ));
            INVALID
        })
    }

    /// Whether it encrypts as we do.
    fn check(&self, address: &Address) -> Result<()> {
        if address.encrypts != self.encrypts {
            let (own, other) = if self.encrypts { ("1", "0") } else { ("0", "1") };
            log::complain(&format!(
                "FI_RERAIL_ENCRYPT is {own} here and {other} in the process at {}: set it alike for all processes of the job",
                readable(&address.to_bytes())
            ));
            return Err(INVALID);
        }
        Ok(())
    }
}

/// An address vector.
#[repr(C)]
pub struct Av {
    fid: fid_av,
    shared: Arc<Shared>,
    /// Insertions are reported as events.
    events: bool,
    /// Where.
    eq: OnceLock<Arc<eq::Shared>>,
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
    av_set: Some(crate::av_set::open),
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
            unsafe { (object::<crate::domain::Domain, _>(domain)?.shared(), attr.as_mut().ok_or(INVALID)?) };
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
            attr.type_ = FI_AV_TABLE; // fi_av(3): who leaves it open is told
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
        // before anybody is asked, and before there is memory for all of them
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
            // There before the call returns: whatever had to be asked was asked in it.
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

/// An address for people: rails, port and endpoint. Not the token, which is a capability and must not get into logs.
pub fn readable(blob: &[u8]) -> String {
    let Ok(address) = Address::parse(blob) else { return "rerail://?".to_owned() };
    let mut text = "rerail://".to_owned();
    for (i, rail) in address.rails.iter().enumerate() {
        let between = if i > 0 { "," } else { "" };
        let _ = match rail.socket() {
            Some(at) => write!(text, "{between}{}", at.ip()),
            None => write!(text, "{between}{rail}"),
        };
    }
    let _ = write!(text, ":{}/{}", address.rails[0].service(), address.endpoint);
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

impl crate::object::Reply for Text {
    fn failed(_: Errno) -> Self {
        Text(std::ptr::null())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_core::PeerId;
    use rerail_wire::Token;

    fn address(n: u8) -> Address {
        Address {
            token: Token([n; 16]),
            endpoint: 0,
            encrypts: false,
            rails: vec![rerail_core::Locator::ip([10, 0, 0, 1].into(), 7)],
        }
    }
    fn peer(n: u8) -> EndpointId {
        EndpointId { peer: PeerId(n.into()), ep: 0 }
    }
    fn add(t: &mut Table, n: u8) -> u64 {
        let at = t.insert(Inserted::Address);
        t.place(at, address(n), |a| Some(peer(a.token.0[0])));
        at
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
        for n in [1, 2] {
            let at = t.insert(Inserted::Address);
            assert_eq!(t.place(at, address(n), |_| None), None);
        }
        assert!(t.index.is_empty());
        t.name_all(|a| peer(a.token.0[0]));
        assert_eq!((t.index[&peer(1)], t.index[&peer(2)]), (0, 1));
        // A new runtime numbers peers anew.
        t.name_all(|a| peer(a.token.0[0] + 10));
        assert_eq!((t.index[&peer(11)], t.index.len()), (0, 2));
    }

    #[test]
    fn who_is_found_late_has_the_place_that_was_kept() {
        let mut t = Table::default();
        let at = t.insert(Inserted::Name("10.0.0.1:7".parse().unwrap()));
        assert_eq!((at, add(&mut t, 1)), (0, 1));
        assert_eq!(t.index[&peer(1)], 1);
        t.name_all(|a| peer(a.token.0[0]));
        assert_eq!(t.place(at, address(1), |_| Some(peer(1))), Some(peer(1)));
        assert_eq!(t.index[&peer(1)], 0, "the lowest");
        assert!(t.remove(at));
        assert_eq!((t.place(at, address(1), |_| Some(peer(1))), t.index[&peer(1)]), (None, 1), "too late");
    }

    #[test]
    fn readable_addresses_hide_the_token() {
        let text = readable(&address(0xab).to_bytes());
        assert_eq!(text, "rerail://10.0.0.1:7/0");
        assert_eq!(readable(&[0; 56]), "rerail://?");
    }
}
