//! Rails of one physical port are in one group: they are no alternates for each other where there is another, on the own side and on the peer's.

mod company;

use company::{Company, rail};
use rerail_core::{Options, Policy, RailDesc, RailId};

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
