"""Every fault of docs/faults.md has tests that show it, and all of them exist."""

import ast
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

SHOWN_BY = {
    "engine killed, another is there": (
        "peers/server/test_engine_process.py::test_a_turn_whose_engine_is_killed_is_spoken_to_its_end_by_another",
        "tts_engine/service/test_moving.py::test_a_text_that_kills_two_engines_kills_no_third",
    ),
    "the only engine killed": (
        "peers/server/test_end_to_end.py::test_a_crash_of_the_engine_fails_the_turn_and_the_call_goes_on",
        "peers/server/test_engine_process.py::test_a_crash_fails_the_live_utterance_and_the_next_one_is_spoken",
    ),
    "engine hung": ("peers/server/test_engine_process.py::test_a_process_that_hangs_is_killed_and_replaced",),
    "voice model's process on a GPU killed or hung": (
        "peers/server/test_voice_model_process.py::test_the_engine_ends_with_its_model_and_both_come_back",
        "tts_engine/voice_model/test_remote_synthesizer.py::test_with_its_process_all_clauses_end_and_the_model_is_not_ready",
    ),
    "engine slow": (
        "gateway/call/test_session.py::test_a_slow_engine_costs_pauses_and_no_words_and_the_next_turn_has_none",
    ),
    "engine full": (
        "peers/server/test_full_engine.py::test_a_turn_too_many_is_refused_with_a_reason_and_the_call_speaks_on",
        "tts_engine/service/test_server.py::test_what_stands_still_ends_with_deadline_exceeded",
    ),
    "gateway killed": (
        "peers/server/test_records_after_a_kill.py::test_killed_at_any_moment_each_call_has_one_record_and_each_is_in_its_day",
        "peers/server/test_records_after_a_kill.py::test_a_gateway_killed_with_the_first_frame_leaves_a_record",
        "peers/server/test_engine_process.py::test_no_orphan_outlives_a_killed_gateway",
    ),
    "a worker or engine killed before its start is complete": (
        "peers/cluster/test_workers.py::test_a_worker_that_is_killed_while_it_starts_ends_no_server_and_comes_up",
        "talkspurt/workers/test_supervisor.py::test_a_server_whose_workers_are_all_killed_while_they_start_says_so",
        "tts_engine/service/test_child.py::test_a_first_process_that_a_signal_ends_before_it_serves_is_followed_by_another",
        "tts_engine/service/test_child.py::test_a_first_process_that_ends_by_itself_is_the_only_one",
    ),
    "gateway killed, call by FreeSWITCH": (
        "gateway/carriers/test_freeswitch_files.py::test_a_caller_whose_gateway_died_is_sent_on_when_the_next_one_logs_in",
    ),
    "gateway killed, or drained after `server.drain_s`, call by Asterisk": (
        "peers/asterisk/test_gateway_gone.py::test_the_caller_goes_on",
    ),
    "gateway killed behind Kamailio": (
        "peers/cluster/test_kamailio_front.py::test_calls_are_spread_stay_with_their_gateway_and_outlive_the_other",
    ),
    "gateway restarted (SIGTERM)": (
        "peers/server/test_end_to_end.py::test_sigterm_lets_live_calls_finish_refuses_new_ones_and_exits_0",
        "peers/server/test_end_to_end.py::test_calls_that_outlive_the_drain_are_hung_up",
        "peers/cluster/test_haproxy.py::test_calls_go_to_both_gateways_and_none_is_lost_when_one_stops",
        "peers/cluster/test_envoy.py::test_calls_go_to_both_gateways_and_none_is_lost_when_one_stops",
        "peers/acceptance/test_acceptance.py::test_no_call_is_lost_when_each_process_is_restarted_in_turn",
    ),
    "Envoy or Kamailio restarted": (
        "peers/acceptance/test_acceptance.py::test_no_call_is_lost_when_each_process_is_restarted_in_turn",
    ),
    "Redis gone (limits)": (
        "peers/server/test_shared_limits.py::test_a_killed_redis_costs_no_request_and_a_new_one_learns_what_is_held",
        "gateway/limits/test_limiter.py::test_without_redis_all_that_is_limited_is_refused_where_that_is_wanted",
        "peers/cluster/test_redis_state.py::test_a_redis_that_becomes_a_replica_is_left_for_the_one_behind_its_address",
    ),
    "Redis gone (directory)": (
        "peers/cluster/test_gateways.py::test_a_request_finds_the_gateway_that_has_the_call_and_a_lost_one_is_told",
        "peers/cluster/test_redis_state.py::test_redis_keeps_the_contract_and_an_outage_is_said",
        "gateway/cluster/test_memory_state.py::test_without_the_shared_store_this_process_knows_its_own_values",
    ),
    "Redis hung or slow": (
        "peers/cluster/test_slow_redis.py::test_a_redis_that_hangs_costs_one_wait_and_not_one_for_each_call",
        "peers/cluster/test_slow_redis.py::test_the_steps_of_a_slow_connection_have_one_bound_together",
        "peers/cluster/test_slow_redis.py::test_a_redis_that_breaks_off_in_an_answer_is_asked_again_at_once",
        "peers/cluster/test_slow_redis.py::test_limits_go_on_while_redis_hangs_and_are_shared_again",
        "peers/cluster/test_slow_redis.py::test_calls_begin_and_speak_while_redis_hangs_and_health_tells",
    ),
    "PostgreSQL gone": (
        "peers/server/test_shared_store.py::test_a_database_that_is_slow_hung_or_gone_costs_no_record_and_reads_say_so",
        "peers/server/test_shared_store.py::test_calls_that_begin_speak_and_end_while_the_database_is_gone_are_found_when_it_is_back",
        "gateway/test_postgres.py::test_of_too_many_that_wait_the_oldest_are_given_up_and_counted",
        "gateway/test_postgres.py::test_a_fault_of_the_local_file_is_none_of_postgresql",
        "peers/server/test_shared_store.py::test_a_changed_database_is_used_again",
    ),
    "PostgreSQL hung": (
        "peers/server/test_shared_store.py::test_calls_speak_on_while_the_database_hangs_and_another_gateway_sees_them_later",
    ),
    "PostgreSQL slow": (
        "peers/server/test_shared_store.py::test_a_database_that_is_slow_hung_or_gone_costs_no_record_and_reads_say_so",
    ),
    "gateway killed while it moves records to PostgreSQL": (
        "peers/server/test_shared_store.py::test_a_gateway_killed_at_each_step_of_moving_doubles_and_loses_nothing",
    ),
    "dialogue manager's connection lost": (
        "peers/server/test_manager_killed.py::test_a_manager_killed_ten_times_in_a_call_misses_no_key_and_gets_none_twice",
        "peers/server/test_bad_input.py::test_the_calls_of_a_lost_manager_go_to_another",
    ),
    "dialogue manager gone for good": (
        "gateway/call/test_session.py::test_a_call_without_a_manager_goes_to_the_routes_human",
        "sip_bridge/dialog/test_transfer.py::test_the_pbx_learns_that_the_call_has_no_manager",
        "gateway/dialogue/test_relay.py::test_nobody_there_is_given_up_once",
    ),
    "a message that kills the manager each time": (
        "gateway/dialogue/test_relay.py::test_application_that_a_message_kills_is_dialled_ever_more_seldom_and_given_up",
        "gateway/dialogue/test_relay.py::test_a_connection_that_lived_makes_the_next_pause_short_again",
    ),
    "dialogue manager hung or slow": (
        "gateway/dialogue/test_relay.py::test_peer_that_vanished_is_noticed_by_its_silence",
        "gateway/dialogue/test_relay.py::test_peer_that_does_not_read_loses_its_audio_first_then_the_line",
    ),
    "dialogue manager floods": (
        "peers/server/test_bad_input.py::test_ten_bad_dialogue_messages_in_a_row_close_the_socket_and_nine_do_not",
        "gateway/dialogue/test_relay.py::test_ten_bad_messages_in_a_row_close_with_1007_and_a_good_one_resets",
    ),
    "disk full or faulty": (
        "gateway/call_log/test_log.py::test_records_wait_for_a_faulty_disk_and_are_complete_when_it_writes_again",
        "tts_engine/cosyvoice/test_voices.py::test_a_faulty_disk_leaves_no_file_of_the_voice",
        "gateway/uplink/test_recorder.py::test_a_disk_that_fails_at_any_step_leaves_no_file_of_the_final_name",
        "gateway/uplink/test_worker.py::test_a_recording_that_does_not_reach_the_disk_at_its_end_is_told_and_counted",
        "gateway/uplink/test_room_recorder.py::test_a_disk_that_fails_at_the_end_is_told_and_leaves_no_half_file",
        "gateway/uplink/test_room_recorder.py::test_a_list_of_legs_that_cannot_be_written_is_told_and_not_left_in_half",
        "gateway/metering/test_store.py::test_ends_that_a_full_disk_refused_are_written_with_their_figures_when_there_is_room",
        "gateway/uplink/test_worker.py::test_a_full_disk_ends_the_recording_and_not_the_call",
        "gateway/metering/test_store.py::test_a_full_or_lost_disk_costs_the_record_and_nothing_else",
        "gateway/call_log/test_log.py::test_a_folder_that_cannot_be_written_costs_the_records_alone",
        "tts_engine/cosyvoice/test_voices.py::test_a_disk_that_is_full_at_any_step_leaves_no_file_of_the_voice",
    ),
    "the file of records or of ended calls locked by another program": (
        "gateway/call_log/test_log.py::test_a_record_waits_while_another_program_holds_the_file",
        "gateway/metering/test_store.py::test_the_end_of_a_call_is_written_when_another_program_lets_go_of_the_file",
    ),
    "the file of records or of ended calls damaged or removed": (
        "gateway/call_log/test_log.py::test_a_damaged_file_is_set_aside_and_the_log_continues_in_a_new_one",
        "gateway/call_log/test_log.py::test_of_two_processes_with_a_damaged_file_one_replaces_it_and_both_write_the_new_one",
        "gateway/metering/test_store.py::test_a_damaged_file_is_set_aside_and_records_continue_in_a_new_one",
        "gateway/call_log/test_log.py::test_damage_that_only_a_reader_meets_is_set_aside_too",
        "gateway/metering/test_store.py::test_damage_that_only_a_reader_meets_is_set_aside_too",
        "gateway/call_log/test_log.py::test_a_log_whose_file_is_removed_continues_in_a_new_one",
        "gateway/metering/test_store.py::test_records_whose_file_is_removed_continue_in_a_new_one",
    ),
    "the file of records or of ended calls with another program's tables": (
        "gateway/call_log/test_log.py::test_tables_of_another_program_cost_the_records_and_are_told_once",
        "gateway/metering/test_store.py::test_tables_of_another_program_cost_the_records_and_are_told_once",
    ),
    "no free file descriptors": (
        "tts_engine/service/test_child.py::test_a_health_check_without_files_of_our_own_ends_no_engine",
        "talkspurt/workers/test_supervisor.py::test_connections_wait_for_a_report_without_work_while_no_file_is_free",
        "sip_bridge/io/test_idle_strangers.py::test_with_few_descriptors_left_strangers_take_each_others_place",
        "gateway/listener/test_sockets.py::test_with_few_descriptors_left_a_connection_stays_only_in_place_of_another",
        "tts_engine/test_changed_files.py::test_a_key_that_is_revoked_while_no_file_is_free_is_revoked_when_one_is",
        "gateway/call_log/test_log.py::test_a_record_waits_while_no_file_can_be_opened",
        "sip_bridge/io/test_ports.py::test_without_a_free_descriptor_no_port_is_tried_in_vain",
    ),
    "no memory or process table for a new process or thread": (
        "tts_engine/test_steady_threads.py::test_a_pool_does_its_work_with_the_threads_that_it_has",
        "tts_engine/test_steady_threads.py::test_a_server_that_gets_no_more_threads_still_looks_names_up",
        "gateway/http/speech_api/test_voice_sample.py::test_without_memory_for_a_process_a_file_is_refused_for_now_and_counted",
        "tts_engine/service/test_child.py::test_a_process_that_cannot_be_made_is_unavailable_and_tried_again",
        "tts_engine/service/test_child.py::test_a_child_whose_start_fails_in_an_unforeseen_way_is_started_again",
    ),
    "disk hung": (
        "gateway/uplink/test_worker.py::test_a_disk_that_never_answers_costs_the_recordings_and_nothing_else",
        "gateway/metering/test_store.py::test_a_disk_that_hangs_holds_up_the_first_calls_for_the_bound_and_later_ones_not_at_all",
        "gateway/call_log/test_log.py::test_a_full_queue_costs_the_newest_record",
    ),
    "the machine's clock is stepped": (
        "gateway/call/test_session.py::test_a_stepped_clock_changes_no_duration",
        "gateway/placing/test_carrier_calls.py::test_a_stepped_clock_changes_no_duration_of_a_call_that_is_not_answered",
        "gateway/metering/test_webhook.py::test_a_clock_that_is_set_back_postpones_no_record",
        "gateway/test_tokens.py::test_after_a_step_of_the_clock_new_tokens_open_calls_and_old_ones_at_most_one",
        "sip_bridge/message/test_digest.py::test_after_a_step_of_the_clock_a_peer_is_challenged_once_more_and_let_in",
    ),
    "RTP: 5 % loss, 50 ms jitter, reordering": (
        "gateway/media/test_lossy_relay.py::test_what_a_bad_network_leaves_is_heard_in_order_and_what_it_took_is_concealed",
    ),
    "a caller's network is gone": (
        "peers/server/test_bad_input.py::test_a_carrier_lost_ends_the_call_for_its_manager",
    ),
}
"""Fault, as the first column of the page names it -> tests that show the row, as file below tests/ and function."""


@cache
def defined_in(path: str) -> set[str]:
    tree = ast.parse((ROOT / "tests" / path).read_text())
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_each_row_of_the_page_has_its_tests() -> None:
    rows = [line for line in (ROOT / "docs/faults.md").read_text().splitlines() if line.startswith("| ")][1:]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == list(SHOWN_BY)


@pytest.mark.parametrize("fault", SHOWN_BY)
def test_each_test_of_a_fault_exists(fault: str) -> None:
    named = [each.split("::") for each in SHOWN_BY[fault]]
    assert named
    assert not [(path, name) for path, name in named if name not in defined_in(path)]
