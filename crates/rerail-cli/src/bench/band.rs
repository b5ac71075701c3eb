//! When rails were cut and healed while a stream ran, by the lab's own report.

use serde_json::Value;

/// A time in which a rail was cut, in seconds of the stream. The lab takes some time to cut and to heal (its tools, and the kernel's
/// grace periods: half a second was seen), so each has the moment at which it began and the one at which it was certainly done.
#[derive(Debug, Clone, PartialEq)]
pub struct Band {
    /// The cut.
    pub at_s: [f64; 2],
    /// The repair, or the end of the stream.
    pub healed_s: [f64; 2],
    /// What was cut, and how.
    pub text: String,
}

/// What the lab reports to have cut and healed, by the clock of a stream that began at `begin_ns`. The schedule is not asked: what is done
/// is done later than planned.
pub fn bands(events: &str, begin_ns: i64, end_s: f64) -> Vec<Band> {
    let mut all: Vec<(Vec<String>, Band)> = Vec::new();
    for event in events.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        let (Some(at_ns), Some(rail)) = (event["t_unix_ns"].as_i64(), event["rail"].as_str()) else {
            continue;
        };
        let begun = (at_ns - begin_ns) as f64 / 1e9;
        let moment = [begun, begun + event["took_us"].as_f64().unwrap_or(0.0) / 1e6];
        match (event["source"].as_str(), event["event"].as_str()) {
            (Some("lab"), Some("cut")) => {
                let kind = event["kind"].as_str().unwrap_or_default();
                // a cut of all rails is reported for each
                match all.last_mut().filter(|(_, band)| band.at_s == moment && band.text.ends_with(kind)) {
                    Some((rails, band)) => {
                        rails.push(rail.into());
                        band.text = format!("{} {kind}", rails.join(" and "));
                    }
                    None => {
                        let text = format!("{rail} {kind}");
                        all.push((vec![rail.into()], Band { at_s: moment, healed_s: [end_s; 2], text }));
                    }
                }
            }
            (Some("lab"), Some("heal")) => {
                let open = |band: &Band| band.healed_s == [end_s; 2];
                for (_, band) in
                    all.iter_mut().filter(|(rails, b)| open(b) && rails.iter().any(|r| r == rail))
                {
                    band.healed_s = moment;
                }
            }
            _ => {}
        }
    }
    all.into_iter().map(|(_, band)| band).collect()
}

#[cfg(test)]
pub mod tests {
    use super::*;

    /// Seconds and milliseconds as the lab would report them of a stream that began at 1000 s.
    pub fn event(name: &str, rail: &str, kind: &str, at_s: f64, took_ms: u64) -> String {
        let at_ns = 1_000_000_000_000 + (at_s * 1e9) as i64;
        let (source, took_us) = ("lab", took_ms * 1000);
        format!(
            "{{\"t_unix_ns\": {at_ns}, \"source\": \"{source}\", \"event\": \"{name}\", \"rail\": \"{rail}\", \"kind\": \"{kind}\", \"took_us\": {took_us}}}\n"
        )
    }

    fn shown(events: &str) -> Vec<(String, [f64; 4])> {
        let round = |x: f64| (x * 1e3).round() / 1e3;
        let one = |b: Band| (b.text, [b.at_s[0], b.at_s[1], b.healed_s[0], b.healed_s[1]].map(round));
        bands(events, 1_000_000_000_000, 9.0).into_iter().map(one).collect()
    }

    #[test]
    fn a_band_is_where_the_lab_cut_and_healed_and_not_where_it_should_have() {
        // planned for 6 s and 8 s; nft took its time
        let events = event("cut", "rail0", "dark", 6.01, 440)
            + "{\"t_unix_ns\": 1, \"source\": \"provider\", \"event\": \"cut\", \"rail\": \"rail0\"}\nno json\n"
            + &event("heal", "rail0", "", 8.02, 460);
        assert_eq!(shown(&events), [("rail0 dark".into(), [6.01, 6.45, 8.02, 8.48])]);
    }

    #[test]
    fn a_cut_of_all_is_one_band_and_one_without_a_repair_lasts_to_the_end() {
        let events = event("cut", "rail0", "down", 1.0, 5)
            + &event("cut", "rail1", "down", 1.0, 5)
            + &event("heal", "rail0", "", 2.0, 5)
            + &event("cut", "rail0", "reset", 4.0, 5);
        let wanted = [
            ("rail0 and rail1 down".into(), [1.0, 1.005, 2.0, 2.005]),
            ("rail0 reset".into(), [4.0, 4.005, 9.0, 9.0]),
        ];
        assert_eq!(shown(&events), wanted);
    }
}
