"""Writes the dashboard: ``python configs/grafana/make_dashboard.py``, after a change here or in the alert rules.

The first row shows single numbers. The other rows are closed; each is a question about running the service. A panel
without queries of its own shows the figure that its alert compares, with the alert's threshold as a dashed line, so
that the line is crossed when the alert waits to fire.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
DASHBOARD = ROOT / "configs/grafana/dashboards/talkspurt.json"
ALERTS = ROOT / "configs/prometheus/alerts.yaml"

DOCS = "https://docs.example.com/talkspurt/docs"
"""Base of the links to documents until a viewer writes another one."""

_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_ROUTED = ("talkspurt_dialogue_connected", "talkspurt_dialogue_failed_total")
"""Series that the variable `route` filters: those with this label."""
_COMPARED = re.compile(r"(?P<figure>.*\S) (?P<how>>|==) (?P<value>[\d.]+)", re.S)


@dataclass(frozen=True, kw_only=True)
class Figure:
    """What an alert compares with a number."""

    expr: str
    how: str
    """``>`` or ``==``: when it is bad."""
    value: float


@dataclass(frozen=True)
class Panel:
    """One plot. Without ``queries`` it shows the figures of the alert ``see``."""

    title: str
    unit: str
    """One of Grafana's: s, percentunit, short, ops (a second), bytes, bool (0 no, 1 yes)."""
    text: str
    see: str
    """The alert whose runbook entry helps on, or a file of docs/."""
    queries: tuple[tuple[str, str], ...] = ()
    """Expression and legend. ``[R]`` is Grafana's own range for a rate; the variables are added to the series."""


def p(quantile: float, histogram: str, by: str = "") -> str:
    """Return the expression of a quantile."""
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({quantile}, sum by ({labels}) (rate({histogram}_bucket[R])))"


def rate(counter: str, by: str = "") -> str:
    """Return the expression of a counter's increase a second."""
    return f"sum by ({by}) (rate({counter}[R]))" if by else f"sum(rate({counter}[R]))"


def quantiles(histogram: str) -> tuple[tuple[str, str], ...]:
    """Return the queries of a distribution."""
    return tuple((p(share, histogram), f"p{share * 100:g}") for share in (0.5, 0.95, 0.99))


STATS: tuple[Panel, ...] = (
    Panel(
        "Alerts", "short", "Alerts that fire now.", "runbook.md",
        (('count(ALERTS{alertname=~"Talkspurt.*", alertstate="firing"}) or vector(0)', ""),),
    ),
    Panel("Live calls", "short", "Of all gateways.", "billing.md", (("sum(talkspurt_calls_active)", ""),)),
    Panel("Calls of those allowed", "percentunit", "Live calls by limits.calls.", "TalkspurtNearlyFull"),
    Panel("First packet, p95", "s", "One caller in twenty waits longer.", "TalkspurtSlowFirstPacket"),
    Panel("Gaps a turn", "percentunit", "Times that a listener ran dry within a turn.", "TalkspurtGaps"),
    Panel("Turns not spoken to their end", "percentunit", "Without interrupted turns.", "TalkspurtTurnsFail"),
)  # fmt: skip
"""Single numbers on top."""

ROWS: dict[str, tuple[Panel, ...]] = {
    "Is anything wrong now?": (
        Panel(
            "Alerts that fire", "bool", "Each with its entry in the runbook.", "runbook.md",
            (('max by (alertname, severity) (ALERTS{alertname=~"Talkspurt.*", alertstate="firing"})',
              "{{alertname}} ({{severity}})"),),
        ),
        Panel("Figures arrive", "bool", "Whether Prometheus reaches each gateway.", "TalkspurtDown"),
        Panel(
            "The canary's call was well", "bool",
            "One call through the whole path each minute: connected, spoken, on time, without holes, understood.",
            "TalkspurtCanaryFails", (("talkspurt_canary_up", "{{instance}}"),),
        ),
        Panel(
            "Since the canary's last call", "s", "It calls every minute. More means that the canary itself is ill.",
            "TalkspurtCanaryFails", (("time() - talkspurt_canary_last_call_timestamp_seconds", "{{instance}}"),),
        ),
    ),
    "Do callers wait?": (
        Panel(
            "First packet, p95", "s",
            "One caller in twenty waits longer from the text that can be spoken to the first audible frame.",
            "TalkspurtSlowFirstPacket",
        ),
        Panel(
            "First packet", "s", "The same wait: half, one in twenty and one in a hundred wait longer.",
            "TalkspurtSlowFirstPacket", quantiles("talkspurt_first_packet_seconds"),
        ),
        Panel(
            "First packets within 300 ms", "percentunit", "Share of the turns whose first sound came in time.",
            "TalkspurtSlowFirstPacket",
            (('sum(rate(talkspurt_first_packet_seconds_bucket{le="0.3"}[R])) '
              "/ sum(rate(talkspurt_first_packet_seconds_count[R]))", "within 300 ms"),),
        ),
        Panel(
            "First packet by transport and voice, p95", "s", "Whether one carrier, SIP, browsers or one model waits.",
            "TalkspurtSlowFirstPacket",
            ((p(0.95, "talkspurt_first_packet_seconds", "transport, engine"), "{{transport}} {{engine}}"),),
        ),
        Panel(
            "First packet by the canary's clock", "s", "What a caller measures, the network included.",
            "TalkspurtCanaryFails", (("talkspurt_canary_first_packet_seconds", "{{instance}}"),),
        ),
        Panel(
            "Marks come late from the carrier, p95", "s",
            "How much later than computed a carrier reports sound as played: its own buffer and the network.",
            "latency.md", ((p(0.95, "talkspurt_carrier_mark_delay_seconds"), "p95"),),
        ),
    ),
    "Does anybody hear gaps?": (
        Panel("Gaps a turn", "percentunit", "Times that a listener ran dry within a turn.", "TalkspurtGaps"),
        Panel(
            "Length of gaps", "s", "Below 40 ms hardly anybody hears them.", "TalkspurtGaps",
            quantiles("talkspurt_gap_seconds"),
        ),
        Panel(
            "Sound in hand", "s", "How far ahead of the listener the engine is; near 0 is a gap soon.",
            "TalkspurtGaps",
            ((p(0.05, "talkspurt_playout_buffer_seconds"), "p5"), (p(0.5, "talkspurt_playout_buffer_seconds"), "p50")),
        ),
        Panel("Timer is late, p99", "s", "The one timer that paces all calls of a gateway.", "TalkspurtLateTicks"),
        Panel(
            "Frames are early or late, p99", "s", "Actual minus due time of a frame.", "TalkspurtLateTicks",
            ((p(0.99, "talkspurt_pacing_error_seconds", "transport"), "{{transport}}"),),
        ),
        Panel(
            "Holes that are not ours", "ops",
            "Frames dropped at full socket buffers: the peer or the network is too slow. What the canary heard.",
            "TalkspurtGaps",
            ((rate("talkspurt_send_stalls_total", "transport"), "dropped: {{transport}}"),
             ("talkspurt_canary_gaps", "canary's last call: {{instance}}")),
        ),
    ),
    "Can callers interrupt, and are they heard?": (
        Panel(
            "Cut after speech, key or cancel, p99", "s", "Until the last old frame is on the wire.",
            "latency.md", ((p(0.99, "talkspurt_cut_seconds", "reason"), "{{reason}}"),),
        ),
        Panel(
            "Engine is free after a cut, p99", "s", "Until no step of the engine works for the turn any more.",
            "TalkspurtEngineQueue", ((p(0.99, "talkspurt_engine_freed_seconds"), "p99"),),
        ),
        Panel(
            "Tokens for turns that had been cut", "ops", "Normal after interruptions: they were on their way.",
            "protocol.md", ((rate("talkspurt_stale_tokens_total"), "tokens"),),
        ),
        Panel(
            "Sound of bots that was dropped", "s", "Seconds in a second, because a minute of it waited already.",
            "raw-audio.md", ((rate("talkspurt_audio_socket_refused_seconds_total"), "sound"),),
        ),
        Panel(
            "Dropped messages, packets and audio", "ops",
            "What arrived and was not used, by what and why. Some is normal: strangers, late packets, scanners.",
            "TalkspurtRtpLoss", ((rate("talkspurt_dropped_total", "what"), "{{what}}"),),
        ),
        Panel(
            "Who ended calls", "ops", "By the party, the class of the SIP status, and the Q.850 cause.", "sip.md",
            (
                (rate("talkspurt_call_causes_total", "by, sip, q850"), "{{by}} {{sip}} {{q850}}"),
                (rate("talkspurt_call_events_total", "transport, event"), "placed: {{transport}} {{event}}"),
                (rate("talkspurt_bridge_legs_total", "event"), "second leg: {{event}}"),
                (rate("talkspurt_sip_refers_total", "direction, outcome"), "REFER {{direction}}: {{outcome}}"),
                (rate("talkspurt_beeps_total"), "recording tones"),
                (rate("talkspurt_answers_total", "by"), "who answered: {{by}}"),
            ),
        ),
        Panel(
            "Proxies of trunks that answer", "short", "1 answers OPTIONS; 0 does not, and calls skip it.", "sip.md",
            (("min by (trunk, proxy) (talkspurt_sip_proxy_answers)", "{{trunk}} {{proxy}}"),),
        ),
        Panel(
            "Odd messages of carriers", "ops",
            "Tolerated, by dialect and kind. A new kind means that a carrier changed.", "TalkspurtCallsRejected",
            ((rate("talkspurt_carrier_oddities_total", "dialect, kind"), "{{dialect}} {{kind}}"),),
        ),
        Panel(
            "Packets from callers that never came", "percentunit", "Of SIP calls, one packet in 20 ms.",
            "TalkspurtRtpLoss",
        ),
        Panel(
            "Jitter of callers' packets", "s", "Interarrival jitter (RFC 3550).", "TalkspurtRtpLoss",
            quantiles("talkspurt_rtp_jitter_seconds"),
        ),
        Panel(
            "Words that the canary understood", "percentunit", "By the embedded recogniser; none without one.",
            "TalkspurtCanaryFails", (("talkspurt_canary_words_ratio", "{{instance}}"),),
        ),
    ),
    "Is the engine full?": (
        Panel(
            "Calls of those allowed", "percentunit", "Live calls by limits.calls of all gateways.",
            "TalkspurtNearlyFull",
        ),
        Panel("Turns that wait for a place", "short", "At the engine with the most.", "TalkspurtEngineQueue"),
        Panel(
            "Wait for a place, p95", "s", "Of the turns that had to wait, by how that ended.", "TalkspurtEngineQueue",
            ((p(0.95, "talkspurt_engine_admission_seconds", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Turns that engines refused", "ops", "`at_once`: there was another engine to ask.", "TalkspurtEngineQueue",
            ((rate("talkspurt_engine_refused_total", "reason"), "{{reason}}"),),
        ),
        Panel(
            "Engine time a second of sound, p95", "short", "Near 1 it makes no more than is played.", "TalkspurtGaps",
            ((p(0.95, "talkspurt_engine_realtime_factor", "engine"), "{{engine}}"),),
        ),
        Panel(
            "Utterances in a step", "short", "The mean. Higher is busier, and better used.", "sizing.md",
            ((f"{rate('talkspurt_engine_batch_size_sum')} / {rate('talkspurt_engine_batch_size_count')}", "mean"),),
        ),
    ),
    "Are calls lost, and why?": (
        Panel(
            "Turns not spoken to their end", "percentunit", "Interrupted turns are not among them.",
            "TalkspurtTurnsFail",
        ),
        Panel("Calls refused in 5 minutes", "short", "By why.", "TalkspurtCallsRejected"),
        Panel(
            "Calls without a manager in 5 minutes", "short", "Its manager was gone for good, by route.",
            "TalkspurtManagerGone",
        ),
        Panel(
            "Calls that ended", "ops", "`failed`: by a fault of ours, or for want of a manager.", "TalkspurtTurnsFail",
            ((rate("talkspurt_calls_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Turns that ended", "ops", "By how.", "TalkspurtTurnsFail",
            ((rate("talkspurt_turns_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Saved by another engine or model", "ops",
            "Turns that went on elsewhere after their first sound, turns that a model on trial failed, trials ended.",
            "faults.md",
            ((rate("talkspurt_moved_turns_total"), "moved to another engine"),
             (rate("talkspurt_model_failures_total", "model, kind"), "{{model}}: {{kind}}"),
             (rate("talkspurt_model_trial_returns_total", "reason"), "trial ended: {{reason}}")),
        ),
    ),
    "Do answers come in time?": (
        Panel(
            "Where the first packet waits, p95", "s",
            "`text`: the manager; `queue` and `engine`: the speech engine; `codec` and `send`: this machine.",
            "TalkspurtSlowFirstPacket",
            ((p(0.95, "talkspurt_first_packet_stage_seconds", "stage"), "{{stage}}"),),
        ),
        Panel(
            "Engine's first chunk, p95", "s", "From speakable text to audible sound, within the engine.",
            "TalkspurtSlowFirstPacket",
            ((p(0.95, "talkspurt_engine_first_chunk_seconds", "engine"), "{{engine}}"),),
        ),
        Panel(
            "Wait for an engine step, p95", "s", "Grows before anything else does when an engine fills up.",
            "TalkspurtEngineQueue", ((p(0.95, "talkspurt_engine_queue_seconds"), "p95"),),
        ),
        Panel(
            "Text known already", "percentunit", "Share of the clauses whose sound, or whose words, were at hand.",
            "latency.md",
            (('sum(rate(talkspurt_text_cache_requests_total{outcome!="miss"}[R])) '
              "/ sum(rate(talkspurt_text_cache_requests_total[R]))", "sound"),
             ('sum(rate(talkspurt_text_normaliser_requests_total{outcome="hit"}[R])) '
              "/ sum(rate(talkspurt_text_normaliser_requests_total[R]))", "words")),
        ),
        Panel(
            "Clauses made ahead", "ops", "Kept, or dropped since the next token showed that they were not complete.",
            "latency.md", ((rate("talkspurt_engine_drafts_total", "outcome"), "{{outcome}}"),),
        ),
        Panel(
            "Resource that keeps turns out", "ops", "CosyVoice had no place; a turn asks every 10 ms.",
            "TalkspurtEngineFull",
        ),
        Panel(
            "Free cache blocks", "short", "A block holds a second of a clause. At 0 new turns wait.",
            "TalkspurtEngineFull", (("min(talkspurt_engine_free_blocks)", "blocks"),),
        ),
        Panel(
            "Chunks that ran again", "ops", "Sound made ahead had lost its cache to a caller.",
            "models.md", ((rate("talkspurt_engine_recomputed_chunks_total"), "chunks"),),
        ),
        Panel(
            "Sound made for nothing", "s", "Seconds a second, of utterances that were cut while they were being made.",
            "latency.md", (("sum(rate(talkspurt_engine_unheard_seconds_total[R]))", "unheard"),),
        ),
        Panel(
            "Memory of the engine's caches", "bytes", "Bounded by the configuration.", "models.md",
            (("sum by (cache) (talkspurt_engine_cache_bytes)", "{{cache}}"),),
        ),
    ),
    "Who uses it?": (
        Panel(
            "Live calls", "short", "By transport. Tenants are in no label: GET /v1/usage has them.", "billing.md",
            (("sum by (transport) (talkspurt_calls_active)", "{{transport}}"),
             ("sum(talkspurt_calls_limit)", "allowed")),
        ),
        Panel(
            "Calls that ended, by transport", "ops", "GET /v1/records has them with their tenants.", "billing.md",
            ((rate("talkspurt_calls_total", "transport"), "{{transport}}"),),
        ),
        Panel(
            "Lines to managers", "short", "Those that are up, by route: about one a call where the gateway dials out.",
            "TalkspurtManagerGone", (("sum by (route) (talkspurt_dialogue_connected)", "{{route}}"),),
        ),
        Panel(
            "Turns by model", "ops", "While a model is on trial.", "models.md",
            ((rate("talkspurt_model_turns_total", "model"), "{{model}}"),),
        ),
        Panel(
            "Named rooms", "short", "Conferences, and their legs.", "hand-over.md",
            (
                ('sum(talkspurt_rooms{instance=~"$instance"})', "rooms"),
                ('sum(talkspurt_room_legs{instance=~"$instance"})', "legs"),
            ),
        ),
        Panel(
            "Listeners", "ops", "Who began to listen in to a call, and sound that slow listeners lost.", "browser.md",
            ((rate("talkspurt_listeners_total"), "began"), (rate("talkspurt_listener_drops_total"), "pieces lost")),
        ),
    ),
    "Is what we depend on well (disk, PostgreSQL, Redis, engines, trunks, managers)?": (
        Panel("Lost for want of disk in 5 minutes", "short", "Recordings, calls of the log, records.", "TalkspurtDisk"),
        Panel(
            "Calls and requests that did not wait for their records", "ops", "The disk hung; the records came later.",
            "TalkspurtDisk", ((rate("talkspurt_records_late_total", "instance"), "{{instance}}"),),
        ),
        Panel("PostgreSQL answers", "bool", "By what it keeps: ended calls, records.", "TalkspurtDatabaseGone"),
        Panel(
            "Waits for PostgreSQL", "short", "Ended calls and records on the gateways' disks.",
            "TalkspurtDatabaseBehind",
        ),
        Panel(
            "Refused for want of Redis", "ops", "No series of ours tells more: the log line says why.",
            "TalkspurtCallsRejected",
            (('sum by (reason) (rate(talkspurt_calls_rejected_total{reason=~"(directory|limits)_unavailable"}[R]))',
              "{{reason}}"),),
        ),
        Panel(
            "Engines that answer", "short", "By gateway: those whose figures it has.", "TalkspurtTurnsFail",
            (("count by (instance) (talkspurt_engine_admission_waiting)", "{{instance}}"),),
        ),
        Panel(
            "Engines on the gateway's machine that are linked", "bool", "Where not, turns take the slower way of gRPC.",
            "latency.md", (("talkspurt_engine_linked", "{{instance}} {{worker}}"),),
        ),
        Panel("Records that the webhook lacks", "short", "They are on the gateways' disks.", "TalkspurtWebhookBehind"),
        Panel(
            "Attempts to deliver records", "ops", "`given_up`: too old, or too many.", "TalkspurtWebhookBehind",
            ((rate("talkspurt_record_deliveries_total", "outcome"), "{{outcome}}"),),
        ),
        Panel("Lines to managers that came up again", "ops", "They had broken.", "TalkspurtManagerReconnects"),
        Panel(
            "Messages for lost managers", "ops", "Replayed to the next connection, or dropped as too many.",
            "TalkspurtManagerReconnects", ((rate("talkspurt_dialogue_missed_total", "outcome"), "{{outcome}}"),),
        ),
        Panel("Trunks answer", "bool", "To OPTIONS, where the trunk has ping_s.", "TalkspurtTrunkLost"),
        Panel("Registered", "bool", "Every account at the registrar.", "TalkspurtNotRegistered"),
    ),
    "Does one gateway, engine or GPU do worse than the others?": (
        Panel(
            "First packet by gateway, p95", "s", "The workers of one gateway are added up in its figures.",
            "TalkspurtSlowFirstPacket",
            ((p(0.95, "talkspurt_first_packet_seconds", "instance"), "{{instance}}"),),
        ),
        Panel(
            "Gaps a turn by gateway", "percentunit", "A machine that is too busy, or whose engine is.", "TalkspurtGaps",
            ((f"{rate('talkspurt_gaps_total', 'instance')} / {rate('talkspurt_turns_total', 'instance')}",
              "{{instance}}"),),
        ),
        Panel(
            "Restarts of background tasks", "ops", "A defect: each ended by itself. The log has the error.",
            "runbook.md", ((rate("talkspurt_background_restarts_total", "task"), "{{task}}"),),
        ),
        Panel(
            "Tasks more than calls need", "short", "By gateway; grows if calls leave tasks behind.",
            "TalkspurtTasksLeak",
        ),
        Panel(
            "Kept by SIP", "short", "Entries of the SIP side's tables. All fall to nothing after the last call.",
            "TalkspurtTasksLeak", (("sum by (instance, table) (talkspurt_sip_kept)", "{{instance}} {{table}}"),),
        ),
        Panel(
            "First chunk by engine, p95", "s", "`worker` numbers the engines of a gateway.", "TalkspurtSlowFirstPacket",
            ((p(0.95, "talkspurt_engine_first_chunk_seconds", "instance, worker"), "{{instance}} {{worker}}"),),
        ),
        Panel(
            "Engine time a second of sound by engine, p95", "short", "Near 1 it makes no more than is played.",
            "TalkspurtGaps",
            ((p(0.95, "talkspurt_engine_realtime_factor", "instance, worker"), "{{instance}} {{worker}}"),),
        ),
        Panel(
            "GPU in use", "percentunit", "Share of the time in which any kernel ran.", "TalkspurtEngineQueue",
            (("talkspurt_gpu_utilisation_ratio", "{{instance}} {{worker}} {{gpu}}"),),
        ),
        Panel(
            "GPU memory in use", "percentunit", "By all processes; another program's shows here.", "TalkspurtGaps",
            (("talkspurt_gpu_memory_used_bytes / talkspurt_gpu_memory_total_bytes",
              "{{instance}} {{worker}} {{gpu}}"),),
        ),
        Panel(
            "Versions", "short", "Gateways by the version that they run.", "upgrading.md",
            (("count by (version) (talkspurt_build_info)", "{{version}}"),),
        ),
    ),
}  # fmt: skip


def figures() -> dict[str, list[Figure]]:
    """Return what each alert compares, with what its recording rules compute."""
    rules = [rule for group in yaml.safe_load(ALERTS.read_text())["groups"] for rule in group["rules"]]
    recorded = {rule["record"]: rule["expr"] for rule in rules if "record" in rule}
    found: dict[str, list[Figure]] = {}
    for rule in (rule for rule in rules if "alert" in rule):
        for part in re.split(r"\s+or\s+", rule["expr"].strip()):
            compared = _COMPARED.fullmatch(part)
            assert compared is not None, f"{rule['alert']}: {part!r}, expected FIGURE > NUMBER or FIGURE == NUMBER"
            expr = str(recorded.get(compared["figure"]) or compared["figure"])
            figure = Figure(expr=expr, how=compared["how"], value=float(compared["value"]))
            found.setdefault(rule["alert"], []).append(figure)
    return found


def series(expr: str) -> set[str]:
    """Return the series that an expression reads."""
    return set(re.findall(r"\b(?:talkspurt_\w+|up|ALERTS)\b", expr))


def _with_variables(expr: str) -> str:
    """Let the dashboard's variables choose. The canary is no gateway."""

    def chosen(match: re.Match[str]) -> str:
        name, labels = match[1], match[3]
        if name.startswith("talkspurt_canary"):
            return match[0]
        wanted = [labels] if labels else []
        wanted += ['instance=~"$instance"'] + ['route=~"$route"'] * (name in _ROUTED)
        return f"{name}{{{', '.join(wanted)}}}"

    return re.sub(r"\b(talkspurt_\w+|up\b)(\{(.*?)\})?", chosen, expr).replace("[R]", "[$__rate_interval]")


def _legend(expr: str) -> str:
    by = re.search(r"\bby \((.*?)\)", expr)
    labels = [label for label in by[1].split(", ") if label != "le"] if by else []
    return " ".join(f"{{{{{label}}}}}" for label in labels) or " / ".join(sorted(series(expr)))


def _stat(panel: Panel, compared: list[Figure], place: dict[str, int], number: int) -> dict[str, Any]:
    """Return a panel of one number, coloured by the alert's threshold."""
    drawn = _drawn(panel, compared, place, number)
    defaults = drawn["fieldConfig"]["defaults"]
    del defaults["custom"]
    if panel.title == "Alerts":
        defaults["thresholds"]["steps"].append({"color": "red", "value": 1})
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "value", "graphMode": "area", "textMode": "value", "justifyMode": "auto", "orientation": "auto",
    }  # fmt: skip
    return drawn | {"type": "stat", "options": options}


def _drawn(panel: Panel, compared: list[Figure], place: dict[str, int], number: int) -> dict[str, Any]:
    queries = panel.queries or tuple((figure.expr, _legend(figure.expr)) for figure in compared)
    shown = set().union(*(series(expr) for expr, _ in queries))
    bounds = {(figure.how, figure.value) for figure in compared if panel.queries == () or series(figure.expr) == shown}
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    text = panel.text
    if panel.see.endswith(".md"):
        text += f" [docs/{panel.see}](${{docs}}/{panel.see})"
    else:
        text += f" [docs/runbook.md: {panel.see}](${{docs}}/runbook.md#{panel.see.lower()})"
    if bounds:
        ((how, value),) = bounds
        if how == "==":
            steps = [{"color": "red", "value": None}, {"color": "green", "value": value + 1}]
        else:
            steps.append({"color": "red", "value": value})
    yes_or_no = panel.unit == "bool"
    custom: dict[str, Any] = {"lineWidth": 1, "fillOpacity": 70 if yes_or_no else 8}
    defaults: dict[str, Any] = {"unit": "short" if yes_or_no else panel.unit, "custom": custom}
    defaults["thresholds"] = {"mode": "absolute", "steps": steps}
    options: dict[str, Any] = {"legend": {"displayMode": "list", "placement": "bottom", "showLegend": not yes_or_no}}
    options["tooltip"] = {"mode": "multi", "sort": "desc"}
    if yes_or_no:
        good, bad = ("red", "green") if "ALERTS" in shown else ("green", "red")
        answers = {"1": {"text": "yes", "color": good, "index": 0}, "0": {"text": "no", "color": bad, "index": 1}}
        defaults |= {"mappings": [{"type": "value", "options": answers}]}
        options |= {"mergeValues": True, "showValue": "never", "alignValue": "left", "rowHeight": 0.8}
    else:
        custom |= {"showPoints": "never", "thresholdsStyle": {"mode": "dashed" if bounds else "off"}}
        defaults["min"] = 0  # what is below is well
    targets = [
        {"refId": chr(ord("A") + at), "datasource": _SOURCE, "expr": _with_variables(expr), "legendFormat": legend}
        for at, (expr, legend) in enumerate(queries)
    ]
    return {
        "id": number,
        "type": "state-timeline" if yes_or_no else "timeseries",
        "title": panel.title,
        "description": text,
        "datasource": _SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": targets,
    }


def _chooser(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "label": label, "type": "query", "datasource": _SOURCE, "query": query,
        "refresh": 2, "multi": True, "includeAll": True, "allValue": ".*", "sort": 1, "hide": 0,
        "current": {"text": ["All"], "value": ["$__all"]},
    }  # fmt: skip


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana reads it."""
    compared = figures()
    width = 24 // len(STATS)
    panels = [
        _stat(panel, compared.get(panel.see, []), {"h": 4, "w": width, "x": width * at, "y": 0}, at + 1)
        for at, panel in enumerate(STATS)
    ]
    number = len(panels)
    for y, (question, row) in enumerate(ROWS.items(), 4):
        place = {"h": 1, "w": 24, "x": 0, "y": y}
        number += 1
        closed: dict[str, Any] = {"id": number, "type": "row", "title": question, "collapsed": True, "gridPos": place}
        across = 4 if len(row) == 4 else 3
        wide = 24 // across
        closed["panels"] = [
            _drawn(
                panel, compared.get(panel.see, []),
                {"h": 8, "w": wide, "x": wide * (at % across), "y": y + 1 + 8 * (at // across)}, number + 1 + at,
            )
            for at, panel in enumerate(row)
        ]  # fmt: skip
        number += len(row)
        panels.append(closed)
    source = {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}
    docs = {"name": "docs", "label": "Address of docs/", "type": "textbox", "query": DOCS, "hide": 0}
    everything = '{__name__=~"talkspurt_build_info|talkspurt_engine_admission_waiting"}'
    return {
        "uid": "talkspurt",
        "title": "talkspurt",
        "tags": ["talkspurt"],
        "timezone": "browser",
        "schemaVersion": 39,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "15s",
        "time": {"from": "now-15m", "to": "now"},
        "templating": {
            "list": [
                source | {"current": {"text": "Prometheus", "value": "prometheus"}},
                _chooser("instance", "Gateway or engine", f"label_values({everything}, instance)"),
                _chooser("route", "Route (managers)", "label_values(talkspurt_dialogue_connected, route)"),
                docs | {"current": {"text": DOCS, "value": DOCS}},
            ]
        },
        "annotations": {"list": []},
        "panels": panels,
    }


def text() -> str:
    """Return the file's content."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    DASHBOARD.write_text(text())
