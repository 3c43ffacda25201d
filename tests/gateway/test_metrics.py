"""The gateway's metrics under their published names, with their published buckets."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.call.stats import Meter
from gateway.metrics import Metrics
from gateway.postgres import DatabaseState
from gateway.seams.leg import RtpReport
from gateway.seams.sip_state import RegistrationState, SipState, TrunkState

NAMES = {
    "talkspurt_build_info": {"version", "python"},
    "talkspurt_calls_active": {"transport"},
    "talkspurt_calls_limit": set(),
    "talkspurt_calls_total": {"transport", "outcome"},
    "talkspurt_calls_rejected_total": {"reason"},
    "talkspurt_first_packet_seconds": {"transport", "engine"},
    "talkspurt_first_packet_stage_seconds": {"stage"},
    "talkspurt_pacing_error_seconds": {"transport"},
    "talkspurt_tick_lateness_seconds": set(),
    "talkspurt_gaps_total": {"transport"},
    "talkspurt_gap_seconds": set(),
    "talkspurt_cut_seconds": {"reason"},
    "talkspurt_turns_total": {"outcome"},
    "talkspurt_call_log_lost_total": {"reason"},
    "talkspurt_records_late_total": set(),
    "talkspurt_records_lost_total": {"reason"},
    "talkspurt_record_deliveries_total": {"outcome"},
    "talkspurt_records_pending": set(),
    "talkspurt_database_answers": {"of"},
    "talkspurt_database_waiting": {"of"},
    "talkspurt_recordings_lost_total": {"reason"},
    "talkspurt_rooms": set(),
    "talkspurt_room_legs": set(),
    "talkspurt_listeners_total": set(),
    "talkspurt_listener_drops_total": set(),
    "talkspurt_dialogue_connected": {"route"},
    "talkspurt_dialogue_reconnects_total": set(),
    "talkspurt_dialogue_failed_total": {"route"},
    "talkspurt_dialogue_missed_total": {"outcome"},
    "talkspurt_moved_turns_total": set(),
    "talkspurt_engine_linked": {"worker"},
    "talkspurt_model_turns_total": {"model"},
    "talkspurt_model_failures_total": {"model", "kind"},
    "talkspurt_model_trial_returns_total": {"reason"},
    "talkspurt_playout_buffer_seconds": set(),
    "talkspurt_carrier_mark_delay_seconds": set(),
    "talkspurt_dropped_total": {"what"},
    "talkspurt_rtp_lost_total": set(),
    "talkspurt_rtp_jitter_seconds": set(),
    "talkspurt_sip_registered": {"registrar"},
    "talkspurt_sip_trunk_answers": {"trunk"},
}
PACING = "0.0005 0.001 0.002 0.005 0.01 0.02 0.05 +Inf"
LATENCY = "0.01 0.025 0.05 0.075 0.1 0.15 0.2 0.25 0.3 0.4 0.5 0.75 1.0 2.0 +Inf"


def used() -> Metrics:
    """A gateway on which everything has happened once."""
    metrics = Metrics(version="1.2.3", calls_limit=7)
    metrics.call_started(transport="twilio")
    metrics.call_started(transport="twilio")
    metrics.call_ended(transport="twilio", outcome="completed")
    metrics.call_rejected("full")
    metrics.dialogue_failed(route="bot")
    metrics.first_packet(transport="twilio", engine="embedded", seconds=0.06, stages_ms={"engine": 20.0, "send": 1.0})
    metrics.gap(transport="twilio", seconds=0.3)
    metrics.cut(reason="dtmf", seconds=0.004)
    metrics.turn_ended(outcome="finished")
    metrics.stores.call_log_lost("queue_full")
    metrics.stores.record_lost("not_written")
    metrics.stores.record_late()
    metrics.stores.record_deliveries("delivered")
    metrics.stores.records_pending(2)
    metrics.stores.shared_database(DatabaseState(of="calls", answers=True, waiting=2))
    metrics.stores.recording_lost("disk_full")
    metrics.answered("machine")
    metrics.beep()
    metrics.listener_joined()
    metrics.listener_dropped(3)
    metrics.mark_delay(seconds=0.03)
    metrics.playout_buffer(seconds=0.4)
    metrics.stalled(transport="twilio")
    metrics.dialogue_connected(route="default", lines=3)
    metrics.dialogue_reconnects(total=1)
    metrics.dialogue_missed(replayed=3, dropped=0)
    metrics.dialogue_missed(replayed=5, dropped=2)
    metrics.moved_turns(total=1)
    metrics.engines_linked([False, True, True])
    metrics.engines_linked([True, False])
    metrics.model_turn("next")
    metrics.model_failure("next", "error")
    metrics.trial_returned("errors")
    metrics.tokens_dropped(4)
    metrics.sound_refused(1.5)
    metrics.rtp(RtpReport(lost=2, jitter_s=0.003, dropped={"late": 3}))
    metrics.rtp(RtpReport(dropped={"rejected": 1}))
    metrics.dropped({"sip_limited": 2})
    metrics.dropped({"sip_limited": 7})
    accounts = [RegistrationState("sip:a", "", True, 200), RegistrationState("sip:a", "x", False, 403)]
    metrics.sip.state(SipState((*accounts, RegistrationState("sip:b", "", True, 200)), (TrunkState("pbx", True),)))
    metrics.pacing_error("twilio").observe(0.0015)
    metrics.tick_lateness.observe(0.1)
    return metrics


def samples(metrics: Metrics) -> list[tuple[str, dict[str, str], float]]:
    families = text_string_to_metric_families(metrics.exposition().decode())
    return [(s.name, s.labels, s.value) for family in families for s in family.samples]


@pytest.mark.parametrize(("name", "labels"), NAMES.items())
def test_every_published_metric_is_there_with_its_labels(name: str, labels: set[str]) -> None:
    found = [set(s[1]) - {"le"} for s in samples(used()) if s[0] in (name, f"{name}_bucket", f"{name}_count")]
    assert found and all(each == labels for each in found)


@pytest.mark.parametrize(
    ("name", "buckets"),
    [
        ("pacing_error", PACING),
        ("tick_lateness", PACING),
        ("first_packet", LATENCY),
        ("first_packet_stage", LATENCY),
        ("cut", LATENCY),
    ],
)
def test_published_buckets(name: str, buckets: str) -> None:
    found = [labels["le"] for key, labels, _ in samples(used()) if key == f"talkspurt_{name}_seconds_bucket"]
    assert list(dict.fromkeys(found)) == buckets.split()


def test_what_happened_is_counted() -> None:
    values = {(name, *sorted(labels.values())): value for name, labels, value in samples(used())}
    assert values["talkspurt_calls_active", "twilio"] == 1
    assert values["talkspurt_calls_total", "completed", "twilio"] == 1
    assert values["talkspurt_calls_limit",] == 7
    assert values["talkspurt_first_packet_stage_seconds_sum", "engine"] == pytest.approx(0.02)
    assert values["talkspurt_stale_tokens_total",] == 4
    assert values["talkspurt_dialogue_missed_total", "replayed"] == 5
    assert values["talkspurt_dialogue_missed_total", "dropped"] == 2
    assert values["talkspurt_rtp_lost_total",] == 2
    assert values["talkspurt_rtp_jitter_seconds_count",] == 1, "none where nothing arrived"
    dropped = {key[1]: value for key, value in values.items() if key[0] == "talkspurt_dropped_total"}
    assert dropped == {"rtp_late": 3, "rtp_rejected": 1, "sip_limited": 7}
    assert (values["talkspurt_sip_registered", "sip:a"], values["talkspurt_sip_registered", "sip:b"]) == (0, 1)
    assert values["talkspurt_sip_trunk_answers", "pbx"] == 1
    linked = {key[1]: value for key, value in values.items() if key[0] == "talkspurt_engine_linked"}
    assert linked == {"0": 1, "1": 0}
    assert values["talkspurt_dialogue_connected", "default"] == 3
    assert values["talkspurt_pacing_error_seconds_bucket", "0.001", "twilio"] == 0
    assert values["talkspurt_pacing_error_seconds_bucket", "0.002", "twilio"] == 1
    assert values["talkspurt_pacing_error_seconds_count", "twilio"] == 1
    assert values["talkspurt_tick_lateness_seconds_bucket", "0.05"] == 0
    assert values["talkspurt_tick_lateness_seconds_bucket", "+Inf"] == 1
    assert values["talkspurt_tick_lateness_seconds_sum",] == pytest.approx(0.1)


def test_two_gateways_in_one_process_do_not_mix() -> None:
    used()
    assert not [s for s in samples(Metrics()) if s[0] == "talkspurt_turns_total"]


def test_a_session_may_use_it_as_its_meter() -> None:
    missing = [name for name in vars(Meter) if not name.startswith("_") and not callable(getattr(Metrics, name, None))]
    assert not missing
