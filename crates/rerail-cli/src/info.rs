//! `rerail info`: what Rerail finds on this node, and which MPIs.

use crate::adapters::adapters;
use crate::config;
use clap::Args;
use rerail_ip::{Surveyed, survey};
use rerail_lab::find_program;
use rerail_lab::launch::{find_provider, provider_directory};
use rerail_lab::mpi::Identity;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::env;
use std::io::Write;
use std::path::PathBuf;

/// Launchers to look for in PATH; Debian adds the suffixes.
const LAUNCHERS: [&str; 5] = ["mpiexec", "mpirun", "mpiexec.mpich", "mpiexec.openmpi", "mpiexec.hydra"];

/// Options of `rerail info`.
#[derive(Args)]
pub struct InfoArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// The provider librerail-fi.so [default: beside this executable or in ../lib/rerail, then in target/release]
    #[arg(long, value_name = "PATH")]
    provider: Option<PathBuf>,
}

/// Prints it. 2 if a variable FI_RERAIL_* is wrong, 1 if there is no rail or no provider, else 0.
pub fn run(args: &InfoArgs) -> i32 {
    let mut set = Vec::new();
    let (options, wrong) = config::read(|row, value| {
        if let Some(value) = value {
            set.push((config::variable(row), value.to_owned()));
        }
    });
    let adapters = adapters(options.keep_registrations);
    // FI_RERAIL_RAILS may name adapters too
    let interfaces = options.rails.iter().filter(|name| !adapters.has(name)).cloned().collect::<Vec<_>>();
    let survey = match survey(&interfaces) {
        Ok(survey) => survey,
        Err(error) => {
            eprintln!("rerail info: {error}");
            return 1;
        }
    };
    let provider = find_provider(args.provider.as_deref());
    let mpis = mpis();
    let code = match config::report(&wrong) {
        0 if survey.notes.is_err() || provider.is_err() => 1,
        code => code,
    };
    // Rails first, in their order.
    let place = |i: &&Surveyed| survey.rails.iter().position(|rail| *rail == i.name).unwrap_or(usize::MAX);
    let mut interfaces: Vec<&Surveyed> = survey.interfaces.iter().collect();
    interfaces.sort_by_key(place);

    let text = if args.json {
        let mut value = json!({
            "host": host(),
            "rails": survey.rails,
            "interfaces": interfaces.iter().map(|i| interface_json(i)).collect::<Vec<_>>(),
            "notes": survey.notes.as_ref().ok(),
            "problem": survey.notes.as_ref().err(),
            "options": set.iter().map(|(name, value)| (name.clone(), json!(value))).collect::<serde_json::Map<_, _>>(),
            "provider": provider.as_ref().ok().map(|p| p.to_string_lossy()),
            "provider_directory": provider.as_ref().ok().map(|p| provider_directory(p).to_string_lossy().into_owned()),
            "mpis": mpis.iter().map(|(launcher, identity)| json!({
                "name": identity.to_string(),
                "launcher": launcher.to_string_lossy(),
            })).collect::<Vec<_>>(),
        });
        adapters.add_to(&mut value);
        format!("{value:#}\n")
    } else {
        let mut text = format!("{}\n\n", host());
        text.push_str(&table(&interfaces));
        match &survey.notes {
            Ok(notes) => notes.iter().for_each(|note| text.push_str(&format!("note: {note}\n"))),
            Err(problem) => text.push_str(&format!("no rails: {problem}\n")),
        }
        text.push_str(&adapters.text(&survey.rails));
        for (name, value) in &set {
            text.push_str(&format!("set here: {name}={value}\n"));
        }
        text.push('\n');
        match &provider {
            Ok(provider) => text.push_str(&format!("provider: {}\n", provider.display())),
            Err(error) => text.push_str(&format!("no provider: {error}\n")),
        }
        for (launcher, identity) in &mpis {
            text.push_str(&format!("MPI in PATH: {identity}, {}\n", launcher.display()));
        }
        if mpis.is_empty() {
            text.push_str("no MPI in PATH\n");
        }
        text
    };
    // A closed pipe is the reader's choice, not an error.
    let _ = std::io::stdout().write_all(text.as_bytes());
    code
}

fn host() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default().trim().to_string()
}

/// The MPIs in PATH, each launcher once however many links name it.
fn mpis() -> Vec<(PathBuf, Identity)> {
    let path = env::var_os("PATH").unwrap_or_default();
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for launcher in LAUNCHERS.iter().filter_map(|name| find_program(name, &path)) {
        let Ok(Some(identity)) = Identity::of(&launcher) else { continue };
        let directory = launcher.parent().map(PathBuf::from);
        if seen.insert((directory, identity.to_string())) {
            found.push((launcher, identity));
        }
    }
    found
}

fn interface_json(i: &Surveyed) -> Value {
    json!({
        "name": i.name,
        "kind": i.kind,
        "speed_mbps": (i.speed_mbps > 0).then_some(i.speed_mbps),
        "mtu": i.mtu,
        "up": i.up,
        "addresses": addresses(i),
        "rail": i.choice.is_ok(),
        "rail_address": i.choice.as_ref().ok(),
        "why_not": i.choice.as_ref().err(),
    })
}

fn addresses(i: &Surveyed) -> Vec<String> {
    i.addresses.iter().map(|(address, bits)| format!("{address}/{bits}")).collect()
}

fn speed(mbps: u32) -> String {
    match mbps {
        0 => "unknown".into(),
        m if m % 1000 == 0 => format!("{} Gbit/s", m / 1000),
        m => format!("{m} Mbit/s"),
    }
}

/// A line for each interface, columns aligned.
fn table(interfaces: &[&Surveyed]) -> String {
    let head = ["interface", "kind", "state", "speed", "MTU", "addresses", "rail"].map(String::from);
    let rows = interfaces.iter().map(|i| {
        let rail = match &i.choice {
            Ok(address) => format!("yes, {address}"),
            Err(why) => format!("no: {why}"),
        };
        let addresses = addresses(i).join(" ");
        [
            i.name.clone(),
            i.kind.clone(),
            if i.up { "up" } else { "down" }.into(),
            speed(i.speed_mbps),
            i.mtu.to_string(),
            if addresses.is_empty() { "-".into() } else { addresses },
            rail,
        ]
    });
    let rows: Vec<[String; 7]> = std::iter::once(head).chain(rows).collect();
    let mut text = String::new();
    for row in &rows {
        for (column, cell) in row.iter().enumerate() {
            let width = rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
            let last = column + 1 == row.len();
            text.push_str(&if last { format!("{cell}\n") } else { format!("{cell:<width$}  ") });
        }
    }
    text
}
