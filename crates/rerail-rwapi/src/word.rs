//! What nodes send each other beside 16 bytes: one word, with the kind of the message in its highest byte. Owns: the kinds.

/// Payload of every message.
pub const SMALL_BYTES: usize = 16;

const VALUE_BITS: u32 = 56;

/// Kinds of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Kind {
    /// The program's. Value: the sender's operations on the receiver's memory that came before it.
    Small = 1,
    /// The sender's program has taken so many of the receiver's small messages, in all.
    Credit = 2,
    /// The node of this number has died.
    Obituary = 3,
    /// To the root of a barrier: the sender has arrived at so many barriers (payload: and has passed so many).
    Arrived = 4,
    /// From the root: all are at the barrier of this number.
    Release = 5,
    /// From the root: how far is the receiver?
    Query = 6,
}

/// A word that is sent along.
pub fn word(kind: Kind, value: u64) -> u64 {
    (kind as u64) << VALUE_BITS | value & ((1 << VALUE_BITS) - 1)
}

/// Kind and value of a word. `None`: a peer's mistake.
pub fn parse(word: u64) -> Option<(Kind, u64)> {
    use Kind::*;
    let kinds = [Small, Credit, Obituary, Arrived, Release, Query];
    let kind = kinds.into_iter().find(|kind| *kind as u64 == word >> VALUE_BITS)?;
    Some((kind, word & ((1 << VALUE_BITS) - 1)))
}

/// Whether a message to the same node makes an earlier one needless that was not sent yet: all but the program's say how far something is.
pub fn replaces(earlier: u64, later: u64) -> bool {
    match (parse(earlier), parse(later)) {
        (Some((Kind::Small, _)), _) => false,
        (Some((Kind::Obituary, _)), _) => earlier == later,
        (Some((kind, _)), Some((newer, _))) => kind == newer,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_read_as_it_was_made() {
        use Kind::*;
        for kind in [Small, Credit, Obituary, Arrived, Release, Query] {
            assert_eq!(parse(word(kind, 0x12_3456_789a)), Some((kind, 0x12_3456_789a)));
        }
        assert_eq!((parse(0), parse(7 << 56), parse(u64::MAX)), (None, None, None));
    }

    #[test]
    fn a_report_replaces_an_older_one_of_its_kind_and_a_message_of_the_program_none() {
        use Kind::*;
        for kind in [Credit, Arrived, Release, Query] {
            assert!(replaces(word(kind, 1), word(kind, 2)));
            assert!(!replaces(word(kind, 1), word(Small, 1)) && !replaces(word(Obituary, 1), word(kind, 1)));
        }
        assert!(!replaces(word(Small, 1), word(Small, 1)));
        assert!(
            replaces(word(Obituary, 1), word(Obituary, 1)) && !replaces(word(Obituary, 1), word(Obituary, 2))
        );
    }
}
