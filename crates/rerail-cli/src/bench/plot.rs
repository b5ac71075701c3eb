//! The figures of a test as a picture: a line for each contender over the sizes, with the spread of the turns.

use super::figures::Figures;
use super::report::bytes;
use super::test::Test;
use plotters::prelude::*;
use rerail_lab::LabError;

/// Width and height.
pub const PIXELS: (u32, u32) = (900, 480);
/// Distinct also for colour-blind readers (Okabe and Ito's palette).
pub const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
];

/// The picture, as SVG.
pub fn draw(figures: &Figures, test: &Test) -> Result<String, LabError> {
    let mut svg = String::new();
    paint(figures, test, &mut svg).map_err(|why| {
        LabError::Input(format!("the picture of {} cannot be drawn: {why}", test.kind.name()))
    })?;
    Ok(svg)
}

fn paint(figures: &Figures, test: &Test, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, PIXELS).into_drawing_area();
    area.fill(&WHITE)?;
    let all = || 0..figures.contenders.len();
    let summaries =
        || all().flat_map(|c| test.sizes.iter().filter_map(move |&s| figures.summary(c, test.kind, s)));
    let top = summaries().map(|s| s.max).fold(0.0, f64::max) * 1.1;
    // only a share can be less than nothing
    let bottom = summaries().map(|s| s.min).fold(0.0, f64::min) * 1.1;
    let log = |size: usize| (size.max(1) as f64).log2();
    let first = test.sizes.iter().map(|&s| log(s)).fold(f64::MAX, f64::min);
    let last = test.sizes.iter().map(|&s| log(s)).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("{}, {}", test.kind.title(), figures.place), ("sans-serif", 15))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(first - 0.3..last + 0.3, bottom..top.max(1e-9))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_labels((last - first) as usize + 2)
        .x_label_formatter(&|x| bytes(2f64.powf(*x).round() as usize))
        .x_desc("bytes of a message")
        .y_desc(test.kind.unit())
        .draw()?;
    for c in all() {
        let colour = COLOURS[c % COLOURS.len()];
        let points: Vec<_> =
            test.sizes.iter().filter_map(|&s| Some((log(s), figures.summary(c, test.kind, s)?))).collect();
        let line = LineSeries::new(points.iter().map(|(x, s)| (*x, s.median)), colour.stroke_width(2));
        chart.draw_series(line)?.label(&figures.contenders[c]).legend(key(colour));
        chart.draw_series(points.iter().map(|(x, s)| Circle::new((*x, s.median), 3, colour.filled())))?;
        chart.draw_series(
            points.iter().map(|(x, s)| PathElement::new([(*x, s.min), (*x, s.max)], colour.stroke_width(1))),
        )?;
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
    use crate::bench::test::chosen;

    #[test]
    fn a_picture_names_everybody() {
        let tests = chosen(&["bandwidth".into()], &[1024, 65_536]).unwrap();
        let mut f = Figures::new("a place", vec!["rerail".into(), "own".into()]);
        f.add(0, "bench bandwidth 1024 3\nbench bandwidth 65536 90\n", "");
        f.add(1, "bench bandwidth 1024 4\n", "");
        let svg = draw(&f, &tests[0]).unwrap();
        for word in ["<svg", "rerail", "own", "64 KiB", "MB/s", "a place"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert!(
            draw(&Figures::new("nowhere", vec!["rerail".into()]), &tests[0]).is_ok(),
            "no figures are no error"
        );
    }
}
