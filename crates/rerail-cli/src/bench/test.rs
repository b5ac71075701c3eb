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
    /// Of RWAPI: as many messages as possible.
    OneWay,
    /// Of RWAPI: half a message and its answer.
    RoundTrip,
    /// Of RWAPI: both nodes send and receive at the same time.
    BothWays,
    /// Of RWAPI: a write that is in place at its target.
    Put,
}

/// Tests of MPIs. All but the last take a moment, and disturb nothing.
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

/// The three of the RWAPI paper (section 4), and a write that is waited for. The same are measured over MPIs.
const OF_RWAPI: [Kind; 4] = [Kind::OneWay, Kind::RoundTrip, Kind::BothWays, Kind::Put];

const SMALL: &[usize] = &[8, 64, 1 << 10, 8 << 10];
const LARGE: &[usize] = &[4 << 10, 64 << 10, 1 << 20, 4 << 20];
const COLLECTIVE: &[usize] = &[64, 4 << 10, 64 << 10];

/// The paper's sizes are 4 bytes to 1 MiB.
const SIZES_OF_RWAPI: &[usize] = &[4, 64, 1 << 10, 8 << 10, 32 << 10, 256 << 10, SIZE_OF_RWAPI_MAX];
const SIZE_OF_RWAPI_MAX: usize = 1 << 20;

/// How the program names what it measures of plain sockets.
const SOCKETS: &str = "sockets-";

impl Kind {
    /// The one of this name, of an MPI or of plain sockets.
    pub fn of(name: &str) -> Option<Kind> {
        let name = name.strip_prefix(SOCKETS).unwrap_or(name);
        ALL.into_iter().chain(OF_RWAPI).find(|k| k.name() == name)
    }

    /// Whether it is one of `--rwapi`.
    pub fn is_of_rwapi(self) -> bool {
        OF_RWAPI.contains(&self)
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
            Kind::OneWay => "one-way",
            Kind::RoundTrip => "round-trip",
            Kind::BothWays => "both-ways",
            Kind::Put => "put",
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
            Kind::OneWay => "One way, as many messages as possible",
            Kind::RoundTrip => "Half a round trip",
            Kind::BothWays => "Both ways at the same time",
            Kind::Put => "One-sided write, in place at the target (MPI: MPI_Put and MPI_Win_flush)",
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
            Kind::OneWay | Kind::RoundTrip | Kind::BothWays | Kind::Put => SIZES_OF_RWAPI,
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

/// The tests of an MPI of these names; the usual ones for none.
pub fn chosen(names: &[String], sizes: &[usize]) -> Result<Vec<Test>, LabError> {
    let usual = [Kind::Latency, Kind::Bandwidth, Kind::Bidirectional, Kind::Rate];
    let kinds = kinds(names, &ALL, &usual, "")?;
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

/// The tests of RWAPI of these names; all for none.
pub fn chosen_of_rwapi(names: &[String], sizes: &[usize]) -> Result<Vec<Test>, LabError> {
    let kinds = kinds(names, &OF_RWAPI, &OF_RWAPI, " of --rwapi")?;
    if sizes.iter().any(|&size| size > SIZE_OF_RWAPI_MAX) {
        return Err(LabError::Input(
            "--rwapi measures messages of 1 byte to 1M: choose such a --size".into(),
        ));
    }
    let mut sizes = if sizes.is_empty() { SIZES_OF_RWAPI.to_vec() } else { sizes.to_vec() };
    sizes.sort_unstable();
    sizes.dedup();
    Ok(kinds.into_iter().map(|kind| Test { kind, sizes: sizes.clone() }).collect())
}

fn kinds(names: &[String], all: &[Kind], usual: &[Kind], whose: &str) -> Result<Vec<Kind>, LabError> {
    let mut kinds = Vec::new();
    for name in names {
        match name.as_str() {
            "all" => kinds.extend(all.iter().filter(|k| **k != Kind::Failover)),
            name => kinds.push(all.iter().copied().find(|k| k.name() == name).ok_or_else(|| {
                let list: Vec<_> = all.iter().map(|k| k.name()).collect();
                let whose = match Kind::of(name) {
                    Some(kind) if kind.is_of_rwapi() => " without --rwapi",
                    _ => whose,
                };
                LabError::Input(format!(
                    "there is no test `{name}`{whose}: choose from {} and all",
                    list.join(", ")
                ))
            })?),
        }
    }
    if names.is_empty() {
        kinds.extend(usual);
    }
    kinds.sort_unstable();
    kinds.dedup();
    Ok(kinds)
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

    #[test]
    fn rwapi_has_tests_of_its_own() {
        let arguments = |tests: Vec<Test>| tests.iter().map(Test::argument).collect::<Vec<_>>();
        let all = ["one-way:4,65536", "round-trip:4,65536", "both-ways:4,65536", "put:4,65536"];
        assert_eq!(arguments(chosen_of_rwapi(&[], &[65_536, 4, 4]).unwrap()), all);
        assert_eq!(arguments(chosen_of_rwapi(&["put".into()], &[8]).unwrap()), ["put:8"]);
        let usual = chosen_of_rwapi(&["all".into()], &[]).unwrap();
        assert_eq!(
            (usual.len(), usual[0].sizes.first(), usual[0].sizes.last()),
            (4, Some(&4), Some(&(1 << 20)))
        );
        let why = |result: Result<Vec<Test>, LabError>| result.unwrap_err().to_string();
        assert!(
            why(chosen_of_rwapi(&["rate".into()], &[]))
                .contains("no test `rate` of --rwapi: choose from one-way")
        );
        assert!(why(chosen_of_rwapi(&[], &[2 << 20])).contains("1M"));
        assert!(why(chosen(&["put".into()], &[])).contains("`put` without --rwapi: choose from latency"));
    }
}
