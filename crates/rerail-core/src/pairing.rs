//! Which own rail is joined with which remote address: the paths to a new peer.
//!
//! Source: MN-uDAPL §4.1.1 asks for one common interface; differs: unequal counts and networks are normal.

use crate::types::{Locator, RailDesc};
use rerail_rail::Affinity;

/// Paths to one peer, at most.
const PAIRS_MAX: usize = 16;

/// Pairs own rails with a peer's locators by reachability. Rails that reach the same locators (of one kind and one family of addresses) are
/// looked at together: those on the same network first; where there is no network in common, by place. Every rail of either side that can
/// be paired is, so unequal counts are normal.
pub(crate) fn pair_rails(own: &[RailDesc], remote: &[Locator]) -> Vec<(usize, usize)> {
    let affinity: Vec<Vec<Affinity>> =
        own.iter().map(|r| remote.iter().map(|to| r.reach.affinity(to)).collect()).collect();
    let reached = |i: usize| -> Vec<usize> {
        (0..remote.len()).filter(|&j| affinity[i][j] != Affinity::Unreachable).collect()
    };
    // a peer on this very host has our own places: each is best reached over itself
    let mut near: Vec<(usize, usize)> = Vec::new();
    for (i, of_rail) in affinity.iter().enumerate() {
        let on_network = (0..remote.len()).filter(|&j| of_rail[j] == Affinity::SameNetwork);
        near.extend(on_network.map(|j| (i, j)));
    }
    near.sort_by_key(|&(i, j)| (!own[i].locator.same_place(&remote[j]), i.abs_diff(j), i));
    let mut pairs: Vec<(usize, usize)> = Vec::new();
    let used = |pairs: &[(usize, usize)], i: Option<usize>, j: Option<usize>| {
        pairs.iter().any(|&(a, b)| i.is_none_or(|i| i == a) && j.is_none_or(|j| j == b))
    };
    for &(i, j) in &near {
        if !used(&pairs, Some(i), None) && !used(&pairs, None, Some(j)) {
            pairs.push((i, j));
        }
    }
    for &(i, j) in &near {
        if !used(&pairs, Some(i), None) || !used(&pairs, None, Some(j)) {
            pairs.push((i, j));
        }
    }
    // groups without a network in common
    for first in 0..own.len() {
        let there = reached(first);
        let group: Vec<usize> = (0..own.len()).filter(|&i| reached(i) == there).collect();
        if there.is_empty() || group[0] != first || group.iter().any(|&i| used(&pairs, Some(i), None)) {
            continue;
        }
        for k in 0..group.len().max(there.len()) {
            pairs.push((group[k % group.len()], there[k % there.len()]));
        }
    }
    pairs.truncate(PAIRS_MAX);
    pairs
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Reach;
    use rerail_rail::Kind;

    fn at(addr: &str) -> Locator {
        Locator::ip(addr.parse().unwrap(), 4000)
    }

    fn all(addrs: &[&str]) -> Vec<Locator> {
        addrs.iter().map(|a| at(a)).collect()
    }

    fn rail(addr: &str, prefix_bits: u8) -> RailDesc {
        RailDesc::ip("r", at(addr).socket().unwrap(), prefix_bits, 1500)
    }

    #[test]
    fn rails_are_paired_on_their_networks() {
        let own = [rail("10.1.0.1", 24), rail("10.2.0.1", 24)];
        let mut p = pair_rails(&own, &all(&["10.2.0.2", "10.1.0.2"]));
        p.sort_unstable();
        assert_eq!(p, [(0, 1), (1, 0)]);
    }

    #[test]
    fn unequal_counts_are_paired_too() {
        let own = [rail("10.1.0.1", 16), rail("10.1.0.3", 16)];
        let mut p = pair_rails(&own, &all(&["10.1.0.2"]));
        p.sort_unstable();
        assert_eq!(p, [(0, 0), (1, 0)]);
    }

    #[test]
    fn without_a_common_network_rails_are_paired_by_place() {
        let own = [rail("10.1.0.1", 24), rail("10.2.0.1", 24)];
        let remote = all(&["10.3.0.2", "10.4.0.2", "10.5.0.2"]);
        assert_eq!(pair_rails(&own, &remote), [(0, 0), (1, 1), (0, 2)]);
    }

    #[test]
    fn a_peer_on_the_same_host_is_reached_over_the_same_address() {
        let own = [rail("10.1.0.1", 8), rail("10.2.0.1", 8)];
        assert_eq!(pair_rails(&own, &all(&["10.1.0.1", "10.2.0.1"])), [(0, 0), (1, 1)]);
    }

    #[test]
    fn rails_of_two_families_are_paired_within_each() {
        let own = [rail("10.1.0.1", 24), rail("fd00::1", 64)];
        let mut p = pair_rails(&own, &all(&["fd00::2", "10.1.0.2"]));
        p.sort_unstable();
        assert_eq!(p, [(0, 1), (1, 0)]);
        // one family has a network in common, the other goes through routers
        let mut p = pair_rails(&own, &all(&["fd77::2", "10.1.0.2"]));
        p.sort_unstable();
        assert_eq!(p, [(0, 1), (1, 0)]);
        // a peer without one of them
        assert_eq!(pair_rails(&own, &all(&["10.9.0.2"])), [(0, 0)]);
        assert_eq!(pair_rails(&own[1..], &all(&["10.9.0.2"])), []);
    }

    #[test]
    fn rails_of_two_kinds_never_meet_although_their_places_are_alike() {
        let other = |last| Locator::new(Kind(77), &[10, 1, 0, last], 4000).unwrap();
        let reach = Reach::by_prefix(other(1), 24);
        let own = [rail("10.1.0.1", 24), RailDesc { locator: other(1), reach, ..rail("10.1.0.1", 24) }];
        let mut p = pair_rails(&own, &[other(2), at("10.1.0.2")]);
        p.sort_unstable();
        assert_eq!(p, [(0, 1), (1, 0)]);
        assert_eq!(pair_rails(&own[..1], &[other(2)]), []);
    }
}
