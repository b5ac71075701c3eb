//! The remedies of the hazards, each of which can be planted as a bug by switching it off.
//!
//! Without the feature `planted-bugs` every remedy is constantly on and the struct costs nothing.

/// Whether remedies can be switched off in this build. Never in the provider.
pub const PLANTED_BUGS: bool = cfg!(feature = "planted-bugs");

macro_rules! remedies {
    ($($(#[$doc:meta])* $name:ident),* $(,)?) => {
        /// Which remedies are on. All by default.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct Remedies {
            $(#[cfg(feature = "planted-bugs")] $(#[$doc])* pub $name: bool,)*
        }

        impl Default for Remedies {
            fn default() -> Self {
                Self { $(#[cfg(feature = "planted-bugs")] $name: true,)* }
            }
        }

        impl Remedies {
            $($(#[$doc])* #[inline] pub fn $name(&self) -> bool {
                #[cfg(feature = "planted-bugs")]
                { self.$name }
                #[cfg(not(feature = "planted-bugs"))]
                { true }
            })*

            /// Names of all remedies.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),*];

            /// All on except the one named; `None` where they cannot be switched off ([`PLANTED_BUGS`]). Panics on an unknown name.
            pub fn without(name: &str) -> Option<Self> {
                assert!(Self::NAMES.contains(&name), "no remedy is called {name}");
                #[cfg(feature = "planted-bugs")]
                {
                    let mut r = Self::default();
                    match name {
                        $(stringify!($name) => r.$name = false,)*
                        _ => unreachable!("looked up above"),
                    }
                    Some(r)
                }
                #[cfg(not(feature = "planted-bugs"))]
                None
            }
        }
    };
}

remedies! {
    /// H1: a half-written frame whose memory was released is finished with zeros and ABORT.
    abort_trailer,
    /// H2: one placement lease per fragment; commit, cancel and close revoke it, duplicates go to scratch.
    placement_lease,
    /// H3: no path fails on silence alone: another path must have answered.
    differential_query,
    /// H6: a peer that is silent because it was not queried is neither cut off nor stopped.
    silence_needs_questions,
    /// Queries on idle paths are bounded, however many peers there are.
    probes_are_bounded,
    /// H6: a peer that is waited for, and the neighbours that testify for it, are queried as if there were no bound.
    awaited_are_asked,
    /// H3: a stream of which the other end's kernel has every byte is not replaced because a busy process has not read it.
    stuck_streams_are_looked_at,
    /// Streams that failed while a peer was silent do not delay its next stream.
    silence_is_forgiven,
    /// H3: on a rail that is crowded for others, a seldom queried path gets their patience.
    crowds_are_patient,
    /// H3: when one peer falls silent on a rail, the others over it are queried at once.
    rails_are_swept,
    /// H3: small messages avoid a path that has not answered a query which another path has.
    doubted_paths_are_avoided,
    /// H13: a process that is queried on one path, and not on one beside it, queries that one too.
    askers_are_asked,
    /// H4a: the next message in sequence always has room; payload over the bound is refused, never left unread.
    refuse_over_bound,
    /// H4b: envelopes grow; only payload is bounded.
    envelopes_grow,
    /// H5: closing flushes, and goodbye is acknowledged.
    farewell,
    /// H5: time in which a peer cannot be reached does not count as lingering.
    patient_farewell,
    /// H6: a process whose host refuses connections to it is declared dead.
    death_verdict,
    /// H7: a process that was declared dead receives this verdict when it comes back.
    tell_the_entombed,
    /// H6: a refused connection alone is no death: a firewall may refuse, or a stopped process's kernel answer elsewhere.
    death_needs_proof,
    /// H6: silence counts against a process only when it was queried after the first refusal, and a neighbour that
    /// answers only when it is not refused itself.
    death_needs_questions,
    /// H6: the peer's kernel is tested once more after the first refusal: its earlier signs prove nothing then, and if
    /// it refuses on one rail only it answers on another.
    death_asks_kernels,
    /// H6: the kernel is tested out of turn at most every quarter of a second.
    questions_have_pauses,
    /// Corruption: streams on which nothing is acknowledged before they end are opened with growing pauses.
    fruitless_streams_pause,
    /// H6: a silent process whose kernel answers is stopped, and not given up.
    kernel_witness,
    /// Rails are first used at moments that lie apart. Otherwise one that breaks in step with the kernel's ARP/ND
    /// requests would always be found broken.
    first_contacts_lie_apart,
    /// H8: an epoch is agreed, not chosen: Up only after the other side has answered in that epoch.
    agreed_epoch,
    /// H30: a hello in the name of a process that has proved itself takes effect only with a proof.
    hellos_are_proved,
    /// H28: a session that is forgotten and made again has new keys.
    sessions_are_fresh,
    /// H8: an accepted epoch may begin late: its proposer waits for this side alone, and does not know that its first
    /// packet was lost.
    accepted_stays,
    /// H9: the granule of a message is fixed when it is announced.
    fixed_granule,
    /// H10: masks are OR-ed, never replaced.
    or_masks,
    /// H10: what was sent twice gives no sample of a path's time or rate.
    no_ambiguous_samples,
    /// H11: what was executed is remembered by watermark: below it, acknowledge only.
    watermarks,
    /// H12: time during which this process was away counts against no peer.
    absence_is_not_silence,
    /// H13: verdicts travel on the other paths.
    shared_verdicts,
    /// H15: a full completion queue stops matching, never acknowledging.
    full_queue_acknowledges,
    /// H15: only what is unmatched is cancelled.
    cancel_only_unmatched,
    /// H15: truncation is reported when everything that fits has arrived.
    truncation_waits,
    /// H17: an answer given without the engine proves the path, not the engine.
    bypass_is_no_engine,
    /// H4c: acks, grants and credits never queue behind bulk.
    control_first,
    /// Invariant 3: a path that corrupts past the threshold is taken out of service, and this is reported to the peer.
    corruption_verdict,
    /// Invariant 6: the last working path is never quarantined.
    last_path_is_spared,
    /// Invariant 3: after a quarantine a path carries traffic only when long queries passed without a fault.
    quarantine_needs_proof,
    /// Invariant 3: what claims less coverage than was agreed is refused.
    no_downgrade,
    /// Invariant 3: less is summed only when the peer is known to expect less.
    agreed_coverage,
    /// PML DR §3.3: losses of a vfrag are counted against the rail, and what was lost there goes over another.
    retransmit_levels,
    /// H14: a send that was promised at delivery does not complete when it is buffered.
    delivery_waits,
    /// H14: a send that was promised at its match is announced, so that only a receive completes it.
    match_waits,
    /// H18: a source is an endpoint of a process, not a process.
    endpoints_differ,
    /// An acknowledgement names the packets that arrived, and not the one before.
    acks_end_exactly,
    /// Late acknowledgements of a dead epoch are not taken for the present one.
    acks_name_their_epoch,
    /// Nor are those of one lane taken for another's.
    acks_name_their_lane,
    /// A lane that was moved to another route is heard by the new one only.
    replaced_streams_end,
    /// A lane that the peer leaves, or merges with the others, keeps what is under way on it.
    left_lanes_keep_records,
    /// H9: a path that breaks gives back what was on any of its lanes.
    lanes_fail_with_their_path,
    /// What was hedged is sent again when its copy is lost too.
    lost_hedges_are_sent,
    /// A handshake that was given up is tried again.
    retries_go_on,
    /// A grant, refusal or withdrawal that is lost with its packet is sent again.
    control_survives,
    /// Copies of sends count against their bound.
    retained_is_bounded,
    /// Unexpected payload counts against its bound.
    unexpected_is_bounded,
    /// Refused payload is not acknowledged.
    refused_is_kept,
    /// A message waits for those before it, whichever path is quicker.
    sequence_first,
    /// Unexpected messages are kept in the order of their sequence.
    unexpected_in_order,
    /// When a full completion queue has room again, what waited is matched.
    full_queue_resumes,
    /// A multi-receive is given back when the last message in it is done.
    multi_waits,
    /// A cancelled multi-receive is given back when the last message in it is done.
    cancelled_multi_waits,
    /// A claimed message matches no other receive.
    claims_reserve,
    /// A fragment whose checksum is wrong is dropped.
    payload_is_checked,
    /// A grant that comes again grants nothing more.
    grants_are_idempotent,
    /// No more is granted than the receive takes.
    grants_are_cut,
    /// A rail that comes back is tried.
    link_up_is_heard,
    /// A stream that was full is polled again when it has room.
    writable_resumes,
    /// What a half-written frame carried goes out again when its stream breaks.
    half_written_is_sent,
    /// What was completed is delivered although its process exits.
    exits_deliver,
    /// Orders are carried out in their turn.
    orders_in_sequence,
    /// A range outside its region is refused.
    bounds_are_checked,
    /// A write is answered when its bytes are in their place.
    writes_are_placed,
    /// Nothing reads or writes a region that was given up.
    regions_are_fenced,
    /// H30: an order gives its memory to one message, whatever ids the peer chooses.
    one_message_per_order,
    /// H30: what a process keeps for a peer's orders is bounded by itself.
    answers_are_bounded,
    /// H19: what an adapter may still write is sent again only when the peer has fenced its stream.
    doubts_are_fenced,
    /// H19: a fragment of which a copy may be under way is not written by an adapter.
    fragments_are_placed_once,
    /// H22: the notice of a write goes out behind it, on the same stream.
    notices_follow_writes,
    /// H19: where streams break one after the other with writes unresolved, fragments go as copies for a while.
    broken_writes_pause,
    /// H19: a stream is reported as fenced when its close is confirmed, not when it is requested.
    fences_are_waited_for,
    /// A send is reported when no adapter reads its memory any more.
    sources_are_waited_for,
    /// A receive that failed is reported when no adapter writes into its memory any more.
    targets_are_waited_for,
    /// H21: the name of a region, of which a rail may make its key, is used once.
    keys_are_used_once,
    /// H23: a connection over adapters that demand that the connecting side sends first counts as connected at the other side when it has. Not a rule of
    /// the engine: rails keep it, those of the simulator too, and only they look at this.
    client_speaks_first,
    /// What a read sends is copied before it is summed: the memory may change meanwhile.
    reads_are_copied,
    /// H24: an adapter is armed with a path that answers, and unloaded when it does not.
    armed_paths_are_probed,
    /// When a rail's link goes down, a stream whose adapters are armed is moved to its alternate path before its path is given up.
    armed_streams_outlive_links,
    /// H25: of the rails of several kinds on one physical port, those of the best kind carry, and the others stand by.
    one_kind_carries,
}
