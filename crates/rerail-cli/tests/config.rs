//! `rerail config` shows the one table of options, and says in one sentence what is wrong.

use std::process::Command;

fn rerail() -> Command {
    Command::new(env!("CARGO_BIN_EXE_rerail"))
}

#[test]
fn every_option_is_listed_with_its_variable() {
    let out = rerail().arg("config").output().expect("rerail runs");
    assert!(out.status.success());
    let text = String::from_utf8(out.stdout).expect("it is text");
    for row in rerail_core::OPTION_TABLE {
        assert!(text.contains(&format!("FI_RERAIL_{}", row.name.to_uppercase())), "{}", row.name);
    }
}

#[test]
fn a_wrong_value_is_named_with_what_it_takes() {
    let out = rerail().arg("config").env("FI_RERAIL_HEDGE", "much").output().expect("rerail runs");
    assert_eq!(out.status.code(), Some(2));
    let text = String::from_utf8(out.stderr).expect("it is text");
    assert!(text.contains("FI_RERAIL_HEDGE=\"much\"") && text.contains("per cent"), "{text}");
}
