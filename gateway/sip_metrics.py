"""Metrics of the SIP side's peers: registrations, trunks, and what they ask for."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from gateway.seams.sip_state import SipState


class SipMetrics:
    """Registrations, trunks and REFERs, as Prometheus series."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registered = Gauge(
            "talkspurt_sip_registered",
            "1: all our accounts at the registrar are registered; 0: one is not.",
            ["registrar"], registry=registry,
        )  # fmt: skip
        self._trunk_answers = Gauge(
            "talkspurt_sip_trunk_answers",
            "1: a proxy of the trunk answers OPTIONS; 0: none does. Trunks with ping_s or several proxies.",
            ["trunk"], registry=registry,
        )  # fmt: skip
        self._proxy_answers = Gauge(
            "talkspurt_sip_proxy_answers",
            "1: one of several proxies of a trunk answers OPTIONS; 0: it does not, and calls skip it.",
            ["trunk", "proxy"], registry=registry,
        )  # fmt: skip
        self._refers = Counter(
            "talkspurt_sip_refers",
            "REFERs in calls. sent: completed, failed, refused, unanswered, unknown (the call ended before its outcome "
            "was told). received: accepted, refused.",
            ["direction", "outcome"], registry=registry,
        )  # fmt: skip

    def state(self, state: SipState) -> None:
        """Set the state of SIP registrations and trunks."""
        for registrar in {each.registrar for each in state.registrations}:
            here = all(each.registered for each in state.registrations if each.registrar == registrar)
            self._registered.labels(registrar).set(here)
        for trunk in state.trunks:
            self._trunk_answers.labels(trunk.trunk).set(trunk.answers)
            for each in trunk.proxies:
                self._proxy_answers.labels(trunk.trunk, each.proxy).set(each.answers)

    def refer(self, direction: str, outcome: str) -> None:
        """Count a REFER. ``direction`` and ``outcome``: see ``sip_bridge.dialog.effects.ReferOutcome``."""
        self._refers.labels(direction, outcome).inc()
