"""``talkspurt canary``: makes one call through the whole path at intervals, and serves its figures as metrics on its
own port.

It calls like a carrier, sends one sentence as the call's dialogue manager, and listens. If the extra ``[recogniser]``
is installed, it also reports how many of the words were understood.
"""

from __future__ import annotations

import argparse
import asyncio
import difflib
import json
import os
import random
import re
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import uvloop
from numpy.typing import NDArray
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from gateway.recognition import moonshine
from gateway.seams.recogniser import SAMPLE_RATE
from talkspurt.cli import JobError, UsageError
from talkspurt.simulator.call_script import Expect, TextStep
from talkspurt.simulator.caller import CallFailed, CallOptions, SimulatedCaller, default_url
from talkspurt.simulator.carriers import CARRIERS
from voicecodecs.pcm import to_float32
from voicecodecs.resample import Resampler

_WORDS = """
apple river window garden summer yellow mountain paper morning silver table winter orange music bridge island
kitchen doctor market pencil butter camera dragon engine
""".split()


def new_sentence() -> str:
    """Return a sentence that was most likely never spoken before, because a cached sentence measures nothing."""
    one, two, three = random.sample(_WORDS, 3)
    return f"Please remember {one}, {two} and {three}. This is a test call, and it was spoken for you just now."


Recogniser = Callable[[NDArray[np.float32]], str]
"""Returns the words of sound of shape ``(samples,)``, 16 kHz."""


class CanaryMetrics:
    """Metrics of the latest call."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._calls = Counter("talkspurt_canary_calls", "Calls of the canary, by how.", ["outcome"], registry=registry)
        self._up = Gauge("talkspurt_canary_up", "1: the latest call was as it should be; 0: not.", registry=registry)
        self._ended = Gauge(
            "talkspurt_canary_last_call_timestamp_seconds", "When the latest call ended, since 1970.", registry=registry
        )
        self._first_packet = Gauge(
            "talkspurt_canary_first_packet_seconds",
            "From the text of the latest call to its first audible frame, by the caller's clock. NaN: none came.",
            registry=registry,
        )
        self._gaps = Gauge("talkspurt_canary_gaps", "Holes that the latest caller heard.", registry=registry)
        self._words = Gauge(
            "talkspurt_canary_words_ratio",
            "Share of the words that the recogniser understood in the latest call. NaN: there is no recogniser.",
            registry=registry,
        )

    def called(self, figures: Figures) -> None:
        """Take the figures of a call that is over."""
        nan = float("nan")
        self._calls.labels("failed" if figures.problem else "passed").inc()
        self._up.set(not figures.problem)
        self._ended.set(time.time())
        self._first_packet.set(nan if figures.first_packet_ms is None else figures.first_packet_ms / 1000)
        self._gaps.set(figures.gaps)
        self._words.set(nan if figures.words is None else figures.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bounds within which a call is good."""

    first_packet_ms: float
    gaps: int
    words: float
    """Smallest share of words that has to be understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Figures of one call."""

    first_packet_ms: float | None
    gaps: int
    words: float | None
    """Share of words that were understood. None: there was no recogniser."""
    problem: str
    """Reason why the call was not good. Empty: it was good."""


class Canary:
    """Makes calls.

    Args:
        options: the options of each call, without its steps. text: returns the text that is spoken to a call.
        seconds: longest wait for the end of the sentence.
        recogniser: None: words are not checked.
    """

    def __init__(
        self,
        options: CallOptions,
        text: Callable[[], str],
        bounds: Bounds,
        *,
        seconds: float,
        recogniser: Recogniser | None,
        metrics: CanaryMetrics,
    ) -> None:
        self._options, self._text, self._bounds = options, text, bounds
        self._seconds = seconds
        self._recogniser = recogniser
        self._metrics = metrics

    async def call(self) -> Figures:
        """Make one call, and note its figures."""
        text = self._text()
        options = CallOptions(
            url=self._options.url,
            dialect=self._options.dialect,
            steps=(TextStep(text), Expect("quiet", self._seconds * 1000)),
            api_key=self._options.api_key,
            carrier_secret=self._options.carrier_secret,
        )
        caller, failed = SimulatedCaller(options), ""
        try:
            await caller.run()
        except CallFailed as exc:
            failed = str(exc)
        report = caller.report()
        words = None
        if self._recogniser is not None and not failed:
            pcm, rate = caller.heard()
            words = words_understood(text, await asyncio.to_thread(_transcript, self._recogniser, pcm, rate))
        figures = Figures(
            first_packet_ms=report["first_packet_ms"],
            gaps=report["gaps"],
            words=words,
            problem=failed or self._beyond(report, words),
        )
        self._metrics.called(figures)
        return figures

    def _beyond(self, report: dict[str, Any], words: float | None) -> str:
        bounds, first = self._bounds, report["first_packet_ms"]
        unspoken = [turn["outcome"] for turn in report["turns"] if turn["outcome"] != "finished"]
        if unspoken:
            return f"the turn ended as {unspoken[0]}, expected finished"
        if first is None or first > bounds.first_packet_ms:
            return f"the first packet took {first} ms, expected at most {bounds.first_packet_ms:g}"
        if report["gaps"] > bounds.gaps:
            return f"{report['gaps']} gaps, expected at most {bounds.gaps}"
        if words is not None and words < bounds.words:
            return f"{words:.0%} of the words were understood, expected at least {bounds.words:.0%}"
        return ""


def words_understood(text: str, transcript: str) -> float:
    """Return the share of a text's words that a transcript has in their order."""
    said, heard = (re.findall(r"\w+", each.lower()) for each in (text, transcript))
    same = sum(block.size for block in difflib.SequenceMatcher(None, said, heard, autojunk=False).get_matching_blocks())
    return same / len(said) if said else 1.0


def _transcript(recogniser: Recogniser, pcm: NDArray[np.int16], rate: int) -> str:
    up = Resampler(rate, SAMPLE_RATE)
    return recogniser(np.concatenate([up.process(to_float32(pcm)), up.flush()]))


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt canary``.

    Raises:
        UsageError: the options are wrong.
        JobError: with ``--once``, the call was not good.
    """
    if args.dialect not in CARRIERS:
        raise UsageError(f"--dialect {args.dialect!r} is unknown, known are {', '.join(sorted(CARRIERS))}")
    options = CallOptions(
        url=args.url or default_url(args.dialect),
        dialect=args.dialect,
        steps=(),
        api_key=os.environ.get("TALKSPURT_API_KEY", ""),
        carrier_secret=os.environ.get("TALKSPURT_CARRIER_SECRET", ""),
    )
    metrics = CanaryMetrics()
    canary = Canary(
        options,
        (lambda: args.text) if args.text else new_sentence,
        Bounds(first_packet_ms=args.first_packet_ms, gaps=args.gaps, words=args.words),
        seconds=args.seconds,
        recogniser=moonshine.Moonshine() if moonshine.installed() else None,
        metrics=metrics,
    )
    if args.once:
        figures = uvloop.run(canary.call())
        if args.json or not figures.problem:
            _tell(figures, as_json=args.json)
        if figures.problem:
            raise JobError(figures.problem)
        return 0
    try:
        start_http_server(int(args.port), args.host, metrics.registry)
    except OSError as exc:
        raise JobError(f"no metrics on {args.host}:{args.port}: {exc}") from exc
    uvloop.run(_again_and_again(canary, args.every, as_json=args.json))
    return 0


async def _again_and_again(canary: Canary, every_s: float, *, as_json: bool) -> None:
    while True:
        begun = time.monotonic()
        _tell(await canary.call(), as_json=as_json)
        await asyncio.sleep(max(0.0, begun + every_s - time.monotonic()))


def _tell(figures: Figures, *, as_json: bool) -> None:
    first = figures.first_packet_ms
    if as_json:
        words = None if figures.words is None else round(figures.words, 2)
        told = {"first_packet_ms": first, "gaps": figures.gaps, "words": words, "problem": figures.problem}
        print(json.dumps(told), flush=True)
    elif figures.problem:
        print(f"failed: {figures.problem}", file=sys.stderr, flush=True)
    else:
        understood = "" if figures.words is None else f", {figures.words:.0%} of the words"
        print(f"first packet {first} ms, {figures.gaps} gaps{understood}", flush=True)
