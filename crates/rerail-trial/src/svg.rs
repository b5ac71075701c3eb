//! What the pictures of this crate share: their size, headline and axes.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use std::error::Error;

/// Pixels from side to side.
pub const WIDTH: u32 = 1100;
/// Pixels of the headline and the line below it.
pub const TITLE_HEIGHT: u32 = 60;
/// Left of a plot: the numbers of its axis.
pub const LEFT: u32 = 76;
/// Right of it.
pub const RIGHT: u32 = 24;
/// Of what is not the subject.
pub const FAINT: RGBColor = RGBColor(123, 135, 148);

/// A part of a picture.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
/// What comes of drawing on it.
pub type Painted = Result<(), Box<dyn Error>>;

/// The document: the headline and the line below it begin at `left`, and `paint` draws on the `height` below them.
///
/// # Errors
/// The plotting library's.
pub fn document(
    (title, about): (&str, &str),
    left: u32,
    height: u32,
    paint: impl FnOnce(Area<'_>) -> Painted,
) -> Result<String> {
    let mut svg = String::new();
    let draw = || -> Painted {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, TITLE_HEIGHT + height)).into_drawing_area();
        area.fill(&WHITE)?;
        let (titles, below) = area.split_vertically(TITLE_HEIGHT);
        titles.draw(&Text::new(title, (left as i32, 12), ("sans-serif", 20)))?;
        let faint = ("sans-serif", 14).into_font().color(&FAINT);
        titles.draw(&Text::new(about, (left as i32, 38), faint))?;
        paint(below)?;
        area.present()?;
        Ok(())
    };
    draw().map_err(|why| anyhow!("the picture cannot be drawn: {why}"))?;
    Ok(svg)
}

/// A plot with axes of whole numbers, which mean these.
///
/// # Errors
/// The plotting library's.
pub fn plot<'a, 'b>(
    area: &'a Area<'b>,
    x: std::ops::Range<f64>,
    top: f64,
    (x_means, y_means): (&str, &str),
) -> Result<ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>, Box<dyn Error>> {
    let mut chart = ChartBuilder::on(area)
        .margin_right(RIGHT)
        .x_label_area_size(44)
        .y_label_area_size(LEFT)
        .build_cartesian_2d(x, 0.0..top)?;
    chart
        .configure_mesh()
        .disable_x_mesh()
        .light_line_style(WHITE)
        .x_label_formatter(&|x| format!("{x:.0}"))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .x_desc(x_means)
        .y_desc(y_means)
        .draw()?;
    Ok(chart)
}
