//! Which of the paths to one peer has its turn.
//!
//! Owns: the turns of whole messages, small ones and trains, and the bytes of whole messages that were given to each path. Invariant: shares are
//! counted since a path last came into service; a path that was away is owed nothing.

use crate::rest::{OnDemand, rests};

/// What is given out in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Whole messages.
    Message,
    /// Small ones.
    Small,
    /// Trains of bulk datagrams.
    Train,
}

rests! {
    empty
    Vec<u64> = Vec::new();
}

/// See above.
#[derive(Debug, Clone, Default)]
pub(crate) struct Turns {
    next: [usize; 3],
    whole: OnDemand<Vec<u64>>,
}

impl Turns {
    /// The paths, of `count`, in the order of their turns.
    pub fn order(&self, turn: Turn, count: usize) -> impl Iterator<Item = usize> + use<> {
        let first = self.next[turn as usize];
        (0..count).map(move |k| (first + k) % count)
    }

    /// A path of `count` has had its turn.
    pub fn had(&mut self, turn: Turn, path: usize, count: usize) {
        self.next[turn as usize] = (path + 1) % count;
    }

    /// Bytes of whole messages that a path was given.
    pub fn share(&self, path: usize) -> u64 {
        self.whole.awake().and_then(|whole| whole.get(path)).copied().unwrap_or(0)
    }

    /// A path is given a whole message of so many bytes.
    pub fn give(&mut self, path: usize, bytes: u64) {
        if self.whole.len() <= path {
            self.whole.resize(path + 1, 0);
        }
        self.whole[path] += bytes;
    }

    /// A path came into service: shares are counted from now on.
    pub fn begin_shares(&mut self) {
        self.whole = OnDemand::default();
    }

    /// Gives back what nothing needs.
    pub fn rest(&mut self) {
        self.whole.rest();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_has_its_own_turns_and_all_paths_get_one() {
        let mut t = Turns::default();
        let order = |t: &Turns, turn| t.order(turn, 3).collect::<Vec<_>>();
        t.had(Turn::Message, 1, 3);
        assert_eq!(order(&t, Turn::Message), [2, 0, 1]);
        t.had(Turn::Message, 2, 3);
        assert_eq!((order(&t, Turn::Message), order(&t, Turn::Small)), (vec![0, 1, 2], vec![0, 1, 2]));
    }

    #[test]
    fn shares_are_counted_anew_when_a_path_comes_back() {
        let mut t = Turns::default();
        t.give(2, 10);
        t.give(2, 5);
        assert_eq!([0, 2, 7].map(|path| t.share(path)), [0, 15, 0]);
        t.begin_shares();
        assert_eq!(t.share(2), 0);
    }
}
