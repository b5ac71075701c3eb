//! What arrived when, while rails broke and were mended: the picture of the test `failover`. Source: PML DR, figure 7.

use super::figures::{Figures, Timeline};
use super::plot::{COLOURS, PIXELS, key, keys};
use super::report::bytes;
use plotters::prelude::*;
use rerail_lab::LabError;
use rerail_lab::schedule::{Action, Schedule};

/// A time in which a rail was cut.
#[derive(Debug, Clone, PartialEq)]
struct Band {
    from_s: f64,
    to_s: f64,
    text: String,
}

/// The cuts of a schedule whose clock is that of the stream, each until its rail is healed or the stream ends.
fn bands(schedule: &Schedule, end_s: f64) -> Vec<Band> {
    let mut all = Vec::new();
    for (i, item) in schedule.items.iter().enumerate() {
        let Action::Cut { rail, .. } = &item.action else { continue };
        let mends = |action: &Action| match action {
            Action::Heal { rail: healed } => healed == rail || healed == "all",
            _ => false,
        };
        let healed = schedule.items[i..].iter().find(|later| mends(&later.action));
        all.push(Band {
            from_s: item.at.as_secs_f64(),
            to_s: healed.map_or(end_s, |later| later.at.as_secs_f64()),
            text: item.action.to_string().trim_start_matches("cut ").to_string(),
        });
    }
    all
}

/// Middle of the turns, slice by slice; a turn that ended early counts as nothing from there on.
fn middle(turns: &[&Timeline]) -> Vec<f64> {
    let slices = turns.iter().map(|t| t.values.len()).max().unwrap_or(0);
    let at = |i: usize| {
        let mut v: Vec<f64> = turns.iter().map(|t| t.values.get(i).copied().unwrap_or(0.0)).collect();
        v.sort_by(f64::total_cmp);
        (v[(v.len() - 1) / 2] + v[v.len() / 2]) / 2.0
    };
    (0..slices).map(at).collect()
}

/// The picture, as SVG; `None` when no turn told anything.
pub fn draw(figures: &Figures, schedule: Option<&Schedule>) -> Result<Option<String>, LabError> {
    if figures.timelines.is_empty() {
        return Ok(None);
    }
    let mut svg = String::new();
    paint(figures, schedule, &mut svg)
        .map_err(|why| LabError::Input(format!("the picture of failover cannot be drawn: {why}")))?;
    Ok(Some(svg))
}

fn paint(
    figures: &Figures,
    schedule: Option<&Schedule>,
    svg: &mut String,
) -> Result<(), Box<dyn std::error::Error>> {
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
    for band in schedule.map_or(Vec::new(), |s| bands(s, end)) {
        let corners = [(band.from_s, 0.0), (band.to_s, top)];
        chart.draw_series([Rectangle::new(corners, BLACK.mix(0.07).filled())])?;
        let place = (band.from_s + end / 200.0, top * 0.97);
        chart.draw_series([Text::new(band.text, place, ("sans-serif", 13))])?;
    }
    for (c, name) in figures.contenders.iter().enumerate() {
        let turns: Vec<&Timeline> = all.iter().filter(|t| t.contender == c).collect();
        let Some(slice_s) = turns.first().map(|t| t.slice_ms / 1e3) else { continue };
        let colour = COLOURS[c % COLOURS.len()];
        let points = middle(&turns);
        let points = points.iter().enumerate().map(|(i, v)| ((i as f64 + 0.5) * slice_s, *v));
        chart.draw_series(LineSeries::new(points, colour.stroke_width(2)))?.label(name).legend(key(colour));
    }
    keys(&mut chart, SeriesLabelPosition::MiddleRight)?;
    area.present()?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rerail_lab::topology::{RailPlan, Topology};

    fn schedule(text: &str) -> Schedule {
        let rails: Vec<RailPlan> = ["1gbit", "1gbit"].iter().map(|r| r.parse().unwrap()).collect();
        Schedule::parse(text, &Topology { nodes: 2, rails, congctl: None }).unwrap()
    }

    #[test]
    fn a_cut_lasts_until_its_rail_is_healed() {
        let s = schedule("1s cut rail0 down; 2s cut rail1 dark; 3s heal rail0; 4s cut rail0 reset");
        let found: Vec<_> = bands(&s, 9.0).into_iter().map(|b| (b.from_s, b.to_s, b.text)).collect();
        let wanted = [(1.0, 3.0, "rail0 down"), (2.0, 9.0, "rail1 dark"), (4.0, 9.0, "rail0 reset")];
        assert_eq!(found, wanted.map(|(a, b, t)| (a, b, t.to_string())));
    }

    #[test]
    fn the_picture_has_everybody_and_every_cut() {
        let mut f = Figures::new("a place", vec!["rerail".into(), "own".into(), "absent".into()]);
        assert_eq!(draw(&f, None).unwrap(), None);
        f.add(0, "timeline 65536 50 100 200 90\n");
        f.add(0, "timeline 65536 50 100 100 110\n");
        f.add(1, "timeline 65536 50 100\n");
        let svg = draw(&f, Some(&schedule("50ms cut rail1 dark; 100ms heal all"))).unwrap().unwrap();
        for word in ["<svg", "rerail", "own", "rail1 dark", "64 KiB", "MB/s", "a place"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        let turns: Vec<&Timeline> = f.timelines.iter().filter(|t| t.contender == 0).collect();
        assert_eq!(middle(&turns), [100.0, 150.0, 100.0]);
    }
}
