//! The list of tests that need not pass: `TEST | KIND | REASON` a line, `#` before a remark.
//!
//! TEST is a command line as `cargo xtask fabtests --list` shows it; a `*` at its end stands for anything. KIND is `absent`: the
//! capability that REASON names is not there; or `tcp`: libfabric's `tcp` does not pass either.

use anyhow::{Context, Result, bail};

/// Why a test need not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// It needs a capability that Rerail has not.
    Absent,
    /// libfabric's tcp does not pass it either.
    Tcp,
}

impl Kind {
    /// As the file has it.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Absent => "absent",
            Kind::Tcp => "tcp",
        }
    }
}

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Excluded {
    /// Which tests.
    pub pattern: String,
    /// What sort of reason.
    pub kind: Kind,
    /// The reason.
    pub reason: String,
}

/// Reads the list.
///
/// # Errors
/// A line that has not its three parts.
pub fn read(text: &str) -> Result<Vec<Excluded>> {
    let lines = text.lines().enumerate().filter(|(_, l)| !l.trim().is_empty() && !l.starts_with('#'));
    lines
        .map(|(number, line)| {
            let at = || format!("line {} of the exclude list: TEST | absent or tcp | REASON", number + 1);
            let mut parts = line.splitn(3, '|').map(str::trim);
            let mut part = || parts.next().filter(|p| !p.is_empty()).with_context(at);
            let (pattern, kind, reason) = (part()?, part()?, part()?);
            let kind = match kind {
                "absent" => Kind::Absent,
                "tcp" => Kind::Tcp,
                _ => bail!(at()),
            };
            Ok(Excluded { pattern: pattern.into(), kind, reason: reason.into() })
        })
        .collect()
}

/// The first line that a test falls under.
pub fn find<'a>(list: &'a [Excluded], test: &str) -> Option<&'a Excluded> {
    list.iter().find(|e| match e.pattern.strip_suffix('*') {
        Some(beginning) => test.starts_with(beginning),
        None => test == e.pattern,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_of_the_project_can_be_read() {
        let file = xtask::workspace::root().join("tests/fabtests/exclude");
        assert!(!read(&std::fs::read_to_string(file).unwrap()).unwrap().is_empty());
    }

    #[test]
    fn a_line_without_a_reason_is_refused() {
        assert!(read("fi_x | absent |").is_err());
        assert!(read("fi_x | because | of it").is_err());
    }

    #[test]
    fn lines_name_one_test_or_those_that_begin_alike() {
        let list =
            read("# remark\nfi_x | tcp | one\n\nfi_x -e dgram* | absent | FI_EP_DGRAM | none").unwrap();
        assert_eq!(find(&list, "fi_x").unwrap().reason, "one");
        assert_eq!(find(&list, "fi_x -e dgram -k").unwrap().reason, "FI_EP_DGRAM | none");
        assert_eq!(find(&list, "fi_x -e rdm"), None);
    }
}
