//! Commands to QEMU over its machine protocol (QMP): one connection for each, over a socket file.

use serde_json::{Value, json};
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// How long QEMU may take to answer; it does so from its main loop, also while the guest is paused.
const ANSWER_PATIENCE: Duration = Duration::from_secs(10);
/// How often to try to connect meanwhile.
const RETRY: Duration = Duration::from_millis(10);

/// Does one command.
pub fn command(socket: &Path, name: &str, arguments: Value) -> io::Result<()> {
    let stream = connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_PATIENCE))?;
    talk(BufReader::new(&stream), &stream, name, arguments)
}

/// A QEMU that has just been started opens its socket in a moment.
fn connect(socket: &Path) -> io::Result<UnixStream> {
    let end = Instant::now() + ANSWER_PATIENCE;
    loop {
        match UnixStream::connect(socket) {
            Err(error) if Instant::now() > end => return Err(error),
            Err(_) => thread::sleep(RETRY),
            Ok(stream) => return Ok(stream),
        }
    }
}

/// After QEMU's greeting: the capabilities, which must come first, then the command.
fn talk(mut from: impl BufRead, mut to: impl Write, name: &str, arguments: Value) -> io::Result<()> {
    answer(&mut from, "QMP")?;
    for request in [json!({"execute": "qmp_capabilities"}), json!({"execute": name, "arguments": arguments})]
    {
        to.write_all(format!("{request}\n").as_bytes())?;
        answer(&mut from, "return")?;
    }
    Ok(())
}

/// Reads on to the answer that has this member; between two answers QEMU reports events.
fn answer(from: &mut impl BufRead, member: &str) -> io::Result<()> {
    loop {
        let mut line = String::new();
        if from.read_line(&mut line)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let answer: Value = serde_json::from_str(&line)?;
        if let Some(error) = answer.get("error") {
            return Err(io::Error::other(error["desc"].as_str().unwrap_or("QEMU refuses").to_string()));
        }
        if answer.get(member).is_some() {
            return Ok(());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_between_two_answers_are_passed_over_and_an_error_is_told() {
        let greeting = "{\"QMP\": {}}\n{\"return\": {}}\n{\"event\": \"STOP\"}\n";
        let mut sent = Vec::new();
        let good = format!("{greeting}{{\"return\": {{}}}}\n");
        talk(good.as_bytes(), &mut sent, "stop", json!({})).unwrap();
        let lines: Vec<Value> =
            sent.split(|b| *b == b'\n').filter_map(|line| serde_json::from_slice(line).ok()).collect();
        assert_eq!(lines[0]["execute"], "qmp_capabilities");
        assert_eq!(lines[1]["execute"], "stop");
        let bad = format!("{greeting}{{\"error\": {{\"desc\": \"no such device\"}}}}\n");
        let error = talk(bad.as_bytes(), &mut sent, "set_link", json!({})).unwrap_err();
        assert_eq!(error.to_string(), "no such device");
        let cut = talk(greeting.as_bytes(), &mut sent, "stop", json!({})).unwrap_err();
        assert_eq!(cut.kind(), io::ErrorKind::UnexpectedEof);
    }
}
