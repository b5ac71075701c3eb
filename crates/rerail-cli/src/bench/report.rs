//! The figures as tables, in Markdown, and as JSON.

use super::figures::Figures;
use super::test::{Kind, Test};
use serde_json::{Value, json};

/// Prints the tables on standard output.
pub fn print(figures: &Figures, tests: &[Test]) {
    crate::lab::print(&tables(figures, tests));
}

fn tables(figures: &Figures, tests: &[Test]) -> String {
    let mut text = format!("{}\n", figures.place);
    for test in tests.iter().filter(|test| figures.has(test)) {
        text.push_str(&format!(
            "\n{}, {} (median; least to greatest of the turns)\n\n| bytes |",
            test.kind.title(),
            test.kind.unit()
        ));
        let mut below = "|---|".to_string();
        for (c, name) in figures.contenders.iter().enumerate() {
            text.push_str(&format!(" {name} |"));
            below.push_str("---|");
            if c > 0 && test.kind != Kind::Overlap {
                text.push_str(&format!(" rerail / {name} |"));
                below.push_str("---|");
            }
        }
        text.push_str(&format!("\n{below}\n"));
        for &size in &test.sizes {
            text.push_str(&format!("| {} |", bytes(size)));
            for c in 0..figures.contenders.len() {
                match figures.summary(c, test.kind, size) {
                    Some(s) => text.push_str(&format!(
                        " {} ({} to {}) |",
                        number(s.median),
                        number(s.min),
                        number(s.max)
                    )),
                    None => text.push_str(" – |"),
                }
                if c > 0 && test.kind != Kind::Overlap {
                    let ratio = figures.ratio(c, test.kind, size);
                    text.push_str(&ratio.map_or(" – |".into(), |r| format!(" {r:.2} |")));
                }
            }
            text.push('\n');
        }
    }
    for (c, why) in &figures.failures {
        text.push_str(&format!("\n{}: a turn failed: {why}\n", figures.contenders[*c]));
    }
    text
}

/// Three digits that count.
fn number(x: f64) -> String {
    match x.abs() {
        a if a >= 100.0 => format!("{x:.0}"),
        a if a >= 10.0 => format!("{x:.1}"),
        _ => format!("{x:.2}"),
    }
}

/// `8`, `64 KiB`.
pub fn bytes(n: usize) -> String {
    match n {
        0 => "–".into(),
        n if n % (1 << 20) == 0 => format!("{} MiB", n >> 20),
        n if n % (1 << 10) == 0 => format!("{} KiB", n >> 10),
        n => n.to_string(),
    }
}

/// The same for programs: every figure of every turn.
pub fn json(figures: &Figures, tests: &[Test]) -> String {
    let mut list = Vec::new();
    for test in tests {
        for &size in &test.sizes {
            for (c, name) in figures.contenders.iter().enumerate() {
                let Some(s) = figures.summary(c, test.kind, size) else { continue };
                list.push(json!({
                    "test": test.kind.name(),
                    "bytes": size,
                    "unit": test.kind.unit(),
                    "contender": name,
                    "values": figures.values(c, test.kind, size),
                    "median": s.median,
                    "min": s.min,
                    "max": s.max,
                    "rerail_ratio": if c > 0 { figures.ratio(c, test.kind, size) } else { None },
                }));
            }
        }
    }
    let failures: Vec<Value> = figures
        .failures
        .iter()
        .map(|(c, why)| json!({ "contender": figures.contenders[*c], "why": why }))
        .collect();
    let timelines: Vec<Value> = figures
        .timelines
        .iter()
        .map(|t| json!({ "contender": figures.contenders[t.contender], "bytes": t.bytes, "slice_ms": t.slice_ms, "mb_per_s": t.values,
            "cuts": t.bands.iter().map(|b| json!({ "cut": b.text, "begun_s": b.at_s, "healed_s": b.healed_s })).collect::<Vec<_>>() }))
        .collect();
    let all = json!({
        "place": figures.place,
        "contenders": figures.contenders,
        "figures": list,
        "failures": failures,
        "timelines": timelines,
    });
    format!("{all:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::test::chosen;

    #[test]
    fn a_table_has_the_ratios_and_what_is_missing() {
        let tests = chosen(&["latency".into()], &[8, 1024]).unwrap();
        let mut f = Figures::new("a place", vec!["rerail".into(), "own".into()]);
        f.add(0, "bench latency 8 3\nbench latency 1024 12.5\n", "");
        f.add(1, "bench latency 8 4\n", "");
        f.add_failure(1, "it broke");
        let text = tables(&f, &tests);
        assert!(text.contains("| 8 | 3.00 (3.00 to 3.00) | 4.00 (4.00 to 4.00) | 0.75 |\n"), "{text}");
        assert!(text.contains("| 1 KiB | 12.5 (12.5 to 12.5) | – | – |\n"), "{text}");
        assert!(text.ends_with("\nown: a turn failed: it broke\n"), "{text}");
        let json: Value = serde_json::from_str(&json(&f, &tests)).unwrap();
        assert_eq!(json["figures"][1]["rerail_ratio"], 0.75);
    }
}
