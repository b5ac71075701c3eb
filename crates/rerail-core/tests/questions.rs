//! Which peers are queried, when, and how often: because of one silent path, and because nothing happens.

mod company;

use company::{Asked, Company, rail};
use rerail_core::{Health, Options, RailDesc, RailId};
use std::time::Duration;

fn ms(n: u64) -> Duration {
    Duration::from_millis(n)
}

/// The rail that process 0 sends on.
fn primary(c: &Company) -> u8 {
    let paths = c.engines[0].paths();
    paths.iter().max_by_key(|x| x.bytes_sent).expect("there are paths").rail.0
}

/// Peers, without number 1, in the order in which process 0 first queried them over `rail`, with the time since `from`
/// in microseconds.
fn swept(c: &Company, rail: u8, from: rerail_core::Time) -> Vec<(u64, usize)> {
    let mut seen = Vec::<(u64, usize)>::new();
    for a in c.asked.iter().filter(|a| a.from == 0 && a.rail == rail && a.to != 1) {
        if !seen.iter().any(|s| s.1 == a.to) {
            seen.push(((a.at.since(from)).as_micros() as u64, a.to));
        }
    }
    seen
}

#[test]
fn a_dark_rail_is_asked_about_to_everybody_few_at_a_time_with_a_witness_each() {
    let mut c = Company::new(150, |_| Options::default());
    let rail = primary(&c);
    let from = c.now;
    c.dark.push((0, rail));
    c.send(1);
    c.pass(ms(24));
    let seen = swept(&c, rail, from);
    assert_eq!(seen.len(), 149, "every peer is queried");
    let mut batches: Vec<usize> = Vec::new();
    let mut last = 0;
    for (at, _) in &seen {
        if *at != last {
            batches.push(0);
            last = *at;
        }
        *batches.last_mut().expect("there is one") += 1;
    }
    assert_eq!(batches, [8, 16, 32, 64, 29]);
    for (_, p) in &seen {
        let asks = |rail: u8| {
            let ours = |a: &&Asked| a.from == 0 && a.to == *p && a.rail == rail;
            c.asked.iter().find(ours).expect("it was asked").at
        };
        assert_eq!(asks(rail), asks(1 - rail), "the witness is asked at the same moment");
    }
    // those that were queried first are suspected as soon as the one that gave the sign
    let suspect = |c: &Company| {
        let paths = c.engines[0].paths();
        paths.iter().filter(|x| x.rail == RailId(rail) && x.health == Health::Suspect).count()
    };
    assert!(suspect(&c) > 8, "{}", suspect(&c));
    // paths on which nothing is under way delay no operation, and their verdict may take longer
    c.pass(ms(60));
    let paths = c.engines[0].paths();
    assert!(paths.iter().all(|x| x.health.connected() == (x.rail != RailId(rail))), "each has its verdict");
}

#[test]
fn the_witness_is_on_another_port() {
    let rails = |i| {
        let on = |(r, port): (u8, &str)| RailDesc { port: port.to_owned(), ..rail(i, r) };
        [(0, "p"), (1, "p"), (2, "q")].map(on).to_vec()
    };
    let mut c = Company::with_rails(20, |_| Options::default(), rails);
    let dark = primary(&c);
    assert!(dark < 2, "the other rail of its port is before the one of another");
    let from = c.now;
    c.dark.extend([(0, 0), (0, 1)]);
    c.send(1);
    c.pass(ms(24));
    for (at, p) in swept(&c, dark, from) {
        let with =
            c.asked.iter().filter(|a| a.from == 0 && a.to == p && a.at == from + Duration::from_micros(at));
        let rails: Vec<u8> = with.map(|a| a.rail).collect();
        assert!(rails.contains(&2), "peer {p} has a witness that is as dark: rails {rails:?}");
    }
    assert_eq!(swept(&c, dark, from).len(), 19);
}

#[test]
fn where_the_first_answer_nobody_else_is_asked() {
    let mut c = Company::new(150, |_| Options::default());
    let rail = primary(&c);
    let from = c.now;
    c.dark.push((1, rail));
    c.send(1);
    c.pass(ms(60));
    assert_eq!(swept(&c, rail, from).len(), 8);
    let paths = c.engines[0].paths();
    let broken: Vec<_> = paths.iter().filter(|x| !x.health.connected()).collect();
    assert_eq!(broken.len(), 1, "only the path to the peer whose rail it is");
}

#[test]
fn who_was_used_last_is_asked_first_and_before_all_who_has_something_under_way() {
    let mut c = Company::new(40, |_| Options::default());
    let rail = primary(&c);
    for p in [30, 20, 10] {
        c.send(p);
        c.pass(ms(2));
    }
    c.pass(ms(5));
    let from = c.now;
    c.dark.push((0, rail));
    c.send(1);
    c.pass(ms(5));
    // what is under way to it is not late yet when the sign comes
    c.send(35);
    c.pass(ms(6));
    let order: Vec<usize> = swept(&c, rail, from).iter().map(|s| s.1).collect();
    assert_eq!(order[..4], [35, 10, 20, 30]);
}

#[test]
fn whoever_is_asked_on_one_path_only_asks_on_the_other() {
    let mut c = Company::new(1, |_| Options::default());
    let rail = primary(&c);
    c.dark.push((0, rail));
    c.send(1);
    c.pass(ms(18));
    let back = c.asked.iter().filter(|a| a.from == 1 && a.rail == rail).count();
    assert!(back >= 2, "{:?}", c.asked);
    // and when all is well nothing is queried
    let mut c = Company::new(1, |_| Options::default());
    c.pass(ms(200));
    assert!(c.asked.is_empty(), "{:?}", c.asked);
}

fn with_budget(budget: u32) -> Options {
    Options { probe_budget: budget, ..Options::default() }
}

/// Queries by process 0 and to it.
fn by_and_to(c: &Company) -> (usize, usize) {
    let by = c.asked.iter().filter(|a| a.from == 0).count();
    (by, c.asked.len() - by)
}

#[test]
fn idle_paths_of_few_peers_are_asked_at_the_usual_interval() {
    let mut c = Company::new(20, |_| Options::default());
    c.pass(ms(4_000));
    for p in 1..=20 {
        for rail in 0..2 {
            let between = |a: &&Asked| (a.from == p || a.to == p) && a.rail == rail;
            let times: Vec<_> = c.asked.iter().filter(between).map(|a| a.at).collect();
            assert!(times.len() >= 9, "{} questions in 4 s", times.len());
            assert!(times.windows(2).all(|t| t[1].since(t[0]) <= ms(401)));
        }
    }
}

#[test]
fn many_idle_peers_are_asked_within_the_budget_and_ask_as_seldom_themselves() {
    // 200 paths at 20 a second: every ten seconds, by one side or the other
    let mut c = Company::new(100, |i| if i == 0 { with_budget(20) } else { Options::default() });
    c.pass(ms(1_000));
    c.asked.clear();
    let mut longest = (0, 0);
    for _ in 0..60 {
        let before = by_and_to(&c);
        c.pass(ms(1_000));
        let after = by_and_to(&c);
        longest = (longest.0.max(after.0 - before.0), longest.1.max(after.1 - before.1));
    }
    let (by, to) = by_and_to(&c);
    assert!(longest.0 <= 22, "{} questions in one second", longest.0);
    assert!(longest.1 <= 80, "asked {} times in one second", longest.1);
    assert!(by + to <= 1_200, "{by} and {to} questions in a minute");
    for p in 1..=100 {
        for rail in 0..2 {
            let between = |a: &&Asked| (a.from == p || a.to == p) && a.rail == rail;
            let times: Vec<_> = c.asked.iter().filter(between).map(|a| a.at).collect();
            assert!(times.len() >= 3, "a path to peer {p} was asked {} times in a minute", times.len());
            assert!(times.windows(2).all(|t| t[1].since(t[0]) >= ms(9_900)), "{times:?}");
        }
    }
}

#[test]
fn who_is_waited_for_is_asked_at_the_usual_interval_soon_after_the_receive_was_posted() {
    let mut c = Company::new(100, |i| with_budget(if i == 0 { 5 } else { 100 }));
    c.pass(ms(3_000));
    c.asked.clear();
    let from = c.now;
    c.wait_for(7);
    c.pass(ms(4_000));
    for rail in 0..2 {
        let ours = |a: &&Asked| a.from == 0 && a.to == 7 && a.rail == rail;
        let times: Vec<_> = c.asked.iter().filter(ours).map(|a| a.at).collect();
        assert!(times[0].since(from) <= ms(401), "{times:?}");
        assert!(times.len() >= 9 && times.windows(2).all(|t| t[1].since(t[0]) <= ms(401)), "{times:?}");
    }
    let others = c.asked.iter().filter(|a| a.from == 0 && a.to != 7).count();
    assert!(others <= 21, "{others} questions to others in 4 s");
}

#[test]
fn who_left_takes_no_share_of_the_budget() {
    let mut c = Company::new(100, |_| with_budget(5));
    for p in 2..=100 {
        let (now, ep) = (c.now, c.endpoints[p]);
        c.engines[p].close_endpoint(ep, now);
        c.engines[p].shutdown(now);
    }
    // the interval that was long is over
    c.pass(ms(61_000));
    c.asked.clear();
    c.pass(ms(4_000));
    let (by, to) = by_and_to(&c);
    assert!(by + to >= 2 * 9, "only {by} and {to} questions on the two paths that are left");
}
