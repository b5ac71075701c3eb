//! The contenders, and where they run: Rerail and its peers, in a lab or on the user's nodes.

use super::BenchArgs;
use super::test::Test;
use crate::config::variable;
use crate::run::{find_launcher, insert};
use rerail_core::{OPTION_TABLE, Options};
use rerail_lab::LabError;
use rerail_lab::mpi::{self, Family, Installation, Wanted, fabric_settings};
use rerail_lab::rate::Rate;
use rerail_lab::schedule::Schedule;
use rerail_lab::topology::{RailPlan, Topology};
use std::env;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What happens in the test failover when nothing else is asked for: one rail, then another. What has one rail only has to bear one.
const TWO_CUTS: &str = "2s cut rail1 down; 4s heal rail1; 6s cut rail0 dark; 8s heal rail0";
const ONE_CUT: &str = "3s cut rail0 dark; 5s heal rail0";

/// Its completion queue is longer by default than adapters in software make them. Between a few peers they change nothing else.
const QUEUES_OF_VERBS: &[(&str, &str)] = &[
    ("FI_UNIVERSE_SIZE", "16"),
    ("FI_OFI_RXM_MSG_TX_SIZE", "64"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "64"),
    ("FI_OFI_RXM_TX_SIZE", "256"),
    ("FI_OFI_RXM_RX_SIZE", "256"),
];

/// A transport that takes its turns.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Contender {
    /// What it is called.
    pub name: String,
    /// What it is.
    way: Way,
    /// Variables for it.
    env: Vec<(String, String)>,
    /// Whether rails are cut while its figures are measured.
    cut: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// The MPI over Rerail.
    Rerail,
    /// RWAPI, without the MPI but for its launcher.
    Rwapi,
    /// What the MPI chooses by itself.
    Own,
    /// This provider of the MPI's own libfabric.
    Fabric(&'static str),
    /// What the variables make the MPI choose.
    Told,
    /// Plain sockets; the MPI only starts them.
    Sockets,
}

impl Contender {
    /// What the program is told to measure, if this one can be measured so.
    pub fn argument(&self, test: &Test) -> Option<String> {
        if self.way == Way::Sockets { test.sockets_argument() } else { Some(test.argument()) }
    }

    /// Whether it is RWAPI, and no MPI.
    pub fn is_rwapi(&self) -> bool {
        self.way == Way::Rwapi
    }

    /// Whether rails are cut while its figures are measured.
    pub fn is_cut(&self) -> bool {
        self.cut
    }
}

/// What a contender runs in its turns.
pub struct Turn {
    /// The contender.
    pub contender: Contender,
    /// The program and its arguments.
    pub words: Vec<OsString>,
    /// What happens to the rails of the lab meanwhile.
    pub faults: Option<Faults>,
}

/// What happens to the rails of a lab.
#[derive(Clone)]
pub struct Faults {
    /// As for `rerail lab run --schedule`.
    pub schedule: String,
    /// Whether its clock starts when the program says so.
    pub on_start: bool,
}

/// Rerail, and the peers of these names that this MPI has. `inside`: what goes over a provider between nodes shall go over it inside a
/// node too.
pub fn chosen(names: &[String], family: Family, inside: bool) -> Result<Vec<Contender>, LabError> {
    let told =
        |settings: &[(&str, &str)]| settings.iter().map(|(n, v)| (n.to_string(), v.to_string())).collect();
    let contender = |name: &str, way, env| Contender { name: name.into(), way, env, cut: false };
    let mut all = vec![contender("rerail", Way::Rerail, Vec::new())];
    let usual = ["own".to_string(), "tcp".to_string()];
    for name in if names.is_empty() { &usual[..] } else { names } {
        let lacks = || {
            LabError::Input(format!(
                "this MPI has no transport `{name}` that can be chosen: leave it out of --peer"
            ))
        };
        all.push(match name.as_str() {
            "none" => continue,
            "own" => contender("own", Way::Own, Vec::new()),
            "sockets" => contender("sockets", Way::Sockets, Vec::new()),
            "tcp" => contender("tcp", Way::Fabric("tcp"), Vec::new()),
            "shm" => contender("shm", Way::Fabric("shm"), Vec::new()),
            "verbs" => contender("verbs", Way::Fabric("verbs;ofi_rxm"), told(QUEUES_OF_VERBS)),
            "ucx" => match family {
                Family::Mpich => contender(
                    "ucx",
                    Way::Told,
                    told(&[("MPIR_CVAR_CH4_NETMOD", "ucx"), ("UCX_TLS", "tcp,self,sm")]),
                ),
                // it disregards plain TCP unless told that any transport will do
                Family::OpenMpi5 | Family::OpenMpi4 => contender(
                    "ucx",
                    Way::Told,
                    told(&[
                        ("OMPI_MCA_pml", "ucx"),
                        ("OMPI_MCA_pml_ucx_tls", "any"),
                        ("OMPI_MCA_pml_ucx_devices", "any"),
                        ("UCX_TLS", "tcp,self,sm"),
                    ]),
                ),
                Family::Intel => return Err(lacks()),
            },
            "ob1" if family.is_open_mpi() => contender(
                "ob1",
                Way::Told,
                told(&[("OMPI_MCA_pml", "ob1"), ("OMPI_MCA_btl", "^uct,openib,ofi")]),
            ),
            "ob1" => return Err(lacks()),
            name => match name.strip_prefix("rerail:").and_then(|setting| setting.split_once('=')) {
                Some((option, value)) => {
                    let variable = setting(option, value).map_err(LabError::Input)?;
                    contender(name, Way::Rerail, told(&[(&variable, value)]))
                }
                None if name == CUT => {
                    return Err(LabError::Input(format!("the peer `{CUT}` is one of --rwapi: add that")));
                }
                None => {
                    return Err(LabError::Input(format!(
                        "there is no peer `{name}`: choose from own, tcp, shm, verbs, ucx, ob1, sockets, rerail:OPTION=VALUE and none"
                    )));
                }
            },
        });
    }
    if let Some((name, value)) = inside_nodes(family).filter(|_| inside) {
        for c in all.iter_mut().filter(|c| matches!(c.way, Way::Rerail | Way::Fabric(_))) {
            c.env.push((name.into(), value.into()));
        }
    }
    Ok(all)
}

/// The peer that stands for RWAPI and the MPI over Rerail while rails are cut.
const CUT: &str = "cut";

/// RWAPI, the MPI over Rerail, and the peers of these names; `cuttable` says why rails cannot be cut, if they cannot.
pub fn chosen_of_rwapi(
    names: &[String],
    family: Family,
    cuttable: Result<(), &str>,
) -> Result<Vec<Contender>, LabError> {
    let cut = match (names, cuttable) {
        ([], Ok(())) => true,
        ([], Err(why)) => {
            eprintln!("rerail bench: {why}, so nothing is measured with cuts");
            false
        }
        (names, cuttable) => {
            let asked = names.iter().any(|name| name == CUT);
            if let Err(why) = cuttable
                && asked
            {
                return Err(LabError::Input(format!("{why}: leave `{CUT}` out of --peer")));
            }
            asked
        }
    };
    if names.iter().any(|name| name == "sockets") {
        return Err(LabError::Input(
            "--rwapi has no tests of plain sockets: leave `sockets` out of --peer".into(),
        ));
    }
    let mut others: Vec<String> = names.iter().filter(|name| *name != CUT).cloned().collect();
    if others.is_empty() && !names.is_empty() {
        others.push("none".into());
    }
    let mut all = chosen(&others, family, false)?;
    all.insert(0, Contender { name: "rwapi".into(), way: Way::Rwapi, env: Vec::new(), cut: false });
    if cut {
        for i in [0, 1] {
            let name = format!("{}+{CUT}", all[i].name);
            all.push(Contender { name, cut: true, ..all[i].clone() });
        }
    }
    Ok(all)
}

/// The variable of an option of Rerail, which is given by its own name or the variable's. A wrong one would be measured against itself.
fn setting(option: &str, value: &str) -> Result<String, String> {
    let row = OPTION_TABLE.iter().find(|row| option == row.name || option == variable(row));
    let row = row.ok_or_else(|| format!("Rerail has no option `{option}`: `rerail config` lists them"))?;
    Options::default().set(row.name, value).map_err(|e| e.to_string())?;
    Ok(variable(row))
}

/// What makes an MPI use its provider inside a node, in the place of its own shared memory. Open MPI does so unasked.
fn inside_nodes(family: Family) -> Option<(&'static str, &'static str)> {
    match family {
        Family::Mpich => Some(("MPIR_CVAR_NOLOCAL", "1")),
        Family::Intel => Some(("I_MPI_FABRICS", "ofi")),
        Family::OpenMpi5 | Family::OpenMpi4 => None,
    }
}

/// Where the program runs.
pub enum Place {
    /// A lab on this machine.
    Lab {
        /// The MPI, as `rerail lab run` knows it.
        mpi: String,
        /// Where it is.
        installation: Installation,
        /// What shapes the lab.
        shape: Vec<OsString>,
        /// The same for the reader.
        text: String,
        /// The provider, where one is named.
        provider: Option<PathBuf>,
    },
    /// Wherever the user's launcher starts it.
    Nodes {
        /// The launcher and its arguments.
        command: Vec<OsString>,
        /// Its position in them.
        at: usize,
        /// The MPI.
        installation: Installation,
        /// The provider, where one is named.
        provider: Option<PathBuf>,
    },
}

impl Place {
    /// From the options.
    pub fn of(args: &BenchArgs) -> Result<Place, LabError> {
        let provider = args.provider.clone();
        let Some(name) = &args.lab else {
            let (at, installation) = find_launcher(&args.launcher)?.ok_or_else(|| {
                LabError::Input("give the launcher of an MPI behind `--`, such as `-- mpiexec -n 2 -hosts a,b`, or measure in a lab by --lab mpich".into())
            })?;
            return Ok(Place::Nodes { command: args.launcher.clone(), at, installation, provider });
        };
        let wanted = match name.as_str() {
            "mpich" => Wanted::Mpich,
            "openmpi" => Wanted::OpenMpi,
            "intel" => Wanted::Intel,
            _ => {
                return Err(LabError::Input(format!(
                    "there is no MPI `{name}`: --lab takes mpich, openmpi or intel"
                )));
            }
        };
        if args.ranks < 2 || args.ranks % 2 == 1 {
            return Err(LabError::Input(format!(
                "ranks form pairs, and {} do not: give -n an even number",
                args.ranks
            )));
        }
        let installation = mpi::find(wanted, args.mpi_prefix.as_deref())?;
        let mut words =
            vec!["--nodes".to_string(), args.nodes.to_string(), "-n".into(), args.ranks.to_string()];
        for rail in &args.rails {
            words.extend(["--rail".into(), rail.clone()]);
        }
        if let Some(rdma) = args.rdma {
            words.extend(["--rdma".into(), rdma.name().into()]);
        }
        if let Some(fabric) = &args.fabric {
            words.extend(["--fabric".into(), fabric.to_string()]);
        }
        if let Some(congctl) = &args.congctl {
            words.extend(["--congctl".into(), congctl.clone()]);
        }
        let rails = if args.rails.is_empty() { "unshaped, unshaped".into() } else { args.rails.join(", ") };
        let congctl = args.congctl.as_ref().map_or(String::new(), |name| format!(", {name}"));
        let adapters =
            args.rdma.map_or(String::new(), |rdma| format!(" with {} adapters in software", rdma.name()));
        let fabric = args.fabric.as_ref().map_or(String::new(), |fabric| format!(" behind {fabric}"));
        let text = format!(
            "{} ranks on {} nodes of a lab{adapters}, rails: {rails}{fabric}{congctl}",
            args.ranks, args.nodes
        );
        let shape = words.into_iter().map(OsString::from).collect();
        Ok(Place::Lab { mpi: name.clone(), installation, shape, text, provider })
    }

    fn installation(&self) -> &Installation {
        match self {
            Place::Lab { installation, .. } | Place::Nodes { installation, .. } => installation,
        }
    }

    /// The MPI's family.
    pub fn family(&self) -> Family {
        self.installation().family()
    }

    /// What was measured on, for the reader.
    pub fn describe(&self) -> String {
        let text = match self {
            Place::Lab { text, .. } => text.clone(),
            Place::Nodes { command, .. } => {
                let words: Vec<_> = command.iter().map(|word| word.to_string_lossy()).collect();
                words.join(" ")
            }
        };
        format!("{}, {text}", self.installation().identity)
    }

    /// The compiler of the MPI.
    pub fn compiler(&self, given: Option<&Path>) -> Result<PathBuf, LabError> {
        if let Some(given) = given {
            return Ok(given.to_path_buf());
        }
        let installation = self.installation();
        let beside = |name: &str| installation.launcher.with_file_name(name);
        let debian = match self.family() {
            Family::Mpich => "mpicc.mpich",
            Family::OpenMpi5 | Family::OpenMpi4 => "mpicc.openmpi",
            Family::Intel => "mpiicx",
        };
        // Debian's launchers have a suffix where several MPIs are installed, and so have the compilers
        let candidates = [beside(debian), beside("mpicc")];
        candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| {
            LabError::Input(format!(
                "there is no mpicc beside `{}`: name the MPI's compiler by --mpicc (Intel MPI runs what MPICH's compiler makes)",
                installation.launcher.display()
            ))
        })
    }

    /// The command for one turn. Where rails break, the lab reports to `events` when it broke them.
    pub fn command(&self, turn: &Turn, events: &Path) -> Result<Command, LabError> {
        let rerail = env::current_exe()
            .map_err(|why| LabError::Input(format!("the command rerail does not find itself: {why}")))?;
        let contender = &turn.contender;
        let mut command = Command::new(rerail);
        match self {
            Place::Lab { mpi, installation, shape, provider, .. } => {
                command
                    .args(["lab", "run", "--quiet", "--mpi", mpi, "--mpi-prefix"])
                    .arg(&installation.prefix)
                    .args(shape);
                if let Some(faults) = &turn.faults {
                    command.arg("--events").arg(events).arg("--schedule").arg(&faults.schedule);
                    command.args(faults.on_start.then_some("--schedule-on-start"));
                }
                match contender.way {
                    Way::Rerail | Way::Rwapi => {
                        command
                            .args(provider.iter().flat_map(|path| ["--provider".as_ref(), path.as_os_str()]));
                    }
                    Way::Own | Way::Told | Way::Sockets => {
                        command.arg("--no-provider");
                    }
                    Way::Fabric(provider) => {
                        command.args(["--libfabric", provider]);
                    }
                }
                for (name, value) in &contender.env {
                    command.arg("--env").arg(format!("{name}={value}"));
                }
                command.arg("--").args(&turn.words);
            }
            Place::Nodes { command: launcher, at, installation, provider } => {
                let mut words = launcher.clone();
                let mut settings = contender.env.clone();
                if let Way::Fabric(provider) = contender.way {
                    settings.extend(
                        fabric_settings(installation.family(), provider)
                            .into_iter()
                            .map(|(n, v)| (n.to_string(), v)),
                    );
                }
                if installation.family().is_open_mpi() {
                    // it hands on what is its own, and nothing else unasked
                    let others = settings.iter().filter(|(name, _)| !name.starts_with("OMPI_"));
                    let added: Vec<String> =
                        others.flat_map(|(name, _)| ["-x".to_string(), name.clone()]).collect();
                    insert(&mut words, *at, &added);
                }
                words.extend(turn.words.iter().cloned());
                if contender.way == Way::Rerail {
                    command.args(["run", "--quiet"]);
                    command.args(provider.iter().flat_map(|path| ["--provider".as_ref(), path.as_os_str()]));
                    command.arg("--").args(&words);
                } else {
                    command = Command::new(&words[0]);
                    command.args(&words[1..]);
                }
                command.envs(settings);
            }
        }
        Ok(command)
    }

    /// The number of rails that can be cut, or why none can.
    pub fn rails_to_cut(&self, args: &BenchArgs) -> Result<usize, &'static str> {
        match self {
            Place::Nodes { .. } => Err("only the rails of a lab are cut"),
            Place::Lab { .. } if args.rails.len() == 1 => {
                Err("with one rail nothing takes over from a rail that is cut")
            }
            Place::Lab { .. } => Ok(if args.rails.is_empty() { 2 } else { args.rails.len() }),
        }
    }
}

/// What is to happen to the rails of the lab, if the lab will understand it.
pub fn schedule(args: &BenchArgs, breaks: bool) -> Result<Option<String>, LabError> {
    if !breaks {
        return match args.schedule {
            None => Ok(None),
            Some(_) => {
                Err(LabError::Input("--schedule is for the test failover: add --test failover".into()))
            }
        };
    }
    let rails: Vec<RailPlan> = match args.rails.as_slice() {
        [] => vec![RailPlan::veth(Rate::Unshaped); 2],
        rails => rails
            .iter()
            .map(|r| r.parse().map_err(|why| LabError::Input(format!("--rail {r}: {why}"))))
            .collect::<Result<_, _>>()?,
    };
    let usual = if rails.len() > 1 { TWO_CUTS } else { ONE_CUT };
    let text = args.schedule.clone().unwrap_or_else(|| usual.into());
    let (nodes, fabric) = (args.nodes as usize, args.fabric.clone());
    let topology = Topology { nodes, rails, congctl: None, rdma: args.rdma, fabric };
    topology.check()?;
    Schedule::parse(&text, &topology)?;
    Ok(Some(text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    fn planned(words: &str) -> Result<Option<String>, String> {
        let line = format!("bench --lab mpich --test failover {words}");
        let words = line.split(' ').map(|word| word.replace('~', " "));
        let line = <Line as clap::Parser>::try_parse_from(words).map_err(|e| e.to_string())?;
        schedule(&line.args, true).map_err(|e| e.to_string())
    }

    #[test]
    fn links_of_a_fabric_are_cut_where_there_is_one() {
        let cut = "--rail unshaped --schedule 1s~cut~rail0/leaf0-spine1~dark";
        let text = "1s cut rail0/leaf0-spine1 dark".to_owned();
        assert_eq!(planned(&format!("--fabric leaf-spine:2x4 {cut}")), Ok(Some(text)));
        assert!(planned(cut).unwrap_err().contains("--fabric"));
        assert!(planned("--fabric leaf-spine:3x4 --nodes 2").unwrap_err().contains("3 leaves are more"));
        assert!(planned("--fabric ring:5").unwrap_err().contains("leaf-spine:LEAVESxSPINES"));
        assert!(planned("--fabric leaf-spine:2x4 --rdma roce").unwrap_err().contains("--rdma"));
    }

    fn names(list: &[&str], family: Family) -> Result<Vec<String>, String> {
        let list: Vec<String> = list.iter().map(|n| n.to_string()).collect();
        let all = chosen(&list, family, false).map_err(|e| e.to_string())?;
        Ok(all.into_iter().map(|c| c.name).collect())
    }

    #[test]
    fn rwapi_comes_first_and_cuts_come_last() {
        let chosen = |list: &[&str], cuttable| {
            let list: Vec<String> = list.iter().map(|n| n.to_string()).collect();
            let all = chosen_of_rwapi(&list, Family::Mpich, cuttable).map_err(|e| e.to_string())?;
            let name = |c: Contender| format!("{}{}", c.name, if c.is_rwapi() { " *" } else { "" });
            Ok::<_, String>(all.into_iter().map(name).collect::<Vec<_>>())
        };
        let usual = ["rwapi *", "rerail", "own", "tcp", "rwapi+cut *", "rerail+cut"];
        assert_eq!(chosen(&[], Ok(())).unwrap(), usual);
        assert_eq!(chosen(&[], Err("one rail")).unwrap(), usual[..4]);
        assert_eq!(chosen(&["cut"], Ok(())).unwrap(), ["rwapi *", "rerail", "rwapi+cut *", "rerail+cut"]);
        assert_eq!(chosen(&["tcp"], Ok(())).unwrap(), ["rwapi *", "rerail", "tcp"]);
        assert!(chosen(&["cut"], Err("one rail")).unwrap_err().contains("one rail: leave `cut`"));
        assert!(chosen(&["sockets"], Ok(())).unwrap_err().contains("sockets"));
        assert!(names(&["cut"], Family::Mpich).unwrap_err().contains("--rwapi"));
    }

    #[test]
    fn rerail_comes_first_and_only_what_the_mpi_has_is_taken() {
        assert_eq!(names(&[], Family::Mpich).unwrap(), ["rerail", "own", "tcp"]);
        assert_eq!(names(&["none"], Family::Intel).unwrap(), ["rerail"]);
        assert_eq!(names(&["ob1", "sockets"], Family::OpenMpi5).unwrap(), ["rerail", "ob1", "sockets"]);
        let setting = "rerail:FI_RERAIL_PROTECTION=off";
        assert_eq!(names(&[setting], Family::Intel).unwrap(), ["rerail", setting]);
        let env = |name: &str| chosen(&[name.into()], Family::Mpich, false).unwrap()[1].env.clone();
        assert_eq!(env("rerail:bulk=udp"), [("FI_RERAIL_BULK".into(), "udp".into())]);
        assert_eq!(env("rerail:bulk=udp"), env("rerail:FI_RERAIL_BULK=udp"));
        let inside = |family| {
            let all = chosen(&["own".into(), "shm".into()], family, true).unwrap();
            all.into_iter().map(|c| c.env.len()).collect::<Vec<_>>()
        };
        assert_eq!(inside(Family::Mpich), [1, 0, 1], "the MPI's own choice is left alone");
        assert_eq!(inside(Family::OpenMpi5), [0, 0, 0]);
        for (name, family) in [
            ("rerail:on", Family::Mpich),
            ("rerail:bulk=sometimes", Family::Mpich),
            ("rerail:MPIR_CVAR_NOLOCAL=1", Family::Mpich),
            ("ob1", Family::Mpich),
            ("ucx", Family::Intel),
            ("psm3", Family::Mpich),
        ] {
            let told = names(&[name], family).unwrap_err();
            let wrong =
                name.trim_start_matches("rerail:bulk=").trim_start_matches("rerail:").trim_end_matches("=1");
            assert!(told.contains(wrong), "{told}");
        }
    }
}
