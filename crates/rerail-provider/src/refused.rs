//! The sentence on flags that a call refuses ([`log::refused`](crate::log::refused) writes it). Owns: which refusals the log has already.
//!
//! An MPI turns -FI_EOPNOTSUPP into a message that names neither the provider nor the flag, and ends the job. So each refusal writes one
//! line at level warn for each call and set of flags; a program may repeat the call in a loop.

use crate::ffi::*;
use parking_lot::Mutex;

/// Refusals that are remembered; the calls have fewer. Beyond it nothing is logged.
const REFUSALS_MAX: usize = 64;

static LOGGED: Mutex<Vec<(&'static str, u64)>> = Mutex::new(Vec::new());

/// Flags of operations. Bits that mean something else to each call that opens an object are shown as a number.
const NAMES: &[(u64, &str)] = &[
    (FI_TAGGED, "FI_TAGGED"),
    (FI_READ, "FI_READ"),
    (FI_WRITE, "FI_WRITE"),
    (FI_RECV, "FI_RECV"),
    (FI_SEND, "FI_SEND"),
    (FI_MULTI_RECV, "FI_MULTI_RECV"),
    (FI_REMOTE_CQ_DATA, "FI_REMOTE_CQ_DATA"),
    (FI_MORE, "FI_MORE"),
    (FI_PEEK, "FI_PEEK"),
    (FI_TRIGGER, "FI_TRIGGER"),
    (FI_FENCE, "FI_FENCE"),
    (FI_PRIORITY, "FI_PRIORITY"),
    (FI_COMPLETION, "FI_COMPLETION"),
    (FI_INJECT, "FI_INJECT"),
    (FI_INJECT_COMPLETE, "FI_INJECT_COMPLETE"),
    (FI_TRANSMIT_COMPLETE, "FI_TRANSMIT_COMPLETE"),
    (FI_DELIVERY_COMPLETE, "FI_DELIVERY_COMPLETE"),
    (FI_AFFINITY, "FI_AFFINITY"),
    (FI_COMMIT_COMPLETE, "FI_COMMIT_COMPLETE"),
    (FI_MATCH_COMPLETE, "FI_MATCH_COMPLETE"),
];

/// What the log has to say of `flags` that `call` refuses; `None`: it has said it.
pub fn news(call: &'static str, flags: u64) -> Option<String> {
    is_new(&mut LOGGED.lock(), call, flags).then(|| sentence(call, flags))
}

fn is_new(logged: &mut Vec<(&'static str, u64)>, call: &'static str, flags: u64) -> bool {
    let new = logged.len() < REFUSALS_MAX && !logged.contains(&(call, flags));
    if new {
        logged.push((call, flags));
    }
    new
}

fn sentence(call: &str, flags: u64) -> String {
    let mut names: Vec<String> =
        NAMES.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| (*name).to_owned()).collect();
    let rest = NAMES.iter().fold(flags, |rest, (bit, _)| rest & !bit);
    if rest != 0 {
        names.push(format!("{rest:#x}"));
    }
    let word = if flags.count_ones() == 1 { "flag" } else { "flags" };
    format!("Rerail refuses {call} with the {word} {}", names.join(" | "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_names_rerail_the_call_and_every_flag() {
        assert_eq!(sentence("fi_tsendmsg", FI_FENCE), "Rerail refuses fi_tsendmsg with the flag FI_FENCE");
        assert_eq!(
            sentence("fi_av_insert", FI_COMMIT_COMPLETE | FI_TRIGGER | FI_SYNC_ERR),
            "Rerail refuses fi_av_insert with the flags FI_TRIGGER | FI_COMMIT_COMPLETE | 0x400000000000000"
        );
    }

    #[test]
    fn each_refusal_is_logged_once_and_their_number_is_bounded() {
        let mut logged = Vec::new();
        assert!(is_new(&mut logged, "fi_tsendmsg", FI_FENCE));
        assert!(!is_new(&mut logged, "fi_tsendmsg", FI_FENCE));
        assert!(
            is_new(&mut logged, "fi_sendmsg", FI_FENCE) && is_new(&mut logged, "fi_tsendmsg", FI_TRIGGER)
        );
        let told = (0..1000).filter(|&flags| is_new(&mut logged, "fi_recvmsg", flags)).count();
        assert_eq!((told, logged.len()), (REFUSALS_MAX - 3, REFUSALS_MAX));
    }
}
