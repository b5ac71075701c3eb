//! The load of each link inside the fabric as SVG: a panel for each number of lanes, a row for each link, a column for each
//! step; the darker, the more of its capacity a link carried.

use super::figures::Figures;
use crate::svg::{Area, FAINT, Painted, RIGHT, WIDTH, document};
use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};
use std::collections::BTreeMap;

const PANEL_HEIGHT: u32 = 260;
const PANEL_GAP: u32 = 34;
/// Left of the panels: the names of switches.
const LEFT: u32 = 110;
/// Rows of a panel at most: of more links the busiest are shown.
const ROWS_MAX: usize = 240;
/// Room that the name of a switch takes.
const NAME_HEIGHT: i32 = 13;

/// The SVG document.
pub fn draw(figures: &Figures, title: &str, about: &str) -> Result<String> {
    let height = figures.lanes().len() as u32 * (PANEL_HEIGHT + PANEL_GAP) + 12;
    let title = format!("{title}: load of each link");
    document((&title, about), LEFT, height, |area| paint(figures, area))
}

/// Letters and numbers of a name, so that leaf10 comes behind leaf9.
fn order(name: &str) -> (String, Vec<u32>) {
    let letters = name.chars().filter(|c| !c.is_ascii_digit()).collect();
    let numbers = name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
    (letters, numbers)
}

/// The links that are shown, in the order of the rows: those upwards, then those downwards.
fn rows(figures: &Figures) -> Vec<&str> {
    let mut sums: BTreeMap<&str, f64> = BTreeMap::new();
    for step in figures.lanes().iter().flat_map(|n| figures.of_lanes(*n)) {
        for (name, load) in &step.loads {
            *sums.entry(name).or_default() += load;
        }
    }
    let mut rows: Vec<&str> = sums.keys().copied().collect();
    rows.sort_by(|a, b| sums[b].total_cmp(&sums[a]));
    rows.truncate(ROWS_MAX);
    rows.sort_by_cached_key(|name| order(name));
    rows
}

/// White, yellow, red, nearly black.
fn heat(load: f64) -> RGBColor {
    const STOPS: [(f64, [f64; 3]); 4] = [
        (0.0, [255.0, 255.0, 255.0]),
        (0.5, [254.0, 217.0, 118.0]),
        (0.85, [227.0, 26.0, 28.0]),
        (1.0, [80.0, 0.0, 20.0]),
    ];
    let load = load.clamp(0.0, 1.0);
    let at = STOPS.iter().skip(1).position(|s| load <= s.0).unwrap_or(STOPS.len() - 2);
    let ((from, a), (to, b)) = (STOPS[at], STOPS[at + 1]);
    let share = (load - from) / (to - from);
    let [r, g, b] = [0, 1, 2].map(|i| (a[i] + (b[i] - a[i]) * share) as u8);
    RGBColor(r, g, b)
}

fn paint(figures: &Figures, mut rest: Area<'_>) -> Painted {
    let rows = rows(figures);
    for n in figures.lanes() {
        let (panel, below) = rest.split_vertically(PANEL_HEIGHT + PANEL_GAP);
        paint_panel(figures, n, &rows, &panel)?;
        rest = below;
    }
    Ok(())
}

fn paint_panel(figures: &Figures, lanes: u8, rows: &[&str], area: &Area<'_>) -> Painted {
    let steps = figures.of_lanes(lanes).count().max(1);
    let wide = WIDTH - LEFT - RIGHT;
    let x = |column: usize| (LEFT as usize + column * wide as usize / steps) as i32;
    let y = |row: usize| (PANEL_GAP as usize + row * PANEL_HEIGHT as usize / rows.len().max(1)) as i32;
    let text = |h| TextStyle::from(("sans-serif", 13)).pos(Pos::new(h, VPos::Center));
    let head = format!("{lanes} {}", if lanes == 1 { "lane" } else { "lanes" });
    area.draw(&Text::new(head, (LEFT as i32, PANEL_GAP as i32 - 10), text(HPos::Left)))?;
    let place: BTreeMap<&str, usize> = rows.iter().enumerate().map(|(row, name)| (*name, row)).collect();
    for (column, step) in figures.of_lanes(lanes).enumerate() {
        for (name, load) in &step.loads {
            if let Some(row) = place.get(name.as_str()) {
                let corners = [(x(column), y(*row)), (x(column + 1), y(row + 1))];
                area.draw(&Rectangle::new(corners, heat(*load).filled()))?;
            }
        }
    }
    let frame = [(x(0), y(0)), (x(steps), y(rows.len()))];
    area.draw(&Rectangle::new(frame, FAINT))?;
    // the first row of each switch is named, where there is room
    let (mut last, mut free) = ("", 0);
    for (row, name) in rows.iter().enumerate() {
        let switch = name.split(['>', '.']).next().unwrap_or(name);
        if switch != last && y(row) >= free {
            (last, free) = (switch, y(row) + NAME_HEIGHT);
            let style = text(HPos::Right).color(&FAINT);
            area.draw(&Text::new(switch.to_owned(), (LEFT as i32 - 8, y(row) + 6), style))?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hotspots::figures::tests::sample;

    #[test]
    fn each_load_is_a_field_and_the_fuller_the_darker() {
        let svg = draw(&sample(), "Title", "about").unwrap();
        for word in ["load of each link", "1 lane", "4 lanes", "leaf0", "spine1", "#500014"] {
            assert!(svg.contains(word), "{word}: {svg}");
        }
        assert_eq!(
            (heat(0.0), heat(1.0), heat(7.0)),
            (RGBColor(255, 255, 255), RGBColor(80, 0, 20), heat(1.0))
        );
        assert!(heat(0.9).0 < heat(0.6).0 && heat(0.6).2 < heat(0.2).2);
        // three loads, and a frame for each panel
        assert_eq!(svg.matches("<rect").count(), 1 + 3 + 2, "{svg}");
    }

    #[test]
    fn leaves_are_in_the_order_of_their_numbers() {
        let mut f = Figures::new(false);
        f.take("step\t1\t1\t1\t1\t1\t0\t0\t1").unwrap();
        for name in ["leaf10>spine0.0", "spine0.0>leaf2", "leaf9>spine0.0"] {
            f.take(&format!("link\t1\t1\t{name}\t0.5")).unwrap();
        }
        assert_eq!(rows(&f), ["leaf9>spine0.0", "leaf10>spine0.0", "spine0.0>leaf2"]);
    }
}
