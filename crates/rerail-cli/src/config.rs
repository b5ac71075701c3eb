//! `rerail config`: the option table, with what the environment sets now.

use rerail_core::{OPTION_TABLE, Options};
use std::io::Write;

/// Prints every row of the table. 2 when a variable of the environment is wrong, otherwise 0.
pub fn run() -> i32 {
    let mut out = String::new();
    let mut options = Options::default();
    let mut wrong = 0;
    for row in OPTION_TABLE {
        let variable = format!("FI_RERAIL_{}", row.name.to_uppercase());
        let default = if row.default.is_empty() { "(empty)" } else { row.default };
        out.push_str(&format!("{variable}\n    default {default}; {}\n    {}\n", row.unit, row.help));
        match std::env::var(&variable) {
            Err(std::env::VarError::NotPresent) => {}
            Err(std::env::VarError::NotUnicode(_)) => {
                eprintln!("rerail: {variable} is not text: give {}", row.unit);
                wrong = 2;
            }
            Ok(value) => match options.set(row.name, &value) {
                Ok(()) => out.push_str(&format!("    set here to {value}\n")),
                Err(e) => {
                    eprintln!("rerail: {e}");
                    wrong = 2;
                }
            },
        }
    }
    // a closed pipe is the reader's choice, not an error
    let _ = std::io::stdout().write_all(out.as_bytes());
    wrong
}
