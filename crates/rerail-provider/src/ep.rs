//! `struct fid_ep`: endpoints. Owns: what is bound to an endpoint, and its defaults; once enabled, its place in the engine.
//!
//! libfabric has calls that change an endpoint (bind, enable, setopt, close) serialised by the program against all others,
//! so the state after enabling is a value that is set once, and posting an operation takes no lock here.

pub mod ops;

use crate::errno::{BAD_STATE, Errno, Result};
use crate::ffi::*;
use crate::names::{Family, Format, Name};
use crate::object::Object;
use crate::{av, cntr, cq, domain, eq, log, world};
use libc::c_int;
use parking_lot::Mutex;
use rerail_core::{CqId, EpId};
use rerail_runtime::{Runtime, RuntimeError};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

/// An endpoint.
#[repr(C)]
pub struct Ep {
    fid: fid_ep,
    domain: Arc<domain::Shared>,
    /// Where it is to be found, if the program cares.
    source: Option<SocketAddr>,
    /// Capabilities the program opened it with.
    pub caps: u64,
    /// Largest injected message.
    pub inject_bytes: usize,
    queue_entries: (usize, usize),
    tx_flags: AtomicU64,
    rx_flags: AtomicU64,
    /// This and what follows an endpoint shares with its aliases.
    multi_recv_min: Arc<AtomicUsize>,
    bound: Arc<Mutex<Bound>>,
    active: Arc<OnceLock<Active>>,
    /// Another handle of an endpoint, with default flags of its own.
    alias: bool,
}

// SAFETY: `repr(C)`, the fid first.
unsafe impl Object for Ep {
    const CLASS: usize = FI_CLASS_EP;
}

/// What is bound, until the endpoint is enabled.
#[derive(Default)]
struct Bound {
    av: Option<Arc<av::Shared>>,
    tx: Option<Side>,
    rx: Option<Side>,
    /// Each with what it counts: FI_SEND, FI_RECV, FI_READ, …
    counters: Vec<(Arc<cntr::Shared>, u64)>,
    /// Only for endpoints with FI_COLLECTIVE.
    eq: Option<Arc<eq::Shared>>,
}

/// The queue of one direction.
#[derive(Clone)]
pub struct Side {
    cq: Arc<cq::Shared>,
    /// Only operations that ask for a completion get one.
    selective: bool,
}

/// An enabled endpoint.
pub struct Active {
    /// The runtime.
    pub rt: Arc<Runtime>,
    /// Its name in the engine.
    pub id: EpId,
    /// Its peers.
    pub av: Arc<av::Shared>,
    /// Where it is told of groups that are made; only with FI_COLLECTIVE.
    pub eq: Option<Arc<eq::Shared>>,
    tx: Option<Side>,
    rx: Option<Side>,
    counters: Vec<(Arc<cntr::Shared>, u64)>,
    /// The queue for a direction that has none.
    hidden: Option<CqId>,
    /// What it is found by, where endpoints have names.
    name: Option<(Name, SocketAddr)>,
}

impl Ep {
    /// The enabled endpoint.
    #[inline(always)]
    pub fn active(&self) -> Result<&Active> {
        self.active.get().ok_or(BAD_STATE)
    }

    /// The enabled endpoint, for as long as it is not closed.
    pub fn watch(&self) -> Weak<OnceLock<Active>> {
        Arc::downgrade(&self.active)
    }

    /// Flags of sends that bring none of their own.
    #[inline(always)]
    pub fn tx_flags(&self) -> u64 {
        self.tx_flags.load(Ordering::Relaxed)
    }

    /// Flags of receives that bring none of their own.
    #[inline(always)]
    pub fn rx_flags(&self) -> u64 {
        self.rx_flags.load(Ordering::Relaxed)
    }

    fn enable(&self) -> Result<c_int> {
        if self.active.get().is_some() {
            return Ok(0);
        }
        let bound = self.bound.lock();
        let av = bound.av.clone().ok_or(Errno(FI_ENOAV))?;
        if bound.tx.is_none() && bound.rx.is_none() {
            return Err(Errno(FI_ENOCQ));
        }
        let name = match self.domain.format {
            Format::Own => None,
            Format::Name(family) => Some((family, Name::open(family, self.source.map_or(0, |s| s.port()))?)),
        };
        // A runtime that another thread is shutting down, because it closed what was the last endpoint, is replaced.
        let mut active = loop {
            let rt = world::runtime()?;
            match self.enter(&rt, &bound, &av) {
                Err(Errno(FI_ESHUTDOWN)) => world::forget(&rt),
                done => break done?,
            }
        };
        if let Some((family, name)) = name {
            match self.publish(&active, family, name) {
                Ok(published) => active.name = Some(published),
                Err(e) => {
                    active.leave();
                    return Err(e);
                }
            }
        }
        for (counter, directions) in &bound.counters {
            counter.attach(&active.rt, active.id, *directions);
        }
        for side in [&active.tx, &active.rx].into_iter().flatten() {
            side.cq.add_source(active.id, active.av.clone());
        }
        let _ = self.active.set(active);
        Ok(0)
    }

    /// Has `name` stand for the endpoint; returns it with what it is called.
    fn publish(&self, active: &Active, family: Family, name: Name) -> Result<(Name, SocketAddr)> {
        let wish = self.source.map(|s| s.ip()).filter(|ip| !ip.is_unspecified());
        let first = || world::rails().ok()?.iter().map(|r| r.addr).find(|&ip| Family::of(ip) == family);
        let Some(ip) = wish.or_else(first) else {
            log::complain(&format!(
                "fi_enable: no rail has an {} address by which others could find this endpoint; request addresses in Rerail's own format (FI_FORMAT_UNSPEC, without a node)",
                family.name()
            ));
            return Err(Errno(FI_EADDRNOTAVAIL));
        };
        let called = SocketAddr::new(ip, name.port());
        name.stands_for(active.rt.inspect(|e| e.address(active.id))?.to_bytes());
        Ok((name, called))
    }

    fn enter(&self, rt: &Arc<Runtime>, bound: &Bound, av: &Arc<av::Shared>) -> Result<Active> {
        let mut hidden = None;
        let mut queue = |side: &Option<Side>| match (side, hidden) {
            (Some(side), _) => side.cq.attach(rt),
            (None, Some(id)) => Ok(id),
            (None, None) => {
                let id = rt.inspect(|e| e.open_sink()).map_err(Errno::from)?;
                hidden = Some(id);
                Ok(id)
            }
        };
        let (tx, rx) = (queue(&bound.tx)?, queue(&bound.rx)?);
        av.attach(rt)?;
        self.domain.regions.attach(rt)?;
        let id = rt.open_endpoint(tx, rx).inspect_err(|why| {
            if let Some(queue) = hidden {
                let _ = rt.inspect(|e| e.close_cq(queue));
            }
            if let RuntimeError::Refused(why) = why {
                log::complain(&format!("fi_enable: {why}"));
            }
        })?;
        let multi_recv_min = self.multi_recv_min.load(Ordering::Relaxed);
        rt.inspect(|e| {
            e.set_multi_recv_min(id, multi_recv_min);
            // Otherwise peers reach no memory through it, whatever is registered.
            if self.caps & (FI_REMOTE_READ | FI_REMOTE_WRITE) != 0 {
                e.set_domain(id, self.domain.regions.domain);
            }
        })?;
        Ok(Active {
            rt: rt.clone(),
            id,
            av: av.clone(),
            tx: bound.tx.clone(),
            rx: bound.rx.clone(),
            counters: bound.counters.clone(),
            eq: bound.eq.clone(),
            hidden,
            name: None,
        })
    }
}

impl Active {
    /// Whether a send with these flags gets a completion.
    #[inline(always)]
    pub fn tx_completes(&self, flags: u64) -> bool {
        completes(&self.tx, flags)
    }

    /// Whether a receive with these flags gets a completion.
    #[inline(always)]
    pub fn rx_completes(&self, flags: u64) -> bool {
        completes(&self.rx, flags)
    }

    /// Lingers, leaves the engine, and ends the runtime with the last endpoint.
    fn leave(&self) {
        for (counter, _) in &self.counters {
            counter.detach(&self.rt, self.id);
        }
        match self.rt.close_endpoint(self.id) {
            Ok(true) => world::forget(&self.rt),
            Ok(false) => {
                if let Some(id) = self.hidden {
                    let _ = self.rt.inspect(|e| e.close_cq(id));
                }
            }
            // A forked child, or a runtime that has ended: nothing of it is ours to close.
            Err(
                RuntimeError::Forked | RuntimeError::Closed | RuntimeError::Failed | RuntimeError::Refused(_),
            ) => {}
        }
        for side in [&self.tx, &self.rx].into_iter().flatten() {
            side.cq.remove_source(self.id);
        }
    }
}

#[inline(always)]
fn completes(side: &Option<Side>, flags: u64) -> bool {
    side.as_ref().is_some_and(|s| !s.selective || flags & FI_COMPLETION != 0)
}
