"""The media of one simulated call: a carrier that plays received audio in real time, and notes the arrival time of each
message.

It is made for hundreds of calls on one core: no task per call, nothing awaited, one clock reading per message.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import ClassVar

from picows import WSCloseCode, WSFrame, WSListener, WSMsgType, WSTransport

from talkspurt.simulator.carrier_playout import CarrierPlayout
from talkspurt.simulator.carriers import (
    CarrierHangsUp,
    Clear,
    Command,
    MarkRequest,
    MediaFrame,
    Message,
    SimulatedCarrier,
    Tones,
    Violation,
)
from talkspurt.simulator.carriers.carrier import TellsPlayback
from talkspurt.simulator.figures import GAP_S, Talkspurt
from talkspurt.simulator.kernel_arrivals import KernelArrivals
from talkspurt.simulator.peer_socket import connect
from voicecodecs import pcm, registry

SLOTS = 10
"""Phases of the uplink timetable, so that not all calls send at the same time."""


class Leg:
    """The carrier of one call, over any kind of socket. Times are monotonic seconds of this process."""

    delay_s: ClassVar[float] = 0.0
    """Delay of the playout, seconds. Carriers get audio ahead of time and need none."""

    def __init__(self, carrier: SimulatedCarrier, *, record: bool = False) -> None:
        self.carrier = carrier
        fmt = carrier.format
        self._silence = fmt.silence_frame()
        self.sample_bytes = len(self._silence) // fmt.frame_samples
        self.playout = CarrierPlayout(
            0.0,
            sample_rate=fmt.sample_rate,
            silence=self._silence[0],
            sample_bytes=self.sample_bytes,
            record=record,
            delay_s=self.delay_s,
        )
        self._decode = registry.decoder(fmt).decode
        self.spurts: list[Talkspurt] = []
        self.gaps: list[int] = []
        """Gaps within turns, each as the number of samples of silence that the caller heard."""
        self.messages = 0
        """Number of media messages that came."""
        self.messages_since_clear = 0
        self.timed_late = 0
        """Number of messages without the kernel's time; their arrival is the time at which this process read them."""
        self.utterances = 0
        """Number of utterances that the caller has begun."""
        self.violations: Counter[str] = Counter()
        self.marks = 0
        """Number of marks that were returned because their audio was played."""
        self.clears = 0
        self.cleared_at = 0.0
        """Time of the latest clear."""
        self.tones = ""
        """Digits that the gateway asked the carrier to send."""
        self.cuts_ms: list[float] = []
        """Times from each ``interrupt`` to the clear that answered it."""
        self.closed_at: float | None = None
        self.close_reason = ""
        self.hung_up = False
        """True if this side has ended the call."""
        self.turn_under_way = False
        """True while a turn is being spoken, so that silence is a gap. The code that knows the turns sets this."""
        self.ambience: Callable[[], bytes] | None = None
        """Returns the next frame while the caller says nothing, for example noise or echo. None: silence."""
        self.on_audible: Callable[[float], None] | None = None
        """Called once with the arrival time of the next audible frame, then removed."""
        self.on_change: Callable[[], None] = lambda: None
        """Called after a command, a returned mark or the end of the leg."""
        self.on_closed: Callable[[], None] = lambda: None
        self._uplink: deque[bytes] = deque()
        self._onset_pending = False
        self._interrupted_at: float | None = None
        self._mark_timer: asyncio.TimerHandle | None = None
        self._dry_timer: asyncio.TimerHandle | None = None
        # This is checked once, because checking a protocol takes 5 us, which every frame of every call would cost.
        self._told = carrier if isinstance(carrier, TellsPlayback) else None

    # --- the socket ---

    async def connect(self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0) -> None:
        """Open the socket and start the stream.

        Raises:
            PeerSocketError: there is no listener, or the connection was refused.
        """
        raise NotImplementedError

    @property
    def _open(self) -> bool:
        """Return True while messages can be sent."""
        raise NotImplementedError

    def _write(self, message: Message) -> None:
        raise NotImplementedError

    def _shut(self) -> None:
        """Begin to close."""
        raise NotImplementedError

    async def _gone(self, timeout_s: float) -> None:
        """Wait until the socket is closed, and close it after ``timeout_s``."""
        raise NotImplementedError

    def _connected(self) -> None:
        for message in self.carrier.opening():
            self._send(message)
        self.playout.started_at = time.monotonic()

    def _disconnected(self) -> None:
        self.closed_at = time.monotonic()
        for timer in (self._mark_timer, self._dry_timer):
            if timer is not None:
                timer.cancel()
        self.on_closed()
        self.on_change()

    # --- what the caller does ---

    def say(self, frames: Sequence[bytes]) -> None:
        """Queue caller audio, frames of one ptime. The uplink sends them; the first audible one counts as an
        interrupt."""
        self._uplink.extend(frames)
        self._onset_pending = True

    @property
    def saying(self) -> bool:
        """True while queued caller audio is left."""
        return bool(self._uplink)

    def press(self, digit: str) -> None:
        self.interrupt()
        self._send(self.carrier.dtmf(digit))

    def interrupt(self) -> None:
        """Note that the caller interrupts now, so that the playing audio should be cleared. The first of several calls
        counts."""
        now = time.monotonic()
        if self._interrupted_at is None and self.playout.playing(now):
            self._interrupted_at = now

    def send_uplink(self) -> None:
        """Send the next frame of caller audio. The uplink timetable calls this."""
        if self._uplink:
            frame = self._uplink.popleft()
            if self._onset_pending and pcm.is_audible(self._decode(frame)):
                self._onset_pending = False
                self.utterances += 1
                self.interrupt()
        else:
            frame = self.ambience() if self.ambience is not None else self._silence
        self._send(self.carrier.media(frame))

    def hang_up(self) -> None:
        """Stop the stream and ask for the socket to be closed."""
        if self._open:
            self.hung_up = True
            if (stop := self.carrier.stop()) is not None:
                self._send(stop)
            self._shut()

    async def aclose(self, timeout_s: float = 1.0) -> None:
        """Hang up, and wait until the other side has closed too, so that everything has been read."""
        self.hang_up()
        await self._gone(timeout_s)

    # --- what the gateway sends ---

    def _obey(self, command: Command, now: float) -> None:
        if isinstance(command, MediaFrame):
            self._play(command, now)
        elif isinstance(command, MarkRequest):
            self.playout.mark(command.name)
            self._return_marks()
        elif isinstance(command, Clear):
            self.clears += 1
            self.cleared_at = now
            self.turn_under_way = False  # only a fade may still come, and silence before it is no gap
            self.messages_since_clear = 0
            if self._interrupted_at is not None:
                if now >= self._interrupted_at:  # an earlier clear has another cause
                    self.cuts_ms.append((now - self._interrupted_at) * 1000)
                self._interrupted_at = None
            for answer in self.carrier.cleared(self.playout.clear(now=now)):
                self._send(answer)
            self._tell_playback()
        elif isinstance(command, CarrierHangsUp):
            for answer in command.answers:
                self._send(answer)
            self._shut()
        elif isinstance(command, Tones):
            self.tones += command.digits
        elif isinstance(command, Violation):
            self.violations[command.description] += 1
        self.on_change()

    def _play(self, media: MediaFrame, now: float) -> None:
        payload = media.payload
        dry = self.playout.write(payload, now=now, skipped=media.skipped)
        if dry or not self.spurts:
            self.spurts.append(Talkspurt(dry))
            if self.turn_under_way and dry > GAP_S * self.playout.sample_rate:
                self.gaps.append(dry)
            if self._told is not None:
                self._send(self._told.playback(started=True))
        self._tell_playback()
        spurt = self.spurts[-1]
        spurt.arrivals.append(now)
        spurt.samples.append(len(payload) // self.sample_bytes)
        self.messages += 1
        self.messages_since_clear += 1
        if self.on_audible is not None and pcm.is_audible(self._decode(payload)):
            heard, self.on_audible = self.on_audible, None
            heard(now)

    def _tell_playback(self) -> None:
        """Report the end of the playback at its time, if the carrier reports it."""
        if self._told is not None:
            if self._dry_timer is not None:
                self._dry_timer.cancel()
            told = self._told.playback
            left_s = max(0.0, self.playout.runs_dry_at() - time.monotonic())
            self._dry_timer = asyncio.get_running_loop().call_later(left_s, lambda: self._send(told(started=False)))

    def _return_marks(self) -> None:
        """Report the marks that are due, and set a timer for the next one."""
        now = time.monotonic()
        for name in self.playout.due_marks(now):
            self.marks += 1
            self._send(self.carrier.mark(name))
            self.on_change()
        if self._mark_timer is not None:
            self._mark_timer.cancel()
            self._mark_timer = None
        if (at := self.playout.next_mark_at()) is not None:
            # call_at is not used, because uvloop caches its clock for a whole turn of the loop.
            self._mark_timer = asyncio.get_running_loop().call_later(max(0.0, at - now), self._return_marks)

    def _send(self, message: Message) -> None:
        if self._open:
            self._write(message)


class CarrierLeg(Leg, WSListener):
    """A carrier with a media WebSocket."""

    def __init__(self, carrier: SimulatedCarrier, *, record: bool = False) -> None:
        super().__init__(carrier, record=record)
        self._transport: WSTransport | None = None
        self._arrivals: KernelArrivals | None = None

    async def connect(self, url: str, *, headers: Mapping[str, str] | None = None, timeout_s: float = 5.0) -> None:
        offered = {"Sec-WebSocket-Protocol": self.carrier.subprotocol} if self.carrier.subprotocol else {}
        await connect(self, url, headers={**(headers or {}), **offered}, timeout_s=timeout_s)

    @property
    def _open(self) -> bool:
        return self._transport is not None and not self._transport.is_close_frame_sent

    def _write(self, message: Message) -> None:
        assert self._transport is not None
        if isinstance(message, str):
            self._transport.send(WSMsgType.TEXT, message.encode())
        else:
            self._transport.send(WSMsgType.BINARY, message)

    def _shut(self) -> None:
        if self._transport is not None:
            self._transport.send_close(WSCloseCode.OK)

    async def _gone(self, timeout_s: float) -> None:
        if self._transport is not None:
            try:
                await asyncio.wait_for(self._transport.wait_disconnected(), timeout_s)
            except TimeoutError:
                self._transport.disconnect(graceful=False)

    def on_ws_connected(self, transport: WSTransport) -> None:
        self._transport = transport
        chosen = transport.response.headers.get("Sec-WebSocket-Protocol") or ""
        if chosen != self.carrier.subprotocol:
            self.violations["the upgrade's answer selects another sub-protocol than was offered"] += 1
        if not transport.is_secure:
            with contextlib.suppress(OSError):
                self._arrivals = KernelArrivals(transport.underlying_transport)
        self._connected()

    def on_ws_frame(self, transport: WSTransport, frame: WSFrame) -> None:
        now = self._arrivals.at if self._arrivals is not None else None
        if now is None:
            now = time.monotonic()
            self.timed_late += 1
        if frame.msg_type in (WSMsgType.TEXT, WSMsgType.BINARY) and frame.fin:
            command = self.carrier.read(frame.get_payload_as_bytes(), binary=frame.msg_type == WSMsgType.BINARY)
            self._obey(command, now)
        elif frame.msg_type == WSMsgType.CLOSE:
            self.close_reason = f"{frame.get_close_code()}"
            if not transport.is_close_frame_sent:
                transport.send_close(frame.get_close_code())
            transport.disconnect()
        else:
            self.violations[f"a {frame.msg_type.name} message; this carrier takes whole messages"] += 1

    def on_ws_disconnected(self, transport: WSTransport) -> None:
        if self._arrivals is not None:
            self._arrivals.close()
        self._disconnected()


class SimulatedUplink:
    """Sends the audio of all joined calls, one frame per 20 ms, on one absolute timetable."""

    def __init__(self, ptime_ms: int = 20) -> None:
        self._slot_s = ptime_ms / 1000 / SLOTS
        self._slots: list[list[Leg]] = [[] for _ in range(SLOTS)]
        self._tick = 0
        self._timer: asyncio.TimerHandle | None = None
        self._started_at = time.monotonic()
        self._joined = 0

    def join(self, leg: Leg) -> None:
        """Send this leg's audio from its next slot until the leg is closed."""
        self._slots[self._joined % SLOTS].append(leg)
        self._joined += 1
        if self._timer is None:
            self._started_at = time.monotonic() - self._tick * self._slot_s
            self._arm()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _arm(self) -> None:
        due = self._started_at + self._tick * self._slot_s
        self._timer = asyncio.get_running_loop().call_later(max(0.0, due - time.monotonic()), self._fire)

    def _fire(self) -> None:
        # uvloop rounds timers to 1 ms. Without a tolerance, an early wake-up would find nothing due and spin.
        now = time.monotonic() + 0.0006
        while self._started_at + self._tick * self._slot_s <= now:
            slot = self._slots[self._tick % SLOTS]
            for leg in slot:
                leg.send_uplink()
            if any(leg.closed_at is not None for leg in slot):
                slot[:] = [leg for leg in slot if leg.closed_at is None]
            self._tick += 1
        self._arm()
