//! The figures of a test as a picture: a line for each contender over the sizes, with the spread of the turns.

use super::figures::{Figures, Summary, View};
use super::report::{bytes, number};
use super::test::Test;
use plotters::prelude::*;
use rerail_lab::LabError;

/// Width and height.
pub const PIXELS: (u32, u32) = (900, 480);
/// Distinct also for colour-blind readers (Okabe and Ito's palette).
pub const COLOURS: [RGBColor; 7] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(90, 90, 90),
];

/// The picture, as SVG.
pub fn draw(figures: &Figures, test: &Test, view: View) -> Result<String, LabError> {
    let mut svg = String::new();
    paint(figures, test, view, &mut svg).map_err(|why| {
        LabError::Input(format!("the picture of {} cannot be drawn: {why}", test.kind.name()))
    })?;
    Ok(svg)
}

/// The vertical axis.
struct Scale {
    /// Times of messages of 4 bytes and 1 MiB differ a thousandfold.
    is_log: bool,
    from: f64,
    to: f64,
}

impl Scale {
    fn of(summaries: impl Iterator<Item = Summary>, is_log: bool) -> Scale {
        let all: Vec<Summary> = summaries.collect();
        let top = all.iter().map(|s| s.quartiles[1]).fold(0.0, f64::max);
        let bottom = all.iter().map(|s| s.quartiles[0]);
        if is_log {
            let bottom = bottom.fold(top, f64::min).max(1e-3);
            return Scale { is_log, from: bottom.log2() - 0.5, to: top.max(2e-3).log2() + 0.5 };
        }
        // only a share can be less than nothing
        Scale { is_log, from: bottom.fold(0.0, f64::min) * 1.1, to: (top * 1.1).max(1e-9) }
    }

    fn at(&self, value: f64) -> f64 {
        if self.is_log { value.max(1e-3).log2() } else { value }
    }

    fn label(&self, at: f64) -> String {
        if self.is_log { number(2f64.powf(at)) } else { format!("{at:.0}") }
    }
}

fn paint(
    figures: &Figures,
    test: &Test,
    view: View,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, PIXELS).into_drawing_area();
    area.fill(&WHITE)?;
    let all = || 0..figures.contenders.len();
    let summary = |c: usize, size: usize| figures.summary_as(view, c, test.kind, size);
    let summaries = all().flat_map(|c| test.sizes.iter().filter_map(move |&s| summary(c, s)));
    let scale = Scale::of(summaries, test.kind.is_of_rwapi() && view == View::Measured);
    let log = |size: usize| (size.max(1) as f64).log2();
    let first = test.sizes.iter().map(|&s| log(s)).fold(f64::MAX, f64::min);
    let last = test.sizes.iter().map(|&s| log(s)).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("{}, {}", test.kind.title(), figures.place), ("sans-serif", 15))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(first - 0.3..last + 0.3, scale.from..scale.to)?;
    let mut mesh = chart.configure_mesh();
    if scale.is_log {
        mesh.y_labels((scale.to - scale.from) as usize + 2);
    }
    mesh.disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels((last - first) as usize + 2)
        .x_label_formatter(&|x| bytes(2f64.powf(*x).round() as usize))
        .y_label_formatter(&|y| scale.label(*y))
        .x_desc("bytes of a message")
        .y_desc(format!("{} (median, quartiles)", view.unit(test.kind)))
        .draw()?;
    for c in all() {
        let colour = COLOURS[c % COLOURS.len()];
        let points: Vec<_> = test.sizes.iter().filter_map(|&s| Some((log(s), summary(c, s)?))).collect();
        let middles = points.iter().map(|(x, s)| (*x, scale.at(s.median)));
        let line = LineSeries::new(middles.clone(), colour.stroke_width(2));
        chart.draw_series(line)?.label(&figures.contenders[c]).legend(key(colour));
        chart.draw_series(middles.map(|at| Circle::new(at, 3, colour.filled())))?;
        chart.draw_series(points.iter().map(|(x, s)| {
            let [lower, upper] = s.quartiles.map(|value| scale.at(value));
            PathElement::new([(*x, lower), (*x, upper)], colour.stroke_width(1))
        }))?;
    }
    keys(&mut chart, SeriesLabelPosition::UpperLeft)?;
    area.present()?;
    Ok(())
}

/// The line beside a name.
pub(super) fn key(colour: RGBColor) -> impl Fn((i32, i32)) -> PathElement<(i32, i32)> {
    move |(x, y)| PathElement::new([(x, y), (x + 20, y)], colour.stroke_width(2))
}

/// Writes the names of all lines.
pub(super) fn keys<'a, B: DrawingBackend + 'a, C: CoordTranslate>(
    chart: &mut ChartContext<'a, B, C>,
    place: SeriesLabelPosition,
) -> Result<(), DrawingAreaErrorKind<B::ErrorType>> {
    chart
        .configure_series_labels()
        .position(place)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::test::{chosen, chosen_of_rwapi};

    #[test]
    fn a_picture_names_everybody() {
        let tests = chosen(&["bandwidth".into()], &[1024, 65_536]).unwrap();
        let mut f = Figures::new("a place", vec!["rerail".into(), "own".into()]);
        f.add(0, "bench bandwidth 1024 3\nbench bandwidth 65536 90\n", "");
        f.add(1, "bench bandwidth 1024 4\n", "");
        let svg = draw(&f, &tests[0], View::Measured).unwrap();
        for word in ["<svg", "rerail", "own", "64 KiB", "MB/s", "a place"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert!(
            draw(&Figures::new("nowhere", vec!["rerail".into()]), &tests[0], View::Measured).is_ok(),
            "no figures are no error"
        );
    }

    #[test]
    fn times_of_rwapi_are_drawn_on_a_logarithmic_scale() {
        let tests = chosen_of_rwapi(&["one-way".into()], &[4, 1024, 1 << 20]).unwrap();
        let mut f = Figures::new("a place", vec!["rwapi".into()]);
        f.add(0, "bench one-way 4 2\nbench one-way 1024 32\nbench one-way 1048576 512\n", "");
        let heights = |view| {
            let svg = draw(&f, &tests[0], view).unwrap();
            let circles = svg
                .split("cy=\"")
                .skip(1)
                .map(|rest| rest.split('"').next().unwrap().parse::<f64>().unwrap());
            (circles.collect::<Vec<_>>(), svg)
        };
        let (cy, svg) = heights(View::Measured);
        assert!(((cy[0] - cy[1]) - (cy[1] - cy[2])).abs() < 3.0, "sixteenfold both times: {cy:?}");
        assert!(svg.contains("µs (median, quartiles)") && svg.contains("rwapi"), "{svg}");
        let (cy, svg) = heights(View::Throughput);
        // 2, 32 and 2048 MB/s
        assert!(cy[0] - cy[1] < 10.0 && cy[1] - cy[2] > 200.0, "{cy:?}");
        assert!(svg.contains("MB/s (median, quartiles)"), "{svg}");
    }
}
