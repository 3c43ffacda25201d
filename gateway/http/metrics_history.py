"""The last hour of the figures that the console plots, kept in memory. A new page shows what happened before.

The figures are cumulative, as in ``/metrics``: the reader takes differences, and quantiles of these.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from aiohttp import web

from gateway.http.request.routes import ApiModel, Route

STEP_S = 10
STEPS = 360
"""Number of steps that are kept: an hour."""

_HISTOGRAMS = (
    "talkspurt_first_packet_seconds",
    "talkspurt_cut_seconds",
    "talkspurt_pacing_error_seconds",
    "talkspurt_engine_first_chunk_seconds",
)
_VALUES = (
    "talkspurt_calls_active",
    "talkspurt_gaps_total",
    "talkspurt_engine_batch_size_count",
    "talkspurt_engine_batch_size_sum",
)
_LINE = re.compile(
    rf"^(?:({'|'.join(_HISTOGRAMS)})_bucket\{{(?:[^}}]*,)?le=\"([^\"]+)\"[^}}]*\}}"
    rf"|({'|'.join(_VALUES)})(?:\{{.*\}})?) (\S+)$",
    re.MULTILINE,
)


class FiguresStep(ApiModel):
    """The figures at one time, since the start of the server."""

    ageS: float
    """Seconds before the answer."""
    values: dict[str, float]
    """Value of each series without labels: those that differ in labels are summed. ``active`` and ``queued`` are the
    engine's utterances in progress and the steps that wait."""
    buckets: dict[str, list[float]]
    """For each histogram, the number of observations at or below each of its ``bounds``; then the number of all."""


class FiguresView(ApiModel):
    """The last hour of the figures that the console plots."""

    stepS: float
    """Seconds from one step to the next."""
    bounds: dict[str, list[float]]
    """Upper bounds of each histogram's buckets, without that of the last one, which is infinite."""
    steps: list[FiguresStep]
    """Oldest first."""


@dataclass(frozen=True, slots=True)
class _Step:
    at: float
    values: dict[str, float]
    buckets: dict[str, tuple[float, ...]]


class MetricsHistory:
    """Handler of ``/v1/figures``.

    Args:
        metrics: returns the text of ``/metrics``.
        load: returns the engine's utterances in progress and the steps that wait.
        clock: seconds on a steady clock.
    """

    def __init__(
        self,
        metrics: Callable[[], Awaitable[bytes]],
        load: Callable[[], tuple[int, int]],
        *,
        clock: Callable[[], float],
    ) -> None:
        self._metrics = metrics
        self._load = load
        self._now = clock
        self._bounds: dict[str, tuple[float, ...]] = {}
        self._steps: deque[_Step] = deque(maxlen=STEPS)

    def route(self) -> Route:
        """Return the route for ``make_app``."""
        return Route(
            method="GET", path="/v1/figures", handler=self.show, answer=FiguresView, tags=["metrics"],
            summary="The last hour of the figures that the console plots",
        )  # fmt: skip

    async def watch(self) -> None:
        """Take the figures of each step, until cancelled."""
        while True:
            await asyncio.sleep(STEP_S)
            await self.take()

    async def take(self) -> None:
        """Take the figures of now."""
        counts, values = _read((await self._metrics()).decode())
        bounds = {family: tuple(each)[:-1] for family, each in counts.items()}
        if any(self._bounds.get(family, each) != each for family, each in bounds.items()):
            self._steps.clear()  # another engine, with other buckets
        self._bounds.update(bounds)
        values["active"], values["queued"] = map(float, self._load())
        self._steps.append(_Step(self._now(), values, {name: tuple(each.values()) for name, each in counts.items()}))

    async def show(self, request: web.Request) -> web.Response:
        """Return the steps of the last hour."""
        now = self._now()
        view = FiguresView(
            stepS=STEP_S,
            bounds={family: list(each) for family, each in self._bounds.items()},
            steps=[
                FiguresStep(
                    ageS=round(now - step.at, 2),
                    values=step.values,
                    buckets={family: list(each) for family, each in step.buckets.items()},
                )
                for step in self._steps
            ],
        )
        return web.Response(text=view.model_dump_json(), content_type="application/json")


def _read(text: str) -> tuple[dict[str, dict[float, float]], dict[str, float]]:
    """Return the cumulative counts of each histogram by upper bound, in order, and the other values, each summed over
    its labels."""
    counts: dict[str, dict[float, float]] = {}
    values: dict[str, float] = {}
    for family, bound, name, value in _LINE.findall(text):
        if name:
            values[name] = values.get(name, 0.0) + float(value)
        else:
            of_family = counts.setdefault(family, {})
            of_family[float(bound)] = of_family.get(float(bound), 0.0) + float(value)
    return {family: dict(sorted(each.items())) for family, each in counts.items()}, values
