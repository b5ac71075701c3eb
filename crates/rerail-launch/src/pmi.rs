//! What ranks request from their launcher: PMI-1, as MPICH and Intel MPI use it. Owns: the values that ranks have put, which wait at a barrier, and which
//! have finalized.
//!
//! A line is `cmd=NAME key=value …`; the value of a put goes on to the end of the line. Sources: the PMI-1 wire protocol as seen between ranks
//! and Hydra, MPICH `src/pmi/src/pmi_wire.c`. Not served: spawn, publish.
//!
//! An agent serves its host's ranks by itself; only what they put, and that all of them are at a barrier, goes to the launcher.

use std::collections::BTreeMap;

/// Longest name of a set of values, key and value. Ranks query these bounds, and split longer values by themselves.
const NAME_MAX: (usize, usize, usize) = (256, 64, 1024);
/// Longest line that is read. A key, a value and the words around them are shorter.
pub const LINE_BYTES_MAX: usize = 4096;
/// Values that one host's ranks may put between two barriers, for each rank.
const PUTS_MAX: usize = 4096;

/// What follows from a line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// The rank is to have this line.
    Line(usize, String),
    /// All ranks of this host are at the barrier, and have put these values since the last one.
    Fence(Vec<(String, String)>),
    /// The rank ends the job.
    Abort(usize, i32),
    /// A rank wrote what is no request: a sentence for the user.
    Wrong(String),
}

/// See above. Ranks have numbers from 0 on this host.
#[derive(Debug)]
pub struct Pmi {
    job: String,
    size: usize,
    /// Number of the first rank.
    first: usize,
    /// By the rank: it waits at the barrier.
    waits: Vec<bool>,
    values: BTreeMap<String, String>,
    put: Vec<(String, String)>,
    /// By the rank: it is in the middle of a request of several lines.
    several: Vec<bool>,
    use_of: Vec<Use>,
}

/// How far a rank's use of PMI is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    /// It has sent nothing: it may be no MPI program.
    None,
    /// The others wait for it: it has not met them.
    Begun,
    /// It has been at a barrier. MPICH says that it finalizes when the process exits, and with `_exit` not at all; so a good end is one now. Ranks that wait
    /// for one which left too early get an error from their fabric.
    Met,
    Finalized,
}

fn fields(line: &str) -> BTreeMap<&str, &str> {
    let (head, value) = match line.split_once(" value=") {
        Some((head, value)) => (head, Some(value)),
        None => (line, None),
    };
    let mut all: BTreeMap<&str, &str> =
        head.split_whitespace().filter_map(|word| word.split_once('=')).collect();
    all.extend(value.map(|value| ("value", value)));
    all
}

impl Pmi {
    /// Of a host with so many ranks from `first` on, of a job with `size` in all. `mapping` says which ranks share a host.
    pub fn new(job: &str, size: usize, first: usize, count: usize, mapping: &str) -> Self {
        Self {
            job: job.to_owned(),
            size,
            first,
            waits: vec![false; count],
            values: BTreeMap::from([("PMI_process_mapping".to_owned(), mapping.to_owned())]),
            put: Vec::new(),
            several: vec![false; count],
            use_of: vec![Use::None; count],
        }
    }

    /// Whether a rank may end now: it has finalized, or met the others, or never used PMI.
    pub fn may_end(&self, rank: usize) -> bool {
        self.use_of[rank] != Use::Begun
    }

    /// A rank has written a line.
    pub fn line(&mut self, rank: usize, line: &str) -> Vec<Answer> {
        if self.use_of[rank] == Use::None {
            self.use_of[rank] = Use::Begun;
        }
        let say = |text: String| vec![Answer::Line(rank, text)];
        if self.several[rank] || line.starts_with("mcmd=") {
            // a request to start more processes, in several lines
            self.several[rank] = !line.starts_with("endcmd");
            return if self.several[rank] { Vec::new() } else { say("cmd=spawn_result rc=-1".into()) };
        }
        let f = fields(line);
        let of = |name: &str| f.get(name).copied().unwrap_or_default();
        match of("cmd") {
            "init" => say("cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1".into()),
            "get_maxes" => {
                let (name, key, value) = NAME_MAX;
                say(format!("cmd=maxes rc=0 kvsname_max={name} keylen_max={key} vallen_max={value}"))
            }
            "get_appnum" => say("cmd=appnum rc=0 appnum=0".into()),
            "get_universe_size" => say(format!("cmd=universe_size rc=0 size={}", self.size)),
            "get_my_kvsname" => say(format!("cmd=my_kvsname rc=0 kvsname={}", self.job)),
            "get_ranks2hosts" => say("cmd=put_ranks2hosts rc=-1".into()),
            "put" => {
                let (key, value) = (of("key"), of("value"));
                if key.is_empty() || self.put.len() >= PUTS_MAX * self.waits.len() {
                    return say("cmd=put_result rc=-1 msg=refused".into());
                }
                self.values.insert(key.to_owned(), value.to_owned());
                self.put.push((key.to_owned(), value.to_owned()));
                say("cmd=put_result rc=0".into())
            }
            "get" => match self.values.get(of("key")) {
                Some(value) => say(format!("cmd=get_result rc=0 value={value}")),
                None => say("cmd=get_result rc=-1 msg=key_not_found value=unknown".into()),
            },
            "barrier_in" => {
                self.waits[rank] = true;
                match self.waits.iter().all(|waits| *waits) {
                    true => vec![Answer::Fence(std::mem::take(&mut self.put))],
                    false => Vec::new(),
                }
            }
            "finalize" => {
                self.use_of[rank] = Use::Finalized;
                say("cmd=finalize_ack rc=0".into())
            }
            "abort" => vec![Answer::Abort(rank, of("exitcode").parse().unwrap_or(1))],
            "" => {
                let rank = self.first + rank;
                vec![Answer::Wrong(format!("rank {rank} wrote no request to its launcher: {line:?}"))]
            }
            other => say(format!("cmd={other}_result rc=-1 msg=not_served")),
        }
    }

    /// All hosts are at the barrier; these are the values of all. The ranks go on.
    pub fn fenced(&mut self, values: impl IntoIterator<Item = (String, String)>) -> Vec<Answer> {
        self.values.extend(values);
        self.waits.fill(false);
        self.use_of.iter_mut().filter(|of| **of == Use::Begun).for_each(|of| *of = Use::Met);
        (0..self.waits.len()).map(|rank| Answer::Line(rank, "cmd=barrier_out rc=0".into())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(answers: &[Answer]) -> &str {
        let [Answer::Line(_, text)] = answers else { panic!("{answers:?}") };
        text
    }

    #[test]
    fn ranks_of_two_hosts_exchange_values_at_a_barrier() {
        let mapping = "(vector,(0,2,2))";
        let mut hosts = [0, 2].map(|first| Pmi::new("job7", 4, first, 2, mapping));
        for host in &mut hosts {
            assert_eq!(
                line(&host.line(0, "cmd=init pmi_version=1 pmi_subversion=1")),
                "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1"
            );
            assert_eq!(line(&host.line(1, "cmd=get_my_kvsname")), "cmd=my_kvsname rc=0 kvsname=job7");
            let get = host.line(1, "cmd=get kvsname=job7 key=PMI_process_mapping");
            assert_eq!(line(&get), format!("cmd=get_result rc=0 value={mapping}"));
            assert!(line(&host.line(0, "cmd=get kvsname=job7 key=PMI_hwloc_xmlfile")).contains("rc=-1"));
        }
        let mut fences = Vec::new();
        for (h, host) in hosts.iter_mut().enumerate() {
            for rank in 0..2 {
                let key = format!("addr-{}", 2 * h + rank);
                let put = host.line(rank, &format!("cmd=put kvsname=job7 key={key} value=fi={rank} of {h}"));
                assert_eq!(line(&put), "cmd=put_result rc=0");
                let answers = host.line(rank, "cmd=barrier_in");
                assert_eq!(answers.len(), rank, "the last one completes it");
                fences.extend(answers);
            }
        }
        let all: Vec<_> = fences
            .into_iter()
            .flat_map(|a| if let Answer::Fence(put) = a { put } else { panic!() })
            .collect();
        assert_eq!(all.len(), 4);
        for host in &mut hosts {
            assert_eq!(host.fenced(all.clone()).len(), 2);
            assert_eq!(
                line(&host.line(1, "cmd=get kvsname=job7 key=addr-3")),
                "cmd=get_result rc=0 value=fi=1 of 1"
            );
            assert!(host.line(0, "cmd=barrier_in").is_empty(), "the next barrier begins anew");
        }
    }

    #[test]
    fn a_rank_ends_and_ends_the_job() {
        let mut host = Pmi::new("job7", 1, 0, 1, "(vector,(0,1,1))");
        assert!(host.may_end(0), "it is no MPI program yet");
        host.line(0, "cmd=init pmi_version=1 pmi_subversion=1");
        assert!(!host.may_end(0));
        assert_eq!(line(&host.line(0, "cmd=finalize")), "cmd=finalize_ack rc=0");
        assert!(host.may_end(0));
        assert_eq!(host.line(0, "cmd=abort exitcode=7"), [Answer::Abort(0, 7)]);
    }

    #[test]
    fn a_rank_that_has_met_the_others_may_end_without_a_word() {
        let mut host = Pmi::new("job7", 2, 0, 2, "(vector,(0,1,2))");
        for rank in [0, 1] {
            host.line(rank, "cmd=init pmi_version=1 pmi_subversion=1");
            host.line(rank, "cmd=barrier_in");
            assert!(!host.may_end(rank), "the others are not there yet");
        }
        host.fenced([]);
        assert!(host.may_end(0) && host.may_end(1));
        host.line(0, "cmd=barrier_in");
        assert!(host.may_end(1), "a later barrier changes nothing");
    }

    #[test]
    fn what_is_not_served_is_refused_and_what_is_no_request_is_named() {
        let mut host = Pmi::new("job7", 9, 8, 1, "");
        assert_eq!(
            line(&host.line(0, "cmd=publish_name service=x port=y")),
            "cmd=publish_name_result rc=-1 msg=not_served"
        );
        assert!(host.line(0, "mcmd=spawn").is_empty() && host.line(0, "nprocs=2").is_empty());
        assert!(line(&host.line(0, "endcmd")).contains("rc=-1"));
        let Answer::Wrong(why) = &host.line(0, "GET / HTTP/1.1")[0] else { panic!() };
        assert!(why.contains("rank 8"), "{why}");
        for i in 0..PUTS_MAX {
            assert!(line(&host.line(0, &format!("cmd=put key=k{i} value=v"))).contains("rc=0"));
        }
        assert!(line(&host.line(0, "cmd=put key=more value=v")).contains("rc=-1"), "bounded");
    }
}
