//! Which tests a fabtests has: the arrays `NAME_tests=( "…" )` of the script that it installs.

/// The sets that take long.
pub const LONG: [&str; 3] = ["standard", "complex", "threaded"];

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
    ("standard", "standard", Shape::Pair),
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

/// How a case of `fi_ubertest` ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CaseEnd {
    /// Well.
    Passed,
    /// The provider has not what it asks for.
    NotOffered,
    /// Otherwise.
    Failed,
}

/// A case of `fi_ubertest`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Case {
    /// What is tried, and with which function.
    pub name: String,
    /// How it ended.
    pub end: CaseEnd,
}

/// The cases in what the client of `fi_ubertest` printed: a description in brackets, and later a line with the result.
pub fn cases(output: &str) -> Vec<Case> {
    let mut name = String::new();
    let mut found = Vec::new();
    for line in output.lines() {
        if let Some(description) = line.strip_prefix('[') {
            let mut parts = description.split(", ").skip(1).map(|p| p.trim_end_matches('-'));
            name = format!("{} {}", parts.next().unwrap_or_default(), parts.next().unwrap_or_default());
        }
        let result = line.strip_prefix("Ending test ").and_then(|l| l.split_once("result: "));
        if let Some((_, result)) = result {
            let end = match result.trim() {
                "Success" => CaseEnd::Passed,
                "No data available" => CaseEnd::NotOffered,
                _ => CaseEnd::Failed,
            };
            found.push(Case { name: name.clone(), end });
        }
    }
    found
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
    fn the_cases_of_a_configured_test_are_read() {
        let output = "Starting test 1 / 3:\n[rerail, unit, tsendv--, FI_EP_RDM]\nEnding test 1 / 3, result: Success\n\
            [rerail, latency, send--, FI_EP_RDM]\nEnding test 2 / 3, result: Input/output error\n";
        let case = |name: &str, end| Case { name: name.into(), end };
        let expected = [case("unit tsendv", CaseEnd::Passed), case("latency send", CaseEnd::Failed)];
        assert_eq!(cases(output), expected);
    }
}
