//! A picture of a stream and of what happened to its rails, as SVG.
//!
//! The bandwidth in slices of 100 ms; a lane for each rail below, which shows when it was cut and how; and beside the
//! beginning of each cut how long the stream stood still. Written by hand, because a chart library would be the largest
//! dependency of this crate and know nothing of lanes.

use crate::record::{Cut, SLICE_NS, Stream};
use std::fmt::Write;

const WIDTH: f64 = 1100.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 92.0;
const PLOT_HEIGHT: f64 = 300.0;
const LANE_HEIGHT: f64 = 22.0;
const LANE_GAP: f64 = 6.0;

const INK: &str = "#1f2933";
const FAINT: &str = "#7b8794";
const GRID: &str = "#e4e7eb";
const CURVE: &str = "#0b6e99";
const RAIL_COLOURS: [&str; 4] = ["#d9822b", "#8f398f", "#2f855a", "#b83280"];
const ALL_COLOUR: &str = "#c23030";

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
    /// How many rails there are, named rail0, rail1, …
    pub rails: usize,
    /// The standstill of each cut, ms.
    pub standstills_ms: &'a [f64],
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A step that gives 4 to 8 lines below `max`.
fn nice_step(max: f64) -> f64 {
    let magnitude = 10f64.powf((max / 5.0).log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|m| m * magnitude)
        .find(|step| max / step <= 6.0)
        .unwrap_or(magnitude * 10.0)
}

/// `41 ms`, `3.02 s`.
pub fn duration(ms: f64) -> String {
    if ms >= 1000.0 { format!("{:.2} s", ms / 1000.0) } else { format!("{ms:.0} ms") }
}

impl Picture<'_> {
    /// The SVG document.
    pub fn draw(&self) -> String {
        let begin_ns = self.stream.start_ns;
        // The last slice is a part of one.
        let whole = &self.stream.slices[..self.stream.slices.len().saturating_sub(1)];
        let seconds = (whole.len() as f64 * SLICE_NS as f64 / 1e9).max(1.0);
        let rate = |bytes: u64| bytes as f64 / (SLICE_NS as f64 / 1e9) / 1e6;
        let highest = whole.iter().map(|s| rate(s.bytes)).fold(1.0, f64::max);
        let step = nice_step(highest * 1.12);
        let top = (highest * 1.12 / step).ceil() * step;
        let plot_width = WIDTH - LEFT - RIGHT;
        let x = |s: f64| LEFT + s.clamp(0.0, seconds) / seconds * plot_width;
        let y = |mb: f64| TOP + PLOT_HEIGHT - mb / top * PLOT_HEIGHT;
        let since = |ns: i64| (ns - begin_ns) as f64 / 1e9;
        let axis = TOP + PLOT_HEIGHT;
        let lanes = axis + 44.0;
        let height = lanes + self.rails as f64 * (LANE_HEIGHT + LANE_GAP) + 16.0;
        let colour = |cut: &Cut| match cut.rail.strip_prefix("rail").and_then(|n| n.parse::<usize>().ok()) {
            Some(rail) => RAIL_COLOURS[rail % RAIL_COLOURS.len()],
            None => ALL_COLOUR,
        };

        let mut svg = String::new();
        let mut add = |text: String| svg.push_str(&text);
        add(format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" height=\"{height}\" \
             font-family=\"Helvetica, Arial, 'DejaVu Sans', sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
             <rect width=\"{WIDTH}\" height=\"{height}\" fill=\"#ffffff\"/>\n\
             <text x=\"{LEFT}\" y=\"30\" font-size=\"18\" font-weight=\"bold\">{}</text>\n\
             <text x=\"{LEFT}\" y=\"50\" fill=\"{FAINT}\">{}</text>\n",
            escape(self.title),
            escape(self.subtitle)
        ));

        // Cuts behind everything.
        for cut in self.cuts {
            let (from, to) = (x(since(cut.at_ns)), x(cut.healed_ns.map_or(seconds, since)));
            add(format!(
                "<rect x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" height=\"{PLOT_HEIGHT}\" fill=\"{}\" fill-opacity=\"0.10\"/>\n",
                to - from,
                colour(cut)
            ));
        }
        // Grid and axes.
        let mut line = 0.0;
        while line <= top + 1e-9 {
            add(format!(
                "<line x1=\"{LEFT}\" x2=\"{0:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" stroke=\"{GRID}\"/>\n\
                 <text x=\"{2:.1}\" y=\"{3:.1}\" text-anchor=\"end\" fill=\"{FAINT}\">{line:.0}</text>\n",
                WIDTH - RIGHT,
                y(line),
                LEFT - 8.0,
                y(line) + 4.5,
            ));
            line += step;
        }
        let second_step = nice_step(seconds).max(1.0);
        let mut second = 0.0;
        while second <= seconds + 1e-9 {
            add(format!(
                "<line x1=\"{0:.1}\" x2=\"{0:.1}\" y1=\"{axis}\" y2=\"{1}\" stroke=\"{FAINT}\"/>\n\
                 <text x=\"{0:.1}\" y=\"{2}\" text-anchor=\"middle\" fill=\"{FAINT}\">{second:.0}</text>\n",
                x(second),
                axis + 5.0,
                axis + 20.0,
            ));
            second += second_step;
        }
        add(format!(
            "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{axis}\" y2=\"{axis}\" stroke=\"{FAINT}\"/>\n\
             <text x=\"{:.1}\" y=\"{}\" text-anchor=\"end\" fill=\"{FAINT}\">seconds</text>\n\
             <text x=\"20\" y=\"{:.1}\" transform=\"rotate(-90 20 {:.1})\" text-anchor=\"middle\" fill=\"{FAINT}\">MB/s per 100 ms</text>\n",
            WIDTH - RIGHT,
            WIDTH - RIGHT,
            axis + 36.0,
            TOP + PLOT_HEIGHT / 2.0,
            TOP + PLOT_HEIGHT / 2.0,
        ));

        // The curve, in steps: a slice is a mean over 100 ms, and a slope would invent what happened between two.
        let mut points = String::new();
        for (i, slice) in whole.iter().enumerate() {
            let (from, to) = (i as f64 * 0.1, (i + 1) as f64 * 0.1);
            let level = y(rate(slice.bytes));
            let _ = write!(points, "{:.1},{level:.1} {:.1},{level:.1} ", x(from), x(to));
        }
        add(format!(
            "<polygon points=\"{:.1},{axis} {points}{:.1},{axis}\" fill=\"{CURVE}\" fill-opacity=\"0.12\"/>\n\
             <polyline points=\"{points}\" fill=\"none\" stroke=\"{CURVE}\" stroke-width=\"1.8\" stroke-linejoin=\"round\"/>\n",
            x(0.0),
            x(seconds),
        ));

        // Labels of the cuts above the plot, and the standstills.
        for (cut, standstill) in self.cuts.iter().zip(self.standstills_ms) {
            let from = x(since(cut.at_ns));
            let rail = if cut.rail == "all" { "all rails" } else { &cut.rail };
            add(format!(
                "<line x1=\"{from:.1}\" x2=\"{from:.1}\" y1=\"{:.1}\" y2=\"{axis}\" stroke=\"{colour}\" stroke-dasharray=\"4 3\"/>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\" font-weight=\"bold\">{rail} {}</text>\n\
                 <text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">stood still {}</text>\n",
                TOP - 26.0,
                from + 4.0,
                TOP - 20.0,
                escape(&cut.kind),
                from + 4.0,
                TOP - 5.0,
                duration(*standstill),
                colour = colour(cut),
            ));
        }

        // One lane for each rail.
        for rail in 0..self.rails {
            let name = format!("rail{rail}");
            let lane = lanes + rail as f64 * (LANE_HEIGHT + LANE_GAP);
            let text_y = lane + LANE_HEIGHT / 2.0 + 4.5;
            add(format!(
                "<text x=\"{:.1}\" y=\"{text_y:.1}\" text-anchor=\"end\">{name}</text>\n\
                 <rect x=\"{LEFT}\" y=\"{lane:.1}\" width=\"{plot_width:.1}\" height=\"{LANE_HEIGHT}\" fill=\"{}\" fill-opacity=\"0.30\"/>\n",
                LEFT - 8.0,
                RAIL_COLOURS[rail % RAIL_COLOURS.len()],
            ));
            for cut in self.cuts.iter().filter(|cut| cut.rail == name || cut.rail == "all") {
                let (from, to) = (x(since(cut.at_ns)), x(cut.healed_ns.map_or(seconds, since)));
                add(format!(
                    "<rect x=\"{from:.1}\" y=\"{lane:.1}\" width=\"{:.1}\" height=\"{LANE_HEIGHT}\" fill=\"#ffffff\" stroke=\"{colour}\"/>\n\
                     <text x=\"{:.1}\" y=\"{text_y:.1}\" text-anchor=\"middle\" fill=\"{colour}\" font-size=\"12\">{}</text>\n",
                    to - from,
                    (from + to) / 2.0,
                    escape(&cut.kind),
                    colour = colour(cut),
                ));
            }
        }
        svg.push_str("</svg>\n");
        svg
    }
}
