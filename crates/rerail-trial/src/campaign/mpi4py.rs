//! mpi4py's own tests, which tests/mpi/suite.py runs: where they come from, and which are run.
//!
//! They are in mpi4py's source package only, so that is fetched, by version and hash.

use anyhow::{Context, Result, bail};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use xtask::mpi::Mpi;
use xtask::workspace::{output, root, run as run_command, state_dir};

/// The words of tests/mpi/suite.py when no test failed.
pub const WELL: &str = "all as they should be";

/// The version of mpi4py.
pub const VERSION: &str = "4.1.2";
const SHA256: &str = "56860286dc45f20e8821e93cb06669e30462348bf866f685553fa4b712d58d02";

/// Files that are not run, and why.
const LEFT_OUT: &[(&str, &str)] = &[
    ("test_dynproc", "joins processes while they run: for a later issue"),
    ("test_spawn", "starts processes while it runs: for a later issue"),
    ("test_util_pool", "its pool starts processes while it runs"),
    ("test_file", "files, no messages"),
    ("test_io", "files, no messages"),
];

/// A test that is not run, because over tcp, too, it does not come out well, or not always.
struct Known {
    pattern: &'static str,
    mpi: Mpi,
    /// From so many ranks on.
    ranks: usize,
    cause: &'static str,
}

const KNOWN: &[Known] = &[
    Known {
        pattern: "test_comm_topo.TestTopoWorld*.testDistgraphcomm",
        mpi: Mpi::Mpich,
        ranks: 1,
        cause: "MPICH keeps messages of a rank to itself in another queue than those of other nodes, and asks the two in another \
                order when it probes for any source than when it receives from any source; Create_dist_graph relies on both \
                giving the same message. It goes wrong over tcp as well, only less often",
    },
    Known {
        pattern: "test_comm_inter.TestIntercomm*.testSplitTypeShared",
        mpi: Mpi::Open5,
        ranks: 3,
        cause: "never ends when the groups of an intercommunicator are spread unevenly over two nodes: one rank waits in \
                ompi_comm_set, the others have gone on to ompi_comm_nextcid; over tcp every time as well",
    },
    spin_lock("test_util_sync.TestMutex*World.*", Mpi::Mpich),
    spin_lock("test_util_sync.TestCondition*World.*", Mpi::Mpich),
    spin_lock("test_util_sync.TestSemaphore*World.*", Mpi::Mpich),
    spin_lock("test_util_sync.TestMutex*World.*", Mpi::Intel),
    spin_lock("test_util_sync.TestCondition*World.*", Mpi::Intel),
    spin_lock("test_util_sync.TestSemaphore*World.*", Mpi::Intel),
];

/// What waits in mpi4py's lock over one-sided operations.
const fn spin_lock(pattern: &'static str, mpi: Mpi) -> Known {
    Known {
        pattern,
        mpi,
        ranks: 2,
        cause: "mpi4py's lock empties its own place in the queue by an accumulate that it does not wait for before it says that it waits; \
                where that comes after its follower's entry, both spin for ever. Under MPICH, without a cut, 3 of 60 runs over Rerail and \
                7 of 60 over tcp; over tcp with that accumulate flushed none of 60",
    }
}

/// What the files of the ranks begin with.
pub const RANKS_FILE: &str = "tests";

/// The variable that tells tests/mpi/suite.py where to write.
pub fn results_in(dir: &Path) -> (String, String) {
    ("RERAIL_SUITE_RESULTS".into(), dir.join(RANKS_FILE).to_string_lossy().into_owned())
}

fn source_dir() -> PathBuf {
    state_dir().join(format!("mpi4py-{VERSION}"))
}

fn tests_dir() -> PathBuf {
    source_dir().join("test")
}

/// Fetches the tests, if they are not there.
pub fn setup() -> Result<()> {
    if tests_dir().is_dir() {
        return Ok(());
    }
    let archive = state_dir().join(format!("mpi4py-{VERSION}.tar.gz"));
    eprintln!("campaign: fetching the tests of mpi4py {VERSION}");
    let python = Mpi::Mpich.prefix().join("bin/python");
    let mut pip = Command::new(&python);
    pip.args([
        "-m",
        "pip",
        "download",
        "-q",
        "--disable-pip-version-check",
        "--no-deps",
        "--no-binary",
        "mpi4py",
    ]);
    run_command(pip.arg("-d").arg(state_dir()).arg(format!("mpi4py=={VERSION}")))
        .context("could not fetch the source of mpi4py; is a Python package index within reach?")?;
    let hash = "import hashlib, sys; print(hashlib.sha256(open(sys.argv[1], 'rb').read()).hexdigest())";
    let found = output(Command::new(&python).args(["-c", hash]).arg(&archive))?;
    if found.trim() != SHA256 {
        bail!(
            "{} has the hash {}, and should have {SHA256}: it was not unpacked",
            archive.display(),
            found.trim()
        );
    }
    run_command(Command::new("tar").arg("-xzf").arg(&archive).arg("-C").arg(state_dir()))
}

/// All test files but those of [`LEFT_OUT`]; or of these only the ones whose names contain one of `only`.
pub fn modules(only: &[String]) -> Result<Vec<String>> {
    let dir = tests_dir();
    let list = fs::read_dir(&dir).with_context(|| format!("could not read {}", dir.display()))?;
    let mut names: Vec<String> = list
        .flatten()
        .filter_map(|entry| {
            let name = entry.file_name().to_string_lossy().strip_suffix(".py")?.to_string();
            (name.starts_with("test_") && !LEFT_OUT.iter().any(|(out, _)| *out == name)).then_some(name)
        })
        .collect();
    names.retain(|name| only.is_empty() || only.iter().any(|o| name.contains(o.as_str())));
    if names.is_empty() {
        bail!("no test file of mpi4py's that is run is called so: write such as --files test_rma");
    }
    names.sort();
    Ok(names)
}

/// The settings with which the tests pass on an MPI when nothing is broken.
///
/// Intel MPI chooses its algorithms from a table for the processor. With the table for Granite Rapids and two ranks in two nodes,
/// `Reduce_scatter` in place overwrites memory behind its result, and `test_cco_buf` fails. With Intel MPI's shared memory inside the
/// node and three ranks in two nodes, `Reduce` in place crashes with each of the four tables tried. Both happen over libfabric's
/// tcp as well. So the tests run with the table for any processor, and with libfabric inside the node too.
pub fn settings(mpi: Mpi) -> Vec<(&'static str, String)> {
    if mpi != Mpi::Intel {
        return Vec::new();
    }
    let table = mpi.prefix().join("opt/mpi/etc/tuning_generic_ofi.dat");
    vec![("I_MPI_FABRICS", "ofi".into()), ("I_MPI_TUNING_BIN", table.to_string_lossy().into_owned())]
}

/// What starts these files, without the tests of these patterns.
pub fn arguments(mpi: Mpi, modules: &[String], without: &[String]) -> Vec<String> {
    let text = |path: PathBuf| path.to_string_lossy().into_owned();
    let mut arguments = vec![
        text(mpi.prefix().join("bin/python")),
        text(root().join("tests/mpi/suite.py")),
        "--tests".into(),
        text(tests_dir()),
        "--modules".into(),
        modules.join(","),
    ];
    for pattern in without {
        arguments.extend(["--without".into(), pattern.clone()]);
    }
    arguments
}

/// The patterns of the tests that are not run.
pub fn known(mpi: Mpi, ranks: usize) -> Vec<String> {
    let here = KNOWN.iter().filter(|known| known.mpi == mpi && ranks >= known.ranks);
    here.map(|known| known.pattern.to_string()).collect()
}

/// What is not run, and why: a list in Markdown.
pub fn not_run() -> String {
    let mut text = String::new();
    for (name, reason) in LEFT_OUT {
        text += &format!("- `{name}`: {reason}\n");
    }
    for Known { pattern, mpi, ranks, cause } in KNOWN {
        text += &format!("- `{pattern}` on {} with {ranks} ranks or more: {cause}\n", mpi.name());
    }
    text
}
