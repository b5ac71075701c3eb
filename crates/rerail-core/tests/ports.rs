//! Rails of one physical port are in one group: they are no alternates for each other where there is another, and only those of the best
//! kind carry, whether the port is on the own side or on the peer's.

mod company;

use company::{Company, rail};
use rerail_core::{Health, Kind, Locator, Options, Policy, RailDesc, RailId, Reach};

/// The rails of process 0 that are the alternates of its rails, when the ports of both processes are these.
fn alternates(ports: [[&str; 3]; 2]) -> Vec<Option<RailId>> {
    let rails = |i: usize| -> Vec<RailDesc> {
        (0..3).map(|r| RailDesc { port: ports[i][usize::from(r)].to_owned(), ..rail(i, r) }).collect()
    };
    let options = |_| Options { policy: Policy::PrimaryStandby, ..Options::default() };
    let c = Company::with_rails(1, options, rails);
    c.engines[0].carriers().iter().map(|x| x.alternate.map(|a| a.1)).collect()
}

#[test]
fn the_alternate_is_on_another_port_of_both_sides() {
    let own = ["", "", ""];
    assert_eq!(alternates([own, own]), [Some(RailId(1))]);
    assert_eq!(alternates([["p", "p", "q"], own]), [Some(RailId(2))]);
    assert_eq!(alternates([own, ["p", "p", "q"]]), [Some(RailId(2))]);
    assert_eq!(alternates([["p"; 3], own]), [Some(RailId(1))], "better one of the same port than none");
}

/// The states of the paths of process 0, when both processes have an interface and an adapter on these ports.
fn states(ports: [[&str; 2]; 2]) -> Vec<Health> {
    let rails = |i: usize| -> Vec<RailDesc> {
        let ip = |r: u8| RailDesc { port: ports[i][usize::from(r)].to_owned(), ..rail(i, r) };
        let place = Locator::new(Kind::EXAMPLE, ip(1).locator.place(), 4000).expect("a short place");
        let reach = Reach::by_prefix(place, 16);
        vec![ip(0), RailDesc { locator: place, reach, places_max: 4, ..ip(1) }]
    };
    let c = Company::with_rails(1, |_| Options::default(), rails);
    c.engines[0].paths().iter().map(|x| x.health).collect()
}

#[test]
fn a_port_is_left_to_the_better_kind_whichever_side_it_is_on() {
    let (apart, one) = (["a", "b"], ["p", "p"]);
    assert_eq!(states([apart, apart]), [Health::Up, Health::Up]);
    let left = [Health::Standby, Health::Up];
    assert_eq!(
        (states([one, one]), states([one, apart]), states([apart, one])),
        (left.into(), left.into(), left.into())
    );
}
