//! The bandwidth of each step as SVG: a line for each number of lanes, the slowest process of each step below it as a faint
//! one.

use super::figures::{Figures, Step};
use crate::svg::{Area, FAINT, LEFT, Painted, document, plot};
use anyhow::Result;
use plotters::prelude::*;

const HEIGHT: u32 = 460;
/// Room above the curves for the legend.
const HEADROOM: f64 = 1.25;
/// For one number of lanes after the other.
const COLOURS: [RGBColor; 5] = [
    RGBColor(194, 48, 48),
    RGBColor(217, 130, 43),
    RGBColor(11, 110, 153),
    RGBColor(47, 133, 90),
    RGBColor(143, 57, 143),
];

/// The SVG document.
pub fn draw(figures: &Figures, title: &str, about: &str) -> Result<String> {
    document((title, about), LEFT, HEIGHT, |area| paint(figures, &area))
}

fn paint(figures: &Figures, area: &Area<'_>) -> Painted {
    let lanes = figures.lanes();
    let steps = || lanes.iter().flat_map(|n| figures.of_lanes(*n));
    let last = f64::from(steps().map(|s| s.step).max().unwrap_or(1));
    let first = f64::from(steps().map(|s| s.step).min().unwrap_or(0));
    let top = steps().map(|s| s.mean).fold(figures.alone, f64::max) * HEADROOM;
    let step = if figures.incast { "senders to one process" } else { "step" };
    let mut chart = plot(area, first - 0.5..last + 0.5, top, (step, "MB/s of a process"))?;
    let best = steps().map(|s| (f64::from(s.step), figures.best(s.step)));
    let mut best: Vec<(f64, f64)> = best.collect();
    best.sort_by(|a, b| a.0.total_cmp(&b.0));
    chart
        .draw_series(LineSeries::new(best, FAINT.stroke_width(1)))?
        .label("alone")
        .legend(|(x, y)| PathElement::new([(x, y), (x + 18, y)], FAINT));
    for (n, colour) in lanes.iter().zip(COLOURS.iter().cycle()) {
        let line = |f: fn(&Step) -> f64| -> Vec<(f64, f64)> {
            figures.of_lanes(*n).map(|s| (f64::from(s.step), f(s))).collect()
        };
        let colour = *colour;
        chart
            .draw_series(LineSeries::new(line(|s| s.mean), colour.stroke_width(2)))?
            .label(format!("{n} {}", if *n == 1 { "lane" } else { "lanes" }))
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
        chart.draw_series(LineSeries::new(line(|s| s.slowest), colour.mix(0.35).stroke_width(1)))?;
        // a pattern of one step has no line
        chart.draw_series(line(|s| s.mean).into_iter().map(|at| Circle::new(at, 2, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerLeft)
        .background_style(WHITE.mix(0.8))
        .label_font(("sans-serif", 14))
        .draw()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspots::figures::tests::sample;

    #[test]
    fn there_are_two_lines_for_each_number_of_lanes_and_one_for_the_optimum() {
        let svg = draw(&sample(), "A <title>", "about").unwrap();
        for word in ["A &lt;title&gt;", "about", "1 lane", "4 lanes", "alone", "MB/s of a process"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        for colour in ["#C23030", "#D9822B"] {
            assert!(svg.matches(colour).count() >= 4, "{colour}: {svg}");
        }
    }
}
