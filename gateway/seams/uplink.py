"""The seam to the processing of caller audio, off the pacing loop: VAD, subscriptions, recogniser, recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from gateway.seams.messages import RecordState
from voicecodecs.registry import AudioFormat

ToneKind = Literal["beep", "ringback", "busy", "congestion", "dial", "information", "fax", "music", "repeat"]
"""``beep``: a recording tone. ``congestion``: the fast busy tone. ``information``: the three rising tones before an
announcement of the network (ITU-T E.180). ``fax``: a calling or an answer tone of a fax machine (ITU-T T.30).
``music``: music plays, such as that of a queue. ``repeat``: speech is heard that was heard before. Both are no tones,
and are reported twice a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LineTone:
    """A tone that has ended. Of ``ringback``, ``busy`` and ``congestion`` each burst is reported once it is known."""

    kind: ToneKind
    length_s: float
    ago_s: float
    """Seconds of sound between the end of the tone and this report."""
    hz: tuple[float, ...]
    """Frequencies of its components, rounded. A tone with a changing frequency has its first and its last one."""


class UplinkEvents(Protocol):
    """Results found in the caller's audio. Called on the event loop."""

    def on_speech_suspected(self, *, onset: float) -> None:
        """A sound over the bot's voice may become speech, or only a hum. ``on_speech_started`` or
        ``on_speech_dismissed`` follows."""
        ...

    def on_speech_dismissed(self) -> None:
        """The suspected sound was not speech."""
        ...

    def on_short_sound(self, *, onset: float, sound: Sequence[bytes]) -> None:
        """A sound over the bot's voice has ended before it was sure to be speech. It may be a short word such as "no",
        or a hum; the recogniser can tell. Only while ``speech`` is wanted. After a suspicion, ``on_speech_dismissed``
        follows. Speech that follows soon has all audio since the end of ``sound``.

        Args:
            onset: monotonic second at which it began.
            sound: 20 ms each, s16le mono at 16 kHz, from a little before the onset.
        """
        ...

    def on_speech_started(self, *, onset: float) -> None:
        """Speech was confirmed; it began at monotonic second ``onset``."""
        ...

    def on_lull(self, *, since: float, silence_s: float) -> None:
        """Within speech the caller has been silent since monotonic second ``since``, for ``silence_s`` of audio. It may
        be a breath or the end; ``on_speech_resumed`` or ``on_speech_ended`` follows."""
        ...

    def on_speech_resumed(self) -> None:
        """The caller speaks again after ``on_lull``."""
        ...

    def on_speech_ended(self) -> None: ...

    def on_dtmf_heard(self, digit: str) -> None:
        """A touch tone was found in the audio."""
        ...

    def on_tone(self, tone: LineTone, *, ended_at: float) -> None:
        """A tone of the line has ended, at monotonic second ``ended_at``. Only while ``tones`` are wanted."""
        ...

    def on_pcm(self, pcm: bytes) -> None:
        """20 ms of s16le mono at the requested rate."""
        ...

    def on_speech(self, pcm: bytes) -> None:
        """20 ms of the caller's speech, s16le mono at 16 kHz, between ``on_speech_started`` and ``on_speech_ended``;
        the audio starts a little before the onset."""
        ...

    def on_both(self, pcm: bytes) -> None:
        """The next audio of the call for listeners: s16le, caller left, bot right."""
        ...

    def on_recording_lost(self, reason: str) -> None:
        """The recording was given up: ``disk_full``, ``unwritable``, ``hung`` if the disk does not answer, or
        ``overloaded`` if the workers are too slow."""
        ...


class UplinkStream(Protocol):
    """The audio of one call on its way to the workers. All methods are synchronous, cheap and bounded."""

    def push(self, payload: bytes, *, now: float) -> None:
        """Take a frame of caller audio, empty for a lost one. If the workers are too slow, the oldest frame is dropped
        and counted."""
        ...

    def spoke(self, frame: bytes, now: float, heard_at: float) -> None:
        """Take a frame of the bot that was sent and is heard from monotonic second ``heard_at`` on, for the echo guard
        and the recording."""
        ...

    def unheard(self, seconds: float) -> None:
        """The last ``seconds`` of sent audio were cut before they were heard; they are not recorded."""
        ...

    def pressed(self, *, now: float) -> None:
        """The leg reports a key. Its tone may be in the audio too and is not recorded."""
        ...

    def record(self, state: RecordState, *, now: float) -> bool:
        """Pause, resume or end the recording. False: the call is not recorded."""
        ...

    def want(
        self, *, vad: bool, pcm_rate: int, dtmf: bool = False, speech: bool = False, lulls: bool = False,
        tones: bool = False,
    ) -> None:  # fmt: skip
        """Set what is needed from now on.

        Args:
            vad: find speech.
            pcm_rate: sample rate of the raw audio for ``on_pcm``, hertz; 0: no raw audio.
            dtmf: find touch tones in the audio.
            speech: pass speech to ``on_speech``; needs ``vad``.
            lulls: report ``on_lull`` and ``on_speech_resumed``.
            tones: find beeps and call-progress tones.
        """
        ...

    @property
    def rate(self) -> int:
        """Sample rate for ``on_both``, hertz: the line's."""
        ...

    def listen(self, wanted: bool) -> None:
        """Start or stop ``on_both``."""
        ...

    def be_sensitive(self, sensitivity: str) -> None:
        """Use other thresholds for speech over the bot's: ``high``, ``medium`` or ``low``."""
        ...

    def reduce_noise(self, wanted: bool) -> bool:
        """Take other voices and noise from what the detector hears. False: this gateway has no suppressor."""
        ...

    def end_speech(self) -> None:
        """End the current speech: ``on_speech_ended`` follows at once, and later sound is new speech. Does nothing
        without speech."""
        ...

    @property
    def heard_s(self) -> float:
        """Seconds of the caller's audio that the VAD has judged and reported. This clock advances with the audio,
        independent of network delays."""
        ...

    @property
    def needed(self) -> bool:
        """True if pushed audio is used for anything now."""
        ...

    def close(self) -> None: ...


class Uplink(Protocol):
    """Opens the uplink stream of a call."""

    def open(
        self, call_id: str, inbound: AudioFormat, outbound: AudioFormat, route: str, events: UplinkEvents
    ) -> UplinkStream: ...
