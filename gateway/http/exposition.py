"""``/metrics``: the series of the gateway and of the engine that it started."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence

from gateway.dialogue.line import DialogueStats
from gateway.metrics import Metrics
from gateway.seams.sip_state import SipState
from tts_engine.errors import EngineError
from tts_engine.supervision import SUPERVISOR


class Exposition:
    """Makes the text of ``/metrics``.

    Args:
        sip: sizes of the SIP side's tables, by name.
        sip_state: state of registrations and trunks.
        dropped: numbers of things dropped since the start, by what and why.
        engine: returns the engine's own text; raises ``EngineError``.
        moves: number of turns that were continued at another engine.
        linked: for each engine, True if it is connected.
        of_all: returns the series of all workers of the server. None: this is the only process.
    """

    def __init__(
        self,
        metrics: Metrics,
        dialogues: DialogueStats,
        sip: Callable[[], Mapping[str, int]],
        sip_state: Callable[[], SipState],
        dropped: Callable[[], Mapping[str, int]],
        engine: Callable[[], Awaitable[bytes]],
        moves: Callable[[], int],
        linked: Callable[[], Sequence[bool]],
        of_all: Callable[[], Awaitable[bytes]] | None = None,
    ) -> None:
        self._of_all = of_all
        self._metrics = metrics
        self._dialogues = dialogues
        self._sip = sip
        self._sip_state = sip_state
        self._dropped = dropped
        self._engine = engine
        self._moves = moves
        self._linked = linked

    async def __call__(self) -> bytes:
        """Return all series in Prometheus' text format, without those of an engine that does not answer."""
        ours = self.own() if self._of_all is None else await self._of_all()
        try:
            return ours + await self._engine()
        except EngineError:
            return ours

    def own(self) -> bytes:
        """Return the series of this process."""
        for route, lines in self._dialogues.connected.items():
            self._metrics.dialogue_connected(route=route, lines=lines)
        self._metrics.dialogue_reconnects(total=self._dialogues.reconnects)
        self._metrics.dialogue_missed(replayed=self._dialogues.replayed, dropped=self._dialogues.messages_dropped)
        self._metrics.kept(tasks=len(asyncio.all_tasks()), sip=self._sip())
        self._metrics.sip.state(self._sip_state())
        self._metrics.dropped(self._dropped())
        self._metrics.background_restarts(SUPERVISOR.restarts)
        self._metrics.moved_turns(total=self._moves())
        self._metrics.engines_linked(self._linked())
        return self._metrics.exposition()
