//! Which rails the names in `FI_RERAIL_RAILS` choose, where there are adapters beside interfaces.
//!
//! The name of an adapter chooses that adapter. The name of an interface chooses the interface, and the adapters over it
//! unless any adapter is named. So `eth0` is the whole port, and `mlx5_0,eth1` is one adapter and one interface.

use rerail_verbs::Found;

/// See above.
#[derive(Debug, Default)]
pub struct Selection {
    adapters: Vec<String>,
    interfaces: Vec<String>,
}

impl Selection {
    /// That of these names, on a node with these adapters.
    pub fn new(names: &[String], found: &[Found]) -> Selection {
        let is_adapter = |name: &String| found.iter().any(|adapter| adapter.name == *name);
        let (adapters, interfaces) = names.iter().cloned().partition(is_adapter);
        Selection { adapters, interfaces }
    }

    /// Whether everything is chosen.
    pub fn is_all(&self) -> bool {
        self.adapters.is_empty() && self.interfaces.is_empty()
    }

    /// The interfaces that are chosen; none: all, or none ([`Selection::is_all`]).
    pub fn interfaces(&self) -> &[String] {
        &self.interfaces
    }

    /// Whether an adapter is chosen.
    pub fn has(&self, adapter: &Found) -> bool {
        let named = |names: &[String], name: &String| names.contains(name);
        match self.adapters.is_empty() {
            true => self.interfaces.is_empty() || named(&self.interfaces, &adapter.interface),
            false => named(&self.adapters, &adapter.name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_rail::Kind;

    #[test]
    fn a_name_is_that_of_an_adapter_or_of_a_port() {
        let found: Vec<Found> = ["0", "1"]
            .map(|n| Found {
                kind: Kind::ROCE,
                name: format!("rxe{n}"),
                interface: format!("rail{n}"),
                address: rerail_verbs::Address::Lid(1),
            })
            .into();
        let chosen = |names: &str| {
            let names: Vec<String> = names.split_terminator(',').map(String::from).collect();
            let selection = Selection::new(&names, &found);
            let adapters =
                found.iter().filter(|a| selection.has(a)).map(|a| a.name.clone()).collect::<Vec<_>>();
            (selection.interfaces().join(","), adapters.join(","), selection.is_all())
        };
        let of = |interfaces: &str, adapters: &str| (interfaces.to_string(), adapters.to_string(), false);
        assert_eq!(chosen(""), (String::new(), "rxe0,rxe1".into(), true));
        assert_eq!(chosen("rail1"), of("rail1", "rxe1"), "the whole port");
        assert_eq!(chosen("rxe0"), of("", "rxe0"));
        assert_eq!(
            chosen("rxe0,rail1"),
            of("rail1", "rxe0"),
            "an adapter, and an interface without its adapter"
        );
        assert_eq!(chosen("eth7"), of("eth7", ""));
    }
}
