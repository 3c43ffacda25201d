"""Callers in conversation: some places, each with one call after another, by WebSocket or SIP, and what becomes of
every call."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from dataclasses import dataclass, field
from typing import Any

from talkspurt.bench.load import LoadTurn
from talkspurt.simulator.carrier_leg import CarrierLeg, Leg, SimulatedUplink
from talkspurt.simulator.carriers import CARRIERS
from talkspurt.simulator.carriers.sip import SipCarrier
from talkspurt.simulator.manager import ManagedCall, SimulatedManager
from talkspurt.simulator.peer_socket import PeerSocketError
from talkspurt.simulator.sip_leg import SipLeg

SETUP_S = 30.0
TURN_S = 30.0
"""A turn that has not ended so long after its text has got stuck, or its gateway is gone."""
_TOKEN_S = 0.05
_PAUSE_S = 1.0
"""The pause of a caller whose call went wrong, before the next one."""
_TURNS = (
    LoadTurn(("Thank you for your patience,", "we are looking at your order now.", "It was sent in the morning."), 0.3),
    LoadTurn(("The next appointment would be on Thursday,", "at a quarter past nine.", "Does that suit you?"), 0.3),
    LoadTurn(("Your contract ends with the last day of March.", "If you want to keep it, you need do nothing."), 0.3),
    LoadTurn(("We have found three entries under this name.", "Please tell us the street, so that we are sure."), 0.3),
)


@dataclass
class Call:
    """One call as its caller and its dialogue manager saw it. Times are monotonic seconds."""

    kind: str
    """``twilio`` or ``sip``."""
    leg: Leg
    began_at: float = field(default_factory=time.monotonic)
    over_at: float = 0.0
    managed: ManagedCall | None = None
    lost: str = ""
    """The reason why the call did not go as the caller wanted. Empty: it did."""
    gaps: list[tuple[float, float]] = field(default_factory=list)
    """The silences within turns: when each ended, and how long it was, ms."""
    first_packets: list[tuple[float, float]] = field(default_factory=list)
    """The time at which each turn's first packet came, and how long after its first clause was complete, ms."""
    _seen: int = 0

    @property
    def id(self) -> str:
        return self.managed.session_id if self.managed is not None else ""

    @property
    def gateway(self) -> str:
        """The gateway's number."""
        return self.id[4:8]

    @property
    def worker(self) -> int:
        return int(self.id[2:4] or "0", 16)

    def look_for_gaps(self) -> None:
        """Note the newest gap."""
        gaps = self.leg.gaps
        if len(gaps) > self._seen:
            self._seen = len(gaps)
            self.gaps.append((time.monotonic(), gaps[-1] / self.leg.playout.sample_rate * 1000))


class Callers:
    """All callers and their dialogue manager.

    Args:
        places: how many calls there are at a time.
        seconds: how long each of them is.
    """

    def __init__(self, places: int, seconds: float) -> None:
        self.places = places
        self.seconds = seconds
        self.calls: list[Call] = []
        self.manager = SimulatedManager(self._set_up)
        self._uplink = SimulatedUplink()
        self._awaited: dict[str, asyncio.Future[ManagedCall]] = {}
        self._turns = itertools.cycle(_TURNS)
        self._running: list[asyncio.Task[None]] = []
        self._over = False

    def start(self, front: int, sip_front: int) -> None:
        """Let callers come, evenly over the length of a call."""
        urls = {
            "twilio": f"ws://127.0.0.1:{front}/media/twilio/default",
            "sip": f"sip:bot@127.0.0.1:{sip_front}",
        }
        self._running = [asyncio.create_task(self._place(number, urls)) for number in range(self.places)]

    async def stop(self) -> None:
        """Take no new calls, and let the last ones end."""
        self._over = True
        await asyncio.gather(*self._running)

    async def aclose(self) -> None:
        for task in self._running:
            task.cancel()
        self._uplink.stop()
        await self.manager.aclose()

    @property
    def live(self) -> list[Call]:
        """The calls that talk."""
        return [call for call in self.calls if call.managed is not None and not call.over_at]

    def _set_up(self, managed: ManagedCall) -> None:
        awaited = self._awaited.pop(managed.call_sid, None)
        if awaited is not None and not awaited.done():
            awaited.set_result(managed)

    async def _place(self, number: int, urls: dict[str, str]) -> None:
        await asyncio.sleep(self.seconds * number / self.places)
        while not self._over:
            call = await self.call("sip" if number % 2 else "twilio", urls)
            await asyncio.sleep(_PAUSE_S if call.lost else 0)

    async def call(self, kind: str, urls: dict[str, str]) -> Call:
        """Call, listen to turn after turn, and hang up."""
        number = secrets.randbits(127)
        leg: Leg = SipLeg(SipCarrier(number, {})) if kind == "sip" else CarrierLeg(CARRIERS[kind](number, {}))
        call = Call(kind, leg)
        self.calls.append(call)
        leg.on_change = call.look_for_gaps
        awaited = self._awaited[leg.carrier.call_sid] = asyncio.get_running_loop().create_future()
        try:
            await leg.connect(urls[kind], timeout_s=SETUP_S)
            self._uplink.join(leg)
            call.managed = await asyncio.wait_for(awaited, SETUP_S)
            until = time.monotonic() + self.seconds
            while not call.lost and leg.closed_at is None and time.monotonic() < until:
                await self._turn(call)
        except PeerSocketError as exc:
            call.lost = f"not connected: {exc}"
        except TimeoutError:
            call.lost = "no dialogue"
        finally:
            if leg.closed_at is not None and not call.lost:
                call.lost = f"ended by the other side: {leg.close_reason or 'reset'}"
            call.over_at = time.monotonic()
            await leg.aclose(5.0)
        return call

    async def _turn(self, call: Call) -> None:
        """Let the manager say something, token by token as a language model does, and listen to its end."""
        leg, managed, over = call.leg, call.managed, asyncio.Event()
        assert managed is not None

        def heard(now: float) -> None:
            leg.turn_under_way = True
            call.first_packets.append((now, (now - turn.sent_at) * 1000))

        managed.on_turn_end = lambda turn: over.set()
        leg.on_closed = over.set
        given = next(self._turns)
        await asyncio.sleep(given.pause_s)
        turn = managed.open_turn(given.text)
        leg.on_audible = heard
        tokens, speakable = given.tokens()
        for index, token in enumerate(tokens):
            if index == speakable:
                turn.sent_at = time.monotonic()
            managed.send("text", token=token, last=index == len(tokens) - 1, turn=turn.turn)
            await asyncio.sleep(_TOKEN_S)
        try:
            await asyncio.wait_for(over.wait(), TURN_S)
        except TimeoutError:
            call.lost = "a turn has no end"
        leg.turn_under_way = False
        leg.on_audible = None
        if leg.closed_at is not None:
            call.lost = f"ended by the other side: {leg.close_reason or 'reset'}"
        elif not call.lost and turn.outcome != "finished":
            call.lost = f"a turn {turn.outcome}: {turn.reported.get('code')} {turn.reported.get('description')}"


def figures(calls: list[Call], since: float, until: float) -> dict[str, Any]:
    """Return the figures of the sound that callers heard within a time."""
    gaps = [[ms for at, ms in call.gaps if since <= at <= until] for call in calls]
    first = sorted(ms for call in calls for at, ms in call.first_packets if since <= at <= until)
    return {
        "calls": len(calls),
        "gaps": sum(map(len, gaps)),
        "gaps_of_a_call": max(map(len, gaps), default=0),
        "gap_ms": round(max((ms for one in gaps for ms in one), default=0.0)),
        "first_packet_ms": round(first[len(first) // 2]) if first else None,
        "first_packet_ms_most": round(first[-1]) if first else None,
    }
