//! `rerail paths` and `rerail migrate`: talking to processes that run.

use crate::target::{Target, fail, say};
use clap::Args;
use rerail_runtime::control::{self, Request};

/// What `rerail paths` takes.
#[derive(Args)]
pub struct PathsArgs {
    #[command(flatten)]
    target: Target,
}

/// What `rerail migrate` takes.
#[derive(Args)]
pub struct MigrateArgs {
    #[command(flatten)]
    target: Target,
    /// Rail to leave
    #[arg(long, value_name = "RAIL", required_unless_present = "home", requires = "to")]
    from: Option<String>,
    /// Rail to use instead
    #[arg(long, value_name = "RAIL", requires = "from")]
    to: Option<String>,
    /// Take earlier requests back: traffic returns to the rails that the policy gives it
    #[arg(long, conflicts_with_all = ["from", "to"])]
    home: bool,
}

/// Prints the paths and carriers of one process, or of all that can be reached.
pub fn paths(args: &PathsArgs) -> i32 {
    let processes = match args.target.processes() {
        Ok(all) => all,
        Err(why) => return fail(&why),
    };
    let mut code = 0;
    for process in processes {
        match control::ask(&process.socket, &Request::Paths) {
            Ok(lines) => say(&format!("{process}\n{lines}")),
            Err(why) => code = fail(&why),
        }
    }
    code
}

/// Asks a process to migrate.
pub fn migrate(args: &MigrateArgs) -> i32 {
    let request = match (&args.from, &args.to) {
        (Some(from), Some(to)) => Request::Migrate { from: from.clone(), to: to.clone() },
        _ => Request::Home,
    };
    match args.target.process().and_then(|one| control::ask(&one.socket, &request)) {
        Ok(lines) => {
            say(&lines);
            0
        }
        Err(why) => fail(&why),
    }
}
