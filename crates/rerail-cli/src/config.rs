//! `rerail config`: the option table, with what the environment sets now.

use rerail_core::{OPTION_TABLE, OptionRow, Options, unknown_options};
use std::env::VarError;
use std::io::Write;

/// Prints every row of the table. 2 when a variable of the environment is wrong, otherwise 0.
pub fn run() -> i32 {
    let mut out = String::new();
    let wrong = read(|row, value| {
        let variable = variable(row);
        let default = if row.default.is_empty() { "(empty)" } else { row.default };
        out.push_str(&format!("{variable}\n    default {default}; {}\n    {}\n", row.unit, row.help));
        if let Some(value) = value {
            out.push_str(&format!("    set here to {value}\n"));
        }
    })
    .1;
    warn_of_unknown();
    // a closed pipe is the reader's choice, not an error
    let _ = std::io::stdout().write_all(out.as_bytes());
    report(&wrong)
}

/// Variables of this environment that look like options and are none: a sentence for each.
pub fn unknown() -> Vec<String> {
    unknown_options(std::env::vars_os().filter_map(|(name, _)| name.into_string().ok()))
}

/// Says them on standard error. They change nothing, so they are no error.
pub fn warn_of_unknown() {
    for sentence in unknown() {
        eprintln!("rerail: warning: {sentence}");
    }
}

/// The variable of an option.
pub fn variable(row: &OptionRow) -> String {
    format!("FI_RERAIL_{}", row.name.to_uppercase())
}

/// The options as this environment sets them, and a sentence for each variable that is wrong; `each` sees every row, with its
/// value if it is set and right.
pub fn read(mut each: impl FnMut(&OptionRow, Option<&str>)) -> (Options, Vec<String>) {
    let mut options = Options::default();
    let mut wrong = Vec::new();
    for row in OPTION_TABLE {
        let variable = variable(row);
        let value = match std::env::var(&variable) {
            Err(VarError::NotPresent) => None,
            Err(VarError::NotUnicode(_)) => {
                wrong.push(format!("{variable} is not text: give {}", row.unit));
                None
            }
            Ok(value) => match options.set(row.name, &value) {
                Ok(()) => Some(value),
                Err(error) => {
                    wrong.push(error.to_string());
                    None
                }
            },
        };
        each(row, value.as_deref());
    }
    (options, wrong)
}

/// Says what is wrong on standard error, and gives the exit code.
pub fn report(wrong: &[String]) -> i32 {
    for sentence in wrong {
        eprintln!("rerail: {sentence}");
    }
    if wrong.is_empty() { 0 } else { 2 }
}
