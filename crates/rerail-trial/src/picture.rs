//! A picture of a stream and of what happened to its rails, as SVG.
//!
//! The bandwidth in slices of 100 ms; a lane for each rail below, which shows when it was cut and how; and at the beginning of each cut
//! how long the stream stood still.

use crate::record::{Cut, SLICE_NS, Stream};
use crate::svg::{Area, LEFT, Painted, RIGHT, document, plot};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

const PLOT_HEIGHT: u32 = 380;
const LANE_HEIGHT: u32 = 30;
/// Room above the curve for what is said of the cuts.
const HEADROOM: f64 = 1.3;

const CURVE: RGBColor = RGBColor(11, 110, 153);
const RAIL_COLOURS: [RGBColor; 4] =
    [RGBColor(217, 130, 43), RGBColor(143, 57, 143), RGBColor(47, 133, 90), RGBColor(184, 50, 128)];
const ALL_COLOUR: RGBColor = RGBColor(194, 48, 48);

/// What to draw.
pub struct Picture<'a> {
    /// The headline.
    pub title: &'a str,
    /// The line below it.
    pub subtitle: &'a str,
    /// The bandwidth.
    pub stream: &'a Stream,
    /// What happened to the rails.
    pub cuts: &'a [Cut],
    /// What is cut, as cuts name it: rails, or links inside a fabric.
    pub lanes: &'a [String],
    /// The standstill of each cut, ms.
    pub standstills_ms: &'a [f64],
}

/// `41 ms`, `3.02 s`.
pub fn duration(ms: f64) -> String {
    if ms >= 1000.0 { format!("{:.2} s", ms / 1000.0) } else { format!("{ms:.0} ms") }
}

/// What people call it: `rail1`, `leaf0-spine2`, `all rails`.
pub fn called(cut: &Cut) -> &str {
    if cut.rail == "all" { "all rails" } else { label(&cut.rail) }
}

/// A link without its rail.
fn label(lane: &str) -> &str {
    lane.rsplit('/').next().unwrap_or(lane)
}

impl Picture<'_> {
    fn colour(&self, cut: &Cut) -> RGBColor {
        let lane = self.lanes.iter().position(|name| *name == cut.rail);
        lane.map_or(ALL_COLOUR, |lane| RAIL_COLOURS[lane % RAIL_COLOURS.len()])
    }

    /// The SVG document.
    pub fn draw(&self) -> Result<String> {
        let height = PLOT_HEIGHT + self.lanes.len() as u32 * LANE_HEIGHT + 12;
        document((self.title, self.subtitle), LEFT, height, |area| self.paint(&area))
    }

    fn paint(&self, area: &Area<'_>) -> Painted {
        let (plot, lanes) = area.split_vertically(PLOT_HEIGHT);
        let end = self.end_s();
        self.curve(&plot, end)?;
        for lane in 0..self.lanes.len() {
            let (_, below) = lanes.split_vertically(lane as u32 * LANE_HEIGHT);
            self.lane(&below.split_vertically(LANE_HEIGHT).0, lane, end)?;
        }
        Ok(())
    }

    /// The whole slices: the last one is a part of one.
    fn rates(&self) -> Vec<f64> {
        let whole = self.stream.slices.split_last().map_or(&[][..], |(_, whole)| whole);
        whole.iter().map(|slice| slice.bytes as f64 / (SLICE_NS as f64 / 1e9) / 1e6).collect()
    }

    fn end_s(&self) -> f64 {
        (self.rates().len() as f64 * SLICE_NS as f64 / 1e9).max(1.0)
    }

    /// A cut's begin and end in seconds of the stream.
    fn span(&self, cut: &Cut, end: f64) -> (f64, f64) {
        let since = |ns: i64| ((ns - self.stream.start_ns) as f64 / 1e9).clamp(0.0, end);
        (since(cut.at_ns), cut.healed_ns.map_or(end, since))
    }

    fn curve(&self, area: &Area<'_>, end: f64) -> Painted {
        let rates = self.rates();
        let top = rates.iter().copied().fold(1.0, f64::max) * HEADROOM;
        let mut chart = plot(area, 0.0..end, top, ("seconds", "MB/s per 100 ms"))?;
        for (cut, standstill) in self.cuts.iter().zip(self.standstills_ms) {
            let ((from, to), colour) = (self.span(cut, end), self.colour(cut));
            let shade = colour.mix(0.10).filled();
            chart.draw_series([Rectangle::new([(from, 0.0), (to, top)], shade)])?;
            let place = |share: f64| (from + end / 250.0, top * share);
            let style = ("sans-serif", 14).into_font().color(&colour);
            chart.draw_series([
                Text::new(format!("{} {}", called(cut), cut.kind), place(0.98), style.clone()),
                Text::new(format!("stood still {}", duration(*standstill)), place(0.92), style),
            ])?;
        }
        // In steps: a slice is a mean over 100 ms, and a slope would invent what happened between two.
        let slice = SLICE_NS as f64 / 1e9;
        let steps = |(i, rate): (usize, &f64)| [(i as f64 * slice, *rate), ((i + 1) as f64 * slice, *rate)];
        let points: Vec<(f64, f64)> = rates.iter().enumerate().flat_map(steps).collect();
        let below = [&[(0.0, 0.0)], &points[..], &[(rates.len() as f64 * slice, 0.0)]].concat();
        chart.draw_series([Polygon::new(below, CURVE.mix(0.12).filled())])?;
        chart.draw_series(LineSeries::new(points, CURVE.stroke_width(2)))?;
        Ok(())
    }

    fn lane(&self, area: &Area<'_>, lane: usize, end: f64) -> Painted {
        let name = &self.lanes[lane];
        let (width, height) = area.dim_in_pixel();
        let x = |second: f64| LEFT as i32 + (f64::from(width - LEFT - RIGHT) * second / end) as i32;
        let (top, bottom) = (3, height as i32 - 3);
        let text = |position| TextStyle::from(("sans-serif", 13)).pos(position);
        let style = text(Pos::new(HPos::Right, VPos::Center));
        area.draw(&Text::new(label(name).to_owned(), (LEFT as i32 - 8, (top + bottom) / 2), style))?;
        let whole = RAIL_COLOURS[lane % RAIL_COLOURS.len()].mix(0.30).filled();
        area.draw(&Rectangle::new([(x(0.0), top), (x(end), bottom)], whole))?;
        for cut in self.cuts.iter().filter(|cut| cut.rail == *name || cut.rail == "all") {
            let ((from, to), colour) = (self.span(cut, end), self.colour(cut));
            let corners = [(x(from), top), (x(to), bottom)];
            area.draw(&Rectangle::new(corners, WHITE.filled()))?;
            area.draw(&Rectangle::new(corners, colour))?;
            let style = text(Pos::new(HPos::Center, VPos::Center)).color(&colour);
            area.draw(&Text::new(cut.kind.clone(), ((x(from) + x(to)) / 2, (top + bottom) / 2), style))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::Slice;

    #[test]
    fn the_picture_has_the_curve_the_cuts_and_a_lane_for_each_rail_or_link() {
        let slice = |i: i64| Slice { at_ns: i * SLICE_NS, bytes: 10_000_000, gap_us_max: 0.0 };
        let stream = Stream { slices: (0..31).map(slice).collect(), ..Stream::default() };
        let cut = |rail: &str, from: i64, to| Cut {
            rail: rail.into(),
            kind: "dark".into(),
            at_ns: from * SLICE_NS,
            healed_ns: Some(to * SLICE_NS),
        };
        let cuts = [cut("rail0/leaf0-spine1", 5, 10), cut("all", 20, 25)];
        let picture = Picture {
            title: "A <title>",
            subtitle: "and more",
            stream: &stream,
            cuts: &cuts,
            lanes: &["rail0".into(), "rail0/leaf0-spine1".into()],
            standstills_ms: &[21.0, 1500.0],
        };
        let svg = picture.draw().unwrap();
        let words = [
            "A &lt;title&gt;",
            "and more",
            "rail0\n",
            "\nleaf0-spine1\n",
            "leaf0-spine1 dark",
            "all rails dark",
            "21 ms",
            "1.50 s",
            "MB/s",
        ];
        for word in words {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        // two lanes, one band for each cut, one white box where the first struck and two where the second did
        assert_eq!(svg.matches("fill=\"#FFFFFF\" stroke=\"none\"").count(), 1 + 3);
    }
}
