"""The caller's side of a call: audio, the results of VAD and recogniser, and touch tones.

This module decides nothing about turns. It reports events to ``Turns`` and runs the timer for the deadline of
``Turns``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from gateway.call.hearing.listeners import Listeners
from gateway.call.hearing.listening import Listening, ListeningSettings
from gateway.call.turn_taking.barge_in import CallerEvent
from gateway.call.turn_taking.turns import Turns
from gateway.config import RouteConfig
from gateway.seams.messages import AnsweredBy, Error, Info, Outbound, Prompt, RecordState, Subscribe
from gateway.seams.recogniser import RecognitionError
from gateway.seams.uplink import LineTone, Uplink, UplinkStream
from gateway.uplink.vad import MIN_SILENCE_S
from voicecodecs.registry import AudioFormat


class Manager(Protocol):
    """The dialogue manager, which receives messages about the caller."""

    def tell(self, message: Outbound) -> None: ...

    def send_audio(self, pcm: bytes) -> None: ...

    def caller_stopped(self, at: float) -> None:
        """The caller has said something, and was silent from ``at`` on."""
        ...

    def recording_lost(self, reason: str) -> None:
        """The call is no longer recorded, because its file could not be written."""
        ...


class AnsweringEnd(Protocol):
    """The other end of an outgoing call, which decides who or what has answered; see ``OtherEnd``."""

    @property
    def needs_vad(self) -> bool: ...
    @property
    def needs_words(self) -> bool: ...
    @property
    def answered_by(self) -> AnsweredBy | None: ...
    def start(self, changed: Callable[[], None]) -> None: ...
    def close(self) -> None: ...
    def on_speech_started(self, *, onset: float) -> None: ...
    def on_speech_ended(self) -> None: ...
    def on_lull(self, *, since: float) -> None: ...
    def on_speech_resumed(self) -> None: ...
    def on_words(self, text: str) -> None: ...
    def on_tone(self, tone: LineTone, *, ended_at: float) -> None: ...


def _ignore_frame(_frame: bytes, _now: float, _heard_at: float) -> None:
    return None


class Caller:
    """The caller of one call. Implements the ``UplinkEvents`` of the caller's audio.

    Args:
        clock: the ticker's ``now``.
    """

    def __init__(
        self,
        route: RouteConfig,
        turns: Turns,
        manager: Manager,
        hearing: ListeningSettings | None,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._turns = turns
        self._manager = manager
        self._now = clock
        self._reports_speaking = "speaker-events" in route.events
        self._inband_dtmf = route.inband_dtmf
        self._language = route.language
        self._listening = (
            Listening(
                hearing,
                turns,
                tell=manager.tell,
                decide=self._decide,
                end_speech=self._end_speech,
                clock=clock,
                heard_s=self._heard_s,
            )
            if hearing
            else None
        )
        self._uplink: UplinkStream | None = None
        self.spoke: Callable[[bytes, float, float], None] = _ignore_frame
        """A frame left at a time and is heard from another on; its echo must not be taken for the caller. The uplink
        receives every frame, even before it needs any, because the echo of a turn's first frames arrives later."""
        self.listeners = Listeners(self._listen)
        """Clients that listen in to the call."""
        self.other_end: AnsweringEnd | None = None
        """Learns on an outgoing call who or what has answered. None: no tones are searched. Set it before ``start``."""
        if self._listening is not None:
            self._listening.on_words = self._on_words
            self._listening.words_wanted = self._wants_words
            self._listening.on_stopped = manager.caller_stopped
        self._leg_reports_dtmf = False
        self._subscribed_rate = 0
        self._timer: asyncio.TimerHandle | None = None
        self._timer_due: float | None = None
        self.wanted = False
        """True if any part needs the caller's audio now; read for every frame that arrives."""

    def connect(self, uplink: Uplink, call_id: str, inbound: AudioFormat, outbound: AudioFormat, route: str) -> None:
        """Open the uplink stream that processes the caller's audio."""
        self._uplink = uplink.open(call_id, inbound, outbound, route, self)
        self.spoke = self._uplink.spoke

    def start(self) -> None:
        """Start listening.

        Raises:
            RecognitionError: the recogniser cannot do what the route wants.
        """
        if self._listening is not None:
            self._listening.start()
        if self.other_end is not None:
            self.other_end.start(lambda: self.refresh(self._now()))
        now = self._now()
        self._turns.advance(now)  # the silence of both sides counts from here
        self.refresh(now)

    def close(self) -> None:
        """Cancel the timer, so that no more decisions are made."""
        if self._timer is not None:
            self._timer.cancel()
        if self.other_end is not None:
            self.other_end.close()

    async def aclose(self) -> None:
        """Close and drop the uplink stream and the recogniser; no audio and no words come after this."""
        self.listeners.close()
        uplink, self._uplink, self.spoke, self.other_end = self._uplink, None, _ignore_frame, None
        if uplink is not None:
            uplink.close()
        listening, self._listening, self._reports_speaking = self._listening, None, False
        if listening is not None:
            await listening.aclose()

    def refresh(self, now: float) -> None:
        """Tell the uplink which results are needed now, and set the timer for the next decision."""
        due = self._turns.deadline()
        if due != self._timer_due:
            self._timer_due = due
            if self._timer is not None:
                self._timer.cancel()
            if due is not None:
                delay_s = max(0.0, due - now)
                self._timer = asyncio.get_running_loop().call_later(delay_s, self._on_due)
        if self._uplink is not None:
            speech = self._listening is not None
            answering = self._answer_is_open()
            vad = speech or answering or self._reports_speaking or self._turns.needs_vad
            dtmf = self._inband_dtmf and not self._leg_reports_dtmf
            lulls = answering or (self._listening is not None and self._listening.has_turn_model)
            self._uplink.want(
                vad=vad, pcm_rate=self._subscribed_rate, dtmf=dtmf, speech=speech, lulls=lulls,
                tones=self.other_end is not None,
            )  # fmt: skip
            self.wanted = self._uplink.needed
        if self._listening is not None:
            self._listening.refresh()

    def _on_due(self) -> None:
        self._timer_due = None
        self._decide(CallerEvent.DEADLINE)

    def _decide(self, event: CallerEvent, onset: float | None = None) -> None:
        self._turns.on_caller(event, self._now(), onset=onset)

    def _heard_s(self) -> float:
        return self._uplink.heard_s if self._uplink is not None else 0.0

    def _end_speech(self) -> None:
        if self._uplink is not None:
            self._uplink.end_speech()

    @property
    def listen_rate(self) -> int:
        """Sample rate of the audio for listeners, hertz. 0: this call has no audio to listen to."""
        return 0 if self._uplink is None else self._uplink.rate

    def _listen(self, wanted: bool) -> None:
        if self._uplink is not None:
            self._uplink.listen(wanted)
            self.refresh(self._now())

    # --- the leg's side --------------------------------------------------------------------------------------------

    def on_audio(self, payload: bytes) -> None:
        """Take the caller's audio; called only while ``wanted`` is true."""
        if self._uplink is not None:
            self._uplink.push(payload, now=self._now())

    def on_digit(self, digit: str) -> None:
        """The leg reports a key that the caller pressed."""
        now = self._now()
        if self._uplink is not None:
            self._uplink.pressed(now=now)
        if not self._leg_reports_dtmf:
            self._leg_reports_dtmf = True  # the key's tone may be in the audio too and must not count twice
            self.refresh(now)
        self._turns.on_digit(digit, now)

    def heard(self, frame: bytes, now: float, heard_at: float) -> None:
        """A frame of a mix was sent to the caller; see ``spoke``."""
        self.spoke(frame, now, heard_at)

    def unheard(self, seconds: float) -> None:
        """The last ``seconds`` of sent audio were cut before the caller heard them."""
        if self._uplink is not None:
            self._uplink.unheard(seconds)

    # --- the manager's side ----------------------------------------------------------------------------------------

    def subscribe(self, message: Subscribe) -> None:
        """Start or stop sending the caller's audio to the manager."""
        self._subscribed_rate = message.sample_rate if message.media else 0
        self.refresh(self._now())

    def record(self, state: RecordState) -> bool:
        """Pause, resume or stop the recording. False: the call is not recorded."""
        return self._uplink is not None and self._uplink.record(state, now=self._now())

    def configure(self, hearing: ListeningSettings, hints: Mapping[str, tuple[str, ...]]) -> None:
        """Use other settings for listening; ``hints`` are keyed by language."""
        if self._listening is not None:
            self._listening.configure(hearing, hints)

    def be_sensitive(self, sensitivity: str) -> None:
        """Use other thresholds for speech over the bot's: ``high``, ``medium`` or ``low``."""
        if self._uplink is not None:
            self._uplink.be_sensitive(sensitivity)

    def reduce_noise(self, wanted: bool) -> bool:
        """Take other voices and noise from what the VAD hears. False: that is not possible here."""
        return self._uplink is not None and self._uplink.reduce_noise(wanted)

    def transcribe(self, language: str) -> bool:
        """Recognise another language from now on; an empty ``language`` changes nothing. False: the recogniser does not
        know it, and the manager has received an error."""
        if self._listening is not None and language:
            try:
                self._listening.use_language(language)
            except RecognitionError as exc:
                self._manager.tell(Error(description=str(exc), code="not_supported", field="transcriptionLanguage"))
                return False
        return True

    # --- what is heard (UplinkEvents) ------------------------------------------------------------------------------

    def on_speech_suspected(self, *, onset: float) -> None:
        """The VAD hears what may be speech."""
        self._decide(CallerEvent.SUSPECTED, onset)

    def on_speech_dismissed(self) -> None:
        """The VAD has decided that the suspected sound was not speech."""
        self._decide(CallerEvent.DISMISSED)

    def on_short_sound(self, *, onset: float, sound: Sequence[bytes]) -> None:
        """A sound over the bot's voice has ended that may have been a short word."""
        if self._listening is not None:
            self._listening.on_short_sound(onset=onset, sound=sound)

    def on_speech_started(self, *, onset: float) -> None:
        """The VAD is sure that the caller speaks."""
        if self.other_end is not None:
            self.other_end.on_speech_started(onset=onset)
        if self._listening is not None:
            self._listening.on_speech_started(onset=onset)
        else:
            self._tell_speaking("on")
            self._decide(CallerEvent.SPEECH, onset)

    def on_lull(self, *, since: float, silence_s: float) -> None:
        """The caller has been silent since ``since``, perhaps only between two words."""
        if self.other_end is not None:
            self.other_end.on_lull(since=since)
        if self._listening is not None:
            self._listening.on_lull(since=since, silence_s=silence_s)

    def on_speech_resumed(self) -> None:
        """The caller speaks again after a lull."""
        if self.other_end is not None:
            self.other_end.on_speech_resumed()
        if self._listening is not None:
            self._listening.on_speech_resumed()

    def on_speech_ended(self) -> None:
        """The VAD is sure that the caller has stopped."""
        if self.other_end is not None:
            self.other_end.on_speech_ended()
        if self._listening is not None:
            self._listening.on_speech_ended()
        else:
            self._manager.caller_stopped(self._now() - MIN_SILENCE_S)
            self._decide(CallerEvent.SILENCE)
            self._tell_speaking("off")

    def on_speech(self, pcm: bytes) -> None:
        """Take 20 ms of the caller's speech for the recogniser."""
        if self._listening is not None:
            self._listening.on_speech(pcm)

    def on_dtmf_heard(self, digit: str) -> None:
        """The uplink found a touch tone in the audio. It is ignored once the leg itself has reported a key."""
        if not self._leg_reports_dtmf:
            self._turns.on_digit(digit, self._now())

    def on_tone(self, tone: LineTone, *, ended_at: float) -> None:
        """A tone of the line has ended."""
        if self.other_end is not None:
            self.other_end.on_tone(tone, ended_at=ended_at)

    def on_pcm(self, pcm: bytes) -> None:
        """Pass the caller's audio to a manager that subscribed."""
        if self._subscribed_rate:
            self._manager.send_audio(pcm)

    def on_both(self, pcm: bytes) -> None:
        """Pass both sides to the clients that listen in."""
        self.listeners.put(pcm)

    def on_recording_lost(self, reason: str) -> None:
        """The file of the recording could not be written."""
        self._manager.recording_lost(reason)

    def typed(self, text: str, language: str, tenant: str) -> None:
        """Take words that a client with a key of ``tenant`` typed, as if the caller had said them. An empty
        ``language`` is the route's."""
        now = self._now()
        self._decide(CallerEvent.WORDS, now)
        self._manager.caller_stopped(now)
        self._manager.tell(Prompt(voice_prompt=text, lang=language or self._language, last=True, typed_by=tenant))
        self._turns.expect_answer()

    def _answer_is_open(self) -> bool:
        return self.other_end is not None and self.other_end.needs_vad

    def _wants_words(self) -> bool:
        return self.other_end is not None and self.other_end.needs_words

    def _on_words(self, text: str) -> None:
        if self.other_end is not None:
            self.other_end.on_words(text)

    def _tell_speaking(self, value: str) -> None:
        if self._reports_speaking:
            self._manager.tell(Info(name="clientSpeaking", value=value))
