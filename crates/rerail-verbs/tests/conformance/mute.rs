//! A peer that takes a connection and does not answer. The kernel waits for it, for five seconds over iWARP.

use rerail_rail::conformance::{eventually, poll};
use rerail_rail::{CloseReason, Closing, Kind, Locator, RailId, Rails, StreamEvent, StreamId};
use std::net::TcpListener;

/// The port of service 0.
const FIRST_PORT: u16 = 1024;

pub fn a_peer_that_does_not_answer((mut from, mut to): (Rails, Rails)) {
    let (own, mute, good) = (from.rails[0].locator, StreamId(1), StreamId(2));
    if own.kind() != Kind::IWARP {
        println!("nothing is tried: what does not answer is no connection there");
        return;
    }
    let ip = own.place_ip().expect("it has an address");
    let listener = TcpListener::bind((ip, 0)).unwrap();
    let service = listener.local_addr().unwrap().port() - FIRST_PORT;
    from.streams.open(mute, RailId(0), Locator::of_ip(own.kind(), ip, service.into()));
    listener.set_nonblocking(true).unwrap();
    let _silent = eventually("the mute peer is connected to", || {
        poll(&mut from);
        listener.accept().ok()
    });
    assert_eq!(from.streams.close(mute), Closing::Pending);
    // another rail, and then the same
    let good_is_connected = |from: &mut Rails, to: &mut Rails| {
        eventually("something happens", || {
            poll(to);
            let events = poll(from);
            let (ended, connected) =
                (StreamEvent::Closed(mute, CloseReason::Requested), StreamEvent::Connected(good));
            events.iter().find(|e| **e == ended || **e == connected).map(|e| *e == connected)
        })
    };
    let last = (from.rails.len() - 1) as u8;
    from.streams.open(good, RailId(last), to.rails[usize::from(last)].locator);
    assert!(good_is_connected(&mut from, &mut to), "it waited for the mute peer");
    eventually("the mute one is destroyed as well", || {
        poll(&mut to);
        poll(&mut from).contains(&StreamEvent::Closed(mute, CloseReason::Requested)).then_some(())
    });
}
