"""New values of a call's settings after ``config`` or ``hints`` of the dialogue manager. Pure.

A change applies to later turns; turns that were accepted before keep their values.
"""

from __future__ import annotations

from dataclasses import replace

from gateway.call.hearing.listening import ListeningSettings
from gateway.call.turn_taking.barge_in import Policy, Rules
from gateway.call.turn_taking.turn import TurnDefaults
from gateway.seams.messages import ConfigChange, Hints

_UNUSED_WITHOUT_RECOGNISER = (
    "partialPrompts",
    "speechTimeout",
    "turnDetection",
    "ignoreBackchannel",
    "echoPromptFiltering",
    "hints",
)


def turn_settings(config: ConfigChange, defaults: TurnDefaults) -> TurnDefaults:
    """Return the defaults of later turns."""
    return replace(
        defaults,
        interruptible=config.interruptible or defaults.interruptible,
        preemptible=defaults.preemptible if config.preemptible is None else config.preemptible,
        dtmf_detection=defaults.dtmf_detection if config.dtmf_detection is None else config.dtmf_detection,
        report_input=config.report_input_during_agent_speech or defaults.report_input,
    )


def hearing_settings(config: ConfigChange, hearing: ListeningSettings) -> ListeningSettings:
    """Return the new settings for listening."""
    new = hearing
    if config.partial_prompts is not None:
        new = replace(new, partial_prompts=config.partial_prompts)
    if config.ignore_backchannel is not None:
        new = replace(new, ignores_backchannel=config.ignore_backchannel)
    if config.echo_prompt_filtering is not None:
        new = replace(new, drops_echo=config.echo_prompt_filtering)
    if config.speech_timeout_ms is not None:
        new = new.with_silence(config.speech_timeout_ms / 1000)
    if config.turn_detection is not None:
        new = replace(new, silence_only=not config.turn_detection)
    return new if config.hints is None else replace(new, hints=config.hints)


def rules(config: ConfigChange, base: Rules, hearing: ListeningSettings | None) -> Rules:
    """Return the interruption rules after the manager has set ``ignoreBackchannel``; ``base`` are the route's rules."""
    if hearing is None or base.policy is Policy.DURATION:
        return base
    if config.ignore_backchannel:
        return replace(base, policy=Policy.WORDS, lasts_s=max(base.lasts_s, hearing.agreement_s))
    return replace(base, policy=Policy.ONSET, lasts_s=0.0)


def unused(config: ConfigChange, hearing: ListeningSettings | None) -> tuple[str, ...]:
    """Return the names of settings that have no effect in this call."""
    known = () if hearing is not None else tuple(name for name in _UNUSED_WITHOUT_RECOGNISER if name in config.names)
    return (*config.ignored, *known)


def hints_of(message: Hints) -> ConfigChange:
    """Return ``hints`` as a ``ConfigChange``."""
    return ConfigChange(hints=message.hints, names=("hints",))


def shown(config: ConfigChange) -> dict[str, object]:
    """Return the settings of a message by their names on the wire."""
    values: dict[str, object] = {
        "interruptible": config.interruptible,
        "preemptible": config.preemptible,
        "dtmfDetection": config.dtmf_detection,
        "reportInputDuringAgentSpeech": config.report_input_during_agent_speech,
        "partialPrompts": config.partial_prompts,
        "speechTimeout": config.speech_timeout_ms,
        "turnDetection": config.turn_detection,
        "ignoreBackchannel": config.ignore_backchannel,
        "echoPromptFiltering": config.echo_prompt_filtering,
        "interruptSensitivity": config.interrupt_sensitivity,
        "backgroundNoiseReduction": config.background_noise_reduction,
        "hints": config.hints,
    }
    return {name: values[name] for name in config.names}
