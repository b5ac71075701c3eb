//! The figures as Markdown.

use super::figures::{Figures, Step};

/// One row for each number of lanes.
pub fn summary(figures: &Figures) -> String {
    let mut text = String::from(
        "| lanes | average MB/s | ratio to one lane | share of the optimum | slowest process MB/s | slower steps | \
         busiest link | connections | replaced | moved |\n|---|---|---|---|---|---|---|---|---|---|\n",
    );
    for s in figures.sums() {
        let ratio = s.ratio.map_or("".into(), |ratio| format!("{ratio:.2}"));
        let slower = s.slower.map_or("".into(), |n| format!("{n} of {}", figures.of_lanes(s.lanes).count()));
        text += &format!(
            "| {} | {:.1} | {ratio} | {:.0} % | {:.1} | {slower} | {:.0} % | {} | {} | {} |\n",
            s.lanes,
            s.mean,
            100.0 * s.share,
            s.slowest,
            100.0 * mean_of_busiest(figures, s.lanes),
            s.connections,
            s.replaced,
            s.moved
        );
    }
    text
}

/// Load of the busiest link, mean over the steps that use links inside the fabric.
fn mean_of_busiest(figures: &Figures, lanes: u8) -> f64 {
    let busiest = |s: &Step| s.loads.iter().map(|l| l.1).fold(0.0, f64::max);
    let all: Vec<f64> = figures.of_lanes(lanes).filter(|s| !s.loads.is_empty()).map(busiest).collect();
    all.iter().sum::<f64>() / all.len().max(1) as f64
}

/// The whole document; `about` says what was tried, and by what model, and `name` is that of the pictures beside it.
pub fn markdown(figures: &Figures, title: &str, about: (&str, &str), name: &str) -> String {
    let lanes = figures.lanes();
    let mut text = format!(
        "# {title}\n\n{}.\n\n{}. The optimum is what one pair has that is alone, {:.1} MB/s{}. A step is slower when \
         its average is more than 1 % below that of one lane.\n\n{}\n![Bandwidth by step]({name}.svg)\n\n![Load of each link]({name}-links.svg)\n\n",
        about.0,
        about.1,
        figures.alone,
        if figures.incast { ", divided by the number of senders" } else { "" },
        summary(figures)
    );
    let heads: Vec<String> =
        lanes.iter().map(|n| format!("{n} {}", if *n == 1 { "lane" } else { "lanes" })).collect();
    text += &format!("| step | {} |\n|---|{}\n", heads.join(" | "), "---|".repeat(lanes.len()));
    let mut steps: Vec<u32> = lanes.iter().flat_map(|n| figures.of_lanes(*n).map(|s| s.step)).collect();
    steps.sort_unstable();
    steps.dedup();
    for step in steps {
        let cell = |n: &u8| {
            let found = figures.step(*n, step);
            found.map_or(String::new(), |s| format!("{:.1} ({:.1})", s.mean, s.slowest))
        };
        let cells: Vec<String> = lanes.iter().map(cell).collect();
        text += &format!("| {step} | {} |\n", cells.join(" | "));
    }
    text + "\nMB/s of a process: average (slowest).\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspots::figures::tests::sample;

    #[test]
    fn the_table_has_a_row_for_each_step_and_number_of_lanes() {
        let text = markdown(&sample(), "Title", ("about", "model"), "ring-2");
        for row in [
            "| 1 | 75.0 | 1.00 | 75 % | 25.0 | 0 of 2 | 100 % | 4 | 0 | 0 |",
            "| 4 | 94.0 | 1.25 | 94 % | 80.0 | 1 of 2 | 90 % | 16 | 5 | 7 |",
            "| step | 1 lane | 4 lanes |",
            "| 2 | 50.0 (25.0) | 90.0 (80.0) |",
            "![Load of each link](ring-2-links.svg)",
        ] {
            assert!(text.lines().any(|line| line == row), "{row} is not in\n{text}");
        }
    }
}
