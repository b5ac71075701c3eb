//! Rails of two kinds in one process, and the layers over both, meet the contract.

use rerail_fault::{Injector, Plan, with_faults};
use rerail_rail::{Kind, Rails, conformance_tests, join};

fn ip() -> Rails {
    rerail_ip::attach_loopback(1..3).unwrap()
}

fn example() -> Rails {
    rerail_example::attach(2).unwrap()
}

fn both(side: impl Fn() -> Vec<Rails>) -> (Rails, Rails) {
    (join(side()).unwrap(), join(side()).unwrap())
}

mod example_first {
    use super::*;

    conformance_tests!(|| both(|| vec![example(), ip()]));
}

mod ip_first {
    use super::*;

    conformance_tests!(|| both(|| vec![ip(), example()]));
}

/// The shortcut over shared memory leaves rails alone that write into memory by themselves.
mod under_the_shortcut {
    use super::*;

    fn over(rails: Rails) -> Rails {
        rerail_shm::over(rails, true).map_err(|(_, why)| why).unwrap()
    }

    fn near(side: impl Fn() -> Vec<Rails>) -> (Rails, Rails) {
        let (a, b) = both(side);
        (over(a), over(b))
    }

    mod example_first {
        use super::*;

        conformance_tests!(|| near(|| vec![example(), ip()]));
    }

    mod ip_first {
        use super::*;

        conformance_tests!(|| near(|| vec![ip(), example()]));
    }
}

mod under_faults {
    use super::*;

    fn planted(rails: Rails, plan: &str) -> Rails {
        let names: Vec<String> = rails.rails.iter().map(|r| r.name.clone()).collect();
        let injector = Injector::new(names.clone());
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        injector.set(Plan::parse(plan, &names).unwrap());
        with_faults(rails, &injector).unwrap()
    }

    fn planted_both(plan: &str) -> (Rails, Rails) {
        let (a, b) = both(|| vec![example(), ip()]);
        (planted(a, plan), planted(b, plan))
    }

    /// Nothing changes for an hour, and every call goes through the layer.
    mod to_come {
        use super::*;

        conformance_tests!(|| planted_both("all: dark from=3600s"));
    }

    /// Streams stand still again and again, and so does what is placed.
    mod again_and_again {
        use super::*;

        conformance_tests!(|| planted_both("all: flap=30ms/10ms on=streams"));
    }
}

#[test]
fn rails_count_through_and_names_are_unique() {
    let names = |rails: &Rails| rails.rails.iter().map(|r| r.name.clone()).collect::<Vec<_>>();
    let alone = names(&ip());
    let joined = join(vec![example(), ip()]).unwrap();
    assert_eq!(names(&joined), ["example0", "example1", &alone[0], &alone[1]]);
    assert_eq!(
        joined.rails.iter().map(|r| r.kind()).collect::<Vec<_>>(),
        [Kind::EXAMPLE, Kind::EXAMPLE, Kind::IP, Kind::IP]
    );
    let mut named = ip();
    named.rails[1].name = "example1".to_owned();
    let twice = join(vec![example(), named]).err().unwrap();
    assert_eq!(twice.to_string(), "rails of two kinds are named \"example1\"");
    assert!(join(Vec::new()).is_err());
}
