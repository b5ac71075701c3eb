//! What is broken on a link of a fabric, and the nftables rules that break it. As for rails, drops are at the receiving end.

use crate::LabError;
use crate::cut::CutKind;
use crate::fabric::{Link, Place};
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is broken on a link.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LinkState {
    /// Its interfaces are down, and the switches route around it.
    pub down: bool,
    /// Nothing arrives at the leaf, and no switch notices.
    pub dark_to_leaf: bool,
    /// Nothing arrives at the spine, and no switch notices.
    pub dark_to_spine: bool,
}

impl LinkState {
    /// Adds a cut.
    ///
    /// # Errors
    /// The kind means nothing on a link.
    pub fn cut(&mut self, kind: CutKind) -> Result<(), LabError> {
        match kind {
            CutKind::Down => self.down = true,
            CutKind::Dark => (self.dark_to_leaf, self.dark_to_spine) = (true, true),
            CutKind::DarkIn => self.dark_to_leaf = true,
            CutKind::DarkOut => self.dark_to_spine = true,
            CutKind::Reset | CutKind::Routes => {
                return Err(LabError::Input(format!(
                    "a link of a fabric cannot be cut by `{kind}`: choose down, dark, dark-in (nothing arrives at the leaf) or dark-out"
                )));
            }
        }
        Ok(())
    }

    /// Whether what is sent to this end is dropped.
    fn is_dark_to(&self, place: Place) -> bool {
        match place {
            Place::Leaf(_) => self.dark_to_leaf,
            Place::Spine(_) => self.dark_to_spine,
        }
    }

    /// The script that takes one end from this state to `next`; empty if nothing changes there.
    pub fn rules_to(&self, next: &LinkState, link: Link, place: Place) -> String {
        let device = link.device_at(place);
        match (self.is_dark_to(place), next.is_dark_to(place)) {
            (false, true) => format!(
                "table netdev cut_{device} {{\n  chain ingress {{\n    type filter hook ingress device \"{device}\" priority 0; policy drop;\n  }}\n}}\n"
            ),
            (true, false) => format!("delete table netdev cut_{device}\n"),
            _ => String::new(),
        }
    }
}

impl fmt::Display for LinkState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dark = match (self.dark_to_leaf, self.dark_to_spine) {
            (true, true) => "dark",
            (true, false) => "dark to the leaf",
            (false, true) => "dark to the spine",
            (false, false) if self.down => "",
            (false, false) => "whole",
        };
        let comma = if self.down && !dark.is_empty() { ", " } else { "" };
        write!(f, "{}{comma}{dark}", if self.down { "down" } else { "" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_of_a_link_add_up_and_are_told() {
        let link = Link { rail: 0, leaf: 1, spine: 0 };
        let mut state = LinkState::default();
        assert_eq!(state.to_string(), "whole");
        state.cut(CutKind::DarkIn).unwrap();
        assert_eq!(state.to_string(), "dark to the leaf");
        let [leaf, spine] = link.ends();
        let from_whole = |state: &LinkState, place| LinkState::default().rules_to(state, link, place);
        assert!(from_whole(&state, leaf).contains("device \"spine0\""));
        assert_eq!(from_whole(&state, spine), "");
        state.cut(CutKind::DarkOut).unwrap();
        state.cut(CutKind::Down).unwrap();
        assert_eq!(state.to_string(), "down, dark");
        assert_eq!(state.rules_to(&LinkState::default(), link, spine), "delete table netdev cut_leaf1\n");
        assert_eq!(state.rules_to(&state.clone(), link, leaf), "");
        assert!(state.cut(CutKind::Reset).unwrap_err().to_string().contains("choose down, dark"));
    }
}
