"""Translation of a route's configuration into the defaults of its turns. Pure."""

from __future__ import annotations

from gateway.call.hearing.listening import ListeningSettings
from gateway.call.turn_taking.barge_in import Policy, Rules
from gateway.call.turn_taking.speakable import lexicon
from gateway.call.turn_taking.turn import TurnDefaults
from gateway.config import BargeInConfig, DialogueConfig, PlayoutConfig, RouteConfig
from gateway.seams.messages import Interruptible


def interruptible_word(value: Interruptible | bool) -> Interruptible:
    """Translate ConversationRelay's two spellings, a word or a boolean, to the word."""
    return ("any" if value else "none") if isinstance(value, bool) else value


def turn_defaults(
    route: RouteConfig,
    dialogue: DialogueConfig,
    playout: PlayoutConfig,
    barge_in: BargeInConfig,
    *,
    turn_chars: int,
    turns_queued: int,
    hearing: ListeningSettings | None = None,
) -> TurnDefaults:
    """Return the ``TurnDefaults`` of a route. ``hearing`` is None without a recogniser."""
    return TurnDefaults(
        interruptible=interruptible_word(route.interruptible),
        preemptible=route.preemptible,
        dtmf_detection=route.dtmf_detection,
        report_input=route.report_input_during_agent_speech,
        language=route.language,
        voice=route.voice,
        speaker_events="speaker-events" in route.events,
        tokens_played="tokens-played" in route.events,
        stale_s=dialogue.stale_ms / 1000,
        end_drain=dialogue.end_drain,
        withdraws=dialogue.sends_extensions,
        no_input_s=route.no_input_s,
        turn_chars=turn_chars,
        turns_queued=turns_queued,
        held_turns=playout.held_turns,
        barge_in=interruption_rules(route, barge_in, hearing),
        lexicon=lexicon(tuple(route.lexicon.items())),
    )


def interruption_rules(route: RouteConfig, barge_in: BargeInConfig, hearing: ListeningSettings | None) -> Rules:
    """Return the interruption rules of a route; ``gateway.call.turn_taking.barge_in`` explains the policies."""
    own = route.barge_in.false_alarm_ms
    false_alarm_s = (barge_in.false_alarm_ms if own is None else own) / 1000
    if false_alarm_s:
        policy = Policy.DURATION
    elif hearing is not None and route.ignore_backchannel:
        policy = Policy.WORDS
    else:
        policy = Policy.ONSET
    return Rules(
        policy=policy,
        recogniser=hearing is not None,
        lasts_s=false_alarm_s if hearing is None else hearing.lasts_s,
        words_s=0.0 if hearing is None else hearing.words_s,
        give_up_s=barge_in.max_hum_ms / 1000 + 0.5,
        max_wait_s=barge_in.max_wait_ms / 1000,
    )
