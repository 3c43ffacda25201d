"""The machine that decides who or what has answered an outgoing call. Pure.

It takes the edges of voice activity, the recogniser's words and the tones of the line, each with its time, and returns
a verdict when one is certain enough. Two facts carry most of the decision: a person says little and then waits, and a
recording speaks until it has said everything. Words outweigh time: one phrase of a recording decides at once.

    state        what is known                       leaves by
    LISTENING    nothing, or the first utterance     words; speech and a pause: human; long speech: machine; silence:
                                                     unknown, and it stays in this state
    DOUBTED      human or machine by time alone      human: more speech at once that does not yield: machine; none:
                                                     SETTLED. machine: a pause: human; longer speech or a beep: SETTLED
    SETTLED      human or machine                    words of a recording within ``_REVISED_S`` of a verdict by time; a
                                                     beep within ``_BEEP_S``
    WAITING      screening, menu, music or a         a short utterance with a person's words, after which the other
                 repeated announcement: a person     end waits; or new speech instead of music and announcements,
                 may come                            and none of them after it: human

The caller passes each event in the order of its time, and calls ``expire`` at ``deadline()``. Times are seconds of a
monotonic clock.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum, auto

from gateway.call.answering.phrases import said_by
from gateway.seams.messages import AnsweredBy
from gateway.seams.uplink import ToneKind

_SHORT_S = 2.0  # longest first utterance of a person, pauses included
_PAUSE_S = 0.8  # silence after which a person waits for an answer; after_greeting_silence of Asterisk's amd.conf.sample
_GREETED_PAUSE_S = 0.3  # the same after words that only a person says
_LONG_S = 3.4  # speech with shorter pauses only: probably a recording
_CERTAIN_S = 6.0  # the same, but certainly
_END_S = 1.2  # silence after speech between these two lengths: a person. A recording ends with a tone
_FOLLOWS_S = 0.7  # speech this soon after a verdict for a person does not answer the bot
_OVER_BOT_S = 1.7  # such speech for longer: a recording, because a person lets the bot speak
_LEAST_S = 0.03  # shorter sound is no word; the VAD reports none below 0.1 s, but a short word fades soon
_SILENT_S = 8.0  # nothing was said
_REVISED_S = 6.0  # a recording says what it is within this time
_BEEP_S = 20.0  # a greeting that was taken for a person has its beep within this time
_GREETED = 0.95  # confidence in a person whose words are a greeting
_BY_WORDS = 0.95  # confidence in a recording, a menu or an assistant by its words
_DOUBTED = 0.6  # confidence in a recording by length or by likely words that may still be a person
_HELD_S = 20.0  # music this soon after a verdict is that of a queue
_RESUMES_S = 1.6  # silence in a queue after which the one who spoke was no announcement


@dataclass(frozen=True, slots=True)
class AnswerVerdict:
    """A verdict on the other end of a call."""

    by: AnsweredBy
    confidence: float
    """0 to 1. An order, not a measured probability."""
    text: str
    """Words so far. Empty without a recogniser."""
    waiting: bool = False
    """True if a person may still come: screening, menus and queues."""

    @property
    def is_doubted(self) -> bool:
        """True for a machine by the length of its speech, or by words that a person may say, too: nothing that cannot
        be undone should follow yet."""
        return self.by == "machine" and self.confidence <= _DOUBTED


class _State(Enum):
    LISTENING = auto()
    DOUBTED = auto()
    SETTLED = auto()
    WAITING = auto()


class Answering:
    """The verdict on one outgoing call.

    Args:
        now: time of the answer, seconds.
        language: language of the route. Phrases of every language count if it is unknown.
        end_lag_s: silence that has passed when an end of speech is reported, seconds.
    """

    def __init__(self, now: float, language: str = "", *, end_lag_s: float = 0.0) -> None:
        self._language = language
        self._waits_from = now
        self._end_lag_s = end_lag_s
        self._state = _State.LISTENING
        self._onset: float | None = None  # of the utterance, pauses shorter than _PAUSE_S included
        self._begun = now  # onset of the first utterance
        self._speaking_since: float | None = None
        self._silent_since = now
        self._spoken_s = 0.0  # length of the latest utterance whose pause is over
        self._text = ""
        self._said: AnsweredBy | None = None  # who says the words of ``_text``
        self._verdict: AnswerVerdict | None = None
        self._settled_at = now
        self._in_queue = False  # music or a repeated announcement was heard

    def wait(self, now: float) -> None:
        """Begin the wait for the first word again."""
        self._onset, self._waits_from = None, now

    @property
    def needs_speech(self) -> bool:
        """True if speech can change the verdict."""
        return self._state is not _State.SETTLED

    def needs_words(self, now: float) -> bool:
        """Return True if words can change the verdict."""
        is_human = self._verdict is not None and self._verdict.by == "human"
        return self.needs_speech or (is_human and now - self._settled_at <= _REVISED_S)

    @property
    def verdict(self) -> AnswerVerdict | None:
        """The latest verdict. None: there is none yet."""
        return self._verdict

    def deadline(self) -> float | None:
        """Return the time of the next ``expire``. None: only an event can change the verdict."""
        if self._state is _State.SETTLED:
            return None
        if self._onset is None:
            if self._state is _State.DOUBTED:
                return self._settled_at + _FOLLOWS_S
            waits = self._state is _State.LISTENING and self._verdict is None
            return self._waits_from + _SILENT_S if waits else None
        if self._speaking_since is None:
            return self._silent_since + self._pause_s()
        return None if self._state is _State.WAITING else self._too_long_at()

    def speech(self, speaking: bool, now: float) -> AnswerVerdict | None:
        """Take an edge of voice activity. Tones and music are not speech; see ``tone``."""
        if speaking == (self._speaking_since is not None):
            return None
        before = self.expire(now)
        if speaking:
            self._speaking_since = now
            if self._onset is None:
                self._onset = now
                if self._state is _State.LISTENING:
                    self._begun = now
        else:
            if self._speaking_since is not None and now - self._speaking_since < _LEAST_S and self._is_first():
                self._onset = None
            self._speaking_since, self._silent_since = None, now
        return before

    def words(self, text: str, now: float) -> AnswerVerdict | None:
        """Take the words of the current utterance so far, partial or final."""
        self._text = text
        speaker = said_by(text, self._language)
        found = self._said = speaker.by
        listens = self._state in (_State.LISTENING, _State.WAITING)
        if found == "human" and listens and self._onset is None and 0 < self._spoken_s <= _SHORT_S:
            return self._settle("human", 0.8, now)  # the pause was over before the words came
        if found is None or found == "human":
            return None  # a pause decides
        if found == "machine" and not speaker.sure:
            return self._doubt(now)
        if self._state is _State.WAITING:
            assert self._verdict is not None
            if found != "machine" or self._verdict.by != "screening":
                self._onset = None  # another announcement
                return None
        elif self._state is not _State.LISTENING:
            assert self._verdict is not None
            late = now - self._settled_at > _REVISED_S
            if (self._verdict.by == found and not self._verdict.is_doubted) or (late and self._verdict.by == "human"):
                return None
        return self._settle(found, _BY_WORDS if speaker.sure else 0.7, now)

    def tone(self, kind: ToneKind, now: float) -> AnswerVerdict | None:
        """Take a tone of the line: ``beep`` or ``fax`` mean a machine, ``music`` and ``repeat`` a queue. Others are no
        speech, and the wait for the first word begins again."""
        if kind in ("music", "repeat"):
            return self._queue(now, again=kind == "repeat")
        if self._state is _State.LISTENING:
            if kind in ("beep", "fax"):
                return self._settle("machine", 0.9, now)
            self.wait(now)
        elif kind == "beep" and self._may_be_recording() and now - self._settled_at <= _BEEP_S:
            return self._settle("machine", 0.9, now)
        return None

    def expire(self, now: float) -> AnswerVerdict | None:
        """Decide by time alone; return the verdict that this gave, usually none."""
        due = self.deadline()
        if due is None or now < due:
            return None
        if self._onset is None:
            if self._state is _State.DOUBTED:
                self._state = _State.SETTLED
                return None
            self._verdict = AnswerVerdict("unknown", 0.0, self._text)
            return self._verdict
        if self._speaking_since is not None:
            surely = now >= self._begun + _CERTAIN_S
            return self._settle("machine", 0.8 if surely else _DOUBTED, now, surely=surely)
        return self._paused(now)

    # --- parts -------------------------------------------------------------------------------------------------------

    def _doubt(self, now: float) -> AnswerVerdict | None:
        """Take words of a recording that a person may say, too: a pause still makes them a person's."""
        is_listening = self._state is _State.LISTENING and self._onset is not None
        return self._settle("machine", _DOUBTED, now, surely=False) if is_listening else None

    def _queue(self, now: float, *, again: bool) -> AnswerVerdict | None:
        """Music, or an announcement that was heard ``again``."""
        verdict, found = self._verdict, None
        if self._state is not _State.WAITING:
            is_recorder = verdict is not None and verdict.by == "machine" and verdict.confidence >= 0.9
            is_decided = verdict is not None and verdict.by != "unknown" and now - self._settled_at > _HELD_S
            if is_recorder or (is_decided and not again):
                return None
            found = self._settle("ivr", 0.7, now)
        self._in_queue = True
        if again or self._said != "human":
            self._onset = None  # an announcement, or the music itself
        return found

    def _paused(self, now: float) -> AnswerVerdict | None:
        """An utterance and the pause after it are over."""
        assert self._onset is not None
        spoken_s = self._spoken_s = self._silent_since - self._onset
        greeted, self._onset = self._said == "human", None
        if self._state is _State.WAITING:
            if self._in_queue or (greeted and spoken_s <= _LONG_S):
                return self._settle("human", 0.8 if greeted else 0.6, now)
            return None
        if self._state is _State.DOUBTED and self._verdict is not None and self._verdict.by == "human":
            self._state = _State.SETTLED  # a person who spoke again and now waits
            return None
        sure = spoken_s <= _SHORT_S
        return self._settle("human", _GREETED if greeted else 0.8 if sure else 0.6, now, surely=False)

    def _too_long_at(self) -> float:
        """Return until when a person may speak."""
        assert self._onset is not None
        if self._state is _State.LISTENING:
            return self._onset + _LONG_S + self._end_lag_s
        assert self._verdict is not None
        if self._verdict.by == "machine":
            return self._begun + _CERTAIN_S
        return self._onset + _OVER_BOT_S + self._end_lag_s

    def _may_be_recording(self) -> bool:
        """Return True if time alone has decided, and a beep would say more."""
        verdict = self._verdict
        return verdict is not None and (verdict.is_doubted or (verdict.by == "human" and verdict.confidence < _GREETED))

    def _is_first(self) -> bool:
        return self._onset is not None and self._onset == self._speaking_since

    def _pause_s(self) -> float:
        if self._state is _State.DOUBTED:
            return _END_S if self._verdict is not None and self._verdict.by == "machine" else _PAUSE_S
        if self._said == "human":
            return _GREETED_PAUSE_S
        return _RESUMES_S if self._in_queue else _PAUSE_S

    def _settle(self, by: AnsweredBy, confidence: float, now: float, *, surely: bool = True) -> AnswerVerdict:
        waits = by in ("screening", "ivr")
        self._state = _State.WAITING if waits else _State.SETTLED if surely else _State.DOUBTED
        self._settled_at = now
        self._verdict = AnswerVerdict(by, confidence, self._text, waits)
        if waits:
            self._onset, self._text, self._said, self._spoken_s = None, "", None, math.inf
            self._in_queue = False
        return self._verdict
