//! Negotiation against what each program really asks for (`libfabric.md`, "Hints and what gets accepted").

use super::*;
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

/// What MPICH 5 sends as its second question, made from the answer to the first, as MPICH does.
fn mpich(first: &Offer) -> Hints {
    Hints {
        caps: first.caps,
        addr_format: ADDR_FORMAT,
        fabric_name: Some("rerail".into()),
        domain_name: Some("rerail".into()),
        tx: Some(fi_tx_attr {
            op_flags: FI_COMPLETION | FI_DELIVERY_COMPLETE,
            msg_order: FI_ORDER_SAS
                | FI_ORDER_ATOMIC_RAR
                | FI_ORDER_ATOMIC_RAW
                | FI_ORDER_ATOMIC_WAR
                | FI_ORDER_ATOMIC_WAW,
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
    for cap in [FI_MSG, FI_MULTI_RECV, FI_TAGGED, FI_DIRECTED_RECV] {
        assert_ne!(offer.caps & cap, 0, "capability {cap:#x}");
    }
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
    refusal(API_1_18, &Hints { caps: caps | FI_HMEM, ..hints });
}

#[test]
fn open_mpi_btl_is_refused_until_there_is_rma() {
    refusal(API_1_18, &Hints { caps: FI_RMA | FI_ATOMIC, ..Hints::default() });
    refusal(API_1_18, &Hints { caps: FI_RMA | FI_ATOMIC | FI_MSG, ..Hints::default() });
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
}

#[test]
fn fi_pingpong_is_met_and_gets_its_destination_back() {
    let dest = Address {
        token: rerail_wire::Token([5; 16]),
        port: 4711,
        endpoint: 2,
        encrypts: false,
        rails: vec!["10.9.0.1".parse().unwrap()],
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
    refusal(API_2_5, &Hints { addr_format: FI_SOCKADDR_IN, ..Hints::default() });
    refusal(API_2_5, &Hints { dest_addr: Some(vec![1; 56]), ..Hints::default() });
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

fn rail(name: &str, addr: &str) -> Interface {
    Interface {
        name: name.into(),
        index: 1,
        addr: addr.parse().unwrap(),
        prefix_bits: 24,
        speed_mbps: 1000,
        mtu: 1500,
        up: true,
    }
}

#[test]
fn an_info_of_the_running_library_carries_the_offer() {
    let Some(host) = library() else { return };
    let offer = negotiate(API_1_18, None, Delivery::Asked).unwrap();
    let rails = [rail("a", "10.1.0.1"), rail("b", "10.2.0.1")];
    let info = fill(API_1_18, &offer, &rails).unwrap();
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
        assert_eq!(blob[2], 2, "two rails");
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
