//! A launcher that answers what it likes: the environment, PMI-1, values of PMIx.
//!
//! Owns: nothing between inputs. The first byte says what is read; answers of PMI-1 may begin with those of an honest launcher, because
//! without them little lies behind the first line. What is read must be of the sizes that are promised, and nothing may wait for ever.

use crate::tally::Tally;
use rerail_join::{EXCHANGE_BYTES_MAX, JoinError, hostile};
use std::io::{Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

const INTRODUCED: &str = "cmd=initack rc=0\ncmd=set size=3\ncmd=set rank=1\ncmd=set debug=0\n";
const BEGUN: &str = "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1\n\
    cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\ncmd=my_kvsname rc=0 kvsname=job7\n";
const PUT: &str = "cmd=put_result rc=0\ncmd=barrier_out rc=0\n";
/// What each process gives.
const OWN: &[u8] = b"here";

/// What is to be reached.
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
/// How often it was.
pub static TALLY: Tally<{ ROWS.len() }> = Tally::new(ROWS);

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
            TALLY.count("environment taken", 1);
        }
        Err(why) => {
            assert!(!why.to_string().is_empty(), "an error says what to do");
            TALLY.count("environment refused", 1);
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
        TALLY.count("number of PMIx", 1);
    }
    if let Some(bytes) = bytes {
        assert!(bytes.len() <= EXCHANGE_BYTES_MAX && bytes == rest, "the bytes of the value, and no others");
        TALLY.count("bytes of PMIx", 1);
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
            TALLY.count("job joined and left", 1);
        }
        Err(why) => {
            assert!(why.to_string().len() < 1024, "an error is a sentence");
            match why {
                JoinError::Answer { .. } => TALLY.count("answer that is none", 1),
                JoinError::Refused { .. } => TALLY.count("refusal", 1),
                JoinError::Lost { .. } => TALLY.count("connection lost", 1),
                JoinError::Peer { .. } => TALLY.count("bytes of a process that are none", 1),
                _ => {}
            }
        }
    }
}
