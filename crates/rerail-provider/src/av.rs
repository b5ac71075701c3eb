//! `struct fid_av`: address vectors. Owns: published addresses, their index, and their endpoints in the engine.
//!
//! An `fi_addr_t` is the index of the insertion, from 0, for both AV types, and is never given out a second time: a late
//! message for a removed peer cannot reach another one (hazard H18). The same address may be inserted several times;
//! messages from it then carry the lowest index that is left.
//!
//! Addresses can be inserted before an endpoint is enabled, so before there is an engine that could name them. The vector
//! keeps the addresses, and names them when an endpoint attaches it to a runtime.

pub mod ops;

use crate::errno::{INVALID, Result};
use crate::ffi::*;
use crate::names::{self, Format};
use crate::object::Object;
use crate::{domain, eq, log};
use parking_lot::RwLock;
use rerail_core::{EndpointId, Engine};
use rerail_runtime::Runtime;
use rerail_wire::Address;
use rustc_hash::FxHashMap;
use std::fmt::Write;
use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};

/// What the engine knows of an address.
type Named = Option<EndpointId>;

struct Entry {
    /// What the program inserted.
    inserted: Inserted,
    /// `None` until an endpoint has answered to the name.
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

    /// The address of what was inserted at `at` is known.
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
    /// Whether this process encrypts: it connects only to processes with the same setting.
    encrypts: bool,
}

impl Shared {
    /// The endpoint that `addr` names. Waits only for a name that no endpoint has answered to yet.
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

    /// Queries a name that no endpoint answered to when it was inserted.
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

    /// Inserts one address as the program has it: a published one, or a name. A name without a prompt answer is queried
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

/// An address for people: rails, port and endpoint. Not the token, which is a capability and must not get into logs.
fn readable(blob: &[u8]) -> String {
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
        // A new runtime gives peers new numbers.
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
