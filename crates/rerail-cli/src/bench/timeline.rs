//! What arrived when, while rails broke and were mended: the picture of the test `failover`. Source: PML DR, figure 7.

use super::band::Band;
use super::figures::{Figures, Timeline};
use super::plot::{COLOURS, PIXELS, key, keys};
use super::report::bytes;
use plotters::prelude::*;
use rerail_lab::LabError;

/// The bands of all turns, as one: the middle of each moment, where the turns agree on what was cut.
fn middle_bands(turns: &[Timeline]) -> Vec<Band> {
    let Some(first) = turns.iter().max_by_key(|turn| turn.bands.len()) else { return Vec::new() };
    let same = |place: usize, band: &Band| -> Vec<Band> {
        let there = turns.iter().filter_map(|turn| turn.bands.get(place));
        there.filter(|other| other.text == band.text).cloned().collect()
    };
    let one = |(place, band): (usize, &Band)| {
        let all = same(place, band);
        let of = |get: fn(&Band) -> f64| median(all.iter().map(get).collect());
        let (at_s, healed_s) =
            ([of(|b| b.at_s[0]), of(|b| b.at_s[1])], [of(|b| b.healed_s[0]), of(|b| b.healed_s[1])]);
        Band { at_s, healed_s, text: band.text.clone() }
    };
    first.bands.iter().enumerate().map(one).collect()
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    (v[(v.len() - 1) / 2] + v[v.len() / 2]) / 2.0
}

/// Middle of the turns, slice by slice; a turn that ended early counts as nothing from there on.
fn middle(turns: &[&Timeline]) -> Vec<f64> {
    let slices = turns.iter().map(|t| t.values.len()).max().unwrap_or(0);
    let at = |i: usize| median(turns.iter().map(|t| t.values.get(i).copied().unwrap_or(0.0)).collect());
    (0..slices).map(at).collect()
}

/// The picture, as SVG; `None` when no turn told anything.
pub fn draw(figures: &Figures) -> Result<Option<String>, LabError> {
    if figures.timelines.is_empty() {
        return Ok(None);
    }
    let mut svg = String::new();
    paint(figures, &mut svg)
        .map_err(|why| LabError::Input(format!("the picture of failover cannot be drawn: {why}")))?;
    Ok(Some(svg))
}

fn paint(figures: &Figures, svg: &mut String) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(svg, PIXELS).into_drawing_area();
    area.fill(&WHITE)?;
    let all = &figures.timelines;
    let end = all.iter().map(|t| t.values.len() as f64 * t.slice_ms / 1e3).fold(0.0, f64::max);
    let top = all.iter().flat_map(|t| &t.values).copied().fold(0.0, f64::max) * 1.25;
    let size = bytes(all[0].bytes);
    let mut chart = ChartBuilder::on(&area)
        .caption(format!("A stream of {size} messages, {}", figures.place), ("sans-serif", 15))
        .margin(16)
        .x_label_area_size(44)
        .y_label_area_size(72)
        .build_cartesian_2d(0.0..end.max(0.1), 0.0..top.max(1e-9))?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .x_desc("seconds")
        .y_desc("MB/s")
        .draw()?;
    for band in middle_bands(all) {
        // pale while the lab is at it, darker while it is certainly so
        for (from, to) in [(band.at_s[0], band.healed_s[1]), (band.at_s[1], band.healed_s[0])] {
            let corners = [(from.clamp(0.0, end), 0.0), (to.clamp(0.0, end), top)];
            chart.draw_series([Rectangle::new(corners, BLACK.mix(0.05).filled())])?;
        }
        let place = (band.at_s[0] + end / 200.0, top * 0.97);
        chart.draw_series([Text::new(band.text, place, ("sans-serif", 13))])?;
    }
    for (c, name) in figures.contenders.iter().enumerate() {
        let turns: Vec<&Timeline> = all.iter().filter(|t| t.contender == c).collect();
        let Some(slice_s) = turns.first().map(|t| t.slice_ms / 1e3) else { continue };
        let colour = COLOURS[c % COLOURS.len()];
        // in steps: a slope between the middles of two slices would begin to fall before the rail was cut
        let steps = |(i, v)| [i, i + 1].map(|edge| (edge as f64 * slice_s, v));
        let points = middle(&turns).into_iter().enumerate().flat_map(steps);
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?.label(name).legend(key(colour));
    }
    keys(&mut chart, SeriesLabelPosition::MiddleRight)?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::band::tests::event;

    #[test]
    fn the_picture_has_everybody_and_every_cut() {
        let mut f = Figures::new("a place", vec!["rerail".into(), "own".into(), "absent".into()]);
        assert_eq!(draw(&f).unwrap(), None);
        let cut =
            |at_s| event("cut", "rail1", "dark", at_s, 10) + &event("heal", "rail1", "", at_s + 0.05, 10);
        f.add(0, "timeline 65536 50 1000000000000 100 200 90\n", &cut(0.05));
        f.add(0, "timeline 65536 50 1000000000000 100 100 110\n", &cut(0.07));
        f.add(1, "timeline 65536 50 1000000000000 100\n", "");
        let svg = draw(&f).unwrap().unwrap();
        for word in ["<svg", "rerail", "own", "rail1 dark", "64 KiB", "MB/s", "a place"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        let turns: Vec<&Timeline> = f.timelines.iter().filter(|t| t.contender == 0).collect();
        assert_eq!(middle(&turns), [100.0, 150.0, 100.0]);
        let middle = middle_bands(&f.timelines);
        assert_eq!((middle.len(), (middle[0].at_s[0] * 1e3).round()), (1, 60.0));
    }

    #[test]
    fn the_curve_falls_where_the_shade_of_its_cut_begins() {
        let mut f = Figures::new("a place", vec!["rerail".into()]);
        let cut = event("cut", "rail1", "dark", 0.1, 0) + &event("heal", "rail1", "", 0.15, 0);
        f.add(0, "timeline 65536 50 1000000000000 100 100 0 0 50\n", &cut);
        let svg = draw(&f).unwrap().unwrap();
        let shade = svg.split("<rect x=\"").nth(2).unwrap().split('"').next().unwrap();
        let curve = svg.split("points=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
        let points: Vec<&str> = curve.max_by_key(|points| points.len()).unwrap().split_whitespace().collect();
        let upright = points
            .windows(2)
            .find(|two| two[0].split(',').next() == two[1].split(',').next() && two[0] != two[1]);
        assert!(upright.is_some_and(|two| two[1].starts_with(&format!("{shade},"))), "{shade}: {points:?}");
    }
}
