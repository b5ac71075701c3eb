//! Variables that look like options and are none: a mistyped one would be silently ignored.

use crate::options::OPTION_TABLE;

/// What every variable of an option begins with.
const PREFIX: &str = "FI_RERAIL_";

/// A sentence for each of `variables` that begins like an option's and is none; with the option that the user may have meant.
pub fn unknown_options<S: AsRef<str>>(variables: impl IntoIterator<Item = S>) -> Vec<String> {
    let mut sentences: Vec<String> =
        variables.into_iter().filter_map(|variable| unknown_option(variable.as_ref())).collect();
    sentences.sort();
    sentences
}

fn unknown_option(variable: &str) -> Option<String> {
    let name = variable.strip_prefix(PREFIX)?;
    if OPTION_TABLE.iter().any(|row| row.name.to_uppercase() == name) {
        return None;
    }
    let wanted = name.to_lowercase();
    let nearest = OPTION_TABLE
        .iter()
        .map(|row| (distance(&wanted, row.name), row.name))
        .min()
        .filter(|(away, option)| *away <= (option.len() / 3).max(2));
    Some(match nearest {
        Some((_, option)) => {
            format!("{variable} is no option and is ignored: did you mean {PREFIX}{}?", option.to_uppercase())
        }
        None => format!("{variable} is no option and is ignored: `rerail config` lists them all"),
    })
}

/// Insertions, deletions, replacements and swaps of neighbours that make one word of the other (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.as_bytes(), b.as_bytes());
    // of the first i letters of one word and the first j of the other
    let mut d = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            d[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let differs = usize::from(a[i - 1] != b[j - 1]);
                let least = (d[i - 1][j] + 1).min(d[i][j - 1] + 1).min(d[i - 1][j - 1] + differs);
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                if swapped { least.min(d[i - 2][j - 2] + 1) } else { least }
            };
        }
    }
    d[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_option_is_named_with_the_one_that_was_meant() {
        let environment = ["PATH", "FI_PROVIDER", "FI_RERAIL_POLICY", "FI_RERAIL_RAIL", "FI_RERAIL_POLCY"];
        assert_eq!(
            unknown_options(environment),
            [
                "FI_RERAIL_POLCY is no option and is ignored: did you mean FI_RERAIL_POLICY?",
                "FI_RERAIL_RAIL is no option and is ignored: did you mean FI_RERAIL_RAILS?",
            ]
        );
        for (wrong, meant) in [
            ("FI_RERAIL_EAGER_SIEZ", "FI_RERAIL_EAGER_SIZE"),
            ("FI_RERAIL_WIEGHTS", "FI_RERAIL_WEIGHTS"),
            ("FI_RERAIL_rails", "FI_RERAIL_RAILS"),
            ("FI_RERAIL_PARTITION_TIME", "FI_RERAIL_PARTITION_TIMEOUT"),
        ] {
            assert!(unknown_option(wrong).unwrap().ends_with(&format!("did you mean {meant}?")), "{wrong}");
        }
        let far = unknown_option("FI_RERAIL_FRUIT_SALAD").unwrap();
        assert!(far.ends_with("`rerail config` lists them all"), "{far}");
    }

    #[test]
    fn options_themselves_are_known() {
        let all = OPTION_TABLE.iter().map(|row| format!("FI_RERAIL_{}", row.name.to_uppercase()));
        assert_eq!(unknown_options(all), [""; 0]);
    }

    #[test]
    fn the_distance_counts_slips_of_the_fingers() {
        for (a, b, slips) in [
            ("", "", 0),
            ("rails", "rails", 0),
            ("rail", "rails", 1),
            ("polciy", "policy", 1),
            ("abc", "xyz", 3),
            ("", "ab", 2),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (slips, slips), "{a} {b}");
        }
    }
}
