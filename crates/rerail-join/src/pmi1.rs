//! A client of PMI-1. Owns: the connection to the launcher, and how bytes become keys and values. Invariant: what the launcher answers is bounded
//! and checked, and an answer that is none of PMI-1 is an error.
//!
//! A line is `cmd=NAME key=value …`. A process puts its bytes as hexadecimal digits under keys `rwapi-RANK-PART`; the first part begins with
//! how many bytes there are in all. Sources: the wire protocol as seen between ranks and Hydra; MPICH `src/pmi/src/pmi_wire.c`; Flux RFC 13.
//!
//! `rc` may be missing, and then nothing was refused: Hydra of Intel MPI does not send it, nor MPICH's with `barrier_out`.

use crate::EXCHANGE_BYTES_MAX;
use crate::error::JoinError;
use crate::place::Place;
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::io::{Errno, fcntl_dupfd_cloexec, retry_on_intr};
use rustix::net::sockopt::socket_type;
use rustix::net::{RecvFlags, SendFlags, recv, send};
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{TcpStream, ToSocketAddrs as _};
use std::time::Duration;

/// Longest line that is read.
const LINE_BYTES_MAX: usize = 4096;
/// Longest name of a set of values that is accepted: a line with it, a key and a value must fit into a launcher's line.
const NAME_BYTES_MAX: usize = 256;
/// Hexadecimal digits of a value at most, though launchers allow at least 1024 bytes with the final 0: older ones read lines of at most 1024.
const VALUE_DIGITS_MAX: usize = 512;
/// Longest key, with the final 0 that launchers count.
const KEY_BYTES_MAX: u64 = "rwapi-65535-512".len() as u64 + 1;
/// Digits before the first part: how many bytes there are in all.
const HEAD_DIGITS: usize = 4;
/// How long each address of a launcher is tried.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// How much of a wrong answer is shown.
const SHOWN_CHARS: usize = 120;

/// A connection to a launcher that has accepted this process.
#[derive(Debug)]
pub struct Client {
    lines: Lines,
    place: Place,
    /// The launcher's name of the set of values of this job.
    name: String,
    /// Hexadecimal digits of a value at most.
    value_digits_max: usize,
}

/// Lines to and from a socket.
#[derive(Debug)]
struct Lines {
    socket: OwnedFd,
    /// What was read behind the last line. At most [`LINE_BYTES_MAX`].
    rest: Vec<u8>,
}

/// A line of the launcher whose command is the expected one, and which refuses nothing.
struct Answer {
    request: &'static str,
    line: String,
}

fn shown(line: &str) -> String {
    line.chars().take(SHOWN_CHARS).collect()
}

fn fields(line: &str) -> BTreeMap<&str, &str> {
    line.split_whitespace().filter_map(|word| word.split_once('=')).collect()
}

impl Answer {
    fn wrong(&self) -> JoinError {
        JoinError::Answer { request: self.request, answer: shown(&self.line) }
    }

    fn word(&self, name: &str) -> Result<&str, JoinError> {
        let word = fields(&self.line).get(name).copied();
        word.filter(|word| !word.is_empty()).ok_or_else(|| self.wrong())
    }

    fn number(&self, name: &str) -> Result<u64, JoinError> {
        self.word(name)?.parse().map_err(|_| self.wrong())
    }
}

impl Lines {
    fn write(&self, request: &'static str, line: &str) -> Result<(), JoinError> {
        let line = format!("{line}\n");
        let mut left = line.as_bytes();
        while !left.is_empty() {
            // a launcher that has ended must not end a C program by SIGPIPE
            let sent = retry_on_intr(|| send(&self.socket, left, SendFlags::NOSIGNAL));
            left = &left[sent.map_err(|why| JoinError::Lost { request, why: why.to_string() })?..];
        }
        Ok(())
    }

    fn read(&mut self, request: &'static str) -> Result<String, JoinError> {
        loop {
            if let Some(end) = self.rest.iter().position(|byte| *byte == b'\n') {
                let line = self.rest.drain(..=end).collect::<Vec<u8>>();
                return String::from_utf8(line).map(|line| line.trim_end().to_owned()).map_err(|wrong| {
                    let answer = shown(&String::from_utf8_lossy(wrong.as_bytes()));
                    JoinError::Answer { request, answer }
                });
            }
            if self.rest.len() >= LINE_BYTES_MAX {
                let answer = shown(&String::from_utf8_lossy(&self.rest));
                return Err(JoinError::Answer { request, answer });
            }
            let mut bytes = [0; LINE_BYTES_MAX];
            let room = &mut bytes[..LINE_BYTES_MAX - self.rest.len()];
            match retry_on_intr(|| recv(&self.socket, &mut *room, RecvFlags::empty())) {
                Ok((0, _)) => {
                    return Err(JoinError::Lost { request, why: "the launcher closed it".into() });
                }
                Ok((got, _)) => self.rest.extend_from_slice(&bytes[..got]),
                Err(why) => return Err(JoinError::Lost { request, why: why.to_string() }),
            }
        }
    }

    /// Reads a line with this command.
    fn answer(&mut self, request: &'static str, command: &str) -> Result<Answer, JoinError> {
        let answer = Answer { request, line: self.read(request)? };
        if answer.word("cmd")? != command {
            return Err(answer.wrong());
        }
        match fields(&answer.line).get("rc").map(|rc| rc.parse::<i64>()) {
            None | Some(Ok(0)) => Ok(answer),
            Some(Ok(_)) => Err(JoinError::Refused { request, answer: shown(&answer.line) }),
            Some(Err(_)) => Err(answer.wrong()),
        }
    }

    fn request(&mut self, request: &'static str, words: &str, command: &str) -> Result<Answer, JoinError> {
        self.write(request, &format!("cmd={request}{words}"))?;
        self.answer(request, command)
    }
}

/// The values of a process's bytes, each of at most so many digits.
fn values(bytes: &[u8], digits_max: usize) -> Vec<String> {
    let mut digits = format!("{:0HEAD_DIGITS$x}", bytes.len());
    for byte in bytes {
        write!(digits, "{byte:02x}").expect("a string takes all");
    }
    // digits are ASCII, so that chunks of bytes are text
    digits.as_bytes().chunks(digits_max).map(|part| String::from_utf8_lossy(part).into_owned()).collect()
}

/// The reverse of [`values`], whatever their lengths: `next` gives value after value.
fn bytes_of(
    rank: usize,
    mut next: impl FnMut(usize) -> Result<String, JoinError>,
) -> Result<Vec<u8>, JoinError> {
    let wrong = || JoinError::Peer { rank };
    let mut digits = next(0)?.into_bytes();
    let head = digits.get(..HEAD_DIGITS).and_then(|head| std::str::from_utf8(head).ok());
    let head = head.filter(|head| head.bytes().all(|digit| digit.is_ascii_hexdigit())).ok_or_else(wrong)?;
    let bytes = usize::from_str_radix(head, 16).map_err(|_| wrong())?;
    if bytes > EXCHANGE_BYTES_MAX {
        return Err(wrong());
    }
    // no part is empty, so that there are at most as many as digits
    for part in 1.. {
        if digits.len() >= HEAD_DIGITS + 2 * bytes {
            break;
        }
        digits.extend(next(part)?.into_bytes());
    }
    let digits = &digits[HEAD_DIGITS..];
    if digits.len() != 2 * bytes {
        return Err(wrong());
    }
    let digit = |digit: u8| char::from(digit).to_digit(16).map(|value| value as u8);
    let byte = |two: &[u8]| Some(digit(two[0])? << 4 | digit(two[1])?);
    digits.chunks_exact(2).map(byte).collect::<Option<_>>().ok_or_else(wrong)
}

impl Client {
    /// Over the socket that the launcher left to this process.
    pub fn inherited(fd: i32, place: Place) -> Result<Self, JoinError> {
        let wrong = |why: Errno| JoinError::Descriptor { fd, why: why.to_string() };
        if fd < 0 {
            return Err(wrong(Errno::BADF));
        }
        // SAFETY: the number is not negative, and it is used by the next call only, which fails if nothing is open under it. A stale
        // number may be that of another file of this process: then the file is duplicated, found to be no launcher's, and let go unchanged,
        // unless it is a socket; the environment promises that it is not another one.
        let inherited = unsafe { BorrowedFd::borrow_raw(fd) };
        // A duplicate of our own: the number itself belongs to the whole process, where an MPI library may use it later. A child gets the number,
        // as from any PMI library, but not the duplicate.
        let socket = fcntl_dupfd_cloexec(inherited, 0).map_err(wrong)?;
        socket_type(&socket).map_err(wrong)?;
        Self::begin(Lines { socket, rest: Vec::new() }, place)
    }

    /// Over a connection to a launcher that listens, which then gives rank and size.
    pub fn connect(host: &str, port: u16, id: u64) -> Result<Self, JoinError> {
        let wrong = |why: String| JoinError::Unreachable { place: format!("{host}:{port}"), why };
        let mut why = "it has no address".to_owned();
        let mut connected = None;
        for address in (host, port).to_socket_addrs().map_err(|why| wrong(why.to_string()))? {
            match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
                Ok(stream) => {
                    connected = Some(stream);
                    break;
                }
                Err(error) => why = error.to_string(),
            }
        }
        let stream = connected.ok_or_else(|| wrong(why))?;
        // requests are small, and each waits for its answer
        stream.set_nodelay(true).map_err(|why| wrong(why.to_string()))?;
        Self::introduce(stream.into(), id)
    }

    /// Over a socket that is already there.
    #[cfg(feature = "hostile")]
    pub fn over(socket: OwnedFd, place: Place) -> Result<Self, JoinError> {
        Self::begin(Lines { socket, rest: Vec::new() }, place)
    }

    /// Gets rank and size over a new connection.
    pub fn introduce(socket: OwnedFd, id: u64) -> Result<Self, JoinError> {
        let mut lines = Lines { socket, rest: Vec::new() };
        lines.request("initack", &format!(" pmiid={id}"), "initack")?;
        let mut set = |name: &str| lines.answer("initack", "set")?.number(name);
        let (size, rank, _debug) = (set("size")?, set("rank")?, set("debug")?);
        Self::begin(lines, Place::new(rank, size)?)
    }

    fn begin(mut lines: Lines, place: Place) -> Result<Self, JoinError> {
        let init = lines.request("init", " pmi_version=1 pmi_subversion=1", "response_to_init")?;
        if init.number("pmi_version")? != 1 {
            return Err(init.wrong());
        }
        let maxes = lines.request("get_maxes", "", "maxes")?;
        let (key_bytes_max, value_bytes_max) = (maxes.number("keylen_max")?, maxes.number("vallen_max")?);
        // both count the final 0
        let value_digits_max = value_bytes_max.saturating_sub(1).min(VALUE_DIGITS_MAX as u64) as usize;
        if key_bytes_max < KEY_BYTES_MAX || value_digits_max <= HEAD_DIGITS {
            return Err(JoinError::Maxes { key_bytes_max, value_bytes_max });
        }
        let named = lines.request("get_my_kvsname", "", "my_kvsname")?;
        let name = named.word("kvsname")?.to_owned();
        if name.len() > NAME_BYTES_MAX {
            return Err(named.wrong());
        }
        Ok(Self { lines, place, name, value_digits_max })
    }

    /// Where this process is in the job.
    pub fn place(&self) -> Place {
        self.place
    }

    /// Gives bytes, at most [`EXCHANGE_BYTES_MAX`], and returns what each process gave.
    pub fn exchange(&mut self, own: &[u8]) -> Result<Vec<Vec<u8>>, JoinError> {
        let (name, own_rank) = (self.name.clone(), self.place.rank());
        for (part, value) in values(own, self.value_digits_max).into_iter().enumerate() {
            let words = format!(" kvsname={name} key=rwapi-{own_rank}-{part} value={value}");
            self.lines.request("put", &words, "put_result")?;
        }
        self.lines.request("barrier_in", "", "barrier_out")?;
        let of = |rank: usize| {
            if rank == own_rank {
                return Ok(own.to_vec());
            }
            bytes_of(rank, |part| {
                let words = format!(" kvsname={name} key=rwapi-{rank}-{part}");
                Ok(self.lines.request("get", &words, "get_result")?.word("value")?.to_owned())
            })
        };
        (0..self.place.size()).map(of).collect()
    }

    /// Reports that this process has ended its part.
    pub fn finalize(mut self) -> Result<(), JoinError> {
        self.lines.request("finalize", "", "finalize_ack").map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::os::unix::net::UnixStream;
    use std::thread::JoinHandle;

    /// A launcher that expects these lines, and answers each with what stands beside it.
    fn launcher(script: Vec<(String, String)>) -> (OwnedFd, JoinHandle<()>) {
        let (own, theirs) = UnixStream::pair().unwrap();
        let thread = std::thread::spawn(move || {
            let mut lines = BufReader::new(own.try_clone().unwrap()).lines();
            for (request, answer) in script {
                assert_eq!(lines.next().unwrap().unwrap(), request);
                (&own).write_all(answer.as_bytes()).unwrap();
            }
        });
        (theirs.into(), thread)
    }

    fn script(lines: &[(&str, &str)]) -> Vec<(String, String)> {
        lines.iter().map(|(request, answer)| ((*request).into(), format!("{answer}\n"))).collect()
    }

    const INIT: (&str, &str) = (
        "cmd=init pmi_version=1 pmi_subversion=1",
        "cmd=response_to_init rc=0 pmi_version=1 pmi_subversion=1",
    );
    const MAXES: (&str, &str) =
        ("cmd=get_maxes", "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024");
    const NAME: (&str, &str) = ("cmd=get_my_kvsname", "cmd=my_kvsname rc=0 kvsname=job7");

    fn begin(socket: OwnedFd, rank: u64, size: u64) -> Result<Client, JoinError> {
        Client::begin(Lines { socket, rest: Vec::new() }, Place::new(rank, size).unwrap())
    }

    #[test]
    fn a_process_joins_exchanges_and_finalizes() {
        let (socket, thread) = launcher(script(&[
            INIT,
            MAXES,
            NAME,
            ("cmd=put kvsname=job7 key=rwapi-1-0 value=00026869", "cmd=put_result rc=0"),
            ("cmd=barrier_in", "cmd=barrier_out rc=0"),
            // in two parts, by a launcher with shorter values
            ("cmd=get kvsname=job7 key=rwapi-0-0", "cmd=get_result rc=0 value=000300"),
            ("cmd=get kvsname=job7 key=rwapi-0-1", "cmd=get_result rc=0 value=0aFF"),
            ("cmd=get kvsname=job7 key=rwapi-2-0", "cmd=get_result rc=0 value=0000"),
            ("cmd=finalize", "cmd=finalize_ack rc=0"),
        ]));
        let mut client = begin(socket, 1, 3).unwrap();
        assert_eq!((client.place().rank(), client.place().size()), (1, 3));
        assert_eq!(client.exchange(b"hi"), Ok(vec![vec![0, 10, 255], b"hi".to_vec(), Vec::new()]));
        assert_eq!(client.finalize(), Ok(()));
        thread.join().unwrap();
    }

    #[test]
    fn a_launcher_that_sends_no_rc_is_understood() {
        let (socket, thread) = launcher(script(&[
            (INIT.0, "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0"),
            (MAXES.0, "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=4096"),
            (NAME.0, "cmd=my_kvsname kvsname=kvs_1_0"),
            ("cmd=put kvsname=kvs_1_0 key=rwapi-0-0 value=0000", "cmd=put_result"),
            ("cmd=barrier_in", "cmd=barrier_out tag=0"),
            ("cmd=finalize", "cmd=finalize_ack"),
        ]));
        let mut client = begin(socket, 0, 1).unwrap();
        assert_eq!(client.exchange(b""), Ok(vec![Vec::new()]));
        assert_eq!(client.finalize(), Ok(()));
        thread.join().unwrap();
    }

    #[test]
    fn a_process_that_connects_gets_rank_and_size() {
        let hello =
            ("cmd=initack pmiid=4", "cmd=initack rc=0\ncmd=set size=9\ncmd=set rank=4\ncmd=set debug=0");
        let (socket, thread) = launcher(script(&[hello, INIT, MAXES, NAME]));
        let client = Client::introduce(socket, 4).unwrap();
        assert_eq!((client.place().rank(), client.place().size()), (4, 9));
        thread.join().unwrap();

        let hello = (hello.0, "cmd=initack rc=0\ncmd=set size=4\ncmd=set rank=4\ncmd=set debug=0");
        let (socket, thread) = launcher(script(&[hello]));
        assert_eq!(Client::introduce(socket, 4).unwrap_err(), JoinError::Place { rank: 4, size: 4 });
        thread.join().unwrap();
    }

    #[test]
    fn bytes_of_any_length_come_back_through_values_of_any_length() {
        let all: Vec<u8> = (0..EXCHANGE_BYTES_MAX).map(|i| (i * 7) as u8).collect();
        for length in [0, 1, 254, 255, 256, EXCHANGE_BYTES_MAX] {
            for digits_max in [HEAD_DIGITS + 1, 63, VALUE_DIGITS_MAX] {
                let parts = values(&all[..length], digits_max);
                assert!(parts.iter().all(|part| (1..=digits_max).contains(&part.len())));
                let longest_key = format!("rwapi-65535-{}", parts.len() - 1);
                assert!((longest_key.len() as u64) < KEY_BYTES_MAX, "{longest_key}");
                assert_eq!(bytes_of(0, |part| Ok(parts[part].clone())).unwrap(), &all[..length]);
            }
        }
    }

    #[test]
    fn a_wrong_beginning_is_an_error_that_shows_it() {
        let long = "x".repeat(2 * LINE_BYTES_MAX);
        // how many requests are answered well, the answer to the next, and what the error says
        let table = [
            (0, "HTTP/1.1 400 Bad Request", "HTTP/1.1"),
            (0, "", "answered init with \"\""),
            (0, "cmd=maxes rc=0", "cmd=maxes"),
            (0, "cmd=response_to_init rc=-1 pmi_version=2", "refused init"),
            (0, "cmd=response_to_init rc=none pmi_version=1", "rc=none"),
            (0, "cmd=response_to_init rc=0 pmi_version=2", "pmi_version=2"),
            (0, "cmd=response_to_init rc=0", "response_to_init"),
            (0, long.as_str(), "xxx"),
            (1, "cmd=maxes rc=0 keylen_max=64", "get_maxes"),
            (1, "cmd=maxes rc=0 keylen_max=64 vallen_max=-1", "vallen_max=-1"),
            (1, "cmd=maxes rc=0 keylen_max=64 vallen_max=99999999999999999999", "9999"),
            (1, "cmd=maxes rc=0 keylen_max=64 vallen_max=0", "values of 0 bytes"),
            (1, "cmd=maxes rc=0 keylen_max=8 vallen_max=1024", "keys of 8"),
            (2, "cmd=my_kvsname rc=0", "get_my_kvsname"),
            (2, "cmd=my_kvsname rc=0 kvsname=", "get_my_kvsname"),
            (2, &format!("cmd=my_kvsname kvsname={}", &long[..257]), "get_my_kvsname"),
        ];
        for (good, answer, want) in table {
            let mut lines = [INIT, MAXES, NAME];
            lines[good].1 = answer;
            let (socket, thread) = launcher(script(&lines[..=good]));
            let why = begin(socket, 0, 1).expect_err(answer).to_string();
            assert!(why.contains(want) && why.len() < 400, "{answer}: {why}");
            // the launcher whose answer is too long may see the connection close in the middle of it
            let _ = thread.join();
        }
    }

    #[test]
    fn a_wrong_exchange_is_an_error_and_names_the_rank() {
        // request that is answered wrongly, the answer, and what the error says
        let table = [
            (3, "cmd=put_result rc=-1 msg=refused", "refused put"),
            (4, "cmd=barrier_out rc=1", "refused barrier_in"),
            (4, "cmd=put_result rc=0", "answered barrier_in"),
            (5, "cmd=get_result rc=-1 msg=key_not_found value=unknown", "refused get"),
            (5, "cmd=get_result rc=0", "answered get"),
            (5, "cmd=get_result rc=0 value=", "answered get"),
            (5, "cmd=get_result rc=0 value=unknown", "rank 1 gave"),
            (5, "cmd=get_result rc=0 value=000", "rank 1 gave"),
            (5, "cmd=get_result rc=0 value=+001aa", "rank 1 gave"),
            (5, "cmd=get_result rc=0 value=0201aa", "rank 1 gave"),
            (5, "cmd=get_result rc=0 value=ffffaa", "rank 1 gave"),
            (5, "cmd=get_result rc=0 value=0001aabb", "rank 1 gave"),
            (5, "cmd=get_result rc=0 value=0001a", "lost at get"),
            (5, "cmd=get_result rc=0 value=0001gg", "rank 1 gave"),
            (5, "cmd=get_result rc=0 value=0001é", "rank 1 gave"),
        ];
        for (wrong, answer, want) in table {
            let mut lines = [
                INIT,
                MAXES,
                NAME,
                ("cmd=put kvsname=job7 key=rwapi-0-0 value=000107", "cmd=put_result rc=0"),
                ("cmd=barrier_in", "cmd=barrier_out rc=0"),
                ("cmd=get kvsname=job7 key=rwapi-1-0", "cmd=get_result rc=0 value=000107"),
            ];
            lines[wrong].1 = answer;
            let (socket, thread) = launcher(script(&lines[..=wrong]));
            let why = begin(socket, 0, 2).unwrap().exchange(&[7]).expect_err(answer).to_string();
            assert!(why.contains(want), "{answer}: {why}");
            thread.join().unwrap();
        }
    }

    #[test]
    fn a_launcher_that_has_ended_is_an_error() {
        let (socket, thread) = launcher(Vec::new());
        thread.join().unwrap();
        assert!(matches!(begin(socket, 0, 1), Err(JoinError::Lost { request: "init", .. })));
        let (socket, thread) = launcher(vec![(INIT.0.into(), "cmd=response".into())]);
        assert!(matches!(begin(socket, 0, 1), Err(JoinError::Lost { request: "init", .. })));
        thread.join().unwrap();
    }

    #[test]
    fn a_descriptor_that_is_no_socket_is_an_error_and_stays_open() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        let why = Client::inherited(fd, Place::ALONE).unwrap_err().to_string();
        assert!(why.contains(&format!("PMI_FD={fd} is not an open socket")), "{why}");
        assert!(file.metadata().is_ok());
        assert!(Client::inherited(i32::MAX, Place::ALONE).is_err());
        assert!(Client::inherited(-1, Place::ALONE).is_err());
    }
}
