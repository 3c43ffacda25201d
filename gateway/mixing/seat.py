"""The place between a call and its media leg. Outside a room, frames of the bot pass to the leg. In a room, the room's
mix goes to the leg, and the bot's voice is one of the sources. The room may be in another process. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from gateway.mixing.mixer import Mixer, MixListener
from gateway.mixing.sources import LegSource, PlayoutSource
from gateway.seams.leg import MediaLeg, Reception, TransferStart
from voicecodecs.registry import AudioFormat

_VOICE = ":voice"


def voice_of(name: str) -> str:
    """Return the name of the source that is the bot's voice on a leg."""
    return name + _VOICE


def leg_of(voice: str) -> str:
    """Return the leg of a source that is a bot's voice. Empty: the source is none."""
    return voice.removesuffix(_VOICE) if voice.endswith(_VOICE) else ""


def _ignore(_frame: bytes, _now: float, _heard_at: float) -> None:
    return None


class FarMix(Protocol):
    """The mix of a room in another process. No method waits."""

    def hear(self, payload: bytes, now: float) -> None:
        """Take the caller's payload, empty for a lost one."""
        ...

    def speak(self, frame: bytes, now: float) -> bool:
        """Take a frame of the bot. False: it was dropped."""
        ...

    def mark(self, name: str) -> None:
        """Report this mark after the frames before it."""
        ...

    def clear(self) -> None:
        """Drop frames and marks of the bot that were not mixed."""
        ...


class Seat:
    """A leg with its place in a room. It is the ``MediaLeg`` of the call.

    Args:
        leg: the transport's leg.
        inbound: format of the caller's payloads.
    """

    def __init__(self, leg: MediaLeg, inbound: AudioFormat) -> None:
        self.leg = leg
        self.inbound = inbound
        self.sent: Callable[[bytes, float, float], None] = _ignore
        """Receives each frame of a mix that was sent, as ``gateway.call.hearing.caller.Caller.spoke`` does."""
        self._name = ""
        self._mixer: Mixer | None = None
        self._far: FarMix | None = None
        self._source: LegSource | None = None
        self._voice: PlayoutSource | None = None

    # --- the room ----------------------------------------------------------------------------------------------------

    @property
    def joined(self) -> bool:
        """True while the leg is in a room."""
        return self._mixer is not None or self._far is not None

    @property
    def voice(self) -> PlayoutSource | None:
        """The bot's voice as a source of the room. None: the leg is in none, or in one of another process."""
        return self._voice

    def enter(self, name: str, mixer: Mixer) -> None:
        """Give the leg's sources and its listener to a mixer.

        Raises:
            ValueError: the leg is in a room.
        """
        if self.joined:
            raise ValueError(f"{name} is in a room already")
        leg = self.leg
        self._name, self._mixer = name, mixer
        self._source = LegSource(self.inbound, in_real_time=leg.in_real_time)
        self._voice = PlayoutSource(leg.outbound, self._mark, mixer.settle)
        mixer.add_source(name, self._source)
        mixer.add_source(voice_of(name), self._voice)
        mixer.add_listener(name, MixListener(leg.outbound, self.deliver, takes_bursts=not leg.in_real_time))

    def leave(self, now: float) -> None:
        """Leave the room. Speech of the bot that waits for the mix goes to the leg now."""
        mixer, voice = self._mixer, self._voice
        if mixer is None or voice is None:
            return
        self._mixer = self._source = self._voice = None
        mixer.remove_listener(self._name)
        mixer.remove_source(self._name)
        mixer.remove_source(voice_of(self._name))
        for entry in voice.take_all():
            if isinstance(entry, str):
                self.leg.send_mark(entry)
            else:
                self.leg.send_frame(entry, now)

    def enter_far(self, mix: FarMix) -> None:
        """Give the leg's sound to a room in another process, whose frames come by ``deliver``.

        Raises:
            ValueError: the leg is in a room.
        """
        if self.joined:
            raise ValueError("the leg is in a room already")
        self._far = mix

    def leave_far(self) -> None:
        """Leave that room. Frames of the bot go to the leg again."""
        self._far = None

    def close(self) -> None:
        """Report no more frames, because the call is over; the receiver of the reports refers to this seat."""
        self.sent = _ignore

    def on_audio(self, payload: bytes, now: float) -> None:
        """Take the caller's payload, empty for a lost one."""
        if self._source is not None:
            self._source.push(payload, now=now)
        elif self._far is not None:
            self._far.hear(payload, now)

    def deliver(self, payload: bytes, now: float) -> None:
        """Send a frame of the room's mix to the leg."""
        # An empty payload was lost; only RTP can say so.
        if (payload or self.leg.in_real_time) and self.leg.send_frame(payload, now):
            self.sent(payload, now, now)

    def _mark(self, name: str) -> None:
        self.leg.send_mark(name)

    # --- MediaLeg ----------------------------------------------------------------------------------------------------

    @property
    def in_real_time(self) -> bool:
        """True if the caller's packets come as they were sent."""
        return self.leg.in_real_time

    @property
    def refuses_transfers(self) -> bool:
        """True if the peer carries out no transfers."""
        return self.leg.refuses_transfers

    @property
    def asks_webhook(self) -> bool:
        """True if the carrier asks our webhook what to do with the call after the stream."""
        return self.leg.asks_webhook

    @property
    def max_lead_ms(self) -> int:
        """Most audio that may be sent ahead of real time, milliseconds."""
        return self.leg.max_lead_ms

    @property
    def has_marks(self) -> bool:
        """True if the peer confirms what it played."""
        return self.leg.has_marks

    @property
    def can_clear(self) -> bool:
        """True if unplayed audio can be removed."""
        return self.leg.can_clear

    @property
    def outbound(self) -> AudioFormat:
        """Format of the sent audio."""
        return self.leg.outbound

    def reception(self) -> Reception | None:
        """Return the leg's reception statistics."""
        return self.leg.reception()

    def send_frame(self, payload: bytes, now: float) -> bool:
        """Pass a frame of the bot to the leg, or into the mix. False: it was dropped."""
        if self._voice is not None:
            return self._voice.push(payload, now=now)
        if self._far is not None:
            return self._far.speak(payload, now)
        return self.leg.send_frame(payload, now)

    def send_mark(self, name: str) -> None:
        """Ask for a report when everything of the bot before the mark has been played."""
        if self._voice is not None:
            self._voice.mark(name)
        elif self._far is not None:
            self._far.mark(name)
        else:
            self.leg.send_mark(name)

    def send_clear(self) -> None:
        """Drop speech of the bot that was not heard. The other legs' sound stays."""
        if self._voice is not None:
            self._voice.clear()
        elif self._far is not None:
            self._far.clear()
        else:
            self.leg.send_clear()

    def carries_dtmf(self, digits: str) -> bool:
        """Return True if the leg can send these touch tones."""
        return self.leg.carries_dtmf(digits)

    def send_dtmf(self, digits: str) -> bool:
        """Let the leg send touch tones."""
        return self.leg.send_dtmf(digits)

    def hang_up(self, reason: str, handoff_data: str | None = None) -> None:
        """End the leg."""
        self.leg.hang_up(reason, handoff_data)

    def transfer(self, target: str, handoff_data: str | None = None, *, reason: str = "transferred") -> TransferStart:
        """Start a transfer by the leg."""
        return self.leg.transfer(target, handoff_data, reason=reason)
