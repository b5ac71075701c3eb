//! Every story twice: with all remedies it holds, without its remedy a promise is broken and the simulator sees it.

use rerail_sim::adapter::everywhere;
use rerail_sim::run::{breaks as promise_breaks, quietly};
use rerail_sim::scenario::{ALL, Scenario, Story};

fn find(name: &str) -> &'static Scenario {
    ALL.iter().find(|s| s.name == name).unwrap_or_else(|| panic!("no story is called {name}"))
}

fn holds(name: &str) {
    let s = find(name);
    if let Err(e) = quietly(|| (s.run)(&Story::safe())) {
        panic!(
            "{} {name}: {e}\nreplay: cargo run -p rerail-sim --bin rerail-sim -- --scenario {name} --trace",
            s.hazard
        );
    }
}

/// What comes of a story without a remedy: an error unless it is this promise that is broken.
fn without(s: &Scenario, remedy: &str, promise: &str) -> Result<(), String> {
    match quietly(|| (s.run)(&Story::without(remedy))) {
        Ok(()) => Err("nothing was noticed".into()),
        Err(e) if promise_breaks(&e, promise) => Ok(()),
        Err(e) => Err(format!("not the promise that it names, `{promise}`: {e}")),
    }
}

fn breaks(name: &str) {
    let s = find(name);
    for (remedy, promise) in s.remedies {
        if let Err(why) = without(s, remedy, promise) {
            panic!("{} {name} without {remedy}: {why}", s.hazard);
        }
    }
}

#[test]
fn a_story_that_breaks_another_promise_is_no_finding() {
    let s = find("a_range_that_ends_outside_its_region_is_refused_whole");
    let [(remedy, promise)] = s.remedies else { panic!("it has one remedy") };
    assert_eq!(without(s, remedy, promise), Ok(()));
    assert!(without(s, remedy, "in order").is_err_and(|e| e.contains("not the promise")));
}

macro_rules! stories {
    ($($name:ident, $without:ident;)*) => {
        $(
            #[test]
            fn $name() {
                holds(stringify!($name));
            }

            #[test]
            #[cfg_attr(not(feature = "planted-bugs"), ignore = "needs --features planted-bugs")]
            fn $without() {
                breaks(stringify!($name));
            }
        )*

        #[test]
        fn every_story_has_its_two_tests() {
            let told = [$(stringify!($name)),*];
            for s in ALL.iter().filter(|s| !s.remedies.is_empty()) {
                assert!(told.contains(&s.name), "{} has no test", s.name);
            }
        }
    };
}

stories! {
    a_half_written_frame_never_shows_memory_that_was_given_back, h1_is_noticed_without_the_abort_trailer;
    who_knows_every_token_cannot_pass_for_another_rank, h30_is_noticed_when_hellos_need_no_proof;
    a_session_that_is_made_again_has_other_keys, h28_is_noticed_when_sessions_are_not_fresh;
    a_half_read_frame_never_writes_over_what_another_path_delivered, h2_is_noticed_without_the_placement_lease;
    the_end_of_a_process_is_known_in_seconds_and_the_others_go_on, h6_is_noticed_without_verdicts;
    streams_that_carry_nothing_are_not_made_without_pause, corruption_is_noticed_when_fruitless_streams_do_not_pause;
    after_a_blackout_bulk_does_not_wait_for_what_failed_in_the_dark, h3_is_noticed_without_forgiveness;
    a_job_that_starts_while_all_rails_flap_waits_a_second_at_most, h3_is_noticed_when_first_contacts_are_at_once;
    a_rail_that_refuses_beside_one_that_accepts_starts_no_storm, h6_is_noticed_when_questions_have_no_pauses;
    a_firewall_that_refuses_for_seconds_kills_nobody, h6_is_noticed_when_a_refusal_is_proof_enough;
    who_was_not_asked_is_not_dead_because_it_is_refused, h6_is_noticed_when_nobody_is_asked;
    a_kernel_that_answered_before_the_refusal_is_asked_again, h6_is_noticed_when_the_kernel_is_not_asked_again;
    a_stopped_process_is_called_stopped_and_never_given_up, h6_is_noticed_without_the_kernels_word;
    who_was_left_alone_for_long_is_not_called_cut_off_when_something_is_wanted, h6_is_noticed_when_silence_needs_no_questions;
    who_is_waited_for_is_asked_as_ever_however_many_are_idle, h6_is_noticed_when_the_awaited_are_not_asked;
    a_neighbour_that_was_left_alone_is_asked_when_its_answer_is_the_proof, h6_is_noticed_when_the_neighbour_is_not_asked;
    questions_on_idle_paths_are_bounded_however_many_there_are, probes_are_noticed_without_a_bound;
    an_accepted_epoch_may_begin_late, h8_is_noticed_when_an_accepted_epoch_is_forgotten;
    a_verdict_is_final_and_both_sides_learn_of_it, h7_is_noticed_when_the_entombed_is_not_told;
    a_farewell_in_the_dark_waits_for_the_repair_or_the_deadline, h5_is_noticed_when_a_farewell_is_impatient;
    a_stopped_peer_is_not_a_broken_path, h3_is_noticed_without_the_differential_query;
    a_rail_that_is_full_for_others_is_not_broken_for_who_is_seldom_asked, h3_is_noticed_when_the_crowd_is_not_asked;
    a_stream_that_a_busy_process_has_not_read_is_not_replaced, h3_is_noticed_when_stuck_streams_are_not_looked_at;
    who_talks_to_many_over_a_rail_that_goes_dark_waits_once, h3_is_noticed_when_rails_are_not_swept;
    payload_over_the_bound_is_refused_and_the_sequence_goes_on, h4a_is_noticed_without_the_refusal;
    a_hundred_thousand_unexpected_messages_do_not_block_the_next_tag, h4b_is_noticed_with_bounded_envelopes;
    a_grant_overtakes_a_flood_of_small_messages, h4c_is_noticed_when_control_waits;
    what_was_sent_before_leaving_arrives_although_the_rail_went_dark, h5_is_noticed_without_the_farewell;
    two_sides_that_reconnect_at_once_agree_on_one_epoch, h8_is_noticed_when_epochs_are_chosen;
    a_fragment_cut_for_a_stream_arrives_whole_in_datagrams, h9_is_noticed_without_the_fixed_granule;
    what_goes_again_completes_nothing_before_the_fence, h19_is_noticed_when_fences_are_answered_early;
    a_receive_that_fails_is_over_when_nothing_can_be_written, h19_is_noticed_when_targets_are_given_back_early;
    a_key_opens_the_memory_of_one_message_and_of_no_other, h21_is_noticed_when_keys_are_used_again;
    a_connection_counts_when_the_side_that_made_it_has_sent_first, h23_is_noticed_when_the_acceptor_sends_first;
    a_rail_whose_writes_are_refused_carries_copies, h19_is_noticed_when_writes_are_tried_for_ever;
    lanes_leave_crowded_routes_and_nothing_goes_twice, lanes_are_noticed_when_records_are_lost_with_them;
    a_path_that_breaks_gives_back_what_was_on_all_its_lanes, h9_is_noticed_when_lanes_are_forgotten;
    an_acknowledgement_is_for_one_lane, h9_is_noticed_when_acknowledgements_name_no_lane;
    an_older_mask_that_arrives_later_takes_nothing_back, h10_is_noticed_when_masks_are_replaced;
    an_acknowledgement_of_what_was_sent_twice_measures_nothing, h10_is_noticed_with_ambiguous_samples;
    what_was_executed_is_not_executed_again, h11_is_noticed_without_watermarks;
    a_suspended_machine_blames_nobody_when_it_wakes, h12_is_noticed_when_absence_counts_as_silence;
    the_verdict_of_one_side_reaches_the_other_at_once, h13_is_noticed_when_verdicts_are_kept;
    a_match_is_reported_when_a_receive_has_taken_the_message_and_not_before, h14_is_noticed_when_a_match_is_not_waited_for;
    a_full_queue_stops_matching_and_never_acknowledging, h15_is_noticed_when_a_full_queue_stops_acknowledging;
    only_what_is_unmatched_is_cancelled, h15_is_noticed_when_what_is_under_way_is_cancelled;
    a_message_that_is_cut_is_reported_when_what_fits_is_there, h15_is_noticed_when_truncation_is_told_early;
    an_answer_of_the_service_thread_proves_the_path_not_the_engine, h17_is_noticed_when_the_bypass_counts_as_the_engine;
    a_rail_that_corrupts_is_quarantined_and_the_good_one_is_not, corruption_is_noticed_without_the_verdict;
    a_rail_in_quarantine_carries_nothing_while_it_still_corrupts, corruption_is_noticed_when_nothing_is_to_be_proved;
    the_last_rail_goes_on_whatever_it_corrupts, corruption_is_noticed_when_the_last_rail_is_quarantined;
    a_rail_that_damages_fragments_is_taken_out_at_the_level, corruption_is_noticed_when_no_level_counts;
    less_is_summed_only_when_both_sides_know_it, corruption_is_noticed_when_coverage_is_not_agreed;
    a_packet_that_claims_less_coverage_is_refused, corruption_is_noticed_when_downgrades_are_taken;
    a_striped_write_is_whole_when_it_is_done_although_a_rail_is_cut, one_sided_is_noticed_when_a_write_is_answered_early;
    atomic_operations_take_effect_once_over_failing_rails, one_sided_is_noticed_when_orders_come_twice;
    nobody_touches_a_region_that_was_unregistered, one_sided_is_noticed_without_fences;
    an_order_that_fits_no_datagram_is_fetched_and_keeps_its_turn, one_sided_is_noticed_when_orders_overtake;
    memory_that_changes_while_it_is_read_blames_no_rail, one_sided_is_noticed_when_reads_are_not_copied;
    a_range_that_ends_outside_its_region_is_refused_whole, one_sided_is_noticed_without_bounds;
    a_stream_whose_link_goes_down_is_moved_before_its_path_is_given_up, apm_is_noticed_when_a_lost_link_closes_armed_streams;
    an_adapter_is_armed_with_a_path_that_answers_and_with_no_other, h24_is_noticed_when_armed_paths_are_not_probed;
    of_two_kinds_on_one_port_the_better_carries_and_the_other_stands_by, h25_is_noticed_when_all_kinds_carry;
    an_interface_stands_by_for_an_adapter_without_streams, h25_is_noticed_when_all_kinds_carry_without_streams;
    a_device_that_hangs_leaves_its_port_to_the_other_kind, h25_is_noticed_when_no_kind_stands_by;
    an_id_that_a_peer_repeats_opens_no_memory_twice, h30_is_noticed_when_an_order_has_two_messages;
    a_peer_that_orders_without_end_is_given_a_bounded_memory, h30_is_noticed_when_answers_have_no_bound;
}

/// Stories of promises, and of defects that were found and fixed, for which no remedy can be switched off.
#[test]
fn acknowledged_pieces_outlive_a_stream_that_comes_late() {
    holds("acknowledged_pieces_outlive_a_stream_that_comes_late");
}

#[test]
fn a_rail_that_is_held_down_is_used_when_the_last_other_is_silent() {
    holds("a_rail_that_is_held_down_is_used_when_the_last_other_is_silent");
}

#[test]
fn a_write_by_itself_travels_inside_its_order() {
    holds("a_write_by_itself_travels_inside_its_order");
}

#[test]
fn writes_one_by_one_do_not_wait_for_the_repair() {
    holds("writes_one_by_one_do_not_wait_for_the_repair");
}

#[test]
fn many_messages_below_the_threshold_use_every_rail_and_single_ones_the_fastest() {
    holds("many_messages_below_the_threshold_use_every_rail_and_single_ones_the_fastest");
}

#[test]
fn a_port_that_fails_is_one_fault_and_takes_no_traffic_over() {
    holds("a_port_that_fails_is_one_fault_and_takes_no_traffic_over");
}

#[test]
fn a_device_and_later_its_port_are_two_faults() {
    holds("a_device_and_later_its_port_are_two_faults");
}

#[test]
fn sources_that_no_adapter_can_read_go_as_copies() {
    holds("sources_that_no_adapter_can_read_go_as_copies");
}

#[test]
fn a_grant_waits_for_the_keys_so_that_nothing_goes_as_a_copy() {
    holds("a_grant_waits_for_the_keys_so_that_nothing_goes_as_a_copy");
}

#[test]
fn a_grant_does_not_wait_long_for_keys_and_not_again_for_a_while() {
    holds("a_grant_does_not_wait_long_for_keys_and_not_again_for_a_while");
}

#[test]
fn a_stream_on_a_dark_route_is_led_over_another_within_milliseconds() {
    holds("a_stream_on_a_dark_route_is_led_over_another_within_milliseconds");
}

#[test]
fn pairs_that_meet_on_a_link_inside_the_fabric_share_it_and_blame_no_rail() {
    holds("pairs_that_meet_on_a_link_inside_the_fabric_share_it_and_blame_no_rail");
}

#[test]
fn an_incast_of_many_lanes_leaves_room_for_queries() {
    holds("an_incast_of_many_lanes_leaves_room_for_queries");
}

#[test]
fn a_link_that_goes_dark_inside_the_fabric_is_left() {
    holds("a_link_that_goes_dark_inside_the_fabric_is_left");
}

#[test]
fn a_dark_route_takes_a_lane_and_not_its_path() {
    holds("a_dark_route_takes_a_lane_and_not_its_path");
}

#[test]
fn datagrams_on_a_dark_route_are_led_over_another_by_either_side() {
    holds("datagrams_on_a_dark_route_are_led_over_another_by_either_side");
}

#[test]
fn a_dark_way_back_is_left_although_its_sender_waits_for_nothing() {
    holds("a_dark_way_back_is_left_although_its_sender_waits_for_nothing");
}

#[test]
fn a_peer_that_was_only_busy_is_not_left_on_a_detour() {
    holds("a_peer_that_was_only_busy_is_not_left_on_a_detour");
}

#[test]
fn a_hello_in_anothers_name_does_not_keep_that_one_out() {
    holds("a_hello_in_anothers_name_does_not_keep_that_one_out");
}

#[test]
fn whoever_has_heard_a_goodbye_may_leave_first() {
    holds("whoever_has_heard_a_goodbye_may_leave_first");
}

#[test]
fn a_goodbye_whose_answer_is_lost_does_not_hold_the_process_up() {
    holds("a_goodbye_whose_answer_is_lost_does_not_hold_the_process_up");
}

#[test]
fn a_process_killed_before_it_is_met_is_known_as_soon_as_another() {
    holds("a_process_killed_before_it_is_met_is_known_as_soon_as_another");
}

#[test]
fn who_is_killed_in_the_middle_of_a_handshake_is_not_waited_for() {
    holds("who_is_killed_in_the_middle_of_a_handshake_is_not_waited_for");
}

#[test]
fn a_delivery_is_reported_when_the_receiver_has_it_and_not_before() {
    holds("a_delivery_is_reported_when_the_receiver_has_it_and_not_before");
}

#[test]
fn two_rails_that_corrupt_one_in_a_thousand_deliver_every_byte() {
    holds("two_rails_that_corrupt_one_in_a_thousand_deliver_every_byte");
}

#[test]
fn a_rail_that_breaks_at_the_far_end_is_blamed_for_nobody_else() {
    holds("a_rail_that_breaks_at_the_far_end_is_blamed_for_nobody_else");
}

#[test]
fn who_is_stopped_with_full_streams_is_not_given_up_at_a_short_deadline() {
    holds("who_is_stopped_with_full_streams_is_not_given_up_at_a_short_deadline");
}

#[test]
fn a_process_that_is_stopped_when_it_is_met_is_not_given_up() {
    holds("a_process_that_is_stopped_when_it_is_met_is_not_given_up");
}

#[test]
fn traffic_pays_for_lanes_over_other_routes_and_they_go_when_it_ends() {
    holds("traffic_pays_for_lanes_over_other_routes_and_they_go_when_it_ends");
}

#[test]
fn a_lane_that_cannot_be_emptied_in_time_is_merged_later() {
    holds("a_lane_that_cannot_be_emptied_in_time_is_merged_later");
}

#[test]
fn lanes_that_share_a_bottleneck_are_merged_and_nothing_goes_twice() {
    holds("lanes_that_share_a_bottleneck_are_merged_and_nothing_goes_twice");
}

#[test]
fn who_has_the_port_of_a_dead_process_is_not_taken_for_it() {
    holds("who_has_the_port_of_a_dead_process_is_not_taken_for_it");
}

#[test]
fn without_protection_a_quiet_network_delivers_and_a_break_is_an_error() {
    holds("without_protection_a_quiet_network_delivers_and_a_break_is_an_error");
}

#[test]
fn a_message_lost_on_the_rail_whose_turn_it_is_goes_over_the_other() {
    holds("a_message_lost_on_the_rail_whose_turn_it_is_goes_over_the_other");
}

#[test]
fn a_checksum_of_headers_finds_damaged_headers() {
    holds("a_checksum_of_headers_finds_damaged_headers");
}

#[test]
fn every_policy_gives_the_rails_the_shares_it_promises() {
    holds("every_policy_gives_the_rails_the_shares_it_promises");
}

#[test]
fn round_robin_gives_out_whole_messages_in_turn() {
    holds("round_robin_gives_out_whole_messages_in_turn");
}

#[test]
fn under_every_policy_a_broken_rail_is_left_out_and_taken_back() {
    holds("under_every_policy_a_broken_rail_is_left_out_and_taken_back");
}

#[test]
fn a_fault_migrates_to_the_armed_alternate_and_the_next_is_armed() {
    holds("a_fault_migrates_to_the_armed_alternate_and_the_next_is_armed");
}

#[test]
fn an_alternate_that_breaks_while_idle_is_replaced() {
    holds("an_alternate_that_breaks_while_idle_is_replaced");
}

#[test]
fn the_alternate_that_the_user_named_takes_over() {
    holds("the_alternate_that_the_user_named_takes_over");
}

#[test]
fn a_migration_on_request_under_load_loses_and_repeats_nothing() {
    holds("a_migration_on_request_under_load_loses_and_repeats_nothing");
}

#[test]
fn a_request_that_cannot_be_met_is_refused_with_the_reason() {
    holds("a_request_that_cannot_be_met_is_refused_with_the_reason");
}

#[test]
fn after_a_blackout_the_rail_in_standby_carries() {
    holds("after_a_blackout_the_rail_in_standby_carries");
}

#[test]
fn a_rail_that_is_plugged_in_again_is_used_at_once() {
    holds("a_rail_that_is_plugged_in_again_is_used_at_once");
}

#[test]
fn a_rail_is_used_up_by_datagrams_and_no_burst_is_too_long() {
    holds("a_rail_is_used_up_by_datagrams_and_no_burst_is_too_long");
}

#[test]
fn where_tcp_is_blocked_on_one_rail_both_carry() {
    holds("where_tcp_is_blocked_on_one_rail_both_carry");
}

#[test]
fn where_tcp_is_blocked_everywhere_bulk_flows_as_datagrams() {
    holds("where_tcp_is_blocked_everywhere_bulk_flows_as_datagrams");
}

#[test]
fn losses_by_chance_leave_the_rate_of_bulk_datagrams() {
    holds("losses_by_chance_leave_the_rate_of_bulk_datagrams");
}

#[test]
fn the_last_datagrams_of_a_message_are_missed_at_once() {
    holds("the_last_datagrams_of_a_message_are_missed_at_once");
}

#[test]
fn two_senders_share_a_bottleneck_and_neither_starves() {
    holds("two_senders_share_a_bottleneck_and_neither_starves");
}

#[test]
fn small_messages_do_not_wait_for_bulk_that_vanishes() {
    holds("small_messages_do_not_wait_for_bulk_that_vanishes");
}

#[test]
fn bulk_datagrams_of_a_broken_rail_go_over_the_other() {
    holds("bulk_datagrams_of_a_broken_rail_go_over_the_other");
}

#[test]
fn an_mtu_black_hole_is_found_and_costs_no_path() {
    holds("an_mtu_black_hole_is_found_and_costs_no_path");
}

#[test]
fn udp_that_is_blocked_on_the_only_rail_gives_way_to_tcp_and_comes_back() {
    holds("udp_that_is_blocked_on_the_only_rail_gives_way_to_tcp_and_comes_back");
}

#[test]
fn a_rail_whose_udp_is_blocked_carries_on_over_tcp() {
    holds("a_rail_whose_udp_is_blocked_carries_on_over_tcp");
}

#[test]
fn bulk_datagrams_that_all_vanish_give_way_to_what_passes() {
    holds("bulk_datagrams_that_all_vanish_give_way_to_what_passes");
}

#[test]
fn where_only_short_datagrams_pass_messages_go_over_tcp() {
    holds("where_only_short_datagrams_pass_messages_go_over_tcp");
}

#[test]
fn what_arrived_is_not_sent_again_when_its_acknowledgement_is_lost() {
    holds("what_arrived_is_not_sent_again_when_its_acknowledgement_is_lost");
}

#[test]
fn operations_on_a_process_that_is_gone_end_in_errors() {
    holds("operations_on_a_process_that_is_gone_end_in_errors");
}

#[test]
fn who_closes_waits_for_its_one_sided_operations() {
    holds("who_closes_waits_for_its_one_sided_operations");
}

#[test]
fn a_rail_goes_dark_and_heals_and_every_collective_operation_is_exact() {
    holds("a_rail_goes_dark_and_heals_and_every_collective_operation_is_exact");
}

#[test]
fn who_dies_in_a_collective_operation_is_named_to_all_others_and_nobody_waits() {
    holds("who_dies_in_a_collective_operation_is_named_to_all_others_and_nobody_waits");
}

#[test]
fn a_group_that_not_all_could_make_ends_what_is_begun_in_it() {
    holds("a_group_that_not_all_could_make_ends_what_is_begun_in_it");
}

#[test]
fn collective_operations_that_do_not_fit_end_and_write_nothing_beyond() {
    holds("collective_operations_that_do_not_fit_end_and_write_nothing_beyond");
}

#[test]
fn who_closes_in_a_collective_operation_has_its_memory_back() {
    holds("who_closes_in_a_collective_operation_has_its_memory_back");
}

#[test]
fn two_groups_of_the_same_members_never_mix() {
    holds("two_groups_of_the_same_members_never_mix");
}

#[test]
fn processes_meet_over_the_routes_that_work() {
    holds("processes_meet_over_the_routes_that_work");
}

#[test]
fn a_busy_path_and_a_peer_that_is_gone_leave_no_detour_behind() {
    holds("a_busy_path_and_a_peer_that_is_gone_leave_no_detour_behind");
}

#[test]
fn processes_that_meet_first_agree_at_once() {
    holds("processes_that_meet_first_agree_at_once");
}

#[test]
fn a_rail_that_takes_little_at_a_time_is_measured_and_slower_ones_carry_their_share() {
    holds("a_rail_that_takes_little_at_a_time_is_measured_and_slower_ones_carry_their_share");
}

/// A story that no test here names would run on adapters only, below.
#[test]
fn every_story_has_a_test_of_its_own() {
    let here = include_str!("scenarios.rs");
    let is_named = |name: &str| {
        here.contains(&format!("    holds(\"{name}\");")) || here.contains(&format!("\n    {name}, "))
    };
    let missing: Vec<&str> = ALL.iter().map(|s| s.name).filter(|name| !is_named(name)).collect();
    assert!(missing.is_empty(), "stories without a test: {missing:?}");
}

/// Stories of sockets: of a stream that is hedged while it is being read, which an adapter's is not (its peer is asked to fence it at once), and
/// of a firewall that lets UDP through and no TCP. Writes of simulated adapters take a time that is drawn, and no link's.
const OF_SOCKETS: [&str; 5] = [
    "an_incast_of_many_lanes_leaves_room_for_queries",
    "pairs_that_meet_on_a_link_inside_the_fabric_share_it_and_blame_no_rail",
    "a_stream_on_a_dark_route_is_led_over_another_within_milliseconds",
    "a_half_read_frame_never_writes_over_what_another_path_delivered",
    "where_tcp_is_blocked_on_one_rail_both_carry",
];

/// The hazards' stories, told of rails whose adapters write memory by themselves, late.
#[test]
fn every_story_holds_on_adapters() {
    assert!(OF_SOCKETS.iter().all(|name| ALL.iter().any(|s| s.name == *name)));
    let broken: Vec<String> = ALL
        .iter()
        .filter(|s| !OF_SOCKETS.contains(&s.name))
        .filter_map(|s| {
            let told = quietly(|| everywhere(|| (s.run)(&Story::safe())));
            told.err().map(|e| format!("{} {}: {e}", s.hazard, s.name))
        })
        .collect();
    assert!(broken.is_empty(), "{} of {} stories: {broken:#?}", broken.len(), ALL.len());
}

#[test]
fn a_stream_whose_rail_goes_dark_goes_on_over_the_other_port_without_a_fence() {
    holds("a_stream_whose_rail_goes_dark_goes_on_over_the_other_port_without_a_fence");
}

#[test]
fn a_path_without_a_link_is_given_up_when_its_alternate_carries_nothing() {
    holds("a_path_without_a_link_is_given_up_when_its_alternate_carries_nothing");
}

#[test]
fn when_both_ports_of_an_adapter_die_the_software_fails_over_to_a_third_rail() {
    holds("when_both_ports_of_an_adapter_die_the_software_fails_over_to_a_third_rail");
}

#[test]
fn a_migration_that_races_with_a_fence_writes_into_no_memory_that_was_given_back() {
    holds("a_migration_that_races_with_a_fence_writes_into_no_memory_that_was_given_back");
}

#[test]
fn on_request_the_adapter_takes_along_what_is_under_way() {
    holds("on_request_the_adapter_takes_along_what_is_under_way");
}

#[test]
fn a_stream_that_left_a_sound_path_comes_home() {
    holds("a_stream_that_left_a_sound_path_comes_home");
}

#[test]
fn an_alternate_that_is_refused_is_not_requested_again_and_again() {
    holds("an_alternate_that_is_refused_is_not_requested_again_and_again");
}
