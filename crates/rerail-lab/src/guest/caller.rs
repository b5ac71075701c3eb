//! The caller's end of a command in a guest: on this machine beside the guest, or in another guest as a launcher's `ssh`.

use super::call::{self, Call, FRAME_BYTES_MAX, Kind};
use crate::LabError;
use crate::error::Attempt;
use crate::sys::{self, Signals};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

/// How long a guest may take to answer; longer than a boot on a busy machine.
const ANSWER_PATIENCE: Duration = Duration::from_secs(180);
/// How often to try meanwhile.
const RETRY: Duration = Duration::from_millis(200);
/// How often to look whether the guest still has power: a connection to one that has none stays silent.
const LOOK: Duration = Duration::from_millis(500);
/// The exit code of a command whose guest has lost its power: that of a killed program.
const EXIT_OFF: i32 = 128 + libc::SIGKILL;

/// Runs a command in the guest `name`, with this process's standard streams, and passes signals on. Returns the command's
/// exit code. The file `off` exists while the guest has no power; no guest knows that of another.
///
/// Must be called while the process has a single thread.
pub fn run(name: &str, address: IpAddr, off: Option<&Path>, call: &Call) -> Result<i32, LabError> {
    let what = || format!("reach node {name}");
    let is_off = || off.is_some_and(Path::exists);
    let signals = Signals::block().attempt(what)?;
    let Some(connection) = connect((address, call::PORT).into(), is_off).attempt(what)? else {
        return Ok(report_off(name));
    };
    connection.set_nodelay(true).attempt(what)?;
    let mut line = serde_json::to_vec(call).expect("a call is plain data");
    line.push(b'\n');
    (&connection).write_all(&line).attempt(what)?;
    let to = Arc::new(Mutex::new(connection.try_clone().attempt(what)?));
    let input = to.clone();
    thread::spawn(move || {
        let mut buffer = vec![0; FRAME_BYTES_MAX];
        loop {
            let size = io::stdin().read(&mut buffer).unwrap_or(0);
            let sent = call::send(&mut *lock(&input), Kind::Input, &buffer[..size]);
            if size == 0 || sent.is_err() {
                return;
            }
        }
    });
    thread::spawn(move || {
        loop {
            sys::wait_readable(&[signals.as_fd()], None);
            while let Some(signal) = signals.next() {
                if signal.number != libc::SIGCHLD {
                    let _ = call::send(&mut *lock(&to), Kind::Signal, &signal.number.to_be_bytes());
                }
            }
        }
    });
    loop {
        if !sys::wait_readable(&[connection.as_fd()], Some(LOOK))[0] {
            if is_off() {
                return Ok(report_off(name));
            }
            continue;
        }
        match call::receive(&connection).attempt(what)? {
            // A reader that has gone, as in `| head`, is no error; the command ends by its own next write.
            Some((Kind::Output, content)) => drop(write(&mut io::stdout(), &content)),
            Some((Kind::Error, content)) => drop(write(&mut io::stderr(), &content)),
            Some((Kind::Exit, content)) => return call::number(&content).attempt(what),
            Some(_) => return Err(io::Error::from(ErrorKind::InvalidData)).attempt(what),
            None => {
                return Err(LabError::Refused(format!(
                    "node {name} ended the connection: its kernel may have stopped, which `--log DIR` shows in DIR/console.{name}"
                )));
            }
        }
    }
}

fn report_off(name: &str) -> i32 {
    let _ = writeln!(io::stderr(), "rerail lab: node {name} has no power");
    EXIT_OFF
}

fn lock(stream: &Mutex<TcpStream>) -> std::sync::MutexGuard<'_, TcpStream> {
    stream.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn write(to: &mut impl Write, content: &[u8]) -> io::Result<()> {
    to.write_all(content)?;
    to.flush()
}

/// `None`: the guest has no power.
fn connect(address: SocketAddr, is_off: impl Fn() -> bool) -> io::Result<Option<TcpStream>> {
    let end = Instant::now() + ANSWER_PATIENCE;
    loop {
        if is_off() {
            return Ok(None);
        }
        match TcpStream::connect_timeout(&address, RETRY * 10) {
            Ok(connection) => return Ok(Some(connection)),
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => thread::sleep(RETRY),
        }
    }
}
