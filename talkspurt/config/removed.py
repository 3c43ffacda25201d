"""Keys that the configuration had once, and what to do about each of them. It knows no model."""

from __future__ import annotations

from collections.abc import Sequence

_TWINS = {
    ("engine", "more_models", "*", "cosyvoice"): ("engine", "cosyvoice"),
    ("carriers", "freeswitch_fork", "esl"): ("carriers", "freeswitch", "esl"),
}
"""Sections with the keys of another section. ``*`` is any name or index."""

_SETS_ITSELF = "it has no replacement, so delete the line: talkspurt uses"


def advice(location: Sequence[str | int]) -> str | None:
    """Return what to do about a key that is no longer known, as the end of a sentence. None: it was never known."""
    path = tuple(str(step) for step in location)
    for twin, section in _TWINS.items():
        if _fits(twin, path[: len(twin)]):
            path = section + path[len(twin) :]
    return next((said for key, said in REMOVED.items() if _fits(key.split("."), path)), None)


def _fits(pattern: Sequence[str], path: Sequence[str]) -> bool:
    return len(pattern) == len(path) and all(
        expected in ("*", step) for expected, step in zip(pattern, path, strict=True)
    )


REMOVED: dict[str, str] = {
    "engine.cosyvoice.busy_share": "delete the line; first_chunk_s: 1000 refuses no turn because the device is slow",
    "engine.cosyvoice.lm_weights": "use language_model: vllm with vllm: {quantization: fp8} for a quantised language "
    "model, else delete the line",
    "engine.cosyvoice.performance_mode": "delete the line: batches fill up by themselves",
    "engine.cosyvoice.vllm_cache_gb": "write vllm: {kv_cache_memory_bytes: 4000000000} instead",
    "engine.keepalive_s": f"{_SETS_ITSELF} 10 s",
    "engine.message_bytes": f"{_SETS_ITSELF} 16 MiB",
    "engine.nice": f"{_SETS_ITSELF} 1",
    "engine.reflection": "delete the line: reflection is on for loopback and unix sockets only",
    "engine.restart_backoff_s": f"{_SETS_ITSELF} 0.2 s",
    "engine.retry_after_s": f"{_SETS_ITSELF} 1 s",
    "engine.watch_s": f"{_SETS_ITSELF} 1 s",
    "engine.timeouts.add_voice_s": f"{_SETS_ITSELF} 120 s",
    "engine.timeouts.audio_s": f"{_SETS_ITSELF} 20 s",
    "engine.timeouts.connect_s": f"{_SETS_ITSELF} 5 s",
    "engine.timeouts.consumption_s": f"{_SETS_ITSELF} 120 s",
    "engine.timeouts.text_s": f"{_SETS_ITSELF} 120 s",
    "engine.speech.admission.fair_every": f"{_SETS_ITSELF} 8",
    "engine.speech.admission.turns": f"{_SETS_ITSELF} 256",
    "engine.speech.clauses.first_min_words": f"{_SETS_ITSELF} 3",
    "engine.speech.clauses.min_words": f"{_SETS_ITSELF} 8",
    "engine.speech.clauses.max_words": f"{_SETS_ITSELF} 30",
    "engine.speech.clauses.max_chars": f"{_SETS_ITSELF} 400",
    "engine.speech.settle_ms": f"{_SETS_ITSELF} 300 ms",
    "engine.speech.pauses.semicolon_ms": f"{_SETS_ITSELF} 260 ms",
    "engine.speech.pauses.question_ms": f"{_SETS_ITSELF} 400 ms",
    "engine.speech.pauses.paragraph_ms": f"{_SETS_ITSELF} 650 ms",
    "engine.speech.prompts.*.rates": "delete the line: prompts are made at the rates of all calls",
    "engine.speech.prompts.*.sample_rates": "delete the line: prompts are made at the rates of all calls",
    "engine.embedded.queue_size": f"{_SETS_ITSELF} 512",
    "engine.embedded.guard_ms": f"{_SETS_ITSELF} 60 ms",
    "engine.embedded.first_block_ms": f"{_SETS_ITSELF} 400 ms",
    "engine.embedded.mandarin.queue_size": f"{_SETS_ITSELF} 2",
    "server.stream_token_s": f"{_SETS_ITSELF} 60 s",
    "routes.*.dialogue.reconnect_first_s": f"{_SETS_ITSELF} 0.25 s",
    "routes.*.dialogue.reconnect_max_s": f"{_SETS_ITSELF} 5 s",
    "routes.*.dialogue.connect_timeout_s": f"{_SETS_ITSELF} 5 s",
    "routes.*.dialogue.queue_messages": f"{_SETS_ITSELF} 256",
    "routes.*.dialogue.replay_messages": f"{_SETS_ITSELF} 500",
    "carriers.asterisk.connect_timeout_s": f"{_SETS_ITSELF} 5 s",
    "carriers.freeswitch.clear_message": "delete the line: the module knows no such message",
    "carriers.freeswitch.esl.dialplan": f"{_SETS_ITSELF} XML",
    "carriers.freeswitch.esl.connect_timeout_s": f"{_SETS_ITSELF} 5 s",
    "carriers.freeswitch.esl.command_timeout_s": f"{_SETS_ITSELF} 10 s",
    "carriers.freeswitch.esl.reconnect_first_s": f"{_SETS_ITSELF} 0.5 s",
    "carriers.freeswitch.esl.reconnect_max_s": f"{_SETS_ITSELF} 30 s",
    "carriers.freeswitch.esl.silent_s": f"{_SETS_ITSELF} 60 s",
    "carriers.freeswitch.esl.commands": f"{_SETS_ITSELF} 1000",
    "carriers.freeswitch.esl.message_bytes": f"{_SETS_ITSELF} 1000000 bytes",
    "carriers.jambonz.outbound_rate": "its new name is outbound_sample_rate",
    "carriers.telnyx.api_timeout_s": f"{_SETS_ITSELF} 10 s",
    "playout.buffer_s": f"{_SETS_ITSELF} 20 s",
    "playout.start_quantile": f"{_SETS_ITSELF} 0.98",
    "playout.max_start_delay_ms": f"{_SETS_ITSELF} 400 ms",
    "playout.ahead_turns": f"{_SETS_ITSELF} 1",
    "playout.max_tick_sends": f"{_SETS_ITSELF} 50",
    "barge_in.min_silence_ms": f"{_SETS_ITSELF} 300 ms",
    "recogniser.stall_ms": f"{_SETS_ITSELF} 600 ms",
    "recogniser.agreement_ms": f"{_SETS_ITSELF} 1000 ms",
    "recogniser.connect_timeout_s": f"{_SETS_ITSELF} 5 s",
    "recogniser.keep_alive_s": f"{_SETS_ITSELF} 4 s",
    "recogniser.reconnect_first_s": f"{_SETS_ITSELF} 0.25 s",
    "recogniser.reconnect_max_s": f"{_SETS_ITSELF} 5 s",
    "recogniser.embedded": "it has no replacement, so delete the section",
    "recogniser.max_utterance_s": f"{_SETS_ITSELF} 15 s",
    "recogniser.end_of_thought.finished_from": f"{_SETS_ITSELF} 0.5; change finished_ms",
    "recogniser.end_of_thought.hesitating_below": f"{_SETS_ITSELF} 0.2; change hesitating_ms",
    "recogniser.end_of_thought.nice": f"{_SETS_ITSELF} 1",
    "webrtc.connect_timeout_s": f"{_SETS_ITSELF} 15 s",
    "webrtc.credential_s": f"{_SETS_ITSELF} 3600 s",
    "webrtc.message_bytes": f"{_SETS_ITSELF} 65536 bytes",
    "audiosocket.first_audio_ms": f"{_SETS_ITSELF} 800 ms",
    "audiosocket.keepalive_ms": f"{_SETS_ITSELF} 1000 ms",
    "audiosocket.expected_calls": f"{_SETS_ITSELF} 10000",
    "recording.hang_s": f"{_SETS_ITSELF} 10 s",
    "recording.max_rate": "its new name is max_sample_rate",
    "records.write_ahead_s": f"{_SETS_ITSELF} 5 s",
    "records.begin_wait_s": f"{_SETS_ITSELF} 0.2 s",
    "records.webhook_timeout_s": f"{_SETS_ITSELF} 10 s",
    "records.webhook_pending": f"{_SETS_ITSELF} 100000",
    "postgres.move_every_s": f"{_SETS_ITSELF} 1 s",
    "postgres.max_waiting": f"{_SETS_ITSELF} 100000",
    "clips.timeout_s": f"{_SETS_ITSELF} 10 s",
    "limits.body_s": f"{_SETS_ITSELF} 60 s",
    "auth.jwt.leeway_s": f"{_SETS_ITSELF} 30 s",
    "auth.failures_burst": f"{_SETS_ITSELF} 20",
    "auth.failures_per_minute": f"{_SETS_ITSELF} 6",
    "auth.token_max_s": f"{_SETS_ITSELF} 86400 s",
    "tracing.queue_spans": f"{_SETS_ITSELF} 8192",
    "tracing.timeout_s": f"{_SETS_ITSELF} 10 s",
    "sip.registrations.*.retry_s": f"{_SETS_ITSELF} 30 s",
    "sip.limits.burst": "delete the line: four times requests_per_s may come at once",
    "sip.limits.calls_burst": "delete the line: twice calls_per_s may come at once",
    "sip.limits.idle_s": f"{_SETS_ITSELF} 600 s",
    "sip.timeouts.t1": "its new name is t1_s",
    "sip.timeouts.t2": "delete the line: T2 is eight times t1_s",
    "sip.timeouts.t2_s": "delete the line: T2 is eight times t1_s",
    "sip.timeouts.t4": "delete the line: T4 is ten times t1_s",
    "sip.timeouts.t4_s": "delete the line: T4 is ten times t1_s",
    "sip.timeouts.ready": "its new name is ready_s",
    "sip.timeouts.early_media": f"{_SETS_ITSELF} 30 s",
    "sip.timeouts.early_media_s": f"{_SETS_ITSELF} 30 s",
    "sip.timeouts.answer": "its new name is answer_s",
    "sip.timeouts.media": "its new name is media_s",
    "sip.timeouts.session": "its new name is session_s",
    "sip.timeouts.session_min": f"{_SETS_ITSELF} 90 s",
    "sip.timeouts.session_min_s": f"{_SETS_ITSELF} 90 s",
    "sip.timeouts.transfer": "its new name is transfer_s",
}
"""End of the error message by key. The path of a removed section stands for everything in it."""
