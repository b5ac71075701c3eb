//! Which tests a fabtests has: the arrays `NAME_tests=( "…" )` of the script that it installs.

use super::Outcome;

/// The set that takes long.
pub const LONG: &str = "standard";

/// How a test is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One process.
    Alone,
    /// One process that must find nothing.
    Refusal,
    /// A server and a client.
    Pair,
    /// A server, and a client with a configuration.
    Configured,
    /// Several that are alike.
    Nodes,
}

/// A test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// Its command line, without provider and addresses.
    pub line: String,
    /// The set it belongs to.
    pub set: &'static str,
    /// How it is run.
    pub shape: Shape,
}

impl Test {
    /// Its program.
    pub fn program(&self) -> &str {
        self.line.split_whitespace().next().unwrap_or_default()
    }
}

/// The sets that are known here: the name of the array, ours, the shape. What belongs to one provider is not among them.
const SETS: [(&str, &str, Shape); 9] = [
    ("unit", "unit", Shape::Alone),
    ("neg_unit", "unit", Shape::Refusal),
    ("regression", "regression", Shape::Alone),
    ("functional", "functional", Shape::Pair),
    ("short", "short", Shape::Pair),
    ("standard", LONG, Shape::Pair),
    ("threaded", "threaded", Shape::Pair),
    ("complex", "complex", Shape::Configured),
    ("multinode", "multinode", Shape::Nodes),
];

/// The tests of a script, set by set.
pub fn read(script: &str) -> Vec<Test> {
    let mut found = Vec::new();
    for (name, set, shape) in SETS {
        let head = format!("{name}_tests=(");
        let body = script.lines().skip_while(|l| l.trim() != head).skip(1).take_while(|l| l.trim() != ")");
        let tests = body.filter_map(|l| l.trim().strip_prefix('"')?.strip_suffix('"'));
        found.extend(tests.map(|line| Test { line: line.into(), set, shape }));
    }
    found
}

/// What `fi_ubertest` printed of its cases: `Word: number` a line.
pub fn counts(output: &str) -> Outcome {
    let number = |word: &str| -> u64 {
        let of =
            |l: &str| l.trim().strip_prefix(word)?.trim_start().strip_prefix(':')?.trim().parse::<u64>().ok();
        output.lines().filter_map(of).sum()
    };
    let (good, bad) = (number("Success"), number("ENOSYS") + number("ERROR"));
    match (good, bad) {
        (0, 0) => Outcome::NotOffered,
        (_, 0) => Outcome::Passed,
        _ => Outcome::Failed(format!("{bad} cases failed, {good} passed")),
    }
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn tests_are_found_in_their_arrays() {
        let script = "unit_tests=(\n\t\"fi_a -s SERVER_ADDR\"\n)\n\nfunctional_tests=(\n\t\"fi_b -e rdm\"\n\t\"fi_c\"\n)\nother_tests=(\n\t\"fi_d\"\n)\n";
        let lines: Vec<_> = read(script).into_iter().map(|t| (t.line, t.shape)).collect();
        let expected =
            [("fi_a -s SERVER_ADDR", Shape::Alone), ("fi_b -e rdm", Shape::Pair), ("fi_c", Shape::Pair)];
        assert_eq!(lines, expected.map(|(l, s)| (l.to_string(), s)));
    }

    #[test]
    fn the_cases_of_a_configured_test_are_counted() {
        assert_eq!(counts("Success: 5\nENODATA: 2\nENOSYS: 0\nERROR: 0\n"), Outcome::Passed);
        assert_eq!(counts("Success: 5\nERROR: 1\n"), Outcome::Failed("1 cases failed, 5 passed".into()));
        assert_eq!(counts("ENODATA: 2\n"), Outcome::NotOffered);
    }
}
