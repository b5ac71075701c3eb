//! Scheduling policies: which rails carry traffic, and in what shares.
//!
//! Owns: the plan of a process, made once from its options and its rails. Invariant: at least one rail carries by itself, and a
//! reserve is the alternate of some rail. Sources: multirail slides ("Introduction": multiplexing, striping; "Scheduling
//! Policies"; "Adaptive Striping"), MN-uDAPL §4.1.3 (even, round robin, process binding, weighted, adaptive), APM §3.1.1
//! (alternates named by the user). `sched` gives out fragments by the plan, `migration` keeps paths in standby by it.

use crate::options::Options;
use crate::rails::outranks;
use crate::types::RailDesc;
use crate::types::RailId;

/// How traffic is spread over the paths to a peer. Whatever the policy, a path that breaks is left out and taken back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Each fragment goes to the path on which it is expected to finish first (multirail slides, "Adaptive Striping"; MN-uDAPL
    /// §4.1.3 finds it the best where paths differ).
    Adaptive,
    /// Every usable path gets the same share of each message (MN-uDAPL §4.1.3).
    Even,
    /// Every usable path gets a share of each message in proportion to its rail's weight (MN-uDAPL §4.1.3).
    Weighted,
    /// Whole messages go to the usable paths in turn, small ones too: what the multirail slides ("Introduction") call
    /// multiplexing, "messages sent through rails selected in round robin fashion". Striping fragments in turn would be `Even`.
    RoundRobin,
    /// The process uses one rail of its node, chosen by its rank there, so that the ranks of a node spread over its rails (MN-uDAPL
    /// §4.1.3, "process binding"). The others are in standby.
    Binding,
    /// One rail carries, the others are in standby (APM §2.2; MN-uDAPL §4.1.3 for the primary path).
    PrimaryStandby,
}

impl Policy {
    /// All of them, with the names that users write.
    pub const NAMES: &'static [(&'static str, Policy)] = &[
        ("adaptive", Policy::Adaptive),
        ("even", Policy::Even),
        ("weighted", Policy::Weighted),
        ("round-robin", Policy::RoundRobin),
        ("binding", Policy::Binding),
        ("primary-standby", Policy::PrimaryStandby),
    ];

    /// The policy of this name.
    pub fn named(name: &str) -> Option<Policy> {
        Self::NAMES.iter().find(|(n, _)| *n == name).map(|(_, p)| *p)
    }

    /// Name as users write it.
    pub fn name(self) -> &'static str {
        Self::NAMES.iter().find(|(_, p)| *p == self).expect("every policy has a name").0
    }

    /// Whether one path at a time carries everything.
    pub(crate) fn single(self) -> bool {
        matches!(self, Policy::Binding | Policy::PrimaryStandby)
    }
}

/// What the options set for each rail.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Plan {
    policy: Policy,
    /// Shares for `Weighted`, by rail; all positive. All 1 under the other policies.
    weights: Vec<f64>,
    /// Alternate that the user named, by rail.
    alternates: Vec<Option<RailId>>,
    /// Rails that carry only in the place of another.
    reserve: Vec<bool>,
    /// Rails that the user named as carriers.
    named: Vec<bool>,
    /// The one rail that carries, when the policy wants one.
    chosen: Option<RailId>,
}

impl Plan {
    /// Makes the plan. `token`: first bytes of the process's token, which stand in for a rank that is not known.
    ///
    /// # Errors
    /// A sentence for the user: an option names a rail that this process does not have.
    pub fn new(o: &Options, rails: &[RailDesc], token: u16) -> Result<Plan, String> {
        let names: Vec<&str> = rails.iter().map(|r| r.name.as_str()).collect();
        o.check_rails(&names)?;
        let find = |name: &str| names.iter().position(|n| *n == name).expect("checked above");
        let mut weights = vec![1.0; rails.len()];
        if o.weights.is_empty() {
            // a rail of unknown speed cannot be compared: then all weigh the same
            if o.policy == Policy::Weighted && rails.iter().all(|r| r.speed_mbps > 0) {
                weights = rails.iter().map(|r| f64::from(r.speed_mbps)).collect();
            }
        } else if o.policy == Policy::Weighted {
            for (name, w) in &o.weights {
                weights[find(name)] = f64::from(*w);
            }
        }
        let mut alternates = vec![None; rails.len()];
        // a rail that is first named as another's alternate is kept for that
        let mut first = vec![None; rails.len()];
        for (of, alternate) in &o.alternates {
            let (a, b) = (find(of), find(alternate));
            alternates[a] = Some(RailId(b as u8));
            first[a].get_or_insert(false);
            first[b].get_or_insert(true);
        }
        let reserve: Vec<bool> = first.iter().map(|r| *r == Some(true)).collect();
        let named: Vec<bool> = (0..rails.len())
            .map(|i| first[i] == Some(false) || o.policy == Policy::Weighted && !o.weights.is_empty())
            .collect();
        // of the rails of one port, those of the better kind
        let second = |i: usize| {
            let better = |&to: &usize| outranks(rails, to, i) && rails[to].shares_port_with(&rails[i]);
            !named[i] && (0..rails.len()).filter(better).any(|to| !reserve[to])
        };
        let carrying: Vec<usize> = (0..rails.len()).filter(|&i| !reserve[i] && !second(i)).collect();
        let chosen = match o.policy {
            Policy::Binding => {
                let rank = o.local_rank.unwrap_or(u32::from(token)) as usize;
                Some(carrying[rank % carrying.len()])
            }
            Policy::PrimaryStandby => {
                // the user's choice first, then the fastest, then the order of the rails
                let named = o.alternates.first().map(|(of, _)| find(of));
                let fastest = carrying.iter().copied().rev().max_by_key(|&i| rails[i].speed_mbps);
                named.or(fastest)
            }
            _ => None,
        };
        Ok(Plan {
            policy: o.policy,
            weights,
            alternates,
            reserve,
            named,
            chosen: chosen.map(|i| RailId(i as u8)),
        })
    }

    #[inline]
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// The share of a rail under `Weighted`; 1 under the other policies.
    #[inline]
    pub fn weight(&self, rail: RailId) -> f64 {
        self.weights[rail.0 as usize]
    }

    /// The alternate of a rail that the user named.
    pub fn alternate(&self, rail: RailId) -> Option<RailId> {
        self.alternates[rail.0 as usize]
    }

    /// Whether a rail carries only in the place of another.
    pub fn is_reserve(&self, rail: RailId) -> bool {
        self.reserve[rail.0 as usize]
    }

    /// Whether the user named a rail as one that carries: then it does, whatever else its port has.
    pub fn insists(&self, rail: RailId) -> bool {
        self.named[rail.0 as usize]
    }

    /// The one rail that carries, when the policy wants one.
    pub fn chosen(&self) -> Option<RailId> {
        self.chosen
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::Locator;
    use rerail_rail::Kind;

    fn rails(speeds: &[u32]) -> Vec<RailDesc> {
        let rail = |(i, &speed_mbps): (usize, &u32)| {
            let at = std::net::SocketAddr::from(([10, i as u8, 0, 1], 4000));
            RailDesc { speed_mbps, ..RailDesc::ip(&format!("eth{i}"), at, 24, 1500) }
        };
        speeds.iter().enumerate().map(rail).collect()
    }

    fn plan(speeds: &[u32], set: &[(&str, &str)]) -> Result<Plan, String> {
        let mut o = Options::default();
        for (name, value) in set {
            o.set(name, value).map_err(|e| e.to_string())?;
        }
        Plan::new(&o, &rails(speeds), 0x0101)
    }

    #[test]
    fn weights_are_the_users_or_the_speeds() {
        let w = |speeds: &[u32], set: &[(&str, &str)]| plan(speeds, set).unwrap().weights;
        assert_eq!(w(&[2000, 200], &[("policy", "weighted")]), [2000.0, 200.0]);
        assert_eq!(w(&[2000, 0], &[("policy", "weighted")]), [1.0, 1.0]);
        assert_eq!(w(&[2000, 200], &[("policy", "weighted"), ("weights", "eth1=3, eth0=1")]), [1.0, 3.0]);
        assert_eq!(w(&[2000, 200], &[("policy", "even"), ("weights", "eth1=3,eth0=1")]), [1.0, 1.0]);
    }

    #[test]
    fn ranks_of_a_node_spread_over_its_rails() {
        let bound = |rank: &str| {
            plan(&[0; 3], &[("policy", "binding"), ("local_rank", rank)]).unwrap().chosen.unwrap().0
        };
        assert_eq!(["0", "1", "2", "3", "4"].map(bound), [0, 1, 2, 0, 1]);
        // without a rank, by the token
        assert_eq!(plan(&[0; 2], &[("policy", "binding")]).unwrap().chosen, Some(RailId(1)));
        // a reserve is bound to no process
        let set = [("policy", "binding"), ("local_rank", "1"), ("alternate", "eth0>eth1")];
        assert_eq!(plan(&[0; 3], &set).unwrap().chosen, Some(RailId(2)));
    }

    #[test]
    fn where_one_rail_carries_it_is_of_the_better_kind_of_its_port() {
        let adapter = Locator::new(Kind::EXAMPLE, &[0, 1], 4000).expect("a short place");
        let rails: Vec<RailDesc> = rails(&[1000, 1000, 100, 100])
            .into_iter()
            .enumerate()
            .map(|(i, rail)| {
                let locator = if i < 2 { rail.locator } else { adapter };
                RailDesc { port: format!("p{}", i % 2), locator, places_max: (i / 2) as u16, ..rail }
            })
            .collect();
        let chosen = |set: &[(&str, &str)]| {
            let mut o = Options::default();
            set.iter().for_each(|(name, value)| o.set(name, value).expect("valid"));
            Plan::new(&o, &rails, 0).unwrap().chosen.unwrap().0
        };
        let bound = |rank| chosen(&[("policy", "binding"), ("local_rank", rank)]);
        assert_eq!(["0", "1", "2"].map(bound), [2, 3, 2]);
        assert_eq!(chosen(&[("policy", "primary-standby")]), 2, "although the interfaces are faster");
        assert_eq!(chosen(&[("policy", "primary-standby"), ("alternate", "eth1>eth3")]), 1);
        // a rail that is named carries, and one that is kept in reserve is no reason to stand by
        let set = [("policy", "binding"), ("local_rank", "0"), ("alternate", "eth0>eth2")];
        assert_eq!(chosen(&set), 0);
        let set = [("policy", "binding"), ("local_rank", "1"), ("alternate", "eth2>eth3")];
        assert_eq!(chosen(&set), 2, "the interface of the second port, whose adapter is a reserve");
    }

    #[test]
    fn the_primary_rail_is_the_users_or_the_fastest_or_the_first() {
        let primary = |speeds: &[u32], set: &[(&str, &str)]| {
            let mut all = vec![("policy", "primary-standby")];
            all.extend(set);
            plan(speeds, &all).unwrap().chosen
        };
        assert_eq!(primary(&[0, 0], &[]), Some(RailId(0)));
        assert_eq!(primary(&[100, 1000, 1000], &[]), Some(RailId(1)));
        assert_eq!(primary(&[1000, 100], &[("alternate", "eth1>eth0")]), Some(RailId(1)));
    }

    #[test]
    fn a_rail_that_is_first_named_as_an_alternate_is_kept_for_that() {
        let p = |text| plan(&[0; 4], &[("alternate", text)]).unwrap();
        assert_eq!(p("eth0>eth1").reserve, [false, true, false, false]);
        assert_eq!(p("eth0>eth1,eth1>eth0").reserve, [false, true, false, false]);
        let chain = p("eth0>eth1>eth2");
        assert_eq!(chain.reserve, [false, true, true, false]);
        assert_eq!(chain.alternates, [Some(RailId(1)), Some(RailId(2)), None, None]);
    }

    #[test]
    fn a_rail_that_does_not_exist_is_named_with_those_that_do() {
        let e = plan(&[0; 2], &[("alternate", "eth0>ib0")]).unwrap_err();
        assert_eq!(
            e,
            "FI_RERAIL_ALTERNATE names \"ib0\", which is no rail of this process: its rails are eth0, eth1"
        );
        let e = plan(&[0; 2], &[("policy", "weighted"), ("weights", "eth0=1")]).unwrap_err();
        assert_eq!(e, "FI_RERAIL_WEIGHTS gives rail \"eth1\" no weight: give one to each of eth0, eth1");
    }
}
