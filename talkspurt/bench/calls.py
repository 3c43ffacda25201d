"""Many simulated calls at once: the load of ``talkspurt bench call`` and ``bench gateway``.

All calls share one thread, one loop and one uplink timetable; a call is a state, not a task. Arrival times come from
the kernel if it gives them (``arrival_clock``), so a delay of this process does not count. The server's own times are
reported too.
"""

from __future__ import annotations

import asyncio
import gc
import random
import secrets
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from talkspurt.bench.load import LoadTurn, TurnSupply
from talkspurt.simulator.carrier_leg import CarrierLeg, SimulatedUplink
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.figures import pacing_errors_ms, summary
from talkspurt.simulator.kernel_arrivals import stamping
from talkspurt.simulator.manager import ManagedCall, ManagerTurn, SimulatedManager
from talkspurt.simulator.peer_socket import PeerSocketError

ROUTE = "bench"
_CONNECTING = 20
"""Number of calls that are set up at the same time."""
_SETUP_S = 10.0
_FADE_MESSAGES = 1
"""Number of messages of a cancelled turn that may come after the clear: one frame that fades out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CallLoadSettings:
    """The settings of a step."""

    calls: int
    seconds: float
    """Time during which turns are started, seconds."""
    dialect: str = "twilio"
    tokens_per_s: float = 40.0
    """Speed at which a turn's text streams in; 0 sends the whole text at once."""
    cancel_share: float = 0.0
    """Share of turns that are cancelled in mid-speech."""
    uplink: bool = True
    """True: calls send caller audio (silence), like carriers."""
    record: bool = False
    """True: keep the audio that every caller hears. It takes 8 kB for each second of each call."""
    turn_s: float = 60.0
    """Time from a turn's text after which a turn that has not ended is an error, seconds."""
    seed: int = 1


class LoadedCall:
    """One call under load."""

    def __init__(self, number: int, load: CallLoad) -> None:
        self.load = load
        self.leg = CarrierLeg(CARRIERS[load.settings.dialect](number, {}), record=load.settings.record)
        self.call: ManagedCall | None = None
        self.turn: ManagerTurn | None = None
        self._queued: deque[ManagerTurn] = deque()
        self._gaps_before = 0
        self._cut = False
        self._deadline: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        return self.turn is None and self.leg.closed_at is None

    def speak(self, turn: LoadTurn, *, tokens_per_s: float) -> None:
        """Send a turn: token by token, or the whole text if ``tokens_per_s`` is 0."""
        assert self.call is not None and self.turn is None
        if self._cut and self.leg.messages_since_clear > _FADE_MESSAGES:
            self.load.errors["audio of a cancelled turn after the clear"] += 1
        self._cut = False
        self._gaps_before = len(self.leg.gaps)
        self.leg.turn_under_way = False
        self.leg.on_audible = self._first_audible
        self.turn = self.call.open_turn(turn.text)
        loop = asyncio.get_running_loop()
        self._deadline = loop.call_later(self.load.settings.turn_s, self._overdue)
        if tokens_per_s:
            tokens, speakable = turn.tokens()
            self._send_token(tokens, 0, speakable, time.monotonic(), 1 / tokens_per_s)
        else:
            self.turn.sent_at = time.monotonic()
            self.call.send("text", token=turn.text, last=True, turn=self.turn.turn)

    def queue(self, turn: LoadTurn) -> None:
        """Send a turn while another one is being spoken. The caller should hear no break between the two."""
        assert self.call is not None and self.turn is not None
        self._queued.append(self.call.speak(turn.text))

    def _send_token(self, tokens: Sequence[str], index: int, speakable: int, began_at: float, apart_s: float) -> None:
        if self.call is None or self.turn is None or self.leg.closed_at is not None:
            return  # the call or the turn has ended meanwhile
        if index == speakable:
            self.turn.sent_at = time.monotonic()
        last = index == len(tokens) - 1
        self.call.send("text", token=tokens[index], last=last, turn=self.turn.turn)
        if not last:
            index += 1
            delay = began_at + index * apart_s - time.monotonic()
            asyncio.get_running_loop().call_later(
                max(0.0, delay), self._send_token, tokens, index, speakable, began_at, apart_s
            )

    def _first_audible(self, now: float) -> None:
        if self.turn is None:
            return
        self.load.first_packets_ms.append((now - self.turn.sent_at) * 1000)
        self.leg.turn_under_way = True
        if self.load.rng.random() < self.load.settings.cancel_share:
            asyncio.get_running_loop().call_later(self.load.rng.uniform(0.2, 1.2), self._cancel, self.turn)

    def _cancel(self, turn: ManagerTurn) -> None:
        if self.call is not None and self.turn is turn and not turn.outcome:
            self._cut = True
            self.leg.turn_under_way = False
            self.leg.interrupt()
            self.call.send("cancel", turn=turn.turn)

    def cut(self) -> None:
        """Cancel the turn that is being spoken, if there is one."""
        if self.turn is not None:
            self._cancel(self.turn)

    def turn_ended(self, turn: ManagerTurn) -> None:
        if turn is not self.turn:
            return
        if self._deadline is not None:
            self._deadline.cancel()
        gaps = len(self.leg.gaps) - self._gaps_before
        self._gaps_before += gaps
        if self._queued:
            self.turn = self._queued.popleft()
        else:
            self.turn = None
            self.leg.turn_under_way = False
            self.leg.on_audible = None
        self.load.turn_ended(self, turn, gaps=gaps)

    def give_up(self) -> None:
        """End the call's part in the step. An open turn counts in its present state."""
        self._queued.clear()
        if self.turn is not None:
            self.turn_ended(self.turn)

    def _overdue(self) -> None:
        if self.turn is not None:
            self.load.errors[f"no end of a turn within {self.load.settings.turn_s:g} s"] += 1
            self.turn_ended(self.turn)


class Pattern(Protocol):
    """Decides when each call speaks."""

    outlasts: bool
    """True if turns continue when the step ends; then the step does not wait for them."""
    ramp_s: float
    """Time for which the pattern runs before processor time and frames are counted, seconds."""

    def start(self, load: CallLoad) -> None:
        """Begin. All calls are connected."""
        ...

    def turn_ended(self, load: CallLoad, call: LoadedCall) -> None:
        """React to a call that is idle again."""
        ...


class Conversations:
    """The standard load. Each call repeats: wait for the pause of its next turn, then speak the turn."""

    outlasts = False
    ramp_s = 0.0

    def start(self, load: CallLoad) -> None:
        for call in load.calls:
            turn = load.source.next()
            # Calls are at different points of their conversations when the measurement begins.
            load.later(load.rng.uniform(0, turn.pause_s), call, turn)

    def turn_ended(self, load: CallLoad, call: LoadedCall) -> None:
        turn = load.source.next()
        load.later(turn.pause_s, call, turn)


class Arrivals:
    """A Poisson stream of turns over all calls. Each turn goes to an idle call."""

    outlasts = False
    ramp_s = 0.0

    def __init__(self, rate: float) -> None:
        self._rate = rate

    def start(self, load: CallLoad) -> None:
        self._next(load)

    def turn_ended(self, load: CallLoad, call: LoadedCall) -> None:
        pass

    def _next(self, load: CallLoad) -> None:
        if load.over:
            return
        asyncio.get_running_loop().call_later(load.rng.expovariate(self._rate), self._next, load)
        idle = [call for call in load.calls if call.idle]
        if idle:
            load.rng.choice(idle).speak(load.source.next(), tokens_per_s=load.settings.tokens_per_s)
        else:
            load.errors["no idle call for an arrival"] += 1


class Bursts:
    """All calls speak at once, and again two seconds after the last of them has finished."""

    outlasts = False
    ramp_s = 0.0

    def start(self, load: CallLoad) -> None:
        if not load.over:
            turns = [load.source.next() for _ in load.calls]
            for call, turn in zip(load.calls, turns, strict=True):
                if call.idle:
                    call.speak(turn, tokens_per_s=0)

    def turn_ended(self, load: CallLoad, call: LoadedCall) -> None:
        if all(call.idle for call in load.calls):
            asyncio.get_running_loop().call_later(2.0, self.start, load)


class CutBursts:
    """All calls speak at once, repeatedly. A burst is cut half a second after the last of its first packets, and the
    next one begins a second later."""

    outlasts = True
    ramp_s = 0.0

    def __init__(self) -> None:
        self.first_packets_ms: list[Sequence[float]] = []
        """First-packet times of each burst, milliseconds."""
        self._heard_before = 0

    def start(self, load: CallLoad) -> None:
        if not load.over:
            self._heard_before = len(load.first_packets_ms)
            turns = [load.source.next() for _ in load.calls]
            for call, turn in zip(load.calls, turns, strict=True):
                if call.idle:
                    call.speak(turn, tokens_per_s=0)
            self._look(load)

    def _look(self, load: CallLoad) -> None:
        if load.over:
            return
        waits = any(call.turn is not None and not call.leg.turn_under_way for call in load.calls)
        asyncio.get_running_loop().call_later(0.1 if waits else 0.5, self._look if waits else self._cut, load)

    def _cut(self, load: CallLoad) -> None:
        if load.over:
            return
        self.first_packets_ms.append(load.first_packets_ms[self._heard_before :])
        for call in load.calls:
            call.cut()
        asyncio.get_running_loop().call_later(1.0, self.start, load)

    def turn_ended(self, load: CallLoad, call: LoadedCall) -> None:
        pass


@dataclass
class Talking:
    """Every call speaks all the time. Its next turn is always sent while the one before is being spoken."""

    texts: Sequence[str]
    """Texts that are spoken in rotation, so that the engine has them in its cache after the first round."""
    ramp_s: float = 8.0
    """Calls begin one after another over about one turn's duration, so that later turns begin evenly."""
    outlasts: bool = True
    _used: int = 0

    def start(self, load: CallLoad) -> None:
        for call in load.calls:
            asyncio.get_running_loop().call_later(load.rng.uniform(0, self.ramp_s), self._begin, load, call)

    def turn_ended(self, load: CallLoad, call: LoadedCall) -> None:
        if call.turn is not None:
            call.queue(self._turn())

    def _begin(self, load: CallLoad, call: LoadedCall) -> None:
        if call.idle:
            call.speak(self._turn(), tokens_per_s=0)
            call.queue(self._turn())

    def _turn(self) -> LoadTurn:
        self._used += 1
        return LoadTurn((self.texts[self._used % len(self.texts)],), 0.0)


class Silent:
    """No call speaks."""

    outlasts = False
    ramp_s = 0.0

    def start(self, load: CallLoad) -> None:
        pass

    def turn_ended(self, load: CallLoad, call: LoadedCall) -> None:
        pass


@dataclass(slots=True)
class CallLoad:
    """One step of a load against ``ADDRESS``: connect, run the pattern, measure, hang up."""

    settings: CallLoadSettings
    source: TurnSupply
    pattern: Pattern
    calls: list[LoadedCall] = field(default_factory=list)
    errors: Counter[str] = field(default_factory=Counter)
    first_packets_ms: list[float] = field(default_factory=list)
    over: bool = False
    """True when the step has ended, so that no more turns are started."""
    frames: int = 0
    """Number of media messages within the measured seconds."""
    own_cpu_s: float = 0.0
    """Processor time of this process in the measured seconds. Near one second per second, the load measures only
    itself."""
    rng: random.Random = field(init=False)
    turns: list[tuple[ManagerTurn, int]] = field(default_factory=list)
    """All turns that have ended, each with its number of gaps."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event)
    _by_sid: dict[str, LoadedCall] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.settings.seed)

    async def run(self, address: str, *, measured: Callable[[bool], None]) -> None:
        """Run the step.

        Args:
            address: ``host:port`` of the gateway.
            measured: called with True when the measured seconds begin and with False when they end.

        Raises:
            PeerSocketError: a socket cannot be opened.
        """
        manager = SimulatedManager(self._set_up)
        uplink = SimulatedUplink()
        first = secrets.randbits(96) << 16  # a gateway that runs on must not see the same call twice
        self.calls = [LoadedCall(first + number, self) for number in range(self.settings.calls)]
        self._by_sid = {call.leg.carrier.call_sid: call for call in self.calls}
        try:
            async with stamping():
                await manager.dial_in(f"ws://{address}/v1/dialogue?route={ROUTE}")
                await self._connect(f"ws://{address}/media/{self.settings.dialect}/{ROUTE}", uplink)
                gc.collect()
                gc.freeze()
                gc.disable()  # nothing here makes cycles, and a pause for a collection would count against the server
                self.pattern.start(self)
                await asyncio.sleep(self.pattern.ramp_s)
                own, frames = time.process_time(), self._frames()
                measured(True)
                await asyncio.sleep(self.settings.seconds)
                measured(False)
                self.over = True
                self.frames = self._frames() - frames
                self.own_cpu_s = time.process_time() - own
                await self._finish()
        finally:
            gc.enable()
            gc.unfreeze()
            uplink.stop()
            await asyncio.gather(*(call.leg.aclose(5.0) for call in self.calls))
            await manager.aclose()

    def figures(self) -> dict[str, Any]:
        """Return the measurements of this side."""
        legs = [call.leg for call in self.calls]
        for leg in legs:
            for description, count in leg.violations.items():
                self.errors[f"violation: {description}"] += count
        rate = legs[0].playout.sample_rate
        pacing = [pacing_errors_ms(spurt, rate) for leg in legs for spurt in leg.spurts]
        gaps = [gap / rate * 1000 for leg in legs for gap in leg.gaps]
        server = [turn.reported for turn, _ in self.turns]
        stages: dict[str, list[float]] = {}
        for reported in server:
            for stage, ms in (reported.get("stages") or {}).items():
                stages.setdefault(stage, []).append(float(ms))
        heard = [count for turn, count in self.turns if turn.outcome != "failed"]
        return {
            "turns": len(self.turns),
            "first_packet_ms": summary(self.first_packets_ms),
            "server_first_packet_ms": summary([r["firstPacketMs"] for r in server if "firstPacketMs" in r]),
            "stages_ms": {stage: summary(values) for stage, values in stages.items()},
            "arrival_clock": "process" if any(leg.timed_late for leg in legs) else "kernel",
            "pacing_error_ms": summary(np.concatenate(pacing) if pacing else []),
            "gaps": len(gaps),
            "gap_ms": summary(gaps),
            "gap_free_share": round(sum(not count for count in heard) / len(heard), 4) if heard else None,
            "cut_ms": summary([cut for leg in legs for cut in leg.cuts_ms]),
            "frames": self.frames,
            "load_core_share": round(self.own_cpu_s / self.settings.seconds, 4),
            "errors": sum(self.errors.values()),
            "errors_by_kind": dict(self.errors),
        }

    def later(self, delay_s: float, call: LoadedCall, turn: LoadTurn) -> None:
        """Let a call speak after ``delay_s``, if the step still runs then."""

        def speak() -> None:
            if not self.over and call.idle:
                call.speak(turn, tokens_per_s=self.settings.tokens_per_s)

        asyncio.get_running_loop().call_later(delay_s, speak)

    def turn_ended(self, call: LoadedCall, turn: ManagerTurn, *, gaps: int) -> None:
        """Count a turn that has ended."""
        self.turns.append((turn, gaps))
        self._changed.set()
        if turn.outcome == "failed":
            self.errors[f"turn failed: {turn.reported.get('code')} {turn.reported.get('description')}"] += 1
        if not self.over:
            self.pattern.turn_ended(self, call)

    async def _connect(self, url: str, uplink: SimulatedUplink) -> None:
        async def one(call: LoadedCall) -> None:
            async with gate:
                await call.leg.connect(url, timeout_s=_SETUP_S)
            if self.settings.uplink:
                uplink.join(call.leg)

        gate = asyncio.Semaphore(_CONNECTING)
        await asyncio.gather(*map(one, self.calls))
        if not await self._until(lambda: all(call.call is not None for call in self.calls), _SETUP_S):
            missing = sum(call.call is None for call in self.calls)
            raise PeerSocketError(f"{missing} of {len(self.calls)} calls got no dialogue within {_SETUP_S:g} s")

    async def _finish(self) -> None:
        """Let open turns end. Turns that outlast the step on purpose are cut here."""
        if not self.pattern.outlasts:
            await self._until(lambda: all(call.turn is None for call in self.calls), self.settings.turn_s)
        for call in self.calls:
            call.give_up()

    async def _until(self, condition: Callable[[], bool], within_s: float) -> bool:
        """Wait for a condition that a setup or the end of a turn makes true. Return False if it took too long."""
        try:
            async with asyncio.timeout(within_s):
                while not condition():
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    def _set_up(self, call: ManagedCall) -> None:
        loaded = self._by_sid.get(call.call_sid)
        if loaded is None:
            self.errors["setup of a call that is not ours"] += 1
            return
        loaded.call = call
        call.on_turn_end = loaded.turn_ended
        self._changed.set()
        loaded.leg.on_closed = lambda: self._closed(loaded)

    def _closed(self, call: LoadedCall) -> None:
        if not call.leg.hung_up:
            self.errors[f"media socket closed by the gateway: {call.leg.close_reason or 'connection lost'}"] += 1

    def _frames(self) -> int:
        return sum(call.leg.messages for call in self.calls)
