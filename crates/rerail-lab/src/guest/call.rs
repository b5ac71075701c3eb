//! Commands that run in a guest, each over one TCP connection on the management network: what both ends say.
//!
//! The caller sends a line of JSON, the [`Call`], and then frames: standard input and signals. The callee sends frames:
//! standard output, standard error and the exit code. A frame is its kind, the length of its content (big endian), the content.
//! The management network belongs to the lab alone, so callers prove nothing, as in a namespace.

use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::path::PathBuf;

/// Where a guest listens on the management network.
pub const PORT: u16 = 77;
/// The most bytes in a frame.
pub const FRAME_BYTES_MAX: usize = 64 * 1024;

/// A command for a guest.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// The program and its arguments.
    pub command: Vec<OsString>,
    /// Its whole environment.
    pub env: Vec<(OsString, OsString)>,
    /// Its working directory.
    pub dir: PathBuf,
}

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Bytes of standard input; none: it ends.
    Input,
    /// A signal for the command, by its number.
    Signal,
    /// Bytes of standard output.
    Output,
    /// Bytes of standard error.
    Error,
    /// The exit code; the last frame.
    Exit,
}

const KINDS: [Kind; 5] = [Kind::Input, Kind::Signal, Kind::Output, Kind::Error, Kind::Exit];

/// Sends a frame, in one write so that several threads may share a connection.
pub fn send(mut to: impl Write, kind: Kind, content: &[u8]) -> io::Result<()> {
    debug_assert!(content.len() <= FRAME_BYTES_MAX);
    let mut frame = vec![kind as u8];
    frame.extend((content.len() as u32).to_be_bytes());
    frame.extend(content);
    to.write_all(&frame)
}

/// Reads a frame; `None` at the end of the connection.
pub fn receive(mut from: impl Read) -> io::Result<Option<(Kind, Vec<u8>)>> {
    let mut kind = [0];
    if from.read(&mut kind)? == 0 {
        return Ok(None);
    }
    let invalid = || io::Error::from(io::ErrorKind::InvalidData);
    let kind = *KINDS.get(usize::from(kind[0])).ok_or_else(invalid)?;
    let mut length = [0; 4];
    from.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length) as usize;
    if length > FRAME_BYTES_MAX {
        return Err(invalid());
    }
    let mut content = vec![0; length];
    from.read_exact(&mut content)?;
    Ok(Some((kind, content)))
}

/// A number as the content of a frame.
pub fn number(content: &[u8]) -> io::Result<i32> {
    let bytes = content.try_into().map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    Ok(i32::from_be_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_sent_and_a_long_one_is_refused() {
        let mut bytes = Vec::new();
        send(&mut bytes, Kind::Output, b"words").unwrap();
        send(&mut bytes, Kind::Exit, &(-9i32).to_be_bytes()).unwrap();
        let mut from = bytes.as_slice();
        assert_eq!(receive(&mut from).unwrap(), Some((Kind::Output, b"words".to_vec())));
        let (kind, content) = receive(&mut from).unwrap().unwrap();
        assert_eq!((kind, number(&content).unwrap()), (Kind::Exit, -9));
        assert_eq!(receive(&mut from).unwrap(), None);
        // One byte more than the most, and a kind that there is not: refused before anything is read.
        for frame in [[2, 0, 1, 0, 1], [9, 0, 0, 0, 0]] {
            let error = receive(frame.as_slice()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{frame:?}");
        }
        assert!(number(b"abc").is_err());
    }
}
