//! What becomes of a frame. Pure: faults, number of the frame and sender in, fate out.

use super::faults::Faults;
use super::packet;
use rerail_fault::chance::{Chance, draw};

/// The fate of one frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Fate {
    /// It does not arrive, for this reason.
    pub gone: Option<Gone>,
    /// Its payload is to be changed, with this number as the source of what and where.
    pub corrupt: Option<u64>,
    /// It arrives twice.
    pub twice: bool,
    /// Later ones overtake it.
    pub held_back: bool,
}

/// Why a frame does not arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Gone {
    Lost,
    Dark,
}

/// Decides. `number` counts the frames of this sender.
pub(super) fn decide(faults: &Faults, from: usize, number: u64, frame: &[u8]) -> Fate {
    let mut fate = Fate::default();
    if faults.from.is_some_and(|node| node != from) {
        return fate;
    }
    if faults.dark {
        fate.gone = Some(Gone::Dark);
        return fate;
    }
    if !faults.picks() || packet::is_neighbour_discovery(frame) {
        return fate;
    }
    // Each sender has draws of its own, or both directions would lose the frames of the same numbers.
    let seed = faults.seed ^ (from as u64 + 1) << 48;
    let roll = |salt: u64| draw(seed, number, salt);
    let hit = |share: Chance, salt: u64| !share.is_never() && share.hits(roll(salt));
    if hit(faults.loss, 1) {
        fate.gone = Some(Gone::Lost);
        return fate;
    }
    fate.corrupt = hit(faults.corrupt, 2).then(|| roll(3));
    fate.twice = hit(faults.duplicate, 4);
    fate.held_back = hit(faults.reorder, 5);
    fate
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fates(text: &str, from: usize) -> Vec<Fate> {
        let faults: Faults = text.parse().unwrap();
        (0..10_000).map(|number| decide(&faults, from, number, &packet::tests::udp(b"payload"))).collect()
    }

    fn count(fates: &[Fate], which: impl Fn(&Fate) -> bool) -> usize {
        fates.iter().filter(|fate| which(fate)).count()
    }

    #[test]
    fn each_share_is_met_whatever_the_others_are() {
        let all = fates("loss=10%,corrupt=10%,dup=10%,reorder=10%,seed=3", 0);
        assert!((900..1100).contains(&count(&all, |fate| fate.gone == Some(Gone::Lost))));
        for which in [|f: &Fate| f.corrupt.is_some(), |f: &Fate| f.twice, |f: &Fate| f.held_back] {
            assert!((800..1000).contains(&count(&all, which)));
        }
        // the same frames are lost when nothing else happens
        let gone = |fates: &[Fate]| fates.iter().map(|fate| fate.gone).collect::<Vec<_>>();
        assert_eq!(gone(&all), gone(&fates("loss=10%,seed=3", 0)));
        assert_ne!(gone(&all), gone(&fates("loss=10%,seed=4", 0)));
        assert_ne!(gone(&all), gone(&fates("loss=10%,seed=3", 1)));
    }

    #[test]
    fn one_direction_is_touched_and_the_other_is_not() {
        assert_eq!(count(&fates("dark,from=n1", 1), |fate| fate.gone == Some(Gone::Dark)), 10_000);
        assert_eq!(count(&fates("dark,from=n1", 0), |fate| *fate == Fate::default()), 10_000);
        assert_eq!(count(&fates("loss=100%,from=n1", 0), |fate| fate.gone.is_some()), 0);
    }

    #[test]
    fn neighbour_discovery_is_lost_in_the_dark_only() {
        let fate = |text: &str, frame: &[u8]| decide(&text.parse().unwrap(), 0, 0, frame).gone;
        for frame in [packet::tests::arp(), packet::tests::solicitation()] {
            assert_eq!(fate("loss=100%", &frame), None);
            assert_eq!(fate("dark", &frame), Some(Gone::Dark));
        }
        assert_eq!(fate("loss=100%", &packet::tests::udp(b"x")), Some(Gone::Lost));
    }
}
