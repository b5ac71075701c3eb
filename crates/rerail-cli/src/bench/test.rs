//! What can be measured. Owns: names, units and usual sizes.

use rerail_lab::LabError;

/// A kind of measurement, by the name that the program knows it by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// Half a round trip.
    Latency,
    /// One way, 16 messages under way.
    Bandwidth,
    /// The same both ways, the sum.
    Bidirectional,
    /// Messages of 64 bytes, 64 under way.
    Rate,
    /// Share of an exchange that computing hides.
    Overlap,
    /// MPI_Barrier.
    Barrier,
    /// MPI_Bcast, the root going round.
    Bcast,
    /// MPI_Allreduce of 64-bit sums.
    Allreduce,
    /// MPI_Alltoall, bytes for each rank.
    Alltoall,
    /// The longest time for which a stream stood still while rails broke, and what arrived when.
    Failover,
}

/// All but the last take a moment, and disturb nothing.
const ALL: [Kind; 10] = [
    Kind::Latency,
    Kind::Bandwidth,
    Kind::Bidirectional,
    Kind::Rate,
    Kind::Overlap,
    Kind::Barrier,
    Kind::Bcast,
    Kind::Allreduce,
    Kind::Alltoall,
    Kind::Failover,
];

const SMALL: &[usize] = &[8, 64, 1 << 10, 8 << 10];
const LARGE: &[usize] = &[4 << 10, 64 << 10, 1 << 20, 4 << 20];
const COLLECTIVE: &[usize] = &[64, 4 << 10, 64 << 10];

/// How the program names what it measures of plain sockets.
const SOCKETS: &str = "sockets-";

impl Kind {
    /// The one of this name, of an MPI or of plain sockets.
    pub fn of(name: &str) -> Option<Kind> {
        let name = name.strip_prefix(SOCKETS).unwrap_or(name);
        ALL.into_iter().find(|k| k.name() == name)
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Latency => "latency",
            Kind::Bandwidth => "bandwidth",
            Kind::Bidirectional => "bidirectional",
            Kind::Rate => "rate",
            Kind::Overlap => "overlap",
            Kind::Barrier => "barrier",
            Kind::Bcast => "bcast",
            Kind::Allreduce => "allreduce",
            Kind::Alltoall => "alltoall",
            Kind::Failover => "failover",
        }
    }

    /// Unit of its figures.
    pub fn unit(self) -> &'static str {
        match self {
            Kind::Bandwidth | Kind::Bidirectional => "MB/s",
            Kind::Rate => "messages/s",
            Kind::Overlap => "%",
            Kind::Failover => "ms",
            _ => "µs",
        }
    }

    /// A sentence for its table.
    pub fn title(self) -> &'static str {
        match self {
            Kind::Latency => "Latency: half a round trip",
            Kind::Bandwidth => "Bandwidth one way, 16 messages under way",
            Kind::Bidirectional => "Bandwidth both ways, 16 messages under way each",
            Kind::Rate => "Message rate, 64 under way",
            Kind::Overlap => "Share of an exchange that computing hides",
            Kind::Barrier => "Barrier",
            Kind::Bcast => "Broadcast",
            Kind::Allreduce => "Allreduce",
            Kind::Alltoall => "Alltoall, bytes for each rank",
            Kind::Failover => "Longest standstill of a stream while rails break and are mended",
        }
    }

    fn sizes(self) -> &'static [usize] {
        match self {
            Kind::Latency => SMALL,
            Kind::Bandwidth | Kind::Bidirectional => LARGE,
            Kind::Rate => &[64],
            Kind::Overlap => &[256 << 10, 1 << 20, 4 << 20],
            Kind::Barrier => &[0],
            Kind::Failover => &[64 << 10],
            Kind::Bcast | Kind::Allreduce | Kind::Alltoall => COLLECTIVE,
        }
    }

    /// Whether it has one size, whatever is asked for.
    fn has_one_size(self) -> bool {
        matches!(self, Kind::Rate | Kind::Barrier)
    }
}

/// A measurement with its sizes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Test {
    /// Which.
    pub kind: Kind,
    /// Bytes.
    pub sizes: Vec<usize>,
}

impl Test {
    /// How the program is told to measure the MPI.
    pub fn argument(&self) -> String {
        let sizes: Vec<String> = self.sizes.iter().map(usize::to_string).collect();
        format!("{}:{}", self.kind.name(), sizes.join(","))
    }

    /// How it is told to measure plain sockets, if they have such a thing.
    pub fn sockets_argument(&self) -> Option<String> {
        matches!(self.kind, Kind::Latency | Kind::Bandwidth).then(|| format!("{SOCKETS}{}", self.argument()))
    }
}

/// The tests of these names.
pub fn chosen(names: &[String], sizes: &[usize]) -> Result<Vec<Test>, LabError> {
    let mut kinds = Vec::new();
    for name in names {
        match name.as_str() {
            "all" => kinds.extend(ALL.into_iter().filter(|k| *k != Kind::Failover)),
            name => kinds.push(Kind::of(name).ok_or_else(|| {
                let names: Vec<_> = ALL.iter().map(|k| k.name()).collect();
                LabError::Input(format!(
                    "there is no test `{name}`: choose from {} and all",
                    names.join(", ")
                ))
            })?),
        }
    }
    kinds.sort_unstable();
    kinds.dedup();
    let sizes_of = |k: Kind| match sizes {
        [] => k.sizes(),
        _ if k.has_one_size() => k.sizes(),
        // rails break once in a turn
        [first, ..] if k == Kind::Failover => std::slice::from_ref(first),
        _ => sizes,
    };
    let sizes_of = |k: Kind| sizes_of(k).to_vec();
    Ok(kinds.into_iter().map(|kind| Test { kind, sizes: sizes_of(kind) }).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_asked_for_once_and_has_its_sizes() {
        let tests = chosen(&["rate".into(), "latency".into(), "rate".into()], &[16]).unwrap();
        let arguments: Vec<_> = tests.iter().map(Test::argument).collect();
        assert_eq!(arguments, ["latency:16", "rate:64"]);
        let sockets: Vec<_> = tests.iter().map(Test::sockets_argument).collect();
        assert_eq!(sockets, [Some("sockets-latency:16".into()), None]);
        assert_eq!(Kind::of("sockets-latency"), Some(Kind::Latency));
        assert_eq!(chosen(&["all".into()], &[]).unwrap().len(), ALL.len() - 1, "nothing breaks unasked");
        let why = chosen(&["lattency".into()], &[]).unwrap_err().to_string();
        assert!(why.contains("choose from latency"), "{why}");
    }
}
