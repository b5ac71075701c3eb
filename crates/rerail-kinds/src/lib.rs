//! The kinds of rail that there are. Owns: how each is made, and which of them the options choose. A new kind is injected here.

#![warn(missing_docs)]

mod place;
mod selection;

pub use place::Place;

use rerail_core::{Options, ShmMode};
pub use rerail_ip::AttachError;
use rerail_rail::{Kind, Rails};
use rerail_verbs::Found;
use selection::Selection;
use std::fmt;

/// Rails of the kind [`Kind::EXAMPLE`].
const EXAMPLE_RAILS: usize = 2;

/// Why rails cannot be used; a sentence for the user.
pub enum KindError {
    /// Those over IP.
    Ip(AttachError),
    /// Any others.
    Other(String),
}

impl fmt::Display for KindError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KindError::Ip(why) => why.fmt(f),
            KindError::Other(why) => f.write_str(why),
        }
    }
}

/// The rails of all kinds that the options want. An adapter that cannot be used does not stop a job that has other rails:
/// the log gets a note in its place.
///
/// # Errors
/// The rails of a kind cannot be used, or not beside those of another.
pub fn attach(options: &Options) -> Result<Rails, KindError> {
    let (mut kinds, mut notes) = (Vec::new(), Vec::new());
    let selection = selection(options, &adapters(options))?;
    for &kind in &options.kinds {
        match attach_one(kind, options, &selection) {
            Ok(rails) => kinds.push(rails),
            Err(why) if rerail_verbs::KINDS.contains(&kind) && options.kinds.len() > 1 => {
                notes.push(why.to_string())
            }
            Err(why) => return Err(why),
        }
    }
    let mut rails = rerail_rail::join(kinds)
        .map_err(|why| KindError::Other(format!("rerail cannot join its rails: {why}")))?;
    rails.notes.append(&mut notes);
    Ok(rails)
}

/// The same, with the shortcut over shared memory between processes of one host if the options want it.
///
/// # Errors
/// As [`attach`].
pub fn attach_with_shm(options: &Options) -> Result<Rails, KindError> {
    let rails = attach(options)?;
    if options.shm == ShmMode::Off {
        return Ok(rails);
    }
    Ok(rerail_shm::over(rails, options.shm == ShmMode::SingleCopy).unwrap_or_else(|(mut rails, why)| {
        rails.notes.push(format!(
            "processes on this host are reached through sockets, not through shared memory: {why}"
        ));
        rails
    }))
}

/// The adapters of this node, of the kinds that the options want.
fn adapters(options: &Options) -> Vec<Found> {
    match options.kinds.iter().any(|kind| rerail_verbs::KINDS.contains(kind)) {
        true => rerail_verbs::discover().map_or_else(|_| Vec::new(), |discovery| discovery.found),
        false => Vec::new(),
    }
}

fn selection(options: &Options, adapters: &[Found]) -> Result<Selection, KindError> {
    let selection = Selection::new(&options.rails, adapters);
    if options.kinds.contains(&Kind::IP) && selection.interfaces().is_empty() && !selection.is_all() {
        return Err(KindError::Other(
            "FI_RERAIL_RAILS names adapters only, but FI_RERAIL_KINDS has ip: name an interface as well, or leave ip out"
                .into(),
        ));
    }
    Ok(selection)
}

fn attach_one(kind: Kind, options: &Options, selection: &Selection) -> Result<Rails, KindError> {
    let other = |why: &dyn fmt::Display| {
        KindError::Other(format!("FI_RERAIL_KINDS: rails of the kind {} cannot be used: {why}", kind.name()))
    };
    match kind {
        Kind::IP => {
            rerail_ip::attach_with(selection.interfaces(), &options.tcp_congestion).map_err(KindError::Ip)
        }
        Kind::EXAMPLE => rerail_example::attach(EXAMPLE_RAILS).map_err(|why| other(&why)),
        kind if rerail_verbs::KINDS.contains(&kind) => {
            let chosen = |adapter: &Found| selection.has(adapter);
            rerail_verbs::attach(kind, &verbs_settings(options), &chosen).map_err(|why| other(&why))
        }
        _ => Err(other(&"there are none")),
    }
}

fn verbs_settings(options: &Options) -> rerail_verbs::Settings {
    rerail_verbs::Settings {
        keep_registrations: options.keep_registrations,
        in_order_placement: options.in_order_placement,
        shared_receives: true,
    }
}

/// What the rails of a process are called and where programs find it, found without using them.
pub struct Looked {
    /// The names of all rails.
    pub names: Vec<String>,
    /// Those with an IP address. The interface of an adapter may be a rail as well; it is named once.
    pub places: Vec<Place>,
}

/// Looks for the rails of all kinds that the options want.
///
/// # Errors
/// There are none over IP although there should be.
pub fn look(options: &Options) -> Result<Looked, KindError> {
    let adapters = adapters(options);
    let selection = selection(options, &adapters)?;
    let interfaces = match options.kinds.contains(&Kind::IP) {
        true => rerail_ip::discover(selection.interfaces()).map_err(KindError::Ip)?,
        false => Vec::new(),
    };
    let chosen = |kind: Kind| adapters.iter().filter(move |a| a.kind == kind).filter(|a| selection.has(a));
    let of = |kind: &Kind| -> Vec<String> {
        match *kind {
            Kind::IP => interfaces.iter().map(|i| i.name.clone()).collect(),
            Kind::EXAMPLE => (0..EXAMPLE_RAILS).map(rerail_example::name).collect(),
            kind => chosen(kind).map(|adapter| adapter.name.clone()).collect(),
        }
    };
    let names = options.kinds.iter().flat_map(of).collect();
    let of_adapters = options.kinds.iter().flat_map(|kind| chosen(*kind)).filter_map(Place::of_adapter);
    Ok(Looked { names, places: joined(interfaces.iter().map(Place::from), of_adapters) })
}

fn joined(first: impl Iterator<Item = Place>, more: impl Iterator<Item = Place>) -> Vec<Place> {
    let mut all: Vec<Place> = first.collect();
    for place in more {
        if all.iter().all(|other| other.addr != place.addr) {
            all.push(place);
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_verbs::Address;

    #[test]
    fn an_adapter_is_found_by_its_address_and_only_once_beside_its_interface() {
        let found = |kind, name: &str, interface: &str, address| Found {
            kind,
            name: name.into(),
            interface: interface.into(),
            address,
        };
        let ip = |last: u8| Address::Ip { ip: [10, 0, 0, last].into(), prefix_bits: 24 };
        let adapters = [
            found(Kind::ROCE, "rxe0", "eth0", ip(1)),
            found(Kind::IWARP, "siw0", "eth1", ip(2)),
            found(Kind::IB, "mlx5_0", "", Address::Lid(7)),
        ];
        let places = || adapters.iter().filter_map(Place::of_adapter);
        let alone = joined(std::iter::empty(), places());
        assert_eq!(alone.iter().map(|p| p.kind).collect::<Vec<_>>(), [Kind::ROCE, Kind::IWARP]);
        assert!(alone[0].is_called("rxe0") && alone[0].is_called("eth0") && !alone[0].is_called("eth1"));
        assert!(alone[0].shares_network_with([10, 0, 0, 9].into()));
        assert!(!alone[0].shares_network_with([10, 0, 1, 9].into()));
        let interface = Place {
            names: ["eth0", "eth0"].map(String::from),
            kind: Kind::IP,
            addr: [10, 0, 0, 1].into(),
            prefix_bits: 24,
        };
        let both = joined([interface].into_iter(), places());
        assert_eq!(both.iter().map(|p| p.kind).collect::<Vec<_>>(), [Kind::IP, Kind::IWARP]);
    }
}
