//! `rerail man`: the manual page fi_rerail(7), made from the option table so that it cannot fall behind it.
//!
//! docs/fi_rerail.7 is what it prints; a test holds the two together.

use crate::config::variable;
use rerail_core::OPTION_TABLE;
use std::io::Write;

/// Prints the page, for instance into `man -l -`.
pub fn run() -> i32 {
    // a closed pipe is the reader's choice, not an error
    let _ = std::io::stdout().write_all(page().as_bytes());
    0
}

/// The page, in the man macros of roff(7).
fn page() -> String {
    let mut out = format!(".TH FI_RERAIL 7 \"\" \"Rerail {}\" \"Rerail\"\n", env!("CARGO_PKG_VERSION"));
    let mut section = |name: &str, text: &str| {
        out.push_str(&format!(".SH {name}\n"));
        for paragraph in text.trim().split("\n\n") {
            let (head, text) = match paragraph.strip_prefix("= ").and_then(|p| p.split_once('\n')) {
                Some((term, meaning)) => (format!(".TP\n.B {}\n", roff(term)), meaning),
                None => (".PP\n".to_owned(), paragraph),
            };
            let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
            out.push_str(&format!("{head}{}\n", roff(&text)));
        }
    };
    section(
        "NAME",
        "fi_rerail - the Rerail provider of libfabric: one fabric over all rails of a node, which heals itself",
    );
    section("DESCRIPTION", DESCRIPTION);
    section("CAPABILITIES", CAPABILITIES);
    section("SEMANTICS", SEMANTICS);
    section("LIMITS", LIMITS);
    out.push_str(".SH OPTIONS\n.PP\nEach is a variable of the environment. A wrong value is reported, and nothing starts.\n");
    for row in OPTION_TABLE {
        let default = if row.default.is_empty() { "empty" } else { row.default };
        out.push_str(&format!(
            ".TP\n.B {}\n{}\n.br\n{}. Default: {}.\n",
            roff(&variable(row)),
            roff(row.help),
            roff(row.unit),
            roff(default)
        ));
    }
    out.push_str(
        ".SH SEE ALSO\n.PP\nfabric(7), fi_provider(7), fi_getinfo(3); rerail \\-\\-help, rerail config\n",
    );
    out
}

/// Text in which roff sees nothing but text.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-");
    // a line that begins with one of these would be a request
    if text.starts_with(['.', '\'']) { format!("\\&{text}") } else { text }
}

const DESCRIPTION: &str = "
Rerail uses every network interface of a node at once, keeps a program running when one, or all, break, and takes them back when they are
repaired. The program is not changed: it selects the provider with FI_PROVIDER=rerail, and FI_PROVIDER_PATH names the directory of
librerail-fi.so.

A rail is one interface. Small messages travel as datagrams, large ones over TCP connections (or as paced datagrams), in pieces over all
rails. What a broken rail has not delivered goes over the others, and arrives exactly once and in order.
";

const CAPABILITIES: &str = "
= Endpoints
FI_EP_RDM. FI_EP_MSG and FI_EP_DGRAM are not offered.

= Addresses
Rerail's own, of 56 bytes, which name every rail; FI_SOCKADDR_IN and FI_SOCKADDR_IN6 for programs that know each other by IP address and port
only.

= Messages
FI_MSG, FI_TAGGED, FI_DIRECTED_RECV, FI_MULTI_RECV, FI_SOURCE; FI_PEEK, FI_CLAIM and FI_DISCARD; remote CQ data of 8 bytes.

= One-sided operations
FI_RMA and FI_ATOMIC with FI_READ, FI_WRITE, FI_REMOTE_READ and FI_REMOTE_WRITE; remote CQ data with writes; up to 8 local and 8 remote
pieces (fi_getinfo tells 4 local ones unless the hints ask for more). Atomic operations: every datatype and operation of fi_atomic(3) that this machine has, up to 16384 bytes of operands each.

= Collective operations
FI_COLLECTIVE: fi_barrier, fi_broadcast, fi_allreduce, fi_allgather, fi_reduce, fi_scatter and fi_gather, over groups of up to 2^20 members that
fi_join_collective makes of the members of an address vector set; every datatype, and for reductions every operation of fi_atomic(3) from FI_MIN to
FI_BXOR that goes with it. fi_alltoall, fi_reduce_scatter and communication keys are not there. They are carried out by messages between the members.

= Memory registration
FI_MR_VIRT_ADDR, FI_MR_ALLOCATED and FI_MR_PROV_KEY by default; offsets and keys of the program's own where those are not asked for;
FI_MR_BASIC and FI_MR_SCALABLE. Local memory needs no registration.

= Waiting
FI_WAIT_UNSPEC and FI_WAIT_FD for completion queues, counters, event queues and wait sets (FI_WAIT_YIELD is taken for FI_WAIT_UNSPEC);
FI_WAIT_SET; poll sets. FI_WAIT_MUTEX_COND and FI_WAIT_POLLFD are not there.

= Not offered
FI_HMEM, FI_TRIGGER, FI_FENCE, FI_RMA_EVENT, FI_MSG_PREFIX, scalable endpoints, shared contexts, address vectors that processes share
by name.
";

const SEMANTICS: &str = "
= Completion
A send of up to FI_RERAIL_COPY_SIZE bytes completes when it is buffered, a larger one when it has reached the peer, and with FI_TRANSMIT_COMPLETE or FI_DELIVERY_COMPLETE every one does. With FI_MATCH_COMPLETE it completes when a receive of the peer has taken it. FI_DELIVERY_COMPLETE
among the default flags that a program asks for is not given back, unless FI_RERAIL_DELIVERY=echo. A write and an atomic operation complete
when they have taken effect at the target, a read when its bytes are here.

= Order
Messages between two endpoints match in the order in which they were sent, over any number of rails. Atomic operations of an endpoint on one
peer take effect in the order in which they were posted. Reads and writes are not ordered among themselves.

= Collective operations
Every member of a group begins the same operations in the same order; several may be under way. count is the number of values in one member's
part: an all-gather gives count values for each member, a scatter takes as many for each. A root is named by its address in the vector, as
fi_collective(3) has it (libfabric's own implementation takes a rank; both are equal where the set is the whole vector). The results of fi_allreduce have the same bits at all members. When a member is lost, and when the
members' sizes do not fit, the operation ends in an error at every member that depends on it. fi_close of a group gives -FI_EBUSY while operations are under
way; one that is not made yet may be closed; its member goes on making it for the others. A member whose endpoint is closed in the middle of an operation, by a process that
lives on, keeps the others waiting until that process ends. Counters do not count collective operations.

= Failures
What was posted before a rail broke is carried to its end over the others: each message, write and atomic operation takes effect exactly
once. While no rail works, operations wait; FI_RERAIL_PARTITION_TIMEOUT bounds that, and they then end in FI_EHOSTUNREACH. Operations on a
process that has died end in an error within seconds. Until a large write has completed, its bytes may be there in part, or damaged ones
that are sent again.

= Access
A key that is not known, a range outside its region and an access that was not allowed end in an error at the initiator, and touch no byte. When
fi_close of a region returns, nothing reads or writes it any more.

= Progress
FI_PROGRESS_AUTO and FI_PROGRESS_MANUAL, FI_THREAD_SAFE and every weaker level.

= fork
A forked child cannot use the endpoints of its parent: its calls end in -FI_EOPNOTSUPP.
";

const LIMITS: &str = "
Up to 8 rails with IPv4 or 2 with IPv6 addresses; messages of up to 2^40 bytes; 4096 endpoints of a process; 1024 one-sided operations on one
peer without an answer, beyond which the calls give -FI_EAGAIN. Copies of sent payload and unexpected payload are bounded for each peer by
FI_RERAIL_RETAINED_MAX and FI_RERAIL_UNEXPECTED_MAX.
";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_in_docs_is_what_is_printed() {
        let kept = include_str!("../../../docs/fi_rerail.7");
        assert!(kept == page(), "renew it: cargo run -p rerail-cli -- man > docs/fi_rerail.7");
    }

    #[test]
    fn no_text_is_taken_for_a_request() {
        for line in page().lines().filter(|l| l.starts_with(['.', '\''])) {
            let request = line.split(' ').next().unwrap_or(line);
            assert!([".TH", ".SH", ".TP", ".PP", ".B", ".br"].contains(&request), "{line}");
        }
    }
}
