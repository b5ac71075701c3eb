//! `rerail-trial fabtests`: libfabric's own tests over `rerail`, and over libfabric's `tcp` to compare with.
//!
//! fabtests is built by the user, outside this project (docs/fabtests.md). Which tests there are is read from the script that
//! it installs, so every version brings its own list; the script itself is not called, because it kills every process whose
//! name begins with `fi_`, also those that other programs started.
//!
//! What need not pass over Rerail is a line of `tests/fabtests/exclude`, with its reason ([`list`]). The lines are held to be true: what
//! they name is run like everything else, and a line for a test that passes, or that says `tcp` of one that passes over tcp, is a failure.

mod list;
mod tests;

use crate::child::end_with_us;
use crate::lab::fresh_dir;
use crate::options::time;
use anyhow::{Context, Result, bail};
use list::{Excluded, Kind};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tests::{CaseEnd, Shape, Test};
use xtask::build;
use xtask::workspace::{release_dir, root, state_dir};

/// How long a test may take that is not expected to pass.
const PATIENCE_EXCLUDED: Duration = Duration::from_secs(30);
/// The same for the hundreds of cases of `fi_ubertest`, one to five seconds each.
const PATIENCE_CASES: Duration = Duration::from_secs(40 * 60);
/// A server needs this long until it can be reached.
const HEAD_START: Duration = Duration::from_secs(1);
/// How long a server may still say what went wrong when its client has failed.
const AFTER_FAILURE: Duration = Duration::from_secs(2);
/// Processes of a test of the set `multinode`.
const NODES: usize = 3;

/// The name of all sets together.
const ALL: &str = "all";

/// libfabric's own tests, built by you, over rerail and over libfabric's tcp
#[derive(Debug, clap::Args)]
pub struct Options {
    /// Where `make install` of fabtests put its bin and share
    #[arg(long)]
    dir: PathBuf,
    /// unit, functional, short, standard, complex, multinode, threaded, regression or all; may be repeated [default: all but those
    /// that take long: standard, which is short with more repetitions, complex, the hundreds of cases of fi_ubertest, and threaded,
    /// with up to 64 threads that spin]
    #[arg(long = "set", value_name = "NAME")]
    sets: Vec<String>,
    /// Only the tests whose command line contains NAME; may be repeated
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Where the two sides meet
    #[arg(long, value_name = "IP", default_value = "127.0.0.1")]
    address: String,
    /// Servers run on the node with that address, started by this command, such as "ssh NODE"; it gets all variables FI_*
    #[arg(long, value_name = "COMMAND", requires = "here")]
    far: Option<String>,
    /// Where clients are [default: where servers are]
    #[arg(long, value_name = "IP")]
    here: Option<String>,
    /// How long a test may take; one that is excluded has 30
    #[arg(long, value_name = "SECONDS", default_value = "120", value_parser = time)]
    patience: Duration,
    /// Only over rerail
    #[arg(long)]
    no_tcp: bool,
    /// Print the tests, and what the list says of them
    #[arg(long)]
    list: bool,
    /// With what was built last
    #[arg(long)]
    no_build: bool,
}

/// How a test ended over a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Outcome {
    Passed,
    /// The provider has not what the test asks for, and every process said so.
    NotOffered,
    Failed(String),
}

impl Outcome {
    fn word(&self) -> &'static str {
        match self {
            Outcome::Passed => "pass",
            Outcome::NotOffered => "not offered",
            Outcome::Failed(_) => "fail",
        }
    }
}

/// Does what the options say.
pub fn run(options: Options) -> Result<()> {
    let dir = options.dir.canonicalize().with_context(|| format!("there is no {}", options.dir.display()))?;
    let options = Options { dir, ..options };
    let file = root().join("tests/fabtests/exclude");
    let text =
        std::fs::read_to_string(&file).with_context(|| format!("could not read {}", file.display()))?;
    let excluded = list::read(&text)?;
    let chosen = choose(&options)?;
    if options.list {
        for test in &chosen {
            let reason =
                list::find(&excluded, &test.line).map(|e| format!("  [{}: {}]", e.kind.word(), e.reason));
            println!("{:<11} {}{}", test.set, test.line, reason.unwrap_or_default());
        }
        return Ok(());
    }
    if !options.no_build {
        build::run()?;
    }
    campaign(&options, &chosen, &excluded)
}

fn choose(options: &Options) -> Result<Vec<Test>> {
    let script = options.dir.join("bin/runfabtests.sh");
    let text = std::fs::read_to_string(&script)
        .with_context(|| format!("could not read {}: is that fabtests, installed?", script.display()))?;
    let all = tests::read(&text);
    for set in options.sets.iter().filter(|s| *s != ALL) {
        if !all.iter().any(|t| t.set == set) {
            bail!("this fabtests has no set `{set}`");
        }
    }
    let wanted = |test: &Test| match options.sets.as_slice() {
        [] => !tests::LONG.contains(&test.set),
        sets => sets.iter().any(|s| test.set == s || s == ALL),
    };
    let named = |test: &Test| options.only.is_empty() || options.only.iter().any(|o| test.line.contains(o));
    Ok(all.into_iter().filter(|t| wanted(t) && named(t)).collect())
}

/// Runs the tests and prints what became of them. Fails unless each passed over Rerail, or is excluded truthfully.
fn campaign(options: &Options, chosen: &[Test], excluded: &[Excluded]) -> Result<()> {
    let logs = state_dir().join("fabtests");
    fresh_dir(&logs)?;
    println!("{:<60} {:<12} {:<12} verdict", "test", "rerail", if !options.no_tcp { "tcp" } else { "" });
    let (mut passed, mut absent, mut shared, mut wrong) = (0, 0, 0, 0);
    for (number, test) in chosen.iter().enumerate() {
        let line = list::find(excluded, &test.line);
        let patience = match (test.shape, line) {
            (Shape::Configured, _) => PATIENCE_CASES.max(options.patience),
            (_, Some(_)) => PATIENCE_EXCLUDED,
            (_, None) => options.patience,
        };
        let over = |provider: Provider| {
            let dir = logs.join(provider.name()).join(format!("{number:03}-{}", test.program()));
            Attempt { options, test, provider, dir, patience }.run()
        };
        let ours = over(Provider::Rerail)?;
        let theirs = if !options.no_tcp { Some(over(Provider::Tcp)?) } else { None };
        let verdict = judge(&ours, theirs.as_ref(), line);
        match (&verdict, line.map(|l| l.kind)) {
            (Err(_), _) => wrong += 1,
            (Ok(_), None) => passed += 1,
            (Ok(_), Some(Kind::Absent)) => absent += 1,
            (Ok(_), Some(Kind::Tcp)) => shared += 1,
        }
        let tcp = theirs.as_ref().map_or("", Outcome::word);
        let words = match &verdict {
            Ok(words) => words.clone(),
            Err(words) => format!("WRONG: {words}"),
        };
        println!("{:<60} {:<12} {tcp:<12} {words}", test.line, ours.word());
    }
    println!(
        "{passed} passed, {absent} excluded for an absent capability, {shared} because tcp does not pass either, {wrong} wrong; outputs in {}",
        logs.strip_prefix(root()).unwrap_or(&logs).display()
    );
    if wrong > 0 {
        bail!("{wrong} tests neither passed nor are truthfully excluded");
    }
    Ok(())
}

/// Whether a test ended as it must; in words. Without tcp's outcome, what a line says of tcp is taken as true.
fn judge(
    ours: &Outcome,
    theirs: Option<&Outcome>,
    line: Option<&Excluded>,
) -> std::result::Result<String, String> {
    match (ours, line) {
        (Outcome::Passed, None) => Ok("passed".into()),
        // Over another version of libfabric it may pass on both sides.
        (Outcome::Passed, Some(line)) if line.kind == Kind::Tcp && theirs == Some(&Outcome::Passed) => {
            Ok("passed".into())
        }
        (Outcome::Passed, Some(line)) => Err(format!("it passes, so its line may go ({})", line.reason)),
        (_, Some(line)) if line.kind == Kind::Tcp && theirs == Some(&Outcome::Passed) => {
            Err(format!("excluded because of tcp, which passes ({})", line.reason))
        }
        (_, Some(line)) => Ok(format!("excluded: {}", line.reason)),
        (Outcome::NotOffered, None) => Err("the provider does not offer what it asks for".into()),
        (Outcome::Failed(why), None) => Err(why.clone()),
    }
}

#[derive(Clone, Copy)]
enum Provider {
    Rerail,
    Tcp,
}

impl Provider {
    fn name(self) -> &'static str {
        match self {
            Provider::Rerail => "rerail",
            Provider::Tcp => "tcp",
        }
    }
}

/// One test over one provider.
struct Attempt<'a> {
    options: &'a Options,
    test: &'a Test,
    provider: Provider,
    /// Where outputs go.
    dir: PathBuf,
    patience: Duration,
}

impl Attempt<'_> {
    fn run(&self) -> Result<Outcome> {
        fresh_dir(&self.dir)?;
        let address = self.options.address.as_str();
        match self.test.shape {
            Shape::Alone => Ok(outcome(&[self.start("alone", &[])?.end(self.patience)])),
            Shape::Refusal => Ok(match self.start("alone", &[])?.end(self.patience) {
                Ended { code: Some(libc::ENODATA), .. } => Outcome::Passed,
                Ended { code: Some(0), .. } => Outcome::Failed("it should have found nothing".into()),
                other => outcome(&[other]),
            }),
            Shape::Pair => Ok(outcome(&self.sides(&["-s", address], &["-s", self.here(), address], 1)?)),
            Shape::Nodes => {
                let count = NODES.to_string();
                let arguments = ["-n", &count, "-s", address];
                Ok(outcome(&self.sides(&arguments, &arguments, NODES - 1)?))
            }
            Shape::Configured => {
                let config = self.config()?;
                let config = config.to_string_lossy();
                let ends = self.sides(&["-x"], &["-u", &config, address], 1)?;
                match outcome(&ends) {
                    // that of 1.17 ends with FI_ENODATA if one case of hundreds did
                    Outcome::Passed | Outcome::NotOffered => Ok(self.cases(&ends[1].output)),
                    other => Ok(other),
                }
            }
        }
    }

    /// Where clients are.
    fn here(&self) -> &str {
        self.options.here.as_deref().unwrap_or(&self.options.address)
    }

    /// What the cases of `fi_ubertest` mean together.
    fn cases(&self, output: &str) -> Outcome {
        let cases = tests::cases(output);
        let count = |end: CaseEnd| cases.iter().filter(|c| c.end == end).count();
        let (passed, absent, failed) =
            (count(CaseEnd::Passed), count(CaseEnd::NotOffered), count(CaseEnd::Failed));
        println!(
            "  {} over {}: {passed} cases passed, {absent} not offered, {failed} failed",
            self.test.program(),
            self.provider.name()
        );
        match (passed, cases.iter().find(|c| c.end == CaseEnd::Failed)) {
            (0, None) => Outcome::NotOffered,
            (_, None) => Outcome::Passed,
            (_, Some(first)) => Outcome::Failed(format!("{failed} cases failed, the first: {}", first.name)),
        }
    }

    /// A server and its clients, until all have ended.
    fn sides(&self, server: &[&str], client: &[&str], clients: usize) -> Result<Vec<Ended>> {
        let server = self.start("server", server)?;
        std::thread::sleep(HEAD_START);
        let clients =
            (0..clients).map(|i| self.start(&format!("client{i}"), client)).collect::<Result<Vec<_>>>()?;
        let clients: Vec<Ended> = clients.into_iter().map(|c| c.end(self.patience)).collect();
        let well = clients.iter().all(|c| c.code == Some(0));
        let server = server.end(if well { self.patience } else { AFTER_FAILURE });
        Ok(std::iter::once(server).chain(clients).collect())
    }

    fn start(&self, role: &str, arguments: &[&str]) -> Result<Running> {
        let mut words = self.test.line.split_whitespace();
        let program = words.next().context("a test is a program")?;
        let program = self.options.dir.join("bin").join(program);
        let path = matches!(self.provider, Provider::Rerail).then(|| release_dir().join("lib/rerail"));
        let path = path.map(|path| ("FI_PROVIDER_PATH".to_owned(), path.to_string_lossy().into_owned()));
        let mut command = match self.options.far.as_deref().filter(|_| role == "server") {
            Some(far) => by(far, std::env::vars().chain(path), &program)?,
            None => {
                let mut command = Command::new(program);
                command.envs(path);
                command
            }
        };
        // of a test without a server they are its own
        let address = if role == "alone" { self.here() } else { &self.options.address };
        command.args(words.map(|word| match word {
            "GOOD_ADDR" | "SERVER_ADDR" => address,
            other => other,
        }));
        if self.test.shape != Shape::Configured {
            command.args(["-p", self.provider.name()]);
        }
        command.args(arguments);
        let output = self.dir.join(role);
        let file = File::create(&output).with_context(|| format!("could not write {}", output.display()))?;
        let shown = format!("{command:?}");
        std::fs::write(self.dir.join(format!("{role}.command")), format!("{shown}\n"))
            .with_context(|| format!("could not write in {}", self.dir.display()))?;
        let other = file.try_clone().context("could not share an output file")?;
        command.stdin(Stdio::null()).stdout(file).stderr(other).process_group(0);
        end_with_us(&mut command);
        heed_interrupts(&mut command);
        let child = command.spawn().with_context(|| format!("could not start `{shown}`"))?;
        Ok(Running { child, output, ended: false })
    }

    /// What `fi_ubertest` is to try: libfabric's own configuration for messages over tcp, with this provider's name in it.
    fn config(&self) -> Result<PathBuf> {
        let theirs = self.options.dir.join("share/fabtests/test_configs/ofi_rxm/tcp.test");
        let text = std::fs::read_to_string(&theirs)
            .with_context(|| format!("could not read {}", theirs.display()))?;
        let text = match self.provider {
            Provider::Rerail => text.replace("tcp;ofi_rxm", "rerail"),
            Provider::Tcp => text,
        };
        let ours = self.dir.join("config.test");
        std::fs::write(&ours, text).with_context(|| format!("could not write {}", ours.display()))?;
        Ok(ours)
    }
}

/// A program, started on another node by a command, with those of these variables that libfabric knows.
fn by(far: &str, variables: impl Iterator<Item = (String, String)>, program: &Path) -> Result<Command> {
    let mut words = far.split_whitespace();
    let mut command = Command::new(words.next().context("--far needs a command, such as \"ssh NODE\"")?);
    command.args(words).arg("env");
    // the last one counts where a name comes twice
    command.args(
        variables.filter(|(name, _)| name.starts_with("FI_")).map(|(name, value)| format!("{name}={value}")),
    );
    command.arg(program);
    Ok(command)
}

/// A shell has its background jobs ignore SIGINT, and that is inherited; `sighandler_test` looks what the signal does.
fn heed_interrupts(command: &mut Command) {
    // SAFETY: signal is a system call that touches nothing of this process's memory.
    unsafe {
        command.pre_exec(|| match libc::signal(libc::SIGINT, libc::SIG_DFL) {
            libc::SIG_ERR => Err(std::io::Error::last_os_error()),
            _ => Ok(()),
        });
    }
}

/// A process of a test, with a group of its own: some fork.
struct Running {
    child: Child,
    output: PathBuf,
    ended: bool,
}

/// How it ended: its code (`None`: by a signal, or too late), and what it had printed.
struct Ended {
    code: Option<i32>,
    late: bool,
    output: String,
}

impl Running {
    fn end(mut self, patience: Duration) -> Ended {
        let end = Instant::now() + patience;
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(20)),
                _ => break None,
            }
        };
        self.ended = status.is_some();
        if !self.ended {
            self.kill();
        }
        let output = std::fs::read(&self.output).unwrap_or_default();
        Ended {
            code: status.and_then(|s| s.code()),
            late: status.is_none(),
            output: String::from_utf8_lossy(&output).into_owned(),
        }
    }

    fn kill(&mut self) {
        if let Ok(group) = libc::pid_t::try_from(self.child.id()) {
            // SAFETY: a system call; the group is that of a child that was not waited for, so no other can have its number.
            unsafe { libc::kill(-group, libc::SIGKILL) };
        }
        let _ = self.child.wait();
        self.ended = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.ended {
            self.kill();
        }
    }
}

/// What the ends of all processes of a test together mean, the server's first.
fn outcome(ends: &[Ended]) -> Outcome {
    let all = |code: i32| ends.iter().all(|e| e.code == Some(code));
    if all(0) {
        return Outcome::Passed;
    }
    if all(libc::ENODATA) || all(libc::ENOSYS) {
        return Outcome::NotOffered;
    }
    let words: Vec<String> = ends
        .iter()
        .map(|e| match (e.code, e.late) {
            (Some(code), _) => code.to_string(),
            (None, true) => "too late".into(),
            (None, false) => "signal".into(),
        })
        .collect();
    let last = ends.iter().filter(|e| e.code != Some(0)).rev().find_map(|e| e.output.trim().lines().last());
    Outcome::Failed(format!("ended with {}: {}", words.join(", "), last.unwrap_or("no word")))
}

#[cfg(test)]
mod unit {
    use super::*;

    fn ended(code: i32) -> Ended {
        Ended { code: Some(code), late: false, output: "first\nlast\n".into() }
    }

    #[test]
    fn a_test_passes_only_if_every_process_does() {
        assert_eq!(outcome(&[ended(0), ended(0)]), Outcome::Passed);
        assert_eq!(outcome(&[ended(libc::ENODATA), ended(libc::ENODATA)]), Outcome::NotOffered);
        let failed = Outcome::Failed("ended with 0, 61: last".into());
        assert_eq!(outcome(&[ended(0), ended(libc::ENODATA)]), failed, "one side alone found something");
    }

    #[test]
    fn a_server_elsewhere_gets_the_variables_of_libfabric_and_no_others() {
        let variables = [("HOME", "/"), ("FI_RERAIL_KINDS", "roce"), ("FI_PROVIDER_PATH", "/p")];
        let variables = variables.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned()));
        let command = by("ssh -q n1", variables.clone(), Path::new("/bin/fi_info")).unwrap();
        let words: Vec<_> = command.get_args().map(|word| word.to_str().unwrap()).collect();
        assert_eq!(command.get_program(), "ssh");
        assert_eq!(words, ["-q", "n1", "env", "FI_RERAIL_KINDS=roce", "FI_PROVIDER_PATH=/p", "/bin/fi_info"]);
        assert!(by(" ", variables, Path::new("/bin/fi_info")).is_err());
    }

    #[test]
    fn an_excluded_test_must_have_a_true_reason() {
        let line = |kind| Excluded { pattern: "fi_x".into(), kind, reason: "why".into() };
        let failed = Outcome::Failed("7".into());
        assert!(judge(&failed, Some(&Outcome::Passed), None).is_err());
        assert!(judge(&failed, Some(&failed), None).is_err(), "a reason is written down");
        assert!(judge(&failed, Some(&failed), Some(&line(Kind::Tcp))).is_ok());
        assert!(judge(&failed, Some(&Outcome::Passed), Some(&line(Kind::Tcp))).is_err());
        assert!(judge(&Outcome::NotOffered, Some(&Outcome::Passed), Some(&line(Kind::Absent))).is_ok());
        assert!(judge(&Outcome::Passed, None, Some(&line(Kind::Absent))).is_err());
        assert!(judge(&Outcome::Passed, Some(&failed), Some(&line(Kind::Tcp))).is_err());
        assert!(judge(&Outcome::Passed, Some(&Outcome::Passed), Some(&line(Kind::Tcp))).is_ok());
    }
}
