//! What a checksum covers. Every datagram and every stream frame states it, so that a receiver never misjudges what it
//! got.
//!
//! An engine accepts a stronger coverage than was agreed for the path, and refuses a weaker one. Otherwise a few
//! flipped bits, or an attacker on the way, could switch the checksum off.

use crate::FrameType;

/// What the checksum of a datagram or stream frame covers; the stronger is the greater.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Coverage {
    /// Nothing: the checksum fields are zero.
    None = 0,
    /// Headers, and the payload of every frame that is not the user's ([`FrameType::carries_data`]).
    Header = 1,
    /// Everything.
    #[default]
    Full = 2,
}

impl Coverage {
    /// All of them, from the strongest on.
    pub const ALL: [Coverage; 3] = [Self::Full, Self::Header, Self::None];

    /// The coverage with number `v`.
    pub fn from_u8(v: u8) -> Option<Self> {
        Some(match v {
            0 => Self::None,
            1 => Self::Header,
            2 => Self::Full,
            _ => return None,
        })
    }

    /// Whether the payload of a frame of this kind is summed.
    #[inline]
    pub fn sums_payload(self, kind: FrameType) -> bool {
        match self {
            Self::Full => true,
            Self::Header => !kind.carries_data(),
            Self::None => false,
        }
    }

    /// Name in options and reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "off",
            Self::Header => "header",
            Self::Full => "on",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stronger_is_the_greater_and_only_the_users_bytes_are_ever_left_out_by_header() {
        assert!(Coverage::Full > Coverage::Header && Coverage::Header > Coverage::None);
        for v in 0..=u8::MAX {
            assert_eq!(Coverage::from_u8(v).map(|c| c as u8), (v <= 2).then_some(v));
        }
        assert!(!Coverage::Header.sums_payload(FrameType::Eager));
        assert!(!Coverage::Header.sums_payload(FrameType::Frag));
        assert!(Coverage::Header.sums_payload(FrameType::Ack));
        assert!(Coverage::Header.sums_payload(FrameType::Config));
        assert!(!Coverage::None.sums_payload(FrameType::Config));
    }
}
