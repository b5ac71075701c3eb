//! Which ranks run on which host. Owns: how lists of hosts are written.
//!
//! Sources: sbatch(1) for `SLURM_JOB_NODELIST` and `SLURM_TASKS_PER_NODE`, pbs_resources for `PBS_NODEFILE`, Hydra's and Open MPI's host files.

use std::ops::Range;

/// Hosts of a job at most.
pub const HOSTS_MAX: usize = 10_000;
/// Ranks of a job at most.
pub const RANKS_MAX: usize = 1_000_000;

/// A host, and how many ranks it takes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// Its name, as the remote shell knows it.
    pub name: String,
    /// Ranks that it takes, if that was said.
    pub slots: Option<usize>,
}

/// A sentence for the user.
pub type Problem = String;

fn host(name: &str, slots: Option<usize>) -> Result<Host, Problem> {
    let sound = |c: char| c.is_ascii_alphanumeric() || "-._:@%".contains(c);
    if name.is_empty() || name.starts_with('-') || !name.chars().all(sound) {
        return Err(format!("\"{name}\" is no name of a host: write a name or an address"));
    }
    if slots == Some(0) {
        return Err(format!("the host {name} takes 0 ranks: leave it out, or give it at least 1"));
    }
    Ok(Host { name: name.to_owned(), slots })
}

fn number(text: &str, of: &str) -> Result<usize, Problem> {
    let n = text.trim().parse::<usize>().ok().filter(|n| *n <= RANKS_MAX);
    n.ok_or_else(|| format!("\"{text}\" is no number of ranks for {of}: write such as {of}:4"))
}

fn checked(hosts: Vec<Host>, from: &str) -> Result<Vec<Host>, Problem> {
    if hosts.is_empty() {
        return Err(format!("{from} names no host"));
    }
    if hosts.len() > HOSTS_MAX {
        return Err(format!("{from} names {} hosts, and {HOSTS_MAX} are the most", hosts.len()));
    }
    Ok(hosts)
}

/// Joins hosts that are named several times: a host file may name one for each of its slots.
fn joined(all: impl IntoIterator<Item = Host>) -> Vec<Host> {
    let mut hosts: Vec<Host> = Vec::new();
    for next in all {
        match hosts.iter_mut().find(|h| h.name == next.name) {
            Some(h) => h.slots = Some(h.slots.unwrap_or(1) + next.slots.unwrap_or(1)),
            None => hosts.push(next),
        }
    }
    hosts
}

/// Reads `a,b:4,c`, where a number is what the host takes.
///
/// # Errors
/// A sentence for the user.
pub fn list(text: &str) -> Result<Vec<Host>, Problem> {
    let words = text.split(',').map(str::trim).filter(|word| !word.is_empty());
    let hosts: Result<Vec<Host>, Problem> = words
        .map(|word| match word.rsplit_once(':') {
            // an address of IPv6 has more colons
            Some((name, slots)) if !name.contains(':') => host(name, Some(number(slots, name)?)),
            _ => host(word, None),
        })
        .collect();
    checked(joined(hosts?), "--hosts")
}

/// Reads a host file: a host in each line, with what it takes as `host:4`, `host slots=4` or `host 4`, or named again for each slot; `#`
/// begins a comment. `from` names the file.
///
/// # Errors
/// A sentence for the user, with the line.
pub fn file(text: &str, from: &str) -> Result<Vec<Host>, Problem> {
    let mut hosts = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let at = |why: Problem| format!("{from}, line {}: {why}", i + 1);
        let (first, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let named = list(first).map_err(at)?;
        let [one] = &named[..] else { return Err(at("one host in each line".into())) };
        let rest = rest.split_whitespace().next().unwrap_or_default();
        let slots = match rest.strip_prefix("slots=").unwrap_or(rest) {
            "" => one.slots,
            n => Some(number(n, &one.name).map_err(at)?),
        };
        hosts.push(host(&one.name, slots).map_err(at)?);
    }
    checked(joined(hosts), from)
}

/// Reads Slurm's `n[01-03,7],login` and `2(x3),1`.
///
/// # Errors
/// A sentence for the user.
pub fn slurm(nodes: &str, tasks: Option<&str>) -> Result<Vec<Host>, Problem> {
    let wrong =
        || format!("SLURM_JOB_NODELIST is \"{nodes}\", which cannot be read: name the hosts with --hosts");
    let mut names = Vec::new();
    let mut rest = nodes.trim();
    while !rest.is_empty() {
        // up to a comma outside brackets
        let mut depth = 0;
        let end = rest.find(|c| {
            depth += i32::from(c == '[') - i32::from(c == ']');
            c == ',' && depth == 0
        });
        let (one, after) = rest.split_at(end.unwrap_or(rest.len()));
        rest = after.strip_prefix(',').unwrap_or(after);
        expand(one, &mut names).ok_or_else(wrong)?;
    }
    let mut slots = Vec::new();
    for part in tasks.unwrap_or_default().split(',').filter(|part| !part.is_empty()) {
        let (count, times) = match part.split_once("(x") {
            Some((count, times)) => (count, times.strip_suffix(')').ok_or_else(wrong)?),
            None => (part, "1"),
        };
        let (count, times) = (count.parse().map_err(|_| wrong())?, times.parse().map_err(|_| wrong())?);
        if slots.len() + times > HOSTS_MAX {
            return Err(wrong());
        }
        slots.extend(std::iter::repeat_n(Some(count), times));
    }
    slots.resize(names.len(), None);
    let hosts: Result<Vec<Host>, Problem> =
        names.iter().zip(slots).map(|(name, slots)| host(name, slots)).collect();
    checked(hosts?, "SLURM_JOB_NODELIST")
}

/// `a[1-2]b[3]` is `a1b3`, `a2b3`.
fn expand(text: &str, into: &mut Vec<String>) -> Option<()> {
    let Some((before, rest)) = text.split_once('[') else {
        into.push(text.to_owned());
        return (into.len() <= HOSTS_MAX && !text.contains(']')).then_some(());
    };
    let (inside, after) = rest.split_once(']')?;
    for part in inside.split(',') {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let (from, to): (usize, usize) = (low.parse().ok()?, high.parse().ok()?);
        if from > to || to - from >= HOSTS_MAX {
            return None;
        }
        for n in from..=to {
            expand(&format!("{before}{n:0width$}{after}", width = low.len()), into)?;
        }
    }
    Some(())
}

/// The hosts of a batch system, by a look-up of variables and of files: Slurm's, then PBS's. `None`: there is none.
///
/// # Errors
/// A sentence for the user.
pub fn batch(
    variable: impl Fn(&str) -> Option<String>,
    read: impl Fn(&str) -> std::io::Result<String>,
) -> Result<Option<Vec<Host>>, Problem> {
    if let Some(nodes) = variable("SLURM_JOB_NODELIST") {
        return slurm(&nodes, variable("SLURM_TASKS_PER_NODE").as_deref()).map(Some);
    }
    let Some(path) = variable("PBS_NODEFILE") else { return Ok(None) };
    let text = read(&path).map_err(|why| format!("PBS_NODEFILE is {path}, which cannot be read: {why}"))?;
    file(&text, &path).map(Some)
}

/// The ranks of each host, in order; hosts without any are left out. `per_host` wins over what hosts take. Without both a host takes
/// as many as make it even.
///
/// # Errors
/// A sentence for the user: too many ranks.
pub fn place(
    ranks: usize,
    per_host: Option<usize>,
    hosts: &[Host],
) -> Result<Vec<(Host, Range<usize>)>, Problem> {
    if !(1..=RANKS_MAX).contains(&ranks) {
        return Err(format!("-n {ranks}: a job has 1 to {RANKS_MAX} ranks"));
    }
    let even = ranks.div_ceil(hosts.len());
    let takes = |h: &Host| per_host.or(h.slots).unwrap_or(even);
    let room: usize = hosts.iter().map(takes).sum();
    if room < ranks {
        return Err(format!(
            "{ranks} ranks do not fit: {} {} {room}; name more hosts, give them more slots, or set --ppn",
            hosts.len(),
            if hosts.len() == 1 { "host takes" } else { "hosts take" },
        ));
    }
    let (mut placed, mut next) = (Vec::new(), 0);
    for h in hosts {
        let count = takes(h).min(ranks - next);
        if count > 0 {
            placed.push((h.clone(), next..next + count));
        }
        next += count;
    }
    Ok(placed)
}

/// What PMI calls the process mapping: blocks of hosts with as many ranks each (`(vector,(FIRST,HOSTS,RANKS),…)`).
pub fn mapping(placed: &[(Host, Range<usize>)]) -> String {
    let mut blocks: Vec<(usize, usize, usize)> = Vec::new();
    for (i, (_, ranks)) in placed.iter().enumerate() {
        match blocks.last_mut() {
            Some(last) if last.2 == ranks.len() => last.1 += 1,
            _ => blocks.push((i, 1, ranks.len())),
        }
    }
    let blocks: Vec<String> =
        blocks.iter().map(|(first, hosts, ranks)| format!("({first},{hosts},{ranks})")).collect();
    format!("(vector,{})", blocks.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &[(&str, Option<usize>)]) -> Vec<Host> {
        text.iter().map(|(name, slots)| Host { name: (*name).into(), slots: *slots }).collect()
    }

    #[test]
    fn hosts_are_named_in_a_list_or_a_file() {
        assert_eq!(list("a, b:4,c").unwrap(), of(&[("a", None), ("b", Some(4)), ("c", None)]));
        assert_eq!(list("a,a,fe80::1").unwrap(), of(&[("a", Some(2)), ("fe80::1", None)]));
        let text = "# ours\na slots=2 max_slots=4\nb:3\n\nc 1 # old\nc\n";
        assert_eq!(file(text, "hosts").unwrap(), of(&[("a", Some(2)), ("b", Some(3)), ("c", Some(2))]));
        for (text, word) in [
            ("", "no host"),
            ("a:x", "a:4"),
            ("a:0", "at least 1"),
            ("-oProxyCommand=x", "no name"),
            ("a;b", "no name"),
        ] {
            let why = list(text).unwrap_err();
            assert!(why.contains(word), "{text}: {why}");
        }
        let why = file("a\nb,c\n", "hosts").unwrap_err();
        assert!(why.starts_with("hosts, line 2: "), "{why}");
    }

    #[test]
    fn batch_systems_are_read() {
        let names = |nodes: &str| slurm(nodes, None).unwrap().into_iter().map(|h| h.name).collect::<Vec<_>>();
        assert_eq!(names("n[08-11,3],login"), ["n08", "n09", "n10", "n11", "n3", "login"]);
        assert_eq!(names("r[1-2]n[1-2]"), ["r1n1", "r1n2", "r2n1", "r2n2"]);
        assert_eq!(
            slurm("a,b,c", Some("2(x2),1")).unwrap(),
            of(&[("a", Some(2)), ("b", Some(2)), ("c", Some(1))])
        );
        for (nodes, tasks) in [
            ("n[1", None),
            ("n[2-1]", None),
            ("n[1-99999999]", None),
            ("a", Some("2(x999999999)")),
            ("a", Some("two")),
        ] {
            assert!(slurm(nodes, tasks).unwrap_err().contains("--hosts"), "{nodes}");
        }
        let none = |_: &str| None;
        let unread = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        assert_eq!(batch(none, unread).unwrap(), None);
        let pbs = |name: &str| (name == "PBS_NODEFILE").then(|| "/nodes".to_owned());
        assert_eq!(batch(pbs, |_| Ok("a\na\nb\n".into())).unwrap(), Some(of(&[("a", Some(2)), ("b", None)])));
        assert!(batch(pbs, unread).unwrap_err().contains("/nodes"));
    }

    #[test]
    fn ranks_fill_hosts_in_order_and_what_does_not_fit_is_refused() {
        let hosts = of(&[("a", Some(2)), ("b", Some(4)), ("c", None)]);
        let ranges = |placed: Vec<(Host, Range<usize>)>| placed.into_iter().map(|p| p.1).collect::<Vec<_>>();
        assert_eq!(ranges(place(5, None, &hosts).unwrap()), [0..2, 2..5]);
        assert_eq!(ranges(place(5, Some(2), &hosts).unwrap()), [0..2, 2..4, 4..5]);
        let even = of(&[("a", None), ("b", None)]);
        assert_eq!(ranges(place(5, None, &even).unwrap()), [0..3, 3..5]);
        assert!(place(7, Some(2), &hosts).unwrap_err().contains("3 hosts take 6"));
        assert!(place(3, None, &hosts[..1]).unwrap_err().contains("1 host takes 2"));
        assert!(place(0, None, &hosts).is_err());
    }

    #[test]
    fn mapping_joins_hosts_with_as_many_ranks() {
        let of = |n, per| mapping(&place(n, Some(per), &list("a,b,c").unwrap()).unwrap());
        assert_eq!(of(6, 2), "(vector,(0,3,2))");
        assert_eq!(of(5, 2), "(vector,(0,2,2),(2,1,1))");
        assert_eq!(of(2, 4), "(vector,(0,1,2))");
    }
}
