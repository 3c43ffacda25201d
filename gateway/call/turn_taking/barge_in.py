"""The interruption machine: it alone decides whether the caller interrupts the bot. Pure.

Two sources describe the caller, at different times. The VAD hears sound: it suspects speech after 64 ms, confirms or
dismisses the suspicion after about 100 ms, and reports the end of the speech. The recogniser, if the route has one,
knows words half a second later. Three rules hold:

1. Falling silent takes little evidence, losing a turn takes more. Silence costs a hesitation and can be undone, so a
   suspicion is enough. What is cut is lost, so a cut needs the evidence that the route's policy names.
2. Every suspension of the bot's voice ends: in a cut, or by resuming where it stopped. Each suspension has a
   deadline or a source that must answer (the VAD reports ``SILENCE``, the recogniser answers each utterance once).
   With a recogniser, a doubtful cut stays a suspension, unreported, until words come or ``Rules.words_s`` has passed.
3. An interruption counts from the caller's first sound, however late it is reported. Turns accepted after that onset
   already answer it, so they stay.

The policy says what cuts. It follows from two settings:

    policy      settings                                      confirmed speech          cut by
    ONSET       ``false_alarm_ms`` 0                          cuts at once; with a      speech; with a recogniser words,
                                                              recogniser suspends       or lasting speech
    DURATION    ``false_alarm_ms`` above 0                    suspends the voice        words; lasting speech only
                                                                                        without a recogniser
    WORDS       ``false_alarm_ms`` 0, ``ignore_backchannel``  changes nothing; lasting  words
                and a recogniser                              speech suspends

"Words" excludes acknowledgements; ``gateway.call.hearing.listening`` separates the two. ``Rules.lasts_s`` says how long
speech has to last; with ONSET and a recogniser ``Rules.words_s`` does, which is longer than a cough or a laugh. If
speech may cut nothing now (the bot is silent, or the turn is not ``interruptible``), speech and words change only the
state. ``Turns`` reads the state too: a turn may wait while ``caller_speaks``.

    state            the caller                        bot's voice    ends by
    SILENT           is not speaking                   speaks
    SUSPECTED        may be speaking                   suspended      SPEECH, DISMISSED, or its deadline: resume;
                                                                      SHORT_SOUND
    ASKED            made a short sound, words unknown suspended      WORDS, NO_WORDS, or its deadline: resume
    CONFIRMING       speaks, words are unknown         suspended      WORDS, SILENCE, or its deadline: cut without a
                                                                      recogniser or with ONSET, else resume
    AWAITING_WORDS   has stopped, words are unknown    suspended      WORDS, NO_WORDS, or its deadline: resume
    SPEAKING         speaks                            speaks         SILENCE; its deadline suspends

The table below has a row for each case that changes something; the first row that fits applies. A case without a row
changes nothing, for example a suspicion while nothing may be cut. Only the deadline and the onset of an interruption
are kept outside the table. The caller of this machine passes events with their time, carries out the verdicts, and
passes ``DEADLINE`` at ``deadline()``.

``THOUGHT_ENDED`` says that the caller has finished. With a turn model it may come before the VAD's ``SILENCE``
(``gateway.call.hearing.end_of_thought``); otherwise it follows once the silence has lasted long enough.
"""

from __future__ import annotations

import enum
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass


class Policy(enum.Enum):
    """The evidence that cuts the bot's speech."""

    ONSET = "onset"
    DURATION = "duration"
    WORDS = "words"


class CallerState(enum.Enum):
    """The state of the caller, and of the bot's voice."""

    SILENT = "silent"
    SUSPECTED = "suspected"
    ASKED = "asked"
    CONFIRMING = "confirming"
    AWAITING_WORDS = "awaiting words"
    SPEAKING = "speaking"


class CallerEvent(enum.Enum):
    """An event of the VAD, the recogniser, another part of the call or the clock."""

    SUSPECTED = "suspected"  # VAD: the sound may be speech
    DISMISSED = "dismissed"  # VAD: the suspected sound was no speech
    SHORT_SOUND = "short sound"  # VAD: it may have been a short word, and the recogniser is asked; DISMISSED follows
    SPEECH = "speech"  # VAD: the caller speaks
    SILENCE = "silence"  # VAD: the caller has stopped
    WORDS = "words"  # recogniser: the caller says something
    NO_WORDS = "no words"  # recogniser: no words, or only an acknowledgement, and the caller is silent now
    THOUGHT_ENDED = "thought ended"  # the caller has finished a thought
    RELEASED = "released"  # something else (a digit, the manager) cut the speech
    DEADLINE = "deadline"  # the time of ``deadline()`` has come


class Verdict(enum.Enum):
    """The action that follows an event."""

    NOTHING = "nothing"
    SUSPEND = "suspend"  # fall silent now; nothing is lost
    RESUME = "resume"  # continue where the speech stopped; after a doubtful cut, from the last word
    CUT = "cut"  # it is an interruption


EARLY_S = 0.002
"""Most seconds by which a timer of the event loop may fire early: uvloop counts in milliseconds."""

SUSPENDED = frozenset({CallerState.SUSPECTED, CallerState.ASKED, CallerState.CONFIRMING, CallerState.AWAITING_WORDS})
DOUBTFUL = frozenset({CallerState.CONFIRMING, CallerState.AWAITING_WORDS})
"""The states of a doubtful cut: speech was heard, and its words are unknown."""
SPEAKS = frozenset({CallerState.CONFIRMING, CallerState.SPEAKING})


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """A route's rules for interruptions."""

    policy: Policy = Policy.ONSET
    recogniser: bool = False
    """True if a recogniser reports ``WORDS`` and ``NO_WORDS``. ``SILENCE`` alone then does not end a suspension."""
    lasts_s: float = 0.0
    """Speech that lasts this long from its onset cuts without a recogniser. With one it suspends the voice; 0: it does
    not."""
    words_s: float = 2.0
    """Longest suspension in which the words of a doubtful cut are awaited."""
    give_up_s: float = 1.4
    """Longest suspension for a suspicion that is neither confirmed nor dismissed."""
    ask_s: float = 0.5
    """Longest suspension in which the words of a short sound are awaited. They come 0.1 to 0.3 s after it."""
    max_wait_s: float = 4.0
    """Longest wait of a turn for a caller who is speaking; ``gateway.call.turn_taking.floor`` applies it."""


@dataclass(frozen=True, slots=True)
class Row:
    """A transition: in each of ``states``, ``event`` leads to ``to``. A condition that is ``None`` always holds."""

    states: frozenset[CallerState]
    event: CallerEvent
    to: CallerState
    verdict: Verdict = Verdict.NOTHING
    policies: frozenset[Policy] = frozenset(Policy)
    recogniser: bool | None = None
    may_cut: bool | None = None
    """True if the bot is saying something that speech may cut."""

    def fits(self, key: Key) -> bool:
        """Return True if this row applies to the case ``key``."""
        policy, recogniser, state, event, may_cut = key
        return (
            state in self.states
            and event is self.event
            and policy in self.policies
            and self.recogniser in (None, recogniser)
            and self.may_cut in (None, may_cut)
        )


Key = tuple[Policy, bool, CallerState, CallerEvent, bool]
"""Policy, whether there is a recogniser, state, event, whether speech may cut now."""

_SILENT, _SUSPECTED, _SPEAKING = (
    frozenset({state}) for state in (CallerState.SILENT, CallerState.SUSPECTED, CallerState.SPEAKING)
)
_CONFIRMING, _AWAITING = frozenset({CallerState.CONFIRMING}), frozenset({CallerState.AWAITING_WORDS})
_ASKED = frozenset({CallerState.ASKED})
_PLAYING = _SILENT | _SPEAKING
_ONSET_ONLY = frozenset({Policy.ONSET})
_SUSPENDING = frozenset({Policy.ONSET, Policy.DURATION})
_ANY = frozenset(CallerState)

ROWS: tuple[Row, ...] = (
    Row(_PLAYING, CallerEvent.SUSPECTED, CallerState.SUSPECTED, Verdict.SUSPEND, policies=_SUSPENDING, may_cut=True),
    Row(SUSPENDED, CallerEvent.SUSPECTED, CallerState.SUSPECTED),
    Row(_SUSPECTED, CallerEvent.SHORT_SOUND, CallerState.ASKED, recogniser=True),
    Row(SUSPENDED - _ASKED, CallerEvent.DISMISSED, CallerState.SILENT, Verdict.RESUME),
    Row(
        _ANY,
        CallerEvent.SPEECH,
        CallerState.SPEAKING,
        Verdict.CUT,
        policies=_ONSET_ONLY,
        recogniser=False,
        may_cut=True,
    ),
    Row(_PLAYING, CallerEvent.SPEECH, CallerState.CONFIRMING, Verdict.SUSPEND, policies=_SUSPENDING, may_cut=True),
    Row(_PLAYING, CallerEvent.SPEECH, CallerState.SPEAKING),
    Row(SUSPENDED, CallerEvent.SPEECH, CallerState.CONFIRMING),
    Row(SUSPENDED, CallerEvent.SILENCE, CallerState.SILENT, Verdict.RESUME, recogniser=False),
    Row(_CONFIRMING, CallerEvent.SILENCE, CallerState.AWAITING_WORDS, recogniser=True),
    Row(_SPEAKING, CallerEvent.SILENCE, CallerState.SILENT),
    Row(_SUSPECTED | _ASKED | _AWAITING, CallerEvent.WORDS, CallerState.SILENT, Verdict.CUT),
    Row(_CONFIRMING, CallerEvent.WORDS, CallerState.SPEAKING, Verdict.CUT),
    Row(_SILENT, CallerEvent.WORDS, CallerState.SILENT, Verdict.CUT, may_cut=True),
    Row(_SPEAKING, CallerEvent.WORDS, CallerState.SPEAKING, Verdict.CUT, may_cut=True),
    Row(_SUSPECTED | _ASKED | _AWAITING, CallerEvent.NO_WORDS, CallerState.SILENT, Verdict.RESUME),
    Row(_SPEAKING, CallerEvent.THOUGHT_ENDED, CallerState.SILENT),
    Row(_CONFIRMING, CallerEvent.THOUGHT_ENDED, CallerState.AWAITING_WORDS, recogniser=True),
    Row(_SUSPECTED | _ASKED | _AWAITING, CallerEvent.RELEASED, CallerState.SILENT),
    Row(_CONFIRMING, CallerEvent.RELEASED, CallerState.SPEAKING),
    Row(_SUSPECTED | _ASKED, CallerEvent.DEADLINE, CallerState.SILENT, Verdict.RESUME),
    Row(_CONFIRMING, CallerEvent.DEADLINE, CallerState.SPEAKING, Verdict.CUT, recogniser=False),
    Row(_CONFIRMING, CallerEvent.DEADLINE, CallerState.SPEAKING, Verdict.CUT, policies=_ONSET_ONLY),
    Row(_CONFIRMING, CallerEvent.DEADLINE, CallerState.SPEAKING, Verdict.RESUME, recogniser=True),
    Row(_AWAITING, CallerEvent.DEADLINE, CallerState.SILENT, Verdict.RESUME),
    Row(_SPEAKING, CallerEvent.DEADLINE, CallerState.CONFIRMING, Verdict.SUSPEND, may_cut=True),
)


def _table() -> Iterator[tuple[Key, tuple[CallerState, Verdict]]]:
    for key in itertools.product(Policy, (False, True), CallerState, CallerEvent, (False, True)):
        row = next((row for row in ROWS if row.fits(key)), None)
        if row is not None:
            yield key, (row.to, row.verdict)


TABLE: Mapping[Key, tuple[CallerState, Verdict]] = dict(_table())


class BargeIn:
    """The interruption machine of one call."""

    def __init__(self, rules: Rules) -> None:
        self.state = CallerState.SILENT
        self.onset = 0.0
        """Onset of the sound or words that led to the last ``SUSPEND`` or ``CUT``, seconds on the events' clock."""
        self.rules = rules
        self._spoke_from = 0.0
        self._deadline: float | None = None

    @property
    def suspended(self) -> bool:
        """True while the bot's voice is suspended because the caller's sound is not identified yet."""
        return self.state in SUSPENDED

    @property
    def caller_speaks(self) -> bool:
        """True if the VAD is sure that the caller is speaking."""
        return self.state in SPEAKS

    def deadline(self) -> float | None:
        """Return the time of the next ``DEADLINE`` event. None: only another event can change something."""
        return self._deadline

    def on(self, event: CallerEvent, now: float, *, onset: float | None = None, may_cut: bool) -> Verdict:
        """Take one event and return the verdict.

        Args:
            onset: start of the sound or words of the event; None if it has none.
            may_cut: True if the bot is saying something that speech may cut.
        """
        if event is CallerEvent.DEADLINE and (self._deadline is None or now < self._deadline - EARLY_S):
            return Verdict.NOTHING  # the suspension of this deadline has ended or has a later deadline now
        before = self.state
        key = (self.rules.policy, self.rules.recogniser, before, event, may_cut)
        self.state, verdict = TABLE.get(key, (before, Verdict.NOTHING))
        if event is CallerEvent.SPEECH and onset is not None:
            self._spoke_from = onset
        if before not in SUSPENDED:
            self.onset = self._spoke_from if onset is None else onset
        self._deadline = self._next_deadline(event, before, now, onset)
        return verdict

    def _next_deadline(self, event: CallerEvent, before: CallerState, now: float, onset: float | None) -> float | None:
        rules, state = self.rules, self.state
        if event is CallerEvent.SUSPECTED and state is CallerState.SUSPECTED:
            return now + rules.give_up_s
        if event is CallerEvent.SHORT_SOUND and state is CallerState.ASKED:
            return now + rules.ask_s
        if state in DOUBTFUL and before in DOUBTFUL and rules.recogniser:
            return self._deadline  # more sound does not prolong the doubt
        if event is CallerEvent.SPEECH and onset is not None:
            lasting = max(now, onset + rules.lasts_s)
            if state is CallerState.CONFIRMING:
                return lasting + (rules.words_s if rules.recogniser else 0.0)
            return lasting if rules.recogniser and rules.lasts_s else None
        if state in DOUBTFUL and state is not before:
            return now + rules.words_s
        ends = event is CallerEvent.DEADLINE or state is CallerState.SILENT
        return None if ends or (state is CallerState.SPEAKING and not rules.recogniser) else self._deadline
