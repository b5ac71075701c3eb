//! Negotiation against what each program really asks for (`libfabric.md`, "Hints and what gets accepted").

use super::*;
use crate::caps::{READ_OR_WRITTEN, SENT_OR_RECEIVED};
use crate::names::ADDR_FORMAT;
use rerail_rail::Kind;
use std::sync::OnceLock;

const API_2_5: u32 = crate::ffi::version(2, 5);
const API_1_18: u32 = crate::ffi::version(1, 18);
const API_1_5: u32 = crate::ffi::version(1, 5);

fn meet(version: u32, hints: &Hints) -> Offer {
    negotiate(version, Some(hints), Delivery::Asked).expect("the hints are met")
}

fn refusal(version: u32, hints: &Hints) -> &'static str {
    match negotiate(version, Some(hints), Delivery::Asked) {
        Ok(_) => panic!("the hints must be refused"),
        Err(Refusal(why)) => why,
    }
}

const ATOMIC_ORDERS: u64 =
    FI_ORDER_ATOMIC_RAR | FI_ORDER_ATOMIC_RAW | FI_ORDER_ATOMIC_WAR | FI_ORDER_ATOMIC_WAW;

/// What MPICH 5 sends as its second question, made from the answer to the first, as MPICH does.
fn mpich(first: &Offer) -> Hints {
    Hints {
        caps: first.caps,
        addr_format: ADDR_FORMAT,
        fabric_name: Some("rerail".into()),
        domain_name: Some("rerail".into()),
        tx: Some(fi_tx_attr {
            op_flags: FI_COMPLETION | FI_DELIVERY_COMPLETE,
            msg_order: FI_ORDER_SAS | ATOMIC_ORDERS,
            comp_order: FI_ORDER_NONE,
            ..zero()
        }),
        rx: Some(fi_rx_attr { op_flags: FI_COMPLETION, msg_order: FI_ORDER_SAS, ..zero() }),
        ep: Some(fi_ep_attr { type_: FI_EP_RDM, mem_tag_format: 0x00c0_0000_7fff_ffff, ..zero() }),
        domain: Some(fi_domain_attr {
            threading: FI_THREAD_DOMAIN,
            control_progress: FI_PROGRESS_MANUAL,
            data_progress: FI_PROGRESS_MANUAL,
            resource_mgmt: FI_RM_ENABLED,
            av_type: FI_AV_TABLE,
            mr_mode: first.domain.mr_mode | FI_MR_ENDPOINT,
            cq_data_size: 4,
            ..zero()
        }),
        ..Hints::default()
    }
}

#[test]
fn mpich_gets_its_threading_model_and_everything_it_scores() {
    let first = negotiate(API_2_5, None, Delivery::Asked).expect("no hints are met by anything");
    let offer = meet(API_2_5, &mpich(&first));
    assert_eq!(offer.domain.threading, FI_THREAD_DOMAIN, "or MPICH drops the provider");
    assert!(offer.domain.cq_data_size >= 4);
    for cap in [FI_MSG, FI_MULTI_RECV, FI_TAGGED, FI_DIRECTED_RECV, FI_RMA, FI_ATOMIC] {
        assert_ne!(offer.caps & cap, 0, "capability {cap:#x}");
    }
    assert_eq!(offer.tx.msg_order & ATOMIC_ORDERS, ATOMIC_ORDERS, "or MPICH does its atomics by messages");
    let sizes = [offer.ep.max_order_raw_size, offer.ep.max_order_war_size, offer.ep.max_order_waw_size];
    assert_eq!(sizes, [ATOMIC_BYTES_MAX; 3], "zero would switch its native accumulate off");
    assert_eq!(offer.tx.rma_iov_limit, IOV_MAX);
    assert_eq!(offer.domain.mr_mode, FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY);
    assert_eq!(offer.domain.av_type, FI_AV_TABLE);
    assert_eq!(offer.ep.mem_tag_format, 0x00c0_0000_7fff_ffff);
    assert_ne!(offer.tx.msg_order & FI_ORDER_SAS, 0);
    assert_ne!(offer.rx.msg_order & FI_ORDER_SAS, 0);
}

#[test]
fn h14_delivery_complete_by_default_is_not_echoed() {
    let offer = meet(API_2_5, &mpich(&negotiate(API_2_5, None, Delivery::Asked).unwrap()));
    assert_eq!(offer.tx.op_flags, FI_COMPLETION);
}

#[test]
fn nothing_is_required_of_the_program() {
    for (version, hints) in [(0, None), (API_1_5, None), (API_2_5, None), (API_2_5, Some(Hints::default()))] {
        let offer = negotiate(version, hints.as_ref(), Delivery::Asked).unwrap();
        assert_eq!((offer.tx.mode, offer.rx.mode, offer.domain.mode), (0, 0, 0), "no mode bit");
        let mr = offer.domain.mr_mode;
        assert_eq!(mr & !(FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_BASIC), 0, "{mr:#x}");
    }
    let without_registration = Hints { domain: Some(zero()), ..Hints::default() };
    assert_eq!(meet(API_2_5, &without_registration).domain.mr_mode, 0);
}

#[test]
fn open_mpi_mtl_is_met_but_not_with_device_memory() {
    let caps = FI_MSG | FI_TAGGED | FI_LOCAL_COMM | FI_REMOTE_COMM | FI_DIRECTED_RECV;
    let hints = Hints {
        caps,
        tx: Some(fi_tx_attr { msg_order: FI_ORDER_SAS, ..zero() }),
        rx: Some(fi_rx_attr { msg_order: FI_ORDER_SAS, ..zero() }),
        ep: Some(fi_ep_attr { type_: FI_EP_RDM, ..zero() }),
        domain: Some(fi_domain_attr {
            threading: FI_THREAD_SAFE,
            resource_mgmt: FI_RM_ENABLED,
            av_type: FI_AV_MAP,
            mr_mode: FI_MR_ALLOCATED,
            ..zero()
        }),
        ..Hints::default()
    };
    let offer = meet(API_1_18, &hints);
    assert_eq!(offer.domain.av_type, FI_AV_MAP);
    assert_eq!(offer.domain.mr_mode & !FI_MR_ALLOCATED, 0);
    assert_eq!(offer.caps & caps, caps);
    assert_eq!(offer.caps & (FI_RMA | FI_ATOMIC), 0, "it did not ask");
    refusal(API_1_18, &Hints { caps: caps | FI_HMEM, ..hints });
}

#[test]
fn open_mpi_btl_is_met_in_its_registration_modes_but_not_with_device_memory() {
    for caps in [FI_RMA | FI_ATOMIC, FI_RMA | FI_ATOMIC | FI_MSG] {
        let hints = Hints {
            caps,
            tx: Some(fi_tx_attr { op_flags: FI_DELIVERY_COMPLETE, iov_limit: 1, ..zero() }),
            ep: Some(fi_ep_attr { type_: FI_EP_RDM, ..zero() }),
            domain: Some(fi_domain_attr {
                threading: FI_THREAD_DOMAIN,
                mr_mode: FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT,
                ..zero()
            }),
            ..Hints::default()
        };
        let offer = meet(API_1_18, &hints);
        assert_eq!(offer.caps & (caps | READ_OR_WRITTEN), caps | READ_OR_WRITTEN);
        assert_eq!(offer.caps & FI_TAGGED, 0);
        assert_eq!(offer.domain.mr_mode, FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY);
        refusal(API_1_18, &Hints { caps: caps | FI_HMEM, ..hints });
    }
}

#[test]
fn an_open_domain_keeps_its_registration_mode() {
    let with = |open, asked| Hints {
        caps: FI_RMA,
        domain: Some(fi_domain_attr { mr_mode: asked, ..zero() }),
        open_mr_mode: Some(open),
        ..Hints::default()
    };
    let btl = FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY | FI_MR_ENDPOINT;
    assert_eq!(meet(API_1_18, &with(FI_MR_ALLOCATED, btl)).domain.mr_mode, FI_MR_ALLOCATED, "as mtl left it");
    assert_eq!(meet(API_1_18, &with(0, btl)).domain.mr_mode, 0);
    assert_eq!(meet(API_1_18, &with(FI_MR_BASIC, btl)).domain.mr_mode, FI_MR_BASIC);
    assert_eq!(meet(API_1_18, &with(MR_MODES, FI_MR_BASIC)).domain.mr_mode, MR_MODES);
    assert!(refusal(API_1_18, &with(MR_MODES, FI_MR_ALLOCATED)).contains("open domain"));
    assert!(refusal(API_1_18, &with(FI_MR_BASIC, 0)).contains("open domain"));
}

#[test]
fn capabilities_without_a_restriction_mean_all() {
    assert_eq!(all_named(0), CAPS);
    assert_eq!(all_named(FI_MSG), FI_MSG | FI_SEND | FI_RECV);
    assert_eq!(all_named(FI_TAGGED | FI_RECV), FI_TAGGED | FI_RECV);
    assert_eq!(all_named(FI_RMA), FI_RMA | FI_READ | FI_WRITE | FI_REMOTE_READ | FI_REMOTE_WRITE);
    assert_eq!(all_named(FI_ATOMIC | FI_WRITE), FI_ATOMIC | FI_WRITE);
    let offer = meet(API_2_5, &Hints { caps: FI_RMA | FI_READ | FI_REMOTE_WRITE, ..Hints::default() });
    assert_eq!(offer.caps & READ_OR_WRITTEN, FI_READ | FI_REMOTE_WRITE);
    assert_eq!(offer.caps & SENT_OR_RECEIVED, 0);
    assert_eq!((offer.tx.caps, offer.rx.caps & FI_RMA), (FI_RMA | FI_READ, FI_RMA));
    assert_eq!(offer.ep.max_order_waw_size, 0, "no atomics, no order");
}

#[test]
fn orders_that_are_not_kept_are_refused_unless_they_promise_nothing() {
    let asks = |caps, msg_order| Hints {
        caps,
        tx: Some(fi_tx_attr { msg_order, ..zero() }),
        rx: Some(fi_rx_attr { msg_order, ..zero() }),
        ..Hints::default()
    };
    let (two_sided, atomic, rma) = (FI_MSG | FI_TAGGED, FI_MSG | FI_ATOMIC, FI_MSG | FI_RMA);
    let rma_orders = [FI_ORDER_RMA_RAR, FI_ORDER_RMA_RAW, FI_ORDER_RMA_WAR, FI_ORDER_RMA_WAW];
    let either = [FI_ORDER_RAR, FI_ORDER_RAW, FI_ORDER_WAR, FI_ORDER_WAW];
    let mixed = [FI_ORDER_RAS, FI_ORDER_WAS, FI_ORDER_SAR, FI_ORDER_SAW];
    for order in rma_orders.into_iter().chain(either).chain(mixed) {
        assert_eq!(meet(API_2_5, &asks(two_sided, order)).tx.msg_order & order, order);
        assert_eq!(refusal(API_2_5, &asks(rma, order)), "message order");
        assert_eq!(refusal(API_2_5, &asks(0, order)), "message order", "no capabilities are all of them");
    }
    for order in rma_orders.into_iter().chain(either) {
        assert_eq!(meet(API_2_5, &asks(atomic, order)).rx.msg_order & order, order);
    }
    for order in mixed {
        assert_eq!(refusal(API_2_5, &asks(atomic, order)), "message order");
    }
    for caps in [two_sided, atomic, rma, 0] {
        let kept = FI_ORDER_SAS | ATOMIC_ORDERS;
        assert_eq!(meet(API_2_5, &asks(caps, kept)).tx.msg_order & kept, kept);
        assert_eq!(meet(API_2_5, &asks(caps, 0)).rx.msg_order & kept, kept, "kept, asked for or not");
    }
    let bytes = |max_order_waw_size| Hints {
        ep: Some(fi_ep_attr { max_order_waw_size, ..zero() }),
        ..Hints::default()
    };
    meet(API_2_5, &bytes(ATOMIC_BYTES_MAX));
    refusal(API_2_5, &bytes(ATOMIC_BYTES_MAX + 1));
}

#[test]
fn registration_is_in_the_mode_that_is_asked_for() {
    let mode = |version, mr_mode| {
        let domain = Some(fi_domain_attr { mr_mode, ..zero() });
        meet(version, &Hints { domain, ..Hints::default() }).domain.mr_mode
    };
    assert_eq!(mode(API_1_18, 0), 0, "offsets, and keys of the program");
    assert_eq!(mode(API_1_18, FI_MR_SCALABLE), FI_MR_SCALABLE);
    assert_eq!(mode(API_1_18, FI_MR_BASIC | FI_MR_LOCAL), FI_MR_BASIC);
    assert_eq!(mode(API_1_18, FI_MR_PROV_KEY | FI_MR_RAW | FI_MR_HMEM), FI_MR_PROV_KEY);
    assert_eq!(mode(API_1_18, FI_MR_BASIC | FI_MR_SCALABLE), FI_MR_BASIC, "one of both");
    assert_eq!(mode(crate::ffi::version(1, 4), 0), FI_MR_BASIC);
}

#[test]
fn any_av_type_will_do_unless_one_is_asked_for() {
    let offer = |wish| {
        let domain = Some(fi_domain_attr { av_type: wish, ..zero() });
        meet(API_1_18, &Hints { domain, ..Hints::default() }).domain.av_type
    };
    assert_eq!(offer(FI_AV_UNSPEC), FI_AV_UNSPEC);
    assert_eq!(offer(FI_AV_MAP), FI_AV_MAP);
    let listed = negotiate(API_1_18, None, Delivery::Asked).expect("no hints are met by anything");
    assert_eq!(listed.domain.av_type, FI_AV_TABLE, "or MPICH asks for maps");
}

#[test]
fn as_many_pieces_as_are_asked_for_and_not_fewer_than_tcp_takes() {
    let offer = |wish| {
        let tx = Some(fi_tx_attr { iov_limit: wish, ..zero() });
        let rx = Some(fi_rx_attr { iov_limit: wish, ..zero() });
        let offer = meet(API_1_18, &Hints { tx, rx, ..Hints::default() });
        (offer.tx.iov_limit, offer.rx.iov_limit)
    };
    assert_eq!((offer(0), offer(1), offer(IOV_MAX)), ((4, 4), (4, 4), (8, 8)));
}

#[test]
fn intel_mpi_is_met_with_version_zero_and_then_1_5() {
    let first = negotiate(0, None, Delivery::Asked).expect("version 0 must not fail");
    let mut hints = mpich(&first);
    if let Some(domain) = &mut hints.domain {
        domain.av_type = FI_AV_MAP;
        domain.cq_data_size = 0;
    }
    let offer = meet(API_1_5, &hints);
    assert_eq!(offer.domain.av_type, FI_AV_MAP);
    assert_eq!(offer.domain.threading, FI_THREAD_DOMAIN);
    assert_eq!(offer.caps & (FI_RMA | FI_ATOMIC), FI_RMA | FI_ATOMIC);
    assert_eq!(offer.tx.msg_order & ATOMIC_ORDERS, ATOMIC_ORDERS);
    assert_eq!(offer.domain.mr_mode, FI_MR_BASIC);
}

#[test]
fn fi_pingpong_is_met_and_gets_its_destination_back() {
    let dest = Address {
        token: rerail_wire::Token([5; 16]),
        endpoint: 2,
        encrypts: false,
        rails: vec![rerail_core::Locator::ip([10, 9, 0, 1].into(), 4711)],
    }
    .to_bytes();
    for caps in [FI_MSG, FI_TAGGED] {
        let hints = Hints {
            caps,
            dest_addr: Some(dest.to_vec()),
            ep: Some(fi_ep_attr { type_: FI_EP_RDM, ..zero() }),
            domain: Some(fi_domain_attr { mr_mode: FI_MR_LOCAL | MR_MODES, ..zero() }),
            ..Hints::default()
        };
        let offer = meet(API_2_5, &hints);
        assert_eq!(offer.dest_addr.as_deref(), Some(&dest[..]));
        assert_eq!(offer.domain.mr_mode & FI_MR_LOCAL, 0);
        assert_eq!(
            offer.caps & (FI_MSG | FI_TAGGED),
            caps,
            "what costs something is returned only when asked for"
        );
    }
}

#[test]
fn aws_ofi_nccl_sendrecv_is_met() {
    let hints = Hints {
        caps: FI_TAGGED | FI_MSG | FI_LOCAL_COMM | FI_REMOTE_COMM,
        tx: Some(fi_tx_attr { msg_order: FI_ORDER_SAS, ..zero() }),
        rx: Some(fi_rx_attr { msg_order: FI_ORDER_SAS, ..zero() }),
        ep: Some(fi_ep_attr { type_: FI_EP_RDM, ..zero() }),
        domain: Some(fi_domain_attr {
            threading: FI_THREAD_SAFE,
            mr_mode: FI_MR_LOCAL | FI_MR_ENDPOINT | FI_MR_BASIC,
            ..zero()
        }),
        ..Hints::default()
    };
    assert_eq!(meet(crate::ffi::version(1, 20), &hints).domain.mr_mode, FI_MR_BASIC);
}

#[test]
fn layered_providers_are_refused() {
    for type_ in [FI_EP_MSG, FI_EP_DGRAM] {
        let hints = Hints { ep: Some(fi_ep_attr { type_, ..zero() }), ..Hints::default() };
        assert!(refusal(API_2_5, &hints).contains("endpoint type"));
    }
}

#[test]
fn sizes_are_echoed_as_far_as_they_go() {
    let hints = |inject_size, size| Hints {
        tx: Some(fi_tx_attr { inject_size, size, ..zero() }),
        ..Hints::default()
    };
    let offer = meet(API_2_5, &hints(0, 0));
    assert_eq!((offer.tx.inject_size, offer.tx.size), (INJECT_BYTES, QUEUE_ENTRIES));
    let offer = meet(API_2_5, &hints(4096, 100_000));
    assert_eq!((offer.tx.inject_size, offer.tx.size), (4096, 100_000));
    refusal(API_2_5, &hints(INJECT_BYTES_MAX + 1, 0));
}

#[test]
fn other_names_formats_and_addresses_are_refused() {
    refusal(API_2_5, &Hints { fabric_name: Some("tcp".into()), ..Hints::default() });
    refusal(API_2_5, &Hints { domain_name: Some("eth0".into()), ..Hints::default() });
    refusal(API_2_5, &Hints { addr_format: FI_ADDR_IB_UD, ..Hints::default() });
    refusal(API_2_5, &Hints { dest_addr: Some(vec![1; 56]), ..Hints::default() });
}

#[test]
fn only_who_asks_for_ip_addresses_gets_them() {
    let (v4, v6) = (Format::Name(Family::V4), Format::Name(Family::V6));
    let dest = names::to_bytes("10.1.0.9:7471".parse().unwrap());
    let dest6 = names::to_bytes("[fd00::9]:7471".parse().unwrap());
    let cases = [(FI_SOCKADDR, v4, &dest), (FI_SOCKADDR_IN, v4, &dest), (FI_SOCKADDR_IN6, v6, &dest6)];
    for (asked, format, dest) in cases {
        let hints = Hints { addr_format: asked, dest_addr: Some(dest.clone()), ..Hints::default() };
        let offer = meet(API_2_5, &hints);
        assert_eq!((offer.format, offer.dest_addr), (format, Some(dest.clone())));
        refusal(API_2_5, &Hints { dest_addr: Some(vec![2; 56]), ..hints });
    }
    refusal(
        API_2_5,
        &Hints { addr_format: FI_SOCKADDR_IN6, dest_addr: Some(dest.clone()), ..Hints::default() },
    );
    assert_eq!(negotiate(API_2_5, None, Delivery::Asked).unwrap().format, Format::Own);
    refusal(API_2_5, &Hints { dest_addr: Some(dest), ..Hints::default() });
}

#[test]
fn a_name_has_the_address_of_a_rail_and_the_port_that_is_wanted() {
    let rails = [rail("a", "10.1.0.1"), rail("b", "10.2.0.1"), rail("c", "fd00::1"), rail("d", "fd01::1")];
    let place = |family, node, service, elsewhere, wish: Option<&str>| {
        let wish = wish.map(|w| w.parse().unwrap());
        let format = Format::Name(family);
        let hints = Hints { addr_format: format.number(), ..Hints::default() };
        let mut offer = meet(API_2_5, &hints);
        let found = named_place((node, service), elsewhere, family, wish, &rails, &mut offer);
        let dest = offer.dest_addr.as_deref().and_then(|d| format.parse(d));
        found.map(|f| (f.to_string(), dest.map(|d| d.to_string())))
    };
    let here = |s: &str| Ok((s.to_owned(), None));
    let v4 = |node, service, elsewhere, wish| place(Family::V4, node, service, elsewhere, wish);
    assert_eq!(v4(None, None, true, None), here("10.1.0.1:0"));
    assert_eq!(v4(None, Some("77"), false, None), here("10.1.0.1:77"));
    assert_eq!(v4(Some("b"), Some("77"), false, None), here("10.2.0.1:77"));
    assert_eq!(v4(Some("10.2.0.1"), Some("77"), false, None), here("10.2.0.1:77"));
    assert_eq!(v4(None, None, true, Some("10.2.0.1:5")), here("10.2.0.1:5"));
    assert_eq!(v4(None, None, true, Some("0.0.0.0:5")), here("10.1.0.1:5"));
    assert_eq!(v4(Some("10.9.0.1"), Some("77"), false, None), Err(NO_DATA), "somebody else's");
    let there = Ok(("10.2.0.1:0".to_owned(), Some("10.2.0.9:77".to_owned())));
    assert_eq!(v4(Some("10.2.0.9"), Some("77"), true, None), there, "on the network of the other");

    let v6 = |node, service, elsewhere, wish| place(Family::V6, node, service, elsewhere, wish);
    assert_eq!(v6(None, None, true, None), here("[fd00::1]:0"));
    assert_eq!(v6(Some("d"), Some("77"), false, None), here("[fd01::1]:77"));
    assert_eq!(v6(None, None, true, Some("[fd01::1]:5")), here("[fd01::1]:5"));
    assert_eq!(v6(Some("fd02::1"), Some("77"), false, None), Err(NO_DATA), "somebody else's");
    assert_eq!(v6(Some("10.2.0.1"), Some("77"), false, None), Err(NO_DATA), "of the other kind");
    let there = Ok(("[fd01::1]:0".to_owned(), Some("[fd01::9]:77".to_owned())));
    assert_eq!(v6(Some("fd01::9"), Some("77"), true, None), there, "on the network of the other");
}

#[test]
fn without_a_rail_of_its_kind_a_name_leads_to_this_host_only() {
    let rails = [rail("a", "10.1.0.1")];
    let mut offer = meet(API_2_5, &Hints { addr_format: FI_SOCKADDR_IN6, ..Hints::default() });
    let mut place = |node| named_place((Some(node), Some("77")), true, Family::V6, None, &rails, &mut offer);
    assert_eq!(place("::1"), Ok("[::1]:0".parse().unwrap()));
    assert_eq!(place("fd01::9"), Err(NO_DATA));
}

/// The libfabric of the system, or `None` with a loud word.
fn library() -> Option<&'static host::Host> {
    static LIBRARY: OnceLock<Option<&host::Host>> = OnceLock::new();
    *LIBRARY.get_or_init(|| {
        let found = host::open_for_test(c"libfabric.so.1");
        if found.is_none() {
            eprintln!("SKIPPED: no libfabric.so.1 on this machine (Debian: libfabric1)");
        }
        found
    })
}

fn rail(name: &str, addr: &str) -> Place {
    Place {
        names: [name.into(), format!("interface of {name}")],
        kind: Kind::IP,
        addr: addr.parse().unwrap(),
        prefix_bits: if addr.contains(':') { 64 } else { 24 },
    }
}

#[test]
fn an_info_of_the_running_library_carries_the_offer() {
    let Some(host) = library() else { return };
    let offer = negotiate(API_1_18, None, Delivery::Asked).unwrap();
    let rails = [rail("a", "10.1.0.1"), rail("b", "10.2.0.1")];
    let info = fill(API_1_18, &offer, Some(&source(&rails))).unwrap();
    // SAFETY: libfabric allocated it, `fill` filled it; freed once, at the end.
    unsafe {
        let i = &*info;
        assert_eq!(i.caps, CAPS);
        assert_eq!(CStr::from_ptr((*i.fabric_attr).name), NAME);
        assert_eq!(CStr::from_ptr((*i.domain_attr).name), NAME);
        assert!((*i.fabric_attr).prov_name.is_null(), "the core fills it");
        assert_eq!((*i.ep_attr).type_, FI_EP_RDM);
        assert_eq!(i.src_addrlen, ADDRESS_BYTES);
        let blob = std::slice::from_raw_parts(i.src_addr.cast::<u8>(), i.src_addrlen);
        assert!(Address::parse(blob).is_err(), "it names rails, but nobody can be reached by it");
        assert_eq!(blob[2], 0b0101, "two rails, both over IPv4");
        // A program may copy it and ask again with the copy.
        let copy = (host.dupinfo)(info);
        let again = read(copy).unwrap();
        assert!(negotiate(API_1_18, Some(&again), Delivery::Asked).is_ok());
        (host.freeinfo)(copy);
        (host.freeinfo)(info);
    }
}

#[test]
fn delivery_is_echoed_with_a_large_inject_size_when_the_user_wants_it() {
    let first = negotiate(API_2_5, None, Delivery::Echoed).unwrap();
    let offer = negotiate(API_2_5, Some(&mpich(&first)), Delivery::Echoed).unwrap();
    assert_eq!(offer.tx.op_flags, FI_COMPLETION | FI_DELIVERY_COMPLETE);
    assert_eq!((first.tx.inject_size, offer.tx.inject_size), (16384, 16384));
}
