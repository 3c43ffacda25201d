"""The seam to whoever works on caller audio, off the pacing loop: VAD, subscriptions, recogniser, recording."""

from __future__ import annotations

from typing import Protocol

from gateway.seams.messages import RecordState
from voicecodecs.registry import AudioFormat


class UplinkEvents(Protocol):
    """What is found in the caller's audio. Called on the event loop."""

    def on_speech_suspected(self, *, onset: float) -> None:
        """A sound over our voice may become speech, or only a hum. ``on_speech_started`` or ``on_speech_dismissed``
        follows."""
        ...

    def on_speech_dismissed(self) -> None:
        """The suspected sound was no speech."""
        ...

    def on_speech_started(self, *, onset: float) -> None:
        """Speech was confirmed; it began at monotonic second ``onset``."""
        ...

    def on_lull(self, *, since: float, silence_s: float) -> None:
        """Within speech the caller has been silent since monotonic second ``since``, ``silence_s`` of the audio ago; it
        may be a breath or the end. ``on_speech_resumed`` or ``on_speech_ended`` follows."""
        ...

    def on_speech_resumed(self) -> None:
        """After ``on_lull`` the caller speaks on."""
        ...

    def on_speech_ended(self) -> None: ...

    def on_dtmf_heard(self, digit: str) -> None:
        """A touch tone was found in the audio."""
        ...

    def on_pcm(self, pcm: bytes) -> None:
        """20 ms of s16le mono at the rate that was asked for."""
        ...

    def on_speech(self, pcm: bytes) -> None:
        """20 ms of what the caller says, s16le mono at 16 kHz: between ``on_speech_started`` and ``on_speech_ended``,
        from a little before the onset on."""
        ...

    def on_both(self, pcm: bytes) -> None:
        """The next sound of the call for whoever listens in: s16le, the caller left, we right."""
        ...

    def on_recording_lost(self, reason: str) -> None:
        """The recording was given up: ``disk_full``, ``unwritable``, ``hung`` if the disk does not answer, or
        ``overloaded`` if workers fell behind."""
        ...


class UplinkStream(Protocol):
    """One call's audio on its way to the workers. All methods are synchronous, cheap and bounded."""

    def push(self, payload: bytes, *, now: float) -> None:
        """Take a frame of caller audio, empty for a lost one. If the workers fall behind, the oldest is dropped and
        counted."""
        ...

    def spoke(self, frame: bytes, now: float, heard_at: float) -> None:
        """A frame of ours that went out, and is heard from monotonic second ``heard_at`` on: the echo guard's reference
        and the recording's other half."""
        ...

    def unheard(self, seconds: float) -> None:
        """So much of what went out last was cut before it was heard: it is not in the recording."""
        ...

    def pressed(self, *, now: float) -> None:
        """The leg says that the caller pressed a key, whose tone may be in the audio too: it is not recorded."""
        ...

    def record(self, state: RecordState, *, now: float) -> bool:
        """Pause the recording, go on with it, or end it. False: there is none."""
        ...

    def want(self, *, vad: bool, pcm_rate: int, dtmf: bool = False, speech: bool = False, lulls: bool = False) -> None:
        """Say what is needed from now on.

        Args:
            vad: whether to find speech.
            pcm_rate: sample rate of the raw audio for ``on_pcm``, hertz; 0: no raw audio.
            dtmf: whether to find touch tones in the audio.
            speech: whether ``on_speech`` gets what is said; needs ``vad``.
            lulls: whether ``on_lull`` and ``on_speech_resumed`` are told.
        """
        ...

    @property
    def rate(self) -> int:
        """Sample rate for ``on_both``, hertz: the line's."""
        ...

    def listen(self, wanted: bool) -> None:
        """Say whether ``on_both`` is wanted from now on."""
        ...

    def end_speech(self) -> None:
        """The speech under way is known to be over: ``on_speech_ended`` follows at once, and sound after it is new
        speech. Without speech this does nothing."""
        ...

    @property
    def heard_s(self) -> float:
        """Seconds of the caller's audio in which speech was looked for, and of which all has been told: the time in
        which the caller lives, whatever the network does."""
        ...

    @property
    def needed(self) -> bool:
        """Whether pushed audio is used for anything now."""
        ...

    def close(self) -> None: ...


class Uplink(Protocol):
    """Opens a call's stream."""

    def open(
        self, call_id: str, inbound: AudioFormat, outbound: AudioFormat, route: str, events: UplinkEvents
    ) -> UplinkStream: ...
