//! The figures as tables, in Markdown, and as JSON.

use super::figures::{Figures, Summary, View};
use super::test::{Kind, Test};
use serde_json::{Value, json};

/// Prints the tables on standard output.
pub fn print(figures: &Figures, tests: &[Test]) {
    crate::lab::print(&tables(figures, tests));
}

fn tables(figures: &Figures, tests: &[Test]) -> String {
    let mut text = format!("{}\n", figures.place);
    let measured: Vec<&Test> = tests.iter().filter(|test| figures.has(test)).collect();
    for test in &measured {
        text.push_str(&table(figures, test, View::Measured));
        if test.kind.is_of_rwapi() {
            text.push_str(&table(figures, test, View::Throughput));
        }
    }
    let of_rwapi: Vec<&Test> = measured.into_iter().filter(|test| test.kind.is_of_rwapi()).collect();
    if !of_rwapi.is_empty() {
        text.push_str(&standstills(figures, &of_rwapi));
    }
    for (c, why) in &figures.failures {
        text.push_str(&format!("\n{}: a turn failed: {why}\n", figures.contenders[*c]));
    }
    text
}

/// A test: a row for each size; for each contender but the first also how the first compares.
fn table(figures: &Figures, test: &Test, view: View) -> String {
    let title = format!("{}, {} (median; quartiles of the turns)", test.kind.title(), view.unit(test.kind));
    let has_ratio = |c: usize| c > 0 && test.kind != Kind::Overlap;
    let mut head = vec!["bytes".to_string()];
    for (c, name) in figures.contenders.iter().enumerate() {
        head.push(name.clone());
        head.extend(has_ratio(c).then(|| format!("{} / {name}", figures.contenders[0])));
    }
    let row = |&size: &usize| {
        let mut cells = vec![bytes(size)];
        for c in 0..figures.contenders.len() {
            cells.push(cell(figures.summary_as(view, c, test.kind, size)));
            let ratio = || figures.ratio_as(view, c, test.kind, size);
            cells.extend(has_ratio(c).then(|| ratio().map_or("–".into(), |r| format!("{r:.2}"))));
        }
        cells
    };
    markdown(&title, head, test.sizes.iter().map(row))
}

/// What the medians of single messages hide: a row for each test.
fn standstills(figures: &Figures, tests: &[&Test]) -> String {
    let title =
        "Longest time without a message in a measurement, ms (median; quartiles of all sizes and turns)";
    let head = std::iter::once("test".to_string()).chain(figures.contenders.iter().cloned()).collect();
    let row = |test: &&Test| {
        let all = (0..figures.contenders.len()).map(|c| cell(figures.standstill(c, test)));
        std::iter::once(test.kind.name().to_string()).chain(all).collect()
    };
    markdown(title, head, tests.iter().map(row))
}

fn markdown(title: &str, head: Vec<String>, rows: impl Iterator<Item = Vec<String>>) -> String {
    let line = |cells: &[String]| format!("| {} |\n", cells.join(" | "));
    let rule = format!("{}|\n", "|---".repeat(head.len()));
    let rows: String = rows.map(|row| line(&row)).collect();
    format!("\n{title}\n\n{}{rule}{rows}", line(&head))
}

fn cell(summary: Option<Summary>) -> String {
    summary.map_or("–".into(), |s| {
        let [lower, upper] = s.quartiles.map(number);
        format!("{} ({lower} to {upper})", number(s.median))
    })
}

/// Three digits that count.
pub fn number(x: f64) -> String {
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
            list.extend((0..figures.contenders.len()).filter_map(|c| figure(figures, c, test.kind, size)));
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

/// A figure of a contender. Tests of RWAPI have more: throughput, and of each value the standstill and the cuts.
fn figure(figures: &Figures, c: usize, kind: Kind, size: usize) -> Option<Value> {
    let s = figures.summary(c, kind, size)?;
    let mut figure = json!({
        "test": kind.name(),
        "bytes": size,
        "unit": kind.unit(),
        "contender": figures.contenders[c],
        "values": figures.values(c, kind, size),
        "median": s.median,
        "quartiles": s.quartiles,
        "min": s.min,
        "max": s.max,
    });
    figure[format!("{}_ratio", figures.contenders[0])] =
        json!(if c > 0 { figures.ratio(c, kind, size) } else { None });
    if kind.is_of_rwapi() {
        let spans = figures.spans(c, kind, size);
        figure["mb_per_s"] = json!(figures.summary_as(View::Throughput, c, kind, size).map(|s| s.median));
        figure["standstill_ms"] = spans.iter().map(|span| span.standstill_ms).collect();
        figure["cuts"] = spans.iter().map(|span| span.cuts).collect();
    }
    Some(figure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::test::{chosen, chosen_of_rwapi};

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

    #[test]
    fn tests_of_rwapi_have_throughput_and_standstills() {
        let tests = chosen_of_rwapi(&["round-trip".into()], &[8, 1024]).unwrap();
        let mut f = Figures::new("a place", vec!["rwapi".into(), "tcp".into()]);
        let turn =
            |us: u32, still: u32| format!("span round-trip 1024 {still} 0 1\nbench round-trip 1024 {us}\n");
        for (us, still) in [(2, 1), (4, 2), (8, 3)] {
            f.add(0, &turn(us, still), "");
            f.add(1, &turn(2 * us, 10 * still), "");
        }
        let text = tables(&f, &tests);
        assert!(text.contains("Half a round trip, µs (median; quartiles"), "{text}");
        assert!(
            text.contains("| bytes | rwapi | tcp | rwapi / tcp |\n|---|---|---|---|\n| 8 | – | – | – |\n"),
            "{text}"
        );
        assert!(text.contains("| 1 KiB | 4.00 (3.00 to 6.00) | 8.00 (6.00 to 12.0) | 0.50 |\n"), "{text}");
        assert!(text.contains("| 1 KiB | 256 (192 to 384) | 128 (96.0 to 192) | 2.00 |\n"), "{text}");
        assert!(text.contains("| round-trip | 2.00 (1.50 to 2.50) | 20.0 (15.0 to 25.0) |\n"), "{text}");
        let json: Value = serde_json::from_str(&json(&f, &tests)).unwrap();
        let figure = &json["figures"][1];
        assert_eq!((&figure["rwapi_ratio"], &figure["mb_per_s"]), (&json!(0.5), &json!(128.0)));
        assert_eq!(
            (&figure["standstill_ms"], &figure["cuts"]),
            (&json!([10.0, 20.0, 30.0]), &json!([0, 0, 0]))
        );
    }
}
