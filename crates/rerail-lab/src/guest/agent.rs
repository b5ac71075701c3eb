//! Process 1 of a guest: sets the node up, then starts the commands that come over the management network.
//!
//! Process 1 itself only reaps; a child of it does the rest. So a command's end can be waited for by its own id, and orphans
//! vanish all the same. When that child ends the guest does.

use super::call::{self, Call, Kind};
use super::{ready_path, set_up_path};
use crate::error::Attempt;
use crate::sys::{self, Forked};
use crate::topology::mgmt_address;
use crate::{EXIT_LAB_FAILED, LabError};
use std::fs;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Duration;

/// How long output may still come after a command's end: a daemon that it left behind may hold its streams for ever.
const OUTPUT_PATIENCE: Duration = Duration::from_secs(1);
/// How long a command whose caller has gone may take to end by itself.
const HANG_UP_PATIENCE: Duration = Duration::from_secs(2);

/// Is process 1 of the guest of node `number`; returns only on failure.
pub fn main(number: usize) -> Result<i32, LabError> {
    match sys::fork().attempt(|| "start the node's agent".into())? {
        Forked::Parent(agent) => loop {
            if sys::wait_for_any() == Some(agent) {
                // The end of process 1 is the end of the kernel, and with `-no-reboot` that of the guest.
                return Ok(EXIT_LAB_FAILED);
            }
        },
        Forked::Child => {
            let listener = set_up(number)?;
            for connection in listener.incoming().flatten() {
                thread::spawn(move || {
                    if let Err(error) = serve(&connection) {
                        eprintln!("a command was cut off: {error}");
                    }
                    let _ = connection.shutdown(Shutdown::Both);
                });
            }
            Ok(EXIT_LAB_FAILED)
        }
    }
}

/// Runs the script that the lab has written for this node, and reports how that went.
fn set_up(number: usize) -> Result<TcpListener, LabError> {
    sys::lock_any_memory().attempt(|| "allow memory to be locked".into())?;
    let done = Command::new("sh").arg("-e").arg(set_up_path(number)).stdin(Stdio::null()).output();
    let listener = done.map_err(|error| error.to_string()).and_then(|Output { status, stderr, .. }| {
        if !status.success() {
            return Err(String::from_utf8_lossy(&stderr).trim().replace('\n', "; "));
        }
        let address = (mgmt_address(number), call::PORT);
        TcpListener::bind(address).map_err(|error| format!("listen at {address:?}: {error}"))
    });
    let word = listener.as_ref().map_or_else(|why| why.clone(), |_| String::new());
    let path = ready_path(number);
    fs::write(&path, format!("{word}\n")).attempt(|| format!("write {}", path.display()))?;
    listener.map_err(LabError::Refused)
}

/// Runs one command to its end.
fn serve(connection: &TcpStream) -> io::Result<()> {
    connection.set_nodelay(true)?;
    let mut from = BufReader::new(connection.try_clone()?);
    let mut line = String::new();
    from.read_line(&mut line)?;
    let call: Call = serde_json::from_str(&line)?;
    let Some(program) = call.command.first() else { return Err(io::ErrorKind::InvalidData.into()) };
    let mut command = Command::new(program);
    command.args(&call.command[1..]).env_clear().envs(call.env).current_dir(&call.dir);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A group of its own, so that signals reach all that it starts.
    command.process_group(0);
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => {
            let text = format!(
                "cannot start `{}` in `{}`: {error}\n",
                program.to_string_lossy(),
                call.dir.display()
            );
            call::send(connection, Kind::Error, text.as_bytes())?;
            return call::send(connection, Kind::Exit, &127i32.to_be_bytes());
        }
    };
    let group = child.id() as libc::pid_t;
    let ended = Arc::new(AtomicBool::new(false));
    let (done, all_read) = mpsc::channel::<()>();
    let streams: [(Box<dyn Read + Send>, Kind); 2] = [
        (Box::new(child.stdout.take().expect("piped")), Kind::Output),
        (Box::new(child.stderr.take().expect("piped")), Kind::Error),
    ];
    for (stream, kind) in streams {
        let (to, done) = (connection.try_clone()?, done.clone());
        thread::spawn(move || {
            copy_out(stream, kind, &to);
            drop(done);
        });
    }
    drop(done);
    let mut input = child.stdin.take();
    let caller_watches = ended.clone();
    thread::spawn(move || {
        while let Ok(Some((kind, content))) = call::receive(&mut from) {
            match (kind, call::number(&content)) {
                (Kind::Input, _) if content.is_empty() => input = None,
                (Kind::Input, _) => {
                    // A command that does not read its input is none of the caller's business.
                    if let Some(pipe) = &mut input {
                        let _ = io::Write::write_all(pipe, &content);
                    }
                }
                (Kind::Signal, Ok(signal)) if !caller_watches.load(Ordering::Acquire) => {
                    sys::kill_group(group, signal);
                }
                _ => {}
            }
        }
        for signal in [libc::SIGHUP, libc::SIGKILL] {
            if !caller_watches.load(Ordering::Acquire) {
                sys::kill_group(group, signal);
                thread::sleep(HANG_UP_PATIENCE);
            }
        }
    });
    let status = child.wait()?;
    ended.store(true, Ordering::Release);
    // Ends by the end of both streams, or by the time.
    let _ = all_read.recv_timeout(OUTPUT_PATIENCE);
    call::send(connection, Kind::Exit, &code_of(status).to_be_bytes())
}

fn copy_out(mut stream: impl Read, kind: Kind, to: &TcpStream) {
    let mut buffer = vec![0; call::FRAME_BYTES_MAX];
    while let Ok(size @ 1..) = stream.read(&mut buffer) {
        if call::send(to, kind, &buffer[..size]).is_err() {
            return;
        }
    }
}

/// As a shell would say it.
fn code_of(status: ExitStatus) -> i32 {
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    /// A connection to an agent that serves one command, which a shell runs.
    fn calling(script: &str) -> TcpStream {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut caller = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        thread::spawn(move || {
            let (connection, _) = listener.accept().unwrap();
            // The caller of a test may go away in the middle.
            let _ = serve(&connection);
            let _ = connection.shutdown(Shutdown::Both);
        });
        let command = ["/bin/sh", "-c", script].map(Into::into).to_vec();
        let call = Call { command, env: vec![("WORD".into(), "of the caller".into())], dir: "/".into() };
        let mut line = serde_json::to_vec(&call).unwrap();
        line.push(b'\n');
        caller.write_all(&line).unwrap();
        caller
    }

    /// What a command prints, and its exit code.
    fn said(caller: &TcpStream) -> (String, String, Option<i32>) {
        let (mut output, mut errors, mut code) = (Vec::new(), Vec::new(), None);
        while let Some((kind, content)) = call::receive(caller).unwrap() {
            match kind {
                Kind::Output => output.extend(content),
                Kind::Error => errors.extend(content),
                Kind::Exit => code = Some(call::number(&content).unwrap()),
                Kind::Input | Kind::Signal => panic!("the agent sends none"),
            }
        }
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (text(output), text(errors), code)
    }

    #[test]
    fn a_command_has_the_callers_input_and_environment_and_its_streams_and_code_come_back() {
        let caller = calling("cat; echo $WORD in $(pwd) >&2; exit 3");
        call::send(&caller, Kind::Input, b"line\n").unwrap();
        call::send(&caller, Kind::Input, b"").unwrap();
        assert_eq!(said(&caller), ("line\n".into(), "of the caller in /\n".into(), Some(3)));
    }

    #[test]
    fn a_command_that_cannot_start_and_one_that_a_signal_ends_have_the_codes_of_a_shell() {
        let caller = calling("echo ready; exec sleep 1000");
        assert_eq!(call::receive(&caller).unwrap(), Some((Kind::Output, b"ready\n".to_vec())));
        call::send(&caller, Kind::Signal, &libc::SIGTERM.to_be_bytes()).unwrap();
        assert_eq!(said(&caller).2, Some(128 + libc::SIGTERM));
        let caller = calling("exec /no/such/program");
        assert_eq!(said(&caller).2, Some(127));
    }

    #[test]
    fn a_command_whose_caller_has_gone_ends_even_if_it_hangs_on() {
        let caller = calling("trap '' HUP; echo $$; while :; do sleep 1; done");
        let Some((Kind::Output, pid)) = call::receive(&caller).unwrap() else { panic!("no word of it") };
        let process = format!("/proc/{}", String::from_utf8(pid).unwrap().trim());
        assert!(fs::exists(&process).unwrap());
        drop(caller);
        while fs::exists(&process).unwrap() {
            thread::sleep(Duration::from_millis(10));
        }
    }

    #[test]
    fn a_daemon_that_holds_the_output_does_not_hold_the_caller() {
        let caller = calling("sleep 1000 & echo $!");
        let (pid, _, code) = said(&caller);
        assert_eq!(code, Some(0));
        sys::kill(pid.trim().parse().unwrap(), libc::SIGKILL);
    }
}
