//! `rerail-hostile TARGET FILE…`: replays inputs through one target, with any compiler. A broken promise is a panic.

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let names: Vec<&str> = rerail_hostile::TARGETS.iter().map(|t| t.0).collect();
    let Some((name, files)) = arguments.split_first().filter(|(_, files)| !files.is_empty()) else {
        eprintln!("usage: rerail-hostile TARGET FILE...\ntargets: {}", names.join(" "));
        return ExitCode::from(2);
    };
    let Some(target) = rerail_hostile::target(name) else {
        eprintln!("rerail-hostile: there is no target `{name}`; there are: {}", names.join(" "));
        return ExitCode::from(2);
    };
    for file in files {
        match std::fs::read(file) {
            Ok(bytes) => {
                println!("{name}: {file}: {} bytes", bytes.len());
                target(&bytes);
            }
            Err(error) => {
                eprintln!("rerail-hostile: cannot read {file}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    match name.as_str() {
        "insider" => println!("{}", rerail_hostile::frames::TALLY.line()),
        "nodes" => println!("{}", rerail_hostile::nodes::TALLY.line()),
        "join" => println!("{}", rerail_hostile::join::TALLY.line()),
        _ => {}
    }
    println!("{name}: nothing was found");
    ExitCode::SUCCESS
}
