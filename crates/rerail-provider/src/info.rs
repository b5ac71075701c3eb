//! `fi_getinfo`: what Rerail offers, and how it meets what a program asks for.
//!
//! [`negotiate`] is pure: hints in, an [`Offer`] or a reason why not out. Reading the caller's `fi_info` and filling ours is
//! around it. One offer at most: the fabric `rerail` with the domain `rerail`, which is all rails of the process together.
//!
//! Rules, and where they come from:
//!
//! * Only FI_EP_RDM. Hints for FI_EP_MSG or FI_EP_DGRAM must fail, or libfabric layers `ofi_rxm`/`ofi_rxd` on top.
//! * Threading, progress, AV type and sizes are echoed: everything is thread-safe and the service thread progresses by
//!   itself, so all of them are met. MPICH accepts only its own threading model back. Hints without an AV type get
//!   FI_AV_UNSPEC back, as from libfabric's own providers: with FI_AV_TABLE, fabtests ignore the addresses that an
//!   insertion returns. Without hints the AV type is FI_AV_TABLE, by which MPICH decides.
//! * The completion level that MPICH puts into the default operation flags (FI_DELIVERY_COMPLETE) is *not* echoed unless
//!   `FI_RERAIL_DELIVERY=echo` (hazard H14): MPICH opens its endpoint with what it gets back, and every send that is not injected
//!   would wait for a round trip. A program that sets it itself, in the flags of an operation or of the `fi_info` that it
//!   opens an endpoint with, gets it. One-sided operations keep it always: they complete when they have taken effect.
//! * Message orders: sends are ordered among themselves, and atomic operations are. Both are granted always. Reads and writes of
//!   remote memory are striped over the rails, and neither ordered among themselves nor with anything else, so an order that
//!   involves them is refused (fi_getinfo(3): what is asked for must be met). An order that involves only operations of which the
//!   endpoint has none is granted as asked: it promises nothing. MPICH asks for the orders that are kept, Open MPI for sends
//!   only.
//! * Data order: that of atomic operations, of the largest there is.
//! * Memory that is only sent from, received into, or used here in a one-sided operation need not be registered. What peers reach is
//!   registered in the mode that is asked for: with addresses or offsets, keys chosen here or by the program. A program that
//!   brings an open domain has asked before: it gets that domain's mode, or nothing (Open MPI's mtl opens the one that its
//!   btl uses).
//! * No FI_RMA_EVENT: it promises events at the target for every access, and counters of single regions. The target is
//!   notified of writes that carry data, and by counters of its endpoints, which need no capability.
//! * A program that asks for FI_SOCKADDR_IN or FI_SOCKADDR_IN6, or gives a host and a port, or the IP address that it wants to have itself, gets
//!   endpoints that are named so ([`crate::names`]); all others get Rerail's own addresses.

use crate::caps::{CAPS, DOMAIN_CAPS, PRIMARY, RX_CAPS, SECONDARY, TX_CAPS, all_named};
use crate::errno::{Errno, NO_DATA, Result};
use crate::ffi::*;
use crate::limits::{
    CQ_DATA_BYTES, ENDPOINTS_MAX, INJECT_BYTES, INJECT_BYTES_MAX, IOV_MAX, IOV_TOLD, KEY_BYTES,
    MESSAGE_BYTES_MAX, OBJECTS_MAX, QUEUE_ENTRIES, QUEUE_ENTRIES_MAX,
};
use crate::names::{self, Family, Format};
use crate::object::guard_harmless;
use crate::provider::NAME;
use crate::{log, params, world};
use libc::{c_char, c_int, c_void};
use rerail_core::Locator;
use rerail_core::atomic::ATOMIC_BYTES_MAX;
use rerail_kinds::Place;
use rerail_wire::address::{ADDRESS_BYTES, Address};
use std::ffi::CStr;
use std::net::{IpAddr, SocketAddr};

/// Default operation flags for sends that a program may ask for …
const TX_FLAGS: u64 = FI_COMPLETION
    | FI_INJECT
    | FI_INJECT_COMPLETE
    | FI_TRANSMIT_COMPLETE
    | FI_DELIVERY_COMPLETE
    | FI_MATCH_COMPLETE;
/// … and those of them that are not echoed (H14).
const TX_FLAGS_NOT_ECHOED: u64 = FI_TRANSMIT_COMPLETE | FI_DELIVERY_COMPLETE;
const RX_FLAGS: u64 = FI_COMPLETION | FI_MULTI_RECV;

/// Orders of sends and atomic operations, each among themselves: always kept.
const KEPT_ORDERS: u64 =
    FI_ORDER_SAS | FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;
/// Orders that involve reads and writes of remote memory (those of [`RMA_OR_ATOMIC_ORDERS`] beside atomic operations).
const RMA_ORDERS: u64 = FI_ORDER_RMA_RAR | FI_ORDER_RMA_RAW | FI_ORDER_RMA_WAR | FI_ORDER_RMA_WAW;
const RMA_OR_ATOMIC_ORDERS: u64 = FI_ORDER_RAR | FI_ORDER_RAW | FI_ORDER_WAR | FI_ORDER_WAW;
/// Orders between sends and one-sided operations.
const MIXED_ORDERS: u64 = FI_ORDER_RAS | FI_ORDER_WAS | FI_ORDER_SAR | FI_ORDER_SAW;

/// Registration modes that all three MPIs accept, and that a program without wishes gets.
const MR_MODES: c_int = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;

/// Endpoint protocol. The high bit says "specific to the provider".
const PROTOCOL: u32 = FI_PROV_SPECIFIC | 0x5252;
const PROTOCOL_VERSION: u32 = rerail_wire::VERSION as u32;

/// What the caller asks for; zero means "no wish", as in libfabric.
#[derive(Clone, Default)]
pub struct Hints {
    pub caps: u64,
    pub addr_format: u32,
    pub src_addr: Option<Vec<u8>>,
    pub dest_addr: Option<Vec<u8>>,
    pub fabric_name: Option<String>,
    pub fabric: usize,
    pub domain_name: Option<String>,
    pub tx: Option<fi_tx_attr>,
    pub rx: Option<fi_rx_attr>,
    pub ep: Option<fi_ep_attr>,
    pub domain: Option<fi_domain_attr>,
    /// Registration mode of the open domain that the caller brings along, if it is ours.
    pub open_mr_mode: Option<c_int>,
}

/// What Rerail offers. Pointers inside are null (but for the caller's own domain handle); names and addresses are added by
/// [`fill`].
#[derive(Clone)]
pub struct Offer {
    pub caps: u64,
    pub format: Format,
    pub dest_addr: Option<Vec<u8>>,
    pub fabric: usize,
    pub tx: fi_tx_attr,
    pub rx: fi_rx_attr,
    pub ep: fi_ep_attr,
    pub domain: fi_domain_attr,
}

/// Why hints cannot be met: for the log.
#[derive(Debug, PartialEq, Eq)]
pub struct Refusal(pub &'static str);

/// An all-zero C structure of numbers and pointers.
fn zero<T: Copy>() -> T {
    // SAFETY: called only for the attribute structures, which are integers and raw pointers: zero is a value of each.
    unsafe { std::mem::zeroed() }
}

/// What becomes of FI_DELIVERY_COMPLETE among the default flags that a program asks for (hazard H14).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delivery {
    /// It is left out of the answer. Kept where an operation, or the `fi_info` of an endpoint, carries it.
    Asked,
    /// It is given back, with an inject size so large that small sends need no completion.
    Echoed,
}

impl Delivery {
    fn not_echoed(self) -> u64 {
        match self {
            Delivery::Asked => TX_FLAGS_NOT_ECHOED,
            Delivery::Echoed => 0,
        }
    }

    fn inject_bytes(self) -> usize {
        match self {
            Delivery::Asked => INJECT_BYTES,
            Delivery::Echoed => INJECT_BYTES_MAX,
        }
    }
}

/// Meets the hints, or says why not. `version` is the API version of the caller.
pub fn negotiate(
    version: u32,
    hints: Option<&Hints>,
    delivery: Delivery,
) -> std::result::Result<Offer, Refusal> {
    let none = Hints::default();
    let h = hints.unwrap_or(&none);
    let tx = h.tx.unwrap_or_else(zero);
    let rx = h.rx.unwrap_or_else(zero);
    let ep = h.ep.unwrap_or_else(zero);
    let domain = h.domain.unwrap_or_else(zero);
    let no = |met: bool, why: &'static str| if met { Ok(()) } else { Err(Refusal(why)) };
    let caps = all_named(h.caps) & PRIMARY | SECONDARY;

    no(h.caps & !CAPS == 0, "capabilities")?;
    no(tx.caps & !CAPS == 0 && rx.caps & !CAPS == 0, "capabilities of a context")?;
    no(domain.caps & !DOMAIN_CAPS == 0, "capabilities of the domain")?;
    let format = Format::of(h.addr_format).ok_or(Refusal("address format"))?;
    let readable = |a: &Vec<u8>| match format {
        Format::Own => Address::parse(a).is_ok(),
        Format::Name(_) => format.parse(a).is_some(),
    };
    no(h.fabric_name.as_deref().is_none_or(is_our_name), "name of the fabric")?;
    no(h.domain_name.as_deref().is_none_or(is_our_name), "name of the domain")?;
    no(h.dest_addr.as_ref().is_none_or(readable), "destination address")?;

    no(ep.type_ == FI_EP_UNSPEC || ep.type_ == FI_EP_RDM, "endpoint type other than FI_EP_RDM")?;
    no(ep.protocol == FI_PROTO_UNSPEC || ep.protocol == PROTOCOL, "protocol")?;
    no(ep.protocol_version == 0 || ep.protocol_version == PROTOCOL_VERSION, "version of the protocol")?;
    no(ep.max_msg_size <= MESSAGE_BYTES_MAX, "message size")?;
    no(ep.msg_prefix_size == 0, "message prefix")?;
    no(ep.tx_ctx_cnt <= 1 && ep.rx_ctx_cnt <= 1, "several or shared contexts")?;
    no(ep.auth_key_size == 0 && domain.auth_key_size == 0, "authorization key")?;

    no(tx.op_flags & !TX_FLAGS == 0, "default flags of sends")?;
    no(rx.op_flags & !RX_FLAGS == 0, "default flags of receives")?;
    no((tx.msg_order | rx.msg_order) & !orders(caps) == 0, "message order")?;
    let ordered = ep.max_order_raw_size.max(ep.max_order_war_size).max(ep.max_order_waw_size);
    no(ordered <= ATOMIC_BYTES_MAX, "bytes that are ordered")?;
    no(tx.comp_order == FI_ORDER_NONE && rx.comp_order == FI_ORDER_NONE, "completion order")?;
    no(tx.inject_size <= INJECT_BYTES_MAX, "inject size")?;
    no(tx.size <= QUEUE_ENTRIES_MAX && rx.size <= QUEUE_ENTRIES_MAX, "queue size")?;
    no(tx.iov_limit <= IOV_MAX && rx.iov_limit <= IOV_MAX, "number of pieces")?;
    no(tx.rma_iov_limit <= IOV_MAX, "number of remote pieces")?;
    no(rx.total_buffered_recv == 0, "buffered receive space")?;

    no(domain.threading <= THREADING_MAX, "threading model")?;
    no(domain.control_progress <= PROGRESS_MAX && domain.data_progress <= PROGRESS_MAX, "progress model")?;
    no(domain.resource_mgmt <= FI_RM_ENABLED, "resource management")?;
    no(domain.av_type <= FI_AV_TABLE, "AV type")?;
    no(domain.mr_key_size <= KEY_BYTES, "key size")?;
    no(domain.cq_data_size <= CQ_DATA_BYTES, "CQ data size")?;
    no(domain.cq_cnt <= OBJECTS_MAX && domain.cntr_cnt <= OBJECTS_MAX, "number of queues or counters")?;
    no(domain.ep_cnt <= ENDPOINTS_MAX, "number of endpoints")?;
    no(domain.tx_ctx_cnt <= ENDPOINTS_MAX && domain.rx_ctx_cnt <= ENDPOINTS_MAX, "number of contexts")?;
    no(domain.max_ep_tx_ctx <= 1 && domain.max_ep_rx_ctx <= 1, "scalable endpoints")?;
    no(domain.max_ep_stx_ctx == 0 && domain.max_ep_srx_ctx == 0, "shared contexts")?;
    no(domain.mr_iov_limit <= IOV_MAX && domain.mr_cnt <= OBJECTS_MAX, "memory regions")?;
    let mr_mode = match h.open_mr_mode {
        Some(open) => {
            no(bits(open) & !bits(domain.mr_mode) == 0, "registration mode of the open domain")?;
            open
        }
        None => mr_mode(version, h.domain.map(|d| d.mr_mode)),
    };

    let order_bytes = if caps & FI_ATOMIC != 0 { ATOMIC_BYTES_MAX } else { 0 };
    let or = |wish: usize, default: usize| if wish == 0 { default } else { wish };
    let or32 = |wish: u32, default: u32| if wish == 0 { default } else { wish };
    Ok(Offer {
        caps,
        format,
        dest_addr: h.dest_addr.as_ref().map(|a| a[..format.bytes()].to_vec()),
        fabric: h.fabric,
        tx: fi_tx_attr {
            caps: caps & TX_CAPS,
            op_flags: tx.op_flags & !delivery.not_echoed(),
            msg_order: tx.msg_order | KEPT_ORDERS,
            comp_order: FI_ORDER_NONE,
            inject_size: or(tx.inject_size, delivery.inject_bytes()),
            size: or(tx.size, QUEUE_ENTRIES),
            iov_limit: tx.iov_limit.max(IOV_TOLD),
            rma_iov_limit: IOV_MAX,
            ..zero()
        },
        rx: fi_rx_attr {
            caps: caps & RX_CAPS,
            op_flags: rx.op_flags,
            msg_order: rx.msg_order | KEPT_ORDERS,
            comp_order: FI_ORDER_NONE,
            size: or(rx.size, QUEUE_ENTRIES),
            iov_limit: rx.iov_limit.max(IOV_TOLD),
            ..zero()
        },
        ep: fi_ep_attr {
            type_: FI_EP_RDM,
            protocol: PROTOCOL,
            protocol_version: PROTOCOL_VERSION,
            max_msg_size: MESSAGE_BYTES_MAX,
            max_order_raw_size: order_bytes,
            max_order_war_size: order_bytes,
            max_order_waw_size: order_bytes,
            mem_tag_format: if ep.mem_tag_format == 0 { TAG_GENERIC } else { ep.mem_tag_format },
            tx_ctx_cnt: 1,
            rx_ctx_cnt: 1,
            ..zero()
        },
        domain: fi_domain_attr {
            domain: domain.domain,
            threading: or32(domain.threading, FI_THREAD_SAFE),
            control_progress: or32(domain.control_progress, FI_PROGRESS_MANUAL),
            data_progress: or32(domain.data_progress, FI_PROGRESS_MANUAL),
            resource_mgmt: FI_RM_ENABLED,
            av_type: if hints.is_some() { domain.av_type } else { FI_AV_TABLE },
            mr_mode,
            mr_key_size: KEY_BYTES,
            cq_data_size: CQ_DATA_BYTES,
            cq_cnt: OBJECTS_MAX,
            ep_cnt: ENDPOINTS_MAX,
            tx_ctx_cnt: ENDPOINTS_MAX,
            rx_ctx_cnt: ENDPOINTS_MAX,
            max_ep_tx_ctx: 1,
            max_ep_rx_ctx: 1,
            cntr_cnt: OBJECTS_MAX,
            mr_iov_limit: IOV_MAX,
            caps: DOMAIN_CAPS,
            mr_cnt: OBJECTS_MAX,
            ..zero()
        },
    })
}

/// The orders that can be promised to an endpoint of these capabilities: what is kept, and what promises nothing.
fn orders(caps: u64) -> u64 {
    let unless = |present: u64, orders: u64| if caps & present == 0 { orders } else { 0 };
    KEPT_ORDERS | unless(FI_RMA, RMA_ORDERS | RMA_OR_ATOMIC_ORDERS) | unless(FI_RMA | FI_ATOMIC, MIXED_ORDERS)
}

/// The newest threading model (FI_THREAD_ENDPOINT) and progress model (FI_PROGRESS_CONTROL_UNIFIED, 1.20) there are.
const THREADING_MAX: u32 = FI_THREAD_ENDPOINT;
const PROGRESS_MAX: u32 = FI_PROGRESS_MANUAL + 1;
/// A tag without fields (`FI_TAG_GENERIC`).
const TAG_GENERIC: u64 = 0xaaaa_aaaa_aaaa_aaaa;

fn is_our_name(name: &str) -> bool {
    name.as_bytes() == NAME.to_bytes()
}

fn mr_mode(version: u32, hints: Option<c_int>) -> c_int {
    // Before 1.5 the mode was one of three values; afterwards it is a set of bits, and the old values are still allowed.
    let old_api = version < crate::ffi::version(1, 5);
    match hints {
        Some(mode) if mode & FI_MR_BASIC != 0 => FI_MR_BASIC,
        Some(mode) if mode & FI_MR_SCALABLE != 0 => FI_MR_SCALABLE,
        _ if old_api => FI_MR_BASIC,
        Some(mode) => mode & MR_MODES,
        None => MR_MODES,
    }
}

/// A registration mode as a set of bits: FI_MR_BASIC stands for three of them (fi_mr(3)), FI_MR_SCALABLE for none.
fn bits(mr_mode: c_int) -> c_int {
    let basic = if mr_mode & FI_MR_BASIC != 0 { MR_MODES } else { 0 };
    (mr_mode | basic) & MR_MODES
}

// ---- the C side ----

/// `fi_getinfo` as libfabric calls it.
pub unsafe extern "C" fn getinfo(
    version: u32,
    node: *const c_char,
    service: *const c_char,
    flags: u64,
    hints: *const fi_info,
    info: *mut *mut fi_info,
) -> c_int {
    guard_harmless(|| {
        if info.is_null() {
            return Err(crate::errno::INVALID);
        }
        // SAFETY: libfabric passes a valid `fi_info` or null.
        let mut hints = unsafe { read(hints) };
        // SAFETY: null or C strings.
        let [node, service] = [node, service].map(|s| unsafe { text(s) });
        let elsewhere = flags & FI_SOURCE == 0;
        // A port, or a host of its own: what can be found by these has a name.
        if service.is_some() || (!elsewhere && node.as_deref().is_some_and(is_host)) {
            let hints = hints.get_or_insert_default();
            if hints.addr_format == FI_FORMAT_UNSPEC {
                hints.addr_format = FI_SOCKADDR;
            }
        }
        if let Some(hints) = hints.as_mut().filter(|h| h.addr_format == FI_SOCKADDR) {
            hints.addr_format = Format::Name(family(node.as_deref(), hints)).number();
        }
        let delivery = if params::options()?.echo_delivery { Delivery::Echoed } else { Delivery::Asked };
        let mut offer = negotiate(version, hints.as_ref(), delivery).map_err(|why| {
            log::info(&format!("hints not met: {}", why.0));
            NO_DATA
        })?;
        let rails = match flags & FI_PROV_ATTR_ONLY {
            0 => world::rails()?,
            _ => &[],
        };
        let source = match (offer.format, rails) {
            (_, []) => None,
            (Format::Own, rails) => {
                own_place(node.as_deref(), elsewhere, rails)?;
                Some(source(rails).to_vec())
            }
            (Format::Name(family), rails) => {
                let wish = hints.and_then(|h| offer.format.parse(&h.src_addr?));
                let what = (node.as_deref(), service.as_deref());
                let place = named_place(what, elsewhere, family, wish, rails, &mut offer)?;
                Some(names::to_bytes(place))
            }
        };
        // SAFETY: `info` is not null, and libfabric's.
        unsafe { *info = fill(version, &offer, source.as_deref())? };
        Ok(0)
    })
}

/// A C string that may be missing.
///
/// # Safety
/// Null, or a C string.
unsafe fn text(s: *const c_char) -> Option<String> {
    // SAFETY: the caller's promise.
    (!s.is_null()).then(|| unsafe { CStr::from_ptr(s) }.to_string_lossy().into_owned())
}

/// Whether a program that gives `node` as its own host means an IP address, and not a rail: it then requests the
/// addresses of others in that format. With encryption there are no names, so every program gets Rerail's own
/// addresses.
fn is_host(node: &str) -> bool {
    node.parse::<IpAddr>().is_ok() && params::options().is_ok_and(|o| !o.encrypt)
}

/// Checks the host for which Rerail's own addresses are asked: it is one of the rails.
fn own_place(node: Option<&str>, elsewhere: bool, rails: &[Place]) -> Result<()> {
    let Some(node) = node else { return Ok(()) };
    if elsewhere {
        log::info(
            "a host alone cannot be turned into an address: say a port too, or exchange what fi_getname gives, and insert that",
        );
        return Err(NO_DATA);
    }
    if !rails.iter().any(|r| r.is_called(node) || node.parse() == Ok(r.addr)) {
        log::info(&format!("{node} is none of the rails"));
        return Err(NO_DATA);
    }
    Ok(())
}

/// The name that an endpoint of this process will have, as far as it is known: the port may be 0. Puts the one that the program
/// wants to reach into the offer. `wish` is our own name in the hints.
fn named_place(
    (node, service): (Option<&str>, Option<&str>),
    elsewhere: bool,
    family: Family,
    wish: Option<SocketAddr>,
    rails: &[Place],
    offer: &mut Offer,
) -> Result<SocketAddr> {
    if params::options()?.encrypt {
        log::complain(
            "endpoints found by IP address and port admit any process that queries them: not with FI_RERAIL_ENCRYPT=1",
        );
        return Err(NO_DATA);
    }
    let own = || rails.iter().filter(|r| Family::of(r.addr) == family);
    let mut source = wish.unwrap_or(SocketAddr::new(family.unspecified(), 0));
    if elsewhere {
        if let Some(node) = node {
            let dest = names::resolve(node, service, family)?;
            offer.dest_addr = Some(names::to_bytes(dest));
        }
    } else if node.is_some() || service.is_some() {
        source = match node.and_then(|n| own().find(|r| r.is_called(n))) {
            Some(rail) => names::resolve(&rail.addr.to_string(), service, family)?,
            None => {
                let any = family.unspecified().to_string();
                names::resolve(node.unwrap_or(&any), service, family)?
            }
        };
    }
    if source.ip().is_unspecified() {
        let dest = offer.dest_addr.as_deref().and_then(|d| offer.format.parse(d)).map(|d| d.ip());
        let beside = |r: &&Place| dest.is_some_and(|d| r.shares_network_with(d));
        let chosen = match own().find(beside).or_else(|| own().next()) {
            Some(rail) => rail.addr,
            // a process on this host can be reached without a rail of that kind
            None if dest.is_some_and(|d| d.is_loopback()) => family.loopback(),
            None => {
                log::info(&format!("no rail has an {} address", family.name()));
                return Err(NO_DATA);
            }
        };
        source.set_ip(chosen);
    } else if !source.ip().is_loopback() && own().all(|r| r.addr != source.ip()) {
        log::info(&format!("{} is none of the rails", source.ip()));
        return Err(NO_DATA);
    }
    Ok(source)
}

/// Which kind of IP address a program means that has not said: that of the addresses in its hints or of its host; else IPv4, unless
/// only IPv6 is there.
fn family(node: Option<&str>, hints: &Hints) -> Family {
    // an error with the rails is reported when they are needed
    let rails = world::rails().unwrap_or_default();
    let preferred = match rails.iter().any(|r| r.addr.is_ipv4()) || rails.is_empty() {
        true => [Family::V4, Family::V6],
        false => [Family::V6, Family::V4],
    };
    let hinted = [&hints.dest_addr, &hints.src_addr]
        .into_iter()
        .flatten()
        .find_map(|a| preferred.into_iter().find(|&f| Format::Name(f).parse(a).is_some()));
    let rail = rails.iter().find(|r| node.is_some_and(|n| r.is_called(n))).map(|r| Family::of(r.addr));
    hinted.or(rail).unwrap_or_else(|| node.map_or(preferred[0], |n| names::family_of(n, preferred)))
}

/// Reads the caller's hints.
///
/// # Safety
/// Null, or a valid `fi_info`.
unsafe fn read(info: *const fi_info) -> Option<Hints> {
    // SAFETY: the caller's promise; the same for everything that is reached from it.
    let info = unsafe { info.as_ref() }?;
    // SAFETY: as above.
    let (domain, fabric) = unsafe { (info.domain_attr.as_ref(), info.fabric_attr.as_ref()) };
    let bytes = |at: *mut c_void, len: usize| {
        // SAFETY: as above.
        (!at.is_null() && len > 0)
            .then(|| unsafe { std::slice::from_raw_parts(at.cast::<u8>(), len) }.to_vec())
    };
    Some(Hints {
        caps: info.caps,
        addr_format: info.addr_format,
        src_addr: bytes(info.src_addr, info.src_addrlen),
        dest_addr: bytes(info.dest_addr, info.dest_addrlen),
        // SAFETY: as above.
        fabric_name: fabric.and_then(|f| unsafe { text(f.name) }),
        fabric: fabric.map_or(0, |f| f.fabric as usize),
        // SAFETY: as above.
        domain_name: domain.and_then(|d| unsafe { text(d.name) }),
        // SAFETY: as above; the structures of 1.17 are prefixes of all later ones.
        tx: unsafe { info.tx_attr.as_ref() }.copied(),
        // SAFETY: as above.
        rx: unsafe { info.rx_attr.as_ref() }.copied(),
        // SAFETY: as above.
        ep: unsafe { info.ep_attr.as_ref() }.copied(),
        domain: domain.copied(),
        // SAFETY: as above; a domain in hints is open.
        open_mr_mode: domain.and_then(|d| unsafe { crate::domain::ops::open_mr_mode(d.domain) }),
    })
}

/// Makes an `fi_info` of the running library from an offer. Everything in it is freed with `free`.
fn fill(version: u32, offer: &Offer, source: Option<&[u8]>) -> Result<*mut fi_info> {
    let host = host::get().ok_or(Errno(FI_EOTHER))?;
    let no_memory = Errno(FI_ENOMEM);
    // SAFETY: a null argument means "allocate".
    let made = unsafe { (host.dupinfo)(std::ptr::null()) };
    // SAFETY: libfabric allocated it, with all attributes, for us alone.
    let info = unsafe { made.as_mut() }.ok_or(no_memory)?;
    info.caps = offer.caps;
    info.mode = 0;
    info.addr_format = offer.format.number();
    // SAFETY: as above. Only the prefix that 1.17 knows is written; what a newer library has behind it stays zero.
    unsafe {
        *info.tx_attr = offer.tx;
        *info.rx_attr = offer.rx;
        *info.ep_attr = offer.ep;
        *info.domain_attr = offer.domain;
        (*info.domain_attr).name = libc::strdup(NAME.as_ptr());
        (*info.fabric_attr).name = libc::strdup(NAME.as_ptr());
        (*info.fabric_attr).fabric = offer.fabric as *mut fid_fabric;
        (*info.fabric_attr).prov_version = crate::provider::VERSION;
        (*info.fabric_attr).api_version = version;
    }
    // SAFETY: as above.
    if unsafe { (*info.domain_attr).name.is_null() || (*info.fabric_attr).name.is_null() } {
        // SAFETY: libfabric allocated it, and there is no other pointer to it.
        unsafe { (host.freeinfo)(made) };
        return Err(no_memory);
    }
    if let Some(source) = source {
        info.src_addr = blob(source);
        info.src_addrlen = source.len();
    }
    if let Some(dest) = &offer.dest_addr {
        info.dest_addr = blob(dest);
        info.dest_addrlen = dest.len();
    }
    Ok(made)
}

/// The address that `fi_getinfo` shows: the rails, but port, token and endpoint are zero, since they come into being with
/// the endpoint. It cannot be inserted into an address vector; `fi_getname` gives the one that can.
fn source(rails: &[Place]) -> [u8; ADDRESS_BYTES] {
    let rails: Vec<Locator> = rails.iter().map(|r| Locator::of_ip(r.kind, r.addr, 0)).collect();
    Address { token: rerail_wire::Token([0; 16]), endpoint: 0, encrypts: false, rails }.to_bytes()
}

fn blob(bytes: &[u8]) -> *mut c_void {
    // SAFETY: a fresh allocation of this length, checked for null.
    unsafe {
        let p = libc::malloc(bytes.len());
        if !p.is_null() {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), p.cast(), bytes.len());
        }
        p
    }
}

#[cfg(test)]
mod tests;
