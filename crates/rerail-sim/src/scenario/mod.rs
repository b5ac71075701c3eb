//! Named stories: one for each hazard, with the remedies whose absence it must show.

use rerail_core::Remedies;

/// How a story is told.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    /// Remedies that are on.
    pub remedies: Remedies,
    /// Prints what happens.
    pub trace: bool,
}

/// A named story.
#[derive(Debug)]
pub struct Scenario {
    /// The hazard.
    pub hazard: &'static str,
    /// Name.
    pub name: &'static str,
    /// Without any one of these it must fail.
    pub remedies: &'static [&'static str],
    /// Tells it; panics when a promise is broken.
    pub run: fn(&Story),
}

/// All of them.
pub const ALL: &[Scenario] = &[];
