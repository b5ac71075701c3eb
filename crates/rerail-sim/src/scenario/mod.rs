//! Named stories: at least one for each hazard, with the remedies whose absence it must show.
//!
//! A story is a scripted world. It must hold with all remedies on, and break a promise without the remedy: the second half
//! proves that the first can fail. Where the moment cannot be scripted, the story is a small range of seeds with a swarm that
//! is biased to the hazard.

mod alternates;
mod blackout;
mod bounds;
mod bulk;
mod collective;
mod corruption;
mod death;
mod evidence;
mod fabric;
mod farewell;
mod keys;
mod lanes;
mod liar;
mod loans;
mod memory;
mod migration;
mod onesided;
mod operations;
mod order;
mod policy;
mod ports;
mod probes;
mod suspicion;

use crate::app::{RecvSpec, SendSpec};
use crate::link::MS;
use crate::world::process::Process;
use crate::world::{Config, World};
use rerail_core::{EventKind, PathReport, Remedies};

/// How a story is told.
#[derive(Debug, Clone, Copy)]
pub struct Story {
    /// Remedies that are on.
    pub remedies: Remedies,
    /// Prints what happens.
    pub trace: bool,
}

impl Story {
    /// With every remedy.
    pub fn safe() -> Self {
        Self { remedies: Remedies::default(), trace: false }
    }

    /// Without one of them.
    pub fn without(name: &str) -> Self {
        Self { remedies: crate::remedy::without(name), trace: false }
    }

    /// The world of the story.
    pub(crate) fn world(&self, mut cfg: Config) -> World {
        cfg.remedies = self.remedies;
        let mut w = World::new(cfg);
        w.print = self.trace;
        w.keep_events = true;
        w
    }
}

/// A named story.
#[derive(Debug)]
pub struct Scenario {
    /// The hazard.
    pub hazard: &'static str,
    /// Name: the promise.
    pub name: &'static str,
    /// Remedies, and the promise that is broken without each: what the failure says.
    pub remedies: &'static [(&'static str, &'static str)],
    /// Tells it; panics when a promise is broken.
    pub run: fn(&Story),
}

/// All of them.
pub const ALL: &[Scenario] = &[
    Scenario {
        hazard: "H1",
        name: "a_half_written_frame_never_shows_memory_that_was_given_back",
        remedies: &[("abort_trailer", "no false completion")],
        run: memory::half_written_frame,
    },
    Scenario {
        hazard: "H2",
        name: "a_half_read_frame_never_writes_over_what_another_path_delivered",
        remedies: &[("placement_lease", "intact")],
        run: memory::half_read_frame,
    },
    Scenario {
        hazard: "H3",
        name: "a_stopped_peer_is_not_a_broken_path",
        remedies: &[("differential_query", "a busy peer is not a broken path")],
        run: evidence::stopped_peer,
    },
    Scenario {
        hazard: "H19",
        name: "what_goes_again_completes_nothing_before_the_fence",
        remedies: &[("fences_are_waited_for", "fenced"), ("doubts_are_fenced", "fenced")],
        run: loans::fence,
    },
    Scenario {
        hazard: "H19",
        name: "a_receive_that_fails_is_over_when_nothing_can_be_written",
        remedies: &[("targets_are_waited_for", "fenced")],
        run: loans::withdrawn,
    },
    Scenario {
        hazard: "H21",
        name: "a_key_opens_the_memory_of_one_message_and_of_no_other",
        remedies: &[("keys_are_used_once", "fenced")],
        run: loans::keys,
    },
    Scenario {
        hazard: "H23",
        name: "a_connection_counts_when_the_side_that_made_it_has_sent_first",
        remedies: &[("client_speaks_first", "live")],
        run: loans::client_first,
    },
    Scenario {
        hazard: "H19",
        name: "a_rail_whose_writes_are_refused_carries_copies",
        remedies: &[("broken_writes_pause", "bounded")],
        run: loans::refused,
    },
    Scenario {
        hazard: "H19",
        name: "sources_that_no_adapter_can_read_go_as_copies",
        remedies: &[],
        run: loans::unreadable,
    },
    Scenario {
        hazard: "H21",
        name: "a_grant_waits_for_the_keys_so_that_nothing_goes_as_a_copy",
        remedies: &[],
        run: loans::keys_with_the_grant,
    },
    Scenario {
        hazard: "H21",
        name: "a_grant_does_not_wait_long_for_keys_and_not_again_for_a_while",
        remedies: &[],
        run: loans::keys_that_come_late,
    },
    Scenario {
        hazard: "H3",
        name: "a_dark_route_takes_a_lane_and_not_its_path",
        remedies: &[],
        run: lanes::dark_routes,
    },
    Scenario {
        hazard: "H3",
        name: "a_stream_on_a_dark_route_is_led_over_another_within_milliseconds",
        remedies: &[],
        run: lanes::moved_soon,
    },
    Scenario {
        hazard: "lanes",
        name: "lanes_leave_crowded_routes_and_nothing_goes_twice",
        remedies: &[("left_lanes_keep_records", "live")],
        run: lanes::crowded_routes_are_left,
    },
    Scenario {
        hazard: "lanes",
        name: "traffic_pays_for_lanes_over_other_routes_and_they_go_when_it_ends",
        remedies: &[],
        run: fabric::more_lanes,
    },
    Scenario {
        hazard: "lanes",
        name: "lanes_that_share_a_bottleneck_are_merged_and_nothing_goes_twice",
        remedies: &[],
        run: lanes::merged,
    },
    Scenario {
        hazard: "lanes",
        name: "a_lane_that_cannot_be_emptied_in_time_is_merged_later",
        remedies: &[],
        run: lanes::merged_late,
    },
    Scenario {
        hazard: "H3",
        name: "datagrams_on_a_dark_route_are_led_over_another_by_either_side",
        remedies: &[],
        run: lanes::datagrams_are_led,
    },
    Scenario {
        hazard: "H3",
        name: "processes_meet_over_the_routes_that_work",
        remedies: &[],
        run: lanes::met_over_dark_routes,
    },
    Scenario {
        hazard: "H3",
        name: "a_busy_path_and_a_peer_that_is_gone_leave_no_detour_behind",
        remedies: &[],
        run: lanes::nothing_stays_led,
    },
    Scenario {
        hazard: "H3",
        name: "a_dark_way_back_is_left_although_its_sender_waits_for_nothing",
        remedies: &[],
        run: lanes::the_way_back_is_dark,
    },
    Scenario {
        hazard: "H12",
        name: "a_peer_that_was_only_busy_is_not_left_on_a_detour",
        remedies: &[],
        run: lanes::busy_is_no_dead_route,
    },
    Scenario {
        hazard: "H3",
        name: "pairs_that_meet_on_a_link_inside_the_fabric_share_it_and_blame_no_rail",
        remedies: &[],
        run: fabric::crowded,
    },
    Scenario {
        hazard: "H3",
        name: "an_incast_of_many_lanes_leaves_room_for_queries",
        remedies: &[],
        run: fabric::incast,
    },
    Scenario {
        hazard: "H3",
        name: "a_link_that_goes_dark_inside_the_fabric_is_left",
        remedies: &[],
        run: fabric::dark,
    },
    Scenario {
        hazard: "H9",
        name: "a_path_that_breaks_gives_back_what_was_on_all_its_lanes",
        remedies: &[("lanes_fail_with_their_path", "only a connected path has a stream")],
        run: lanes::all_with_the_path,
    },
    Scenario {
        hazard: "H9",
        name: "an_acknowledgement_is_for_one_lane",
        remedies: &[("acks_name_their_lane", "nothing breaks, and something goes again")],
        run: lanes::own_numbers,
    },
    Scenario {
        hazard: "H4a",
        name: "payload_over_the_bound_is_refused_and_the_sequence_goes_on",
        remedies: &[("refuse_over_bound", "live")],
        run: bounds::payload_over_the_bound,
    },
    Scenario {
        hazard: "H4b",
        name: "a_hundred_thousand_unexpected_messages_do_not_block_the_next_tag",
        remedies: &[("envelopes_grow", "live")],
        run: bounds::many_unexpected,
    },
    Scenario {
        hazard: "H4c",
        name: "a_grant_overtakes_a_flood_of_small_messages",
        remedies: &[("control_first", "live")],
        run: bounds::grant_behind_flood,
    },
    Scenario {
        hazard: "H5",
        name: "what_was_sent_before_leaving_arrives_although_the_rail_went_dark",
        remedies: &[("farewell", "live")],
        run: farewell::lost_farewell,
    },
    Scenario {
        hazard: "H5",
        name: "whoever_has_heard_a_goodbye_may_leave_first",
        remedies: &[],
        run: farewell::parted,
    },
    Scenario {
        hazard: "H5",
        name: "a_farewell_in_the_dark_waits_for_the_repair_or_the_deadline",
        remedies: &[("patient_farewell", "live")],
        run: farewell::long_dark,
    },
    Scenario {
        hazard: "H5",
        name: "a_goodbye_whose_answer_is_lost_does_not_hold_the_process_up",
        remedies: &[],
        run: farewell::lost_answer,
    },
    Scenario {
        hazard: "H6",
        name: "the_end_of_a_process_is_known_in_seconds_and_the_others_go_on",
        remedies: &[("death_verdict", "live")],
        run: death::killed,
    },
    Scenario {
        hazard: "H6",
        name: "who_is_killed_in_the_middle_of_a_handshake_is_not_waited_for",
        remedies: &[],
        run: death::killed_in_handshake,
    },
    Scenario {
        hazard: "H6",
        name: "a_process_killed_before_it_is_met_is_known_as_soon_as_another",
        remedies: &[],
        run: death::killed_unmet,
    },
    Scenario {
        hazard: "H8",
        name: "an_accepted_epoch_may_begin_late",
        remedies: &[("accepted_stays", "live")],
        run: death::accepted_and_cut,
    },
    Scenario {
        hazard: "H6",
        name: "a_rail_that_refuses_beside_one_that_accepts_starts_no_storm",
        remedies: &[("questions_have_pauses", "bounded")],
        run: death::refused_and_accepted,
    },
    Scenario {
        hazard: "H6",
        name: "a_firewall_that_refuses_for_seconds_kills_nobody",
        remedies: &[("death_needs_proof", "live")],
        run: death::firewall,
    },
    Scenario {
        hazard: "H6",
        name: "who_was_not_asked_is_not_dead_because_it_is_refused",
        remedies: &[("death_needs_questions", "live")],
        run: death::idle_behind_firewall,
    },
    Scenario {
        hazard: "H6",
        name: "a_kernel_that_answered_before_the_refusal_is_asked_again",
        remedies: &[("death_asks_kernels", "live")],
        run: death::starved_behind_firewall,
    },
    Scenario {
        hazard: "H6",
        name: "a_stopped_process_is_called_stopped_and_never_given_up",
        remedies: &[("kernel_witness", "live")],
        run: death::stopped,
    },
    Scenario {
        hazard: "H6",
        name: "who_was_left_alone_for_long_is_not_called_cut_off_when_something_is_wanted",
        remedies: &[("silence_needs_questions", "evidence")],
        run: death::left_alone,
    },
    Scenario {
        hazard: "H6",
        name: "who_is_waited_for_is_asked_as_ever_however_many_are_idle",
        remedies: &[("awaited_are_asked", "evidence")],
        run: probes::waited_for,
    },
    Scenario {
        hazard: "H6",
        name: "a_neighbour_that_was_left_alone_is_asked_when_its_answer_is_the_proof",
        remedies: &[("awaited_are_asked", "live")],
        run: probes::idle_neighbour,
    },
    Scenario {
        hazard: "probes",
        name: "questions_on_idle_paths_are_bounded_however_many_there_are",
        remedies: &[("probes_are_bounded", "bounded")],
        run: probes::bounded,
    },
    Scenario {
        hazard: "H6",
        name: "who_is_stopped_with_full_streams_is_not_given_up_at_a_short_deadline",
        remedies: &[],
        run: death::stopped_when_full,
    },
    Scenario {
        hazard: "H6",
        name: "a_process_that_is_stopped_when_it_is_met_is_not_given_up",
        remedies: &[],
        run: death::stopped_when_met,
    },
    Scenario {
        hazard: "H6",
        name: "who_has_the_port_of_a_dead_process_is_not_taken_for_it",
        remedies: &[],
        run: death::taken_port,
    },
    Scenario {
        hazard: "H7",
        name: "a_verdict_is_final_and_both_sides_learn_of_it",
        remedies: &[("tell_the_entombed", "never a silent hang")],
        run: death::wrong_verdict,
    },
    Scenario {
        hazard: "H8",
        name: "processes_that_meet_first_agree_at_once",
        remedies: &[],
        run: evidence::first_meeting,
    },
    Scenario {
        hazard: "H8",
        name: "two_sides_that_reconnect_at_once_agree_on_one_epoch",
        remedies: &[("agreed_epoch", "a busy peer is not a broken path")],
        run: evidence::epoch_collision,
    },
    Scenario {
        hazard: "H9",
        name: "a_fragment_cut_for_a_stream_arrives_whole_in_datagrams",
        remedies: &[("fixed_granule", "intact")],
        run: order::fragment_moves_to_datagrams,
    },
    Scenario {
        hazard: "H9",
        name: "acknowledged_pieces_outlive_a_stream_that_comes_late",
        remedies: &[],
        run: order::late_stream,
    },
    Scenario {
        hazard: "H10",
        name: "an_older_mask_that_arrives_later_takes_nothing_back",
        remedies: &[("or_masks", "live")],
        run: order::masks_cross,
    },
    Scenario {
        hazard: "H10",
        name: "an_acknowledgement_of_what_was_sent_twice_measures_nothing",
        remedies: &[("no_ambiguous_samples", "evidence")],
        run: evidence::ambiguous_sample,
    },
    Scenario {
        hazard: "H11",
        name: "what_was_executed_is_not_executed_again",
        remedies: &[("watermarks", "intact")],
        run: order::forgotten_duplicate,
    },
    Scenario {
        hazard: "H12",
        name: "a_suspended_machine_blames_nobody_when_it_wakes",
        remedies: &[("absence_is_not_silence", "live")],
        run: evidence::suspended_machine,
    },
    Scenario {
        hazard: "H3",
        name: "a_rail_that_is_full_for_others_is_not_broken_for_who_is_seldom_asked",
        remedies: &[("crowds_are_patient", "a busy peer is not a broken path")],
        run: evidence::crowded_rail,
    },
    Scenario {
        hazard: "H3",
        name: "a_stream_that_a_busy_process_has_not_read_is_not_replaced",
        remedies: &[("stuck_streams_are_looked_at", "busy peer")],
        run: evidence::unread_streams,
    },
    Scenario {
        hazard: "H3",
        name: "after_a_blackout_bulk_does_not_wait_for_what_failed_in_the_dark",
        remedies: &[("silence_is_forgiven", "evidence")],
        run: blackout::bulk_goes_on,
    },
    Scenario {
        hazard: "H3",
        name: "a_rail_that_is_held_down_is_used_when_the_last_other_is_silent",
        remedies: &[],
        run: blackout::held_down,
    },
    Scenario {
        hazard: "H3",
        name: "a_job_that_starts_while_all_rails_flap_waits_a_second_at_most",
        remedies: &[("first_contacts_lie_apart", "evidence")],
        run: blackout::first_contact,
    },
    Scenario {
        hazard: "H3",
        name: "who_talks_to_many_over_a_rail_that_goes_dark_waits_once",
        remedies: &[
            ("rails_are_swept", "evidence"),
            ("doubted_paths_are_avoided", "evidence"),
            ("askers_are_asked", "evidence"),
        ],
        run: suspicion::one_after_the_other,
    },
    Scenario {
        hazard: "H3",
        name: "a_rail_that_breaks_at_the_far_end_is_blamed_for_nobody_else",
        remedies: &[],
        run: suspicion::at_the_far_end,
    },
    Scenario {
        hazard: "H13",
        name: "the_verdict_of_one_side_reaches_the_other_at_once",
        remedies: &[("shared_verdicts", "evidence")],
        run: evidence::shared_verdict,
    },
    Scenario {
        hazard: "H14",
        name: "a_delivery_is_reported_when_the_receiver_has_it_and_not_before",
        remedies: &[],
        run: farewell::delivery_complete,
    },
    Scenario {
        hazard: "H14",
        name: "a_match_is_reported_when_a_receive_has_taken_the_message_and_not_before",
        remedies: &[("match_waits", "no false completion")],
        run: farewell::match_complete,
    },
    Scenario {
        hazard: "H15",
        name: "a_full_queue_stops_matching_and_never_acknowledging",
        remedies: &[("full_queue_acknowledges", "live")],
        run: operations::full_queue,
    },
    Scenario {
        hazard: "H15",
        name: "only_what_is_unmatched_is_cancelled",
        remedies: &[("cancel_only_unmatched", "fenced")],
        run: operations::cancel_under_way,
    },
    Scenario {
        hazard: "H15",
        name: "a_message_that_is_cut_is_reported_when_what_fits_is_there",
        remedies: &[("truncation_waits", "intact")],
        run: operations::cut_messages,
    },
    Scenario {
        hazard: "H17",
        name: "an_answer_of_the_service_thread_proves_the_path_not_the_engine",
        remedies: &[("bypass_is_no_engine", "evidence")],
        run: evidence::locked_engine,
    },
    Scenario {
        hazard: "corruption",
        name: "a_rail_that_corrupts_is_quarantined_and_the_good_one_is_not",
        remedies: &[("corruption_verdict", "intact")],
        run: corruption::quarantined,
    },
    Scenario {
        hazard: "corruption",
        name: "a_rail_in_quarantine_carries_nothing_while_it_still_corrupts",
        remedies: &[("quarantine_needs_proof", "intact")],
        run: corruption::proof,
    },
    Scenario {
        hazard: "corruption",
        name: "streams_that_carry_nothing_are_not_made_without_pause",
        remedies: &[("fruitless_streams_pause", "bounded")],
        run: corruption::for_nothing,
    },
    Scenario {
        hazard: "corruption",
        name: "the_last_rail_goes_on_whatever_it_corrupts",
        remedies: &[("last_path_is_spared", "a busy peer is not a broken path")],
        run: corruption::last_rail,
    },
    Scenario {
        hazard: "corruption",
        name: "two_rails_that_corrupt_one_in_a_thousand_deliver_every_byte",
        remedies: &[],
        run: corruption::both_rails,
    },
    Scenario {
        hazard: "corruption",
        name: "a_rail_that_damages_fragments_is_taken_out_at_the_level",
        remedies: &[("retransmit_levels", "evidence")],
        run: corruption::level,
    },
    Scenario {
        hazard: "corruption",
        name: "less_is_summed_only_when_both_sides_know_it",
        remedies: &[("agreed_coverage", "intact")],
        run: corruption::agreement,
    },
    Scenario {
        hazard: "corruption",
        name: "a_packet_that_claims_less_coverage_is_refused",
        remedies: &[("no_downgrade", "intact")],
        run: corruption::downgrade,
    },
    Scenario {
        hazard: "corruption",
        name: "a_checksum_of_headers_finds_damaged_headers",
        remedies: &[],
        run: corruption::headers,
    },
    Scenario {
        hazard: "recovery",
        name: "a_message_lost_on_the_rail_whose_turn_it_is_goes_over_the_other",
        remedies: &[],
        run: corruption::lost_in_turn,
    },
    Scenario {
        hazard: "corruption",
        name: "without_protection_a_quiet_network_delivers_and_a_break_is_an_error",
        remedies: &[],
        run: corruption::unprotected,
    },
    Scenario {
        hazard: "policies",
        name: "every_policy_gives_the_rails_the_shares_it_promises",
        remedies: &[],
        run: policy::spreads,
    },
    Scenario {
        hazard: "policies",
        name: "a_rail_that_takes_little_at_a_time_is_measured_and_slower_ones_carry_their_share",
        remedies: &[],
        run: policy::small_windows,
    },
    Scenario {
        hazard: "policies",
        name: "many_messages_below_the_threshold_use_every_rail_and_single_ones_the_fastest",
        remedies: &[],
        run: policy::below_the_threshold,
    },
    Scenario {
        hazard: "policies",
        name: "round_robin_gives_out_whole_messages_in_turn",
        remedies: &[],
        run: policy::round_robin,
    },
    Scenario {
        hazard: "policies",
        name: "under_every_policy_a_broken_rail_is_left_out_and_taken_back",
        remedies: &[],
        run: policy::survives,
    },
    Scenario {
        hazard: "APM",
        name: "a_fault_migrates_to_the_armed_alternate_and_the_next_is_armed",
        remedies: &[],
        run: migration::fault,
    },
    Scenario {
        hazard: "APM",
        name: "an_alternate_that_breaks_while_idle_is_replaced",
        remedies: &[],
        run: migration::idle_alternate,
    },
    Scenario {
        hazard: "APM",
        name: "the_alternate_that_the_user_named_takes_over",
        remedies: &[],
        run: migration::named_alternate,
    },
    Scenario {
        hazard: "APM",
        name: "a_migration_on_request_under_load_loses_and_repeats_nothing",
        remedies: &[],
        run: migration::on_request,
    },
    Scenario {
        hazard: "APM",
        name: "a_request_that_cannot_be_met_is_refused_with_the_reason",
        remedies: &[],
        run: migration::refused,
    },
    Scenario {
        hazard: "APM",
        name: "after_a_blackout_the_rail_in_standby_carries",
        remedies: &[],
        run: migration::blackout,
    },
    Scenario {
        hazard: "APM",
        name: "a_stream_whose_rail_goes_dark_goes_on_over_the_other_port_without_a_fence",
        remedies: &[],
        run: alternates::goes_on,
    },
    Scenario {
        hazard: "APM",
        name: "a_stream_whose_link_goes_down_is_moved_before_its_path_is_given_up",
        remedies: &[("armed_streams_outlive_links", "migration")],
        run: alternates::link_down,
    },
    Scenario {
        hazard: "H24",
        name: "a_path_without_a_link_is_given_up_when_its_alternate_carries_nothing",
        remedies: &[],
        run: alternates::link_down_in_vain,
    },
    Scenario {
        hazard: "H24",
        name: "an_adapter_is_armed_with_a_path_that_answers_and_with_no_other",
        remedies: &[("armed_paths_are_probed", "armed")],
        run: alternates::dead_alternate,
    },
    Scenario {
        hazard: "H24",
        name: "when_both_ports_of_an_adapter_die_the_software_fails_over_to_a_third_rail",
        remedies: &[],
        run: alternates::both_ports,
    },
    Scenario {
        hazard: "APM",
        name: "a_migration_that_races_with_a_fence_writes_into_no_memory_that_was_given_back",
        remedies: &[],
        run: alternates::races_with_a_fence,
    },
    Scenario {
        hazard: "APM",
        name: "on_request_the_adapter_takes_along_what_is_under_way",
        remedies: &[],
        run: alternates::on_request,
    },
    Scenario {
        hazard: "APM",
        name: "a_stream_that_left_a_sound_path_comes_home",
        remedies: &[],
        run: alternates::comes_home,
    },
    Scenario {
        hazard: "APM",
        name: "an_alternate_that_is_refused_is_not_requested_again_and_again",
        remedies: &[],
        run: alternates::refused,
    },
    Scenario {
        hazard: "H25",
        name: "of_two_kinds_on_one_port_the_better_carries_and_the_other_stands_by",
        remedies: &[("one_kind_carries", "port")],
        run: ports::stands_by,
    },
    Scenario {
        hazard: "H25",
        name: "an_interface_stands_by_for_an_adapter_without_streams",
        remedies: &[("one_kind_carries", "port")],
        run: ports::stands_by_without_streams,
    },
    Scenario {
        hazard: "H25",
        name: "a_device_that_hangs_leaves_its_port_to_the_other_kind",
        remedies: &[("one_kind_carries", "port")],
        run: ports::device,
    },
    Scenario {
        hazard: "H25",
        name: "a_port_that_fails_is_one_fault_and_takes_no_traffic_over",
        remedies: &[],
        run: ports::one_verdict,
    },
    Scenario {
        hazard: "H25",
        name: "a_device_and_later_its_port_are_two_faults",
        remedies: &[],
        run: ports::two_verdicts,
    },
    Scenario {
        hazard: "recovery",
        name: "a_rail_that_is_plugged_in_again_is_used_at_once",
        remedies: &[],
        run: migration::quick_return,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "a_rail_is_used_up_by_datagrams_and_no_burst_is_too_long",
        remedies: &[],
        run: bulk::fills_the_rail,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "where_tcp_is_blocked_on_one_rail_both_carry",
        remedies: &[],
        run: bulk::tcp_blocked_on_one,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "where_tcp_is_blocked_everywhere_bulk_flows_as_datagrams",
        remedies: &[],
        run: bulk::tcp_blocked_on_all,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "losses_by_chance_leave_the_rate_of_bulk_datagrams",
        remedies: &[],
        run: bulk::losses,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "the_last_datagrams_of_a_message_are_missed_at_once",
        remedies: &[],
        run: bulk::lost_tail,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "two_senders_share_a_bottleneck_and_neither_starves",
        remedies: &[],
        run: bulk::shared_bottleneck,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "small_messages_do_not_wait_for_bulk_that_vanishes",
        remedies: &[],
        run: bulk::small_beside_bulk,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "bulk_datagrams_of_a_broken_rail_go_over_the_other",
        remedies: &[],
        run: bulk::broken_rail,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "udp_that_is_blocked_on_the_only_rail_gives_way_to_tcp_and_comes_back",
        remedies: &[],
        run: bulk::udp_blocked_on_only,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "a_rail_whose_udp_is_blocked_carries_on_over_tcp",
        remedies: &[],
        run: bulk::udp_blocked_on_one,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "bulk_datagrams_that_all_vanish_give_way_to_what_passes",
        remedies: &[],
        run: bulk::bulk_blocked,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "where_only_short_datagrams_pass_messages_go_over_tcp",
        remedies: &[],
        run: bulk::only_short_pass,
    },
    Scenario {
        hazard: "bulk over UDP",
        name: "what_arrived_is_not_sent_again_when_its_acknowledgement_is_lost",
        remedies: &[],
        run: bulk::lost_last_acknowledgement,
    },
    Scenario {
        hazard: "path MTU",
        name: "an_mtu_black_hole_is_found_and_costs_no_path",
        remedies: &[],
        run: bulk::black_hole,
    },
    Scenario {
        hazard: "one-sided",
        name: "a_striped_write_is_whole_when_it_is_done_although_a_rail_is_cut",
        remedies: &[("writes_are_placed", "intact")],
        run: onesided::striped,
    },
    Scenario {
        hazard: "one-sided",
        name: "writes_one_by_one_do_not_wait_for_the_repair",
        remedies: &[],
        run: onesided::one_by_one,
    },
    Scenario {
        hazard: "one-sided",
        name: "a_write_by_itself_travels_inside_its_order",
        remedies: &[],
        run: onesided::alone,
    },
    Scenario {
        hazard: "one-sided",
        name: "atomic_operations_take_effect_once_over_failing_rails",
        remedies: &[("watermarks", "exactly once")],
        run: onesided::exact,
    },
    Scenario {
        hazard: "one-sided",
        name: "nobody_touches_a_region_that_was_unregistered",
        remedies: &[("regions_are_fenced", "fenced")],
        run: onesided::unregistered,
    },
    Scenario {
        hazard: "one-sided",
        name: "an_order_that_fits_no_datagram_is_fetched_and_keeps_its_turn",
        remedies: &[("orders_in_sequence", "intact")],
        run: onesided::fetched,
    },
    Scenario {
        hazard: "one-sided",
        name: "memory_that_changes_while_it_is_read_blames_no_rail",
        remedies: &[("reads_are_copied", "intact")],
        run: onesided::changing,
    },
    Scenario {
        hazard: "one-sided",
        name: "a_range_that_ends_outside_its_region_is_refused_whole",
        remedies: &[("bounds_are_checked", "fenced")],
        run: onesided::beyond,
    },
    Scenario {
        hazard: "one-sided",
        name: "operations_on_a_process_that_is_gone_end_in_errors",
        remedies: &[],
        run: onesided::lost,
    },
    Scenario {
        hazard: "one-sided",
        name: "who_closes_waits_for_its_one_sided_operations",
        remedies: &[],
        run: onesided::closing,
    },
    Scenario {
        hazard: "H30",
        name: "an_id_that_a_peer_repeats_opens_no_memory_twice",
        remedies: &[("one_message_per_order", "fenced")],
        run: liar::repeated_ids,
    },
    Scenario {
        hazard: "H30",
        name: "a_peer_that_orders_without_end_is_given_a_bounded_memory",
        remedies: &[("answers_are_bounded", "bounded")],
        run: liar::greedy_orders,
    },
    Scenario {
        hazard: "H30",
        name: "who_knows_every_token_cannot_pass_for_another_rank",
        remedies: &[("hellos_are_proved", "authentic")],
        run: keys::third_rank,
    },
    Scenario {
        hazard: "H30",
        name: "a_hello_in_anothers_name_does_not_keep_that_one_out",
        remedies: &[],
        run: keys::third_rank_first,
    },
    Scenario {
        hazard: "H28",
        name: "a_session_that_is_made_again_has_other_keys",
        remedies: &[("sessions_are_fresh", "sealed")],
        run: keys::renewed,
    },
    Scenario {
        hazard: "collective",
        name: "a_rail_goes_dark_and_heals_and_every_collective_operation_is_exact",
        remedies: &[],
        run: collective::dark_rail,
    },
    Scenario {
        hazard: "collective",
        name: "who_dies_in_a_collective_operation_is_named_to_all_others_and_nobody_waits",
        remedies: &[],
        run: collective::death,
    },
    Scenario {
        hazard: "collective",
        name: "a_group_that_not_all_could_make_ends_what_is_begun_in_it",
        remedies: &[],
        run: collective::half_made,
    },
    Scenario {
        hazard: "collective",
        name: "collective_operations_that_do_not_fit_end_and_write_nothing_beyond",
        remedies: &[],
        run: collective::mismatch,
    },
    Scenario {
        hazard: "collective",
        name: "who_closes_in_a_collective_operation_has_its_memory_back",
        remedies: &[],
        run: collective::closed,
    },
    Scenario {
        hazard: "collective",
        name: "two_groups_of_the_same_members_never_mix",
        remedies: &[],
        run: collective::twins,
    },
];

/// Two processes that have exchanged a message and have a stream on every path.
pub(crate) fn warm_up(w: &mut World) {
    for (a, b) in [(0, 1), (1, 0)] {
        w.recv(RecvSpec::class(b, 200, 64));
        w.send(SendSpec::tagged(a, b, 200, 10)).expect("the first message is accepted");
    }
    let connected = |w: &World, p: &Process| {
        let has_streams = |x: &PathReport| x.streams > 0 || w.saves_streams(p.nets[usize::from(x.rail.0)]);
        p.engine.as_ref().is_some_and(|e| e.paths().iter().filter(|x| x.peer_name != 0).all(has_streams))
    };
    let ready =
        w.run_until(5_000 * MS, |w| w.oracle.pending_count() == 0 && w.procs.iter().all(|p| connected(w, p)));
    assert!(ready, "live: two healthy processes do not connect: {}", w.describe());
    w.run_for(20 * MS);
}

/// Whether message `id` was received.
pub(crate) fn received(w: &World, id: u64) -> bool {
    w.oracle.msgs[id as usize].taken.is_some()
}

/// Whether the send of message `id` has completed.
pub(crate) fn sent(w: &World, id: u64) -> bool {
    w.oracle.msgs[id as usize].sent
}

/// Runs until process `p` has an event that `f` selects.
pub(crate) fn until_event(w: &mut World, p: usize, ns: u64, f: fn(&EventKind) -> bool) -> bool {
    let from = w.events.len();
    w.run_finely(ns, |w| w.events[from..].iter().any(|e| e.1 == p && f(&e.2.kind)))
}
