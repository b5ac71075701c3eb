//! Automatic path migration in the adapter, as the engine sees it of one stream: over which rail it goes, and what the adapter was told.
//!
//! Owns: the states of APM §2.2, figure 2, each with the path that it is about. The state is the adapter's, reported by events that may be
//! late; what is wanted of it is decided in `engine/alternates`.

use crate::types::{PathId, RailId, Time};

/// What the adapters of a stream have loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Loaded {
    /// MIGRATED: no alternate.
    #[default]
    Nothing,
    /// REARM: this path is to be loaded, and there is no answer yet.
    Loading(PathId),
    /// ARMED: each adapter can move the stream, over this own rail. The path is known to the side that had it loaded.
    Armed(Option<PathId>, RailId),
    /// The adapters or the peer have refused this path. It is not requested again while the same one is wanted.
    Refused(PathId),
}

/// See above.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Alternate {
    loaded: Loaded,
    /// The adapter has moved it, so that it goes over this rail since then; `None`: over its own.
    over: Option<(RailId, Time)>,
    /// This side has requested that the adapters move it, and has no report yet.
    requested: bool,
}

impl Alternate {
    pub fn loaded(&self) -> Loaded {
        self.loaded
    }

    /// The rail to which the adapter has moved it; `None`: it goes over its own.
    pub fn away(&self) -> Option<RailId> {
        self.over.map(|over| over.0)
    }

    /// Since when it is away.
    pub fn away_since(&self) -> Option<Time> {
        self.over.map(|over| over.1)
    }

    /// The path that the adapters have, or are to have.
    pub fn path(&self) -> Option<PathId> {
        match self.loaded {
            Loaded::Loading(path) | Loaded::Armed(Some(path), _) => Some(path),
            Loaded::Nothing | Loaded::Armed(None, _) | Loaded::Refused(_) => None,
        }
    }

    /// This path is wanted, or none. Returns whether the adapters are to be told.
    pub fn want(&mut self, path: Option<PathId>) -> bool {
        match (self.loaded, path) {
            (Loaded::Loading(has) | Loaded::Armed(Some(has), _) | Loaded::Refused(has), Some(path))
                if has == path =>
            {
                false
            }
            (Loaded::Nothing | Loaded::Refused(_), None) => {
                self.loaded = Loaded::Nothing;
                false
            }
            (_, path) => {
                self.loaded = path.map_or(Loaded::Nothing, Loaded::Loading);
                self.requested = false;
                true
            }
        }
    }

    /// The adapters have loaded it, over this own rail.
    pub fn armed(&mut self, rail: RailId) {
        self.loaded = Loaded::Armed(self.path(), rail);
    }

    /// They have not, or have it no more.
    pub fn unloaded(&mut self) {
        self.loaded = match self.loaded {
            Loaded::Loading(path) => Loaded::Refused(path),
            _ => Loaded::Nothing,
        };
        self.requested = false;
    }

    /// The adapters are to move it to the path that they have loaded. False: they have none, or have been told.
    pub fn leave(&mut self) -> bool {
        let armed = matches!(self.loaded, Loaded::Armed(..));
        armed && !std::mem::replace(&mut self.requested, true)
    }

    /// Whether that was requested, and is not reported yet.
    pub fn leaves(&self) -> bool {
        self.requested
    }

    /// An adapter has moved it to `rail`; its own is `home`. Returns whether this side had requested it.
    pub fn migrated(&mut self, rail: RailId, home: RailId, now: Time) -> bool {
        self.over = Some((rail, now)).filter(|_| rail != home);
        self.loaded = Loaded::Nothing;
        std::mem::take(&mut self.requested)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_armed_migrates_and_is_armed_to_come_home() {
        let (p, q, home, other) = (PathId(1), PathId(2), RailId(0), RailId(1));
        let mut a = Alternate::default();
        assert!(!a.want(None) && a.want(Some(q)) && !a.want(Some(q)) && !a.leave());
        a.armed(other);
        assert_eq!(a.loaded(), Loaded::Armed(Some(q), other));
        assert!(!a.want(Some(q)) && a.leave() && !a.leave());
        assert!(a.leaves() && a.migrated(other, home, Time::from_ns(5)) && !a.leaves());
        assert_eq!(a.away(), Some(other));
        assert_eq!(a.away_since(), Some(Time::from_ns(5)));
        assert!(a.want(Some(p)));
        a.armed(home);
        assert!(!a.migrated(home, home, Time::from_ns(6)), "by itself");
        assert_eq!((a.away(), a.loaded()), (None, Loaded::Nothing));
    }

    #[test]
    fn what_was_refused_is_requested_again_only_after_another_path_or_none() {
        let (p, q) = (PathId(1), PathId(2));
        let mut a = Alternate::default();
        a.want(Some(p));
        a.unloaded();
        assert!(!a.want(Some(p)) && a.loaded() == Loaded::Refused(p));
        assert!(a.want(Some(q)));
        a.unloaded();
        assert!(!a.want(None) && a.want(Some(q)));
    }

    #[test]
    fn a_peer_arms_a_stream_and_takes_that_back() {
        let mut a = Alternate::default();
        a.armed(RailId(3));
        assert_eq!((a.loaded(), a.path()), (Loaded::Armed(None, RailId(3)), None));
        a.unloaded();
        assert_eq!(a.loaded(), Loaded::Nothing);
        a.armed(RailId(3));
        assert!(a.want(None), "this side unloads what it did not load");
    }
}
