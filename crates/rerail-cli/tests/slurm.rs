//! Ranks started by a real Slurm (Debian's `slurm-wlm`), whose nodes are the lab's: programs of RWAPI, and the three MPIs over Rerail while a rail
//! is cut.

#[path = "common/mod.rs"]
#[allow(dead_code, unused_macros)]
mod common;
#[path = "common/world.rs"]
#[allow(dead_code, unused_macros)]
mod world;

use common::{Mpi, RERAIL, mpis, setup, skip, succeeds, text};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use world::{Lab, eventually, unique};

const DAEMONS: [&str; 5] = ["slurmctld", "slurmd", "srun", "munged", "mungekey"];
/// What lets Intel MPI speak to Slurm: Debian's `libpmi2-0`.
const LIBPMI2: &str = "/usr/lib/x86_64-linux-gnu/libpmi2.so.0";

/// A lab of two nodes, and Slurm on them.
struct Cluster {
    lab: Option<Lab>,
    dir: PathBuf,
    daemons: Vec<Child>,
}

impl Cluster {
    /// `None`, and a word about it, where Slurm is not installed.
    fn up() -> Option<Cluster> {
        let found = |program: &&str| Command::new("which").arg(program).output().unwrap().status.success();
        if !DAEMONS.iter().all(found) {
            skip("no Slurm (Debian: slurm-wlm, munge)");
            return None;
        }
        if text(&Command::new("id").arg("-u").output().unwrap().stdout).trim() != "0" {
            skip("Slurm's daemons need root");
            return None;
        }
        // the path of a socket is short
        let dir = std::env::temp_dir().join(unique("slurm"));
        for d in ["state", "spool-n0", "spool-n1", "n0", "n1"] {
            std::fs::create_dir_all(dir.join(d)).unwrap();
        }
        let lab = Lab::up(&["--nodes", "2", "--rails", "2"]);
        let mut cluster = Cluster { lab: Some(lab), dir, daemons: Vec::new() };
        cluster.configure();
        cluster.start();
        Some(cluster)
    }

    fn lab(&self) -> &Lab {
        self.lab.as_ref().expect("it stays up until the cluster is dropped")
    }

    fn path(&self, name: &str) -> String {
        self.dir.join(name).to_str().unwrap().into()
    }

    fn configure(&self) {
        let dir = self.dir.display();
        let general = format!(
            "ClusterName=lab\nSlurmctldHost=n0\nSlurmUser=root\nSlurmdUser=root\nAuthType=auth/munge\nAuthInfo=socket={dir}/munge\n\
             CredType=cred/munge\nProctrackType=proctrack/linuxproc\nTaskPlugin=task/none\nStateSaveLocation={dir}/state\n\
             SlurmdSpoolDir={dir}/spool-%n\nSlurmctldPidFile={dir}/slurmctld.pid\nSlurmdPidFile={dir}/slurmd-%n.pid\n\
             SlurmctldLogFile={dir}/slurmctld.log\nSlurmdLogFile={dir}/slurmd-%n.log\nSlurmdParameters=config_overrides\n\
             DebugFlags=NO_CONF_HASH\nReturnToService=2\n"
        );
        let nodes = "NodeName=n0 NodeAddr=10.250.0.1 CPUs=8\nNodeName=n1 NodeAddr=10.250.0.2 CPUs=8\nPartitionName=all Nodes=ALL Default=YES\n";
        for node in ["n0", "n1"] {
            let own = self.dir.join(node);
            std::fs::write(own.join("slurm.conf"), format!("{general}{nodes}")).unwrap();
            // both nodes see one /tmp
            std::fs::write(own.join("mpi.conf"), format!("PMIxCliTmpDirBase={}\n", own.display())).unwrap();
        }
        succeeds(&Command::new("mungekey").args(["-c", "-k", &self.path("key")]).output().unwrap());
    }

    /// `command` runs until the cluster is dropped.
    fn daemon(&mut self, mut command: Command) {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        self.daemons.push(command.spawn().unwrap());
    }

    fn start(&mut self) {
        let mut munged = Command::new("munged");
        munged.args(["--foreground", "--force", "--key-file", &self.path("key")]);
        munged.args(["--socket", &self.path("munge"), "--pid-file", &self.path("munged.pid")]);
        munged.args(["--log-file", &self.path("munged.log"), "--seed-file", &self.path("seed")]);
        self.daemon(munged);
        let conf = |node: &str| self.path(&format!("{node}/slurm.conf"));
        let (conf0, conf1) = (conf("n0"), conf("n1"));
        eventually("munged answers", || Path::new(&self.path("munge")).exists());
        let control = self.lab().exec(0, &["slurmctld", "-D", "-f", &conf0]);
        let agents = [
            self.lab().exec(0, &["slurmd", "-D", "-N", "n0", "-f", &conf0]),
            self.lab().exec(1, &["slurmd", "-D", "-N", "n1", "-f", &conf1]),
        ];
        self.daemon(control);
        agents.into_iter().for_each(|agent| self.daemon(agent));
        let ready = || {
            let mut sinfo = self.lab().exec(0, &["sinfo", "-h", "-t", "idle", "-o", "%D"]);
            text(&sinfo.env("SLURM_CONF", &conf0).output().unwrap().stdout).trim() == "2"
        };
        eventually("both nodes are idle", ready);
    }

    /// `words` on the first node, as a user of the cluster enters them.
    fn run<S: AsRef<OsStr>>(&self, words: &[S]) -> Command {
        let mut command = self.lab().exec(0, &[]);
        command.args(words).env("SLURM_CONF", self.path("n0/slurm.conf"));
        command
    }

    /// What the daemons have written, for a failure.
    fn logs(&self) -> String {
        let read = |name| std::fs::read_to_string(self.dir.join(name)).unwrap_or_default();
        ["slurmctld.log", "slurmd-n0.log", "slurmd-n1.log"].map(read).concat()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for mut daemon in self.daemons.drain(..).rev() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
        self.lab = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}

/// Runs a program under `rerail run -- srun`; a rail breaks while it sends, and is repaired when the ranks have noticed.
fn checked(cluster: &Cluster, mpi: &Mpi, pmi: &str) {
    let Some((program, provider)) = setup(mpi) else { return };
    let events = cluster.path(&format!("events-{}", mpi.option));
    let mut command = cluster.run(&[RERAIL, "run", "--mpi", mpi.option, "--provider"]);
    command.arg(&provider).args(["--", "srun", pmi, "-N2", "-n4"]).arg(program).args(["--seconds", "4"]);
    command.env("FI_RERAIL_EVENTS", &events);
    if mpi.option == "intel" {
        command.env("LD_LIBRARY_PATH", mpi.prefix.join("lib")).env("I_MPI_PMI_LIBRARY", LIBPMI2);
    }
    let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let told = |word| std::fs::read_to_string(&events).is_ok_and(|told| told.contains(word));
    eventually("ranks have met", || told("path_up"));
    cluster.lab().act("cut rail0 dark");
    eventually("the cut is noticed", || told("path_down"));
    cluster.lab().act("heal rail0");
    let output = child.wait_with_output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success(), "{}: {said}{}", mpi.option, cluster.logs());
    assert!(said.contains(mpi.library) && said.contains("4 ranks"), "{}: {said}", mpi.option);
}

#[test]
fn srun_starts_programs_of_rwapi_and_of_three_mpis() {
    let [mpich, open_mpi, intel, _] = mpis();
    if setup(&mpich).is_none() {
        return;
    }
    let Some(cluster) = Cluster::up() else { return };
    let ring = Path::new(RERAIL).with_file_name("examples").join("ring");
    if ring.is_file() {
        for pmi in ["--mpi=pmi2", "--mpi=pmix"] {
            let output = cluster.run(&["srun", pmi, "-N2", "-n4"]).arg(&ring).output().unwrap();
            assert!(output.status.success(), "{pmi}: {}{}", text(&output.stderr), cluster.logs());
            assert!(text(&output.stdout).contains("ring: 4 nodes"), "{pmi}: {}", text(&output.stdout));
        }
        let without = cluster.run(&["srun", "--mpi=none", "-N2", "-n2"]).arg(&ring).output().unwrap();
        assert!(!without.status.success());
        assert!(text(&without.stderr).contains("srun --mpi=pmi2"), "{}", text(&without.stderr));
    } else {
        skip(&format!("no {} (made by `cargo test --workspace`)", ring.display()));
    }
    checked(&cluster, &mpich, "--mpi=pmi2");
    checked(&cluster, &open_mpi, "--mpi=pmix");
    if Path::new(LIBPMI2).exists() {
        checked(&cluster, &intel, "--mpi=pmi2");
    } else {
        skip("Intel MPI under Slurm needs libpmi2.so (Debian: libpmi2-0)");
    }
}
