//! A launcher that answers what it likes: the environment, PMI-1, values of PMIx.
//!
//! Owns: nothing between inputs. The first byte says what is read; answers of PMI-1 may begin with those of an honest launcher, because
//! without them little lies behind the first line. What is read must be of the sizes that are promised, and nothing may wait for ever.

use rerail_join::{EXCHANGE_BYTES_MAX, JoinError, hostile};
use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};

const INTRODUCED: &str = "cmd=initack rc=0\ncmd=set size=3\ncmd=set rank=1\ncmd=set debug=0\n";
const BEGUN: &str = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n\
    cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\ncmd=my_kvsname rc=0 kvsname=job7\n";
const PUT: &str = "cmd=put_result rc=0\ncmd=barrier_out rc=0\n";
/// What each process gives.
const OWN: &[u8] = b"here";

const ROWS: [&str; 9] = [
    "environment taken",
    "environment refused",
    "job joined and left",
    "answer that is none",
    "refusal",
    "connection lost",
    "bytes of a process that are none",
    "number of PMIx",
    "bytes of PMIx",
];
static TALLY: [AtomicU64; ROWS.len()] = [const { AtomicU64::new(0) }; ROWS.len()];

fn count(row: &str) {
    let at = ROWS.iter().position(|r| *r == row).expect("every row is in the table");
    TALLY[at].fetch_add(1, Ordering::Relaxed);
}

/// What was counted so far: one line, for the fuzzer's output.
pub fn line() -> String {
    let mut out = "answers taken:".to_owned();
    for (row, n) in ROWS.iter().zip(&TALLY) {
        let _ = write!(out, " {row} {};", n.load(Ordering::Relaxed));
    }
    out
}

/// What was never reached.
pub fn missing() -> Vec<&'static str> {
    ROWS.iter().zip(&TALLY).filter(|(_, n)| n.load(Ordering::Relaxed) == 0).map(|(row, _)| *row).collect()
}

/// See the module.
///
/// # Panics
/// A promise was broken.
pub fn join(b: &[u8]) {
    let Some((which, b)) = b.split_first() else { return };
    match which % 6 {
        0 => environment(b),
        1 => pmix(b),
        2 => pmi1(None, "", b),
        3 => pmi1(Some(7), "", b),
        4 => pmi1(None, &[BEGUN, PUT].concat(), b),
        _ => pmi1(Some(7), &[INTRODUCED, BEGUN].concat(), b),
    }
}

fn environment(b: &[u8]) {
    let text = String::from_utf8_lossy(b);
    let get = |name: &str| {
        let of = |line: &str| line.strip_prefix(name)?.strip_prefix('=').map(str::to_owned);
        text.lines().find_map(of)
    };
    match hostile::environment(&get) {
        Ok(source) => {
            assert!(!source.is_empty(), "a decision has a name");
            count("environment taken");
        }
        Err(why) => {
            assert!(!why.to_string().is_empty(), "an error says what to do");
            count("environment refused");
        }
    }
}

fn pmix(b: &[u8]) {
    let (head, rest) = b.split_at(b.len().min(26));
    let mut words = [0; 3];
    for (word, bytes) in words.iter_mut().zip(head.get(2..).unwrap_or_default().chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
    }
    let kind = head.get(..2).map_or(0, |kind| u16::from_le_bytes([kind[0], kind[1]]));
    let (number, bytes) = hostile::pmix(kind, words, (!rest.is_empty()).then_some(rest));
    if number.is_some() {
        count("number of PMIx");
    }
    if let Some(bytes) = bytes {
        assert!(bytes.len() <= EXCHANGE_BYTES_MAX && bytes == rest, "the bytes of the value, and no others");
        count("bytes of PMIx");
    }
}

fn pmi1(id: Option<u64>, honest: &str, answers: &[u8]) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    let answers = [honest.as_bytes(), answers].concat();
    let joined = std::thread::scope(|scope| {
        scope.spawn(|| {
            // the other side may have given up
            if (&ours).write_all(&answers).is_ok() {
                let _ = ours.shutdown(Shutdown::Write);
            }
        });
        scope.spawn(|| {
            // a launcher that reads nothing stops its processes, which is its right
            let mut requests = [0; 4096];
            while (&ours).read(&mut requests).is_ok_and(|n| n > 0) {}
        });
        hostile::pmi1(theirs.into(), id, (1, 3), OWN)
    });
    match joined {
        Ok((rank, size, all)) => {
            assert!(rank < size && all.len() == size, "bytes of every process");
            assert!(all[rank] == OWN && all.iter().all(|b| b.len() <= EXCHANGE_BYTES_MAX), "of their sizes");
            count("job joined and left");
        }
        Err(why) => {
            assert!(why.to_string().len() < 1024, "an error is a sentence");
            match why {
                JoinError::Answer { .. } => count("answer that is none"),
                JoinError::Refused { .. } => count("refusal"),
                JoinError::Lost { .. } => count("connection lost"),
                JoinError::Peer { .. } => count("bytes of a process that are none"),
                _ => {}
            }
        }
    }
}
