"""Changes that the dialogue manager makes during a call: settings, hints and languages. This module checks and applies
a change; ``settings`` computes the new values."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import orjson

from gateway.call.hearing.caller import Caller
from gateway.call.hearing.listening import ListeningSettings
from gateway.call.settings import hearing_settings, hints_of, rules, shown, turn_settings, unused
from gateway.call.turn_taking.instructions import Instructions
from gateway.call.turn_taking.turns import Turns
from gateway.config import RouteLanguage
from gateway.seams.leg import CallInfo
from gateway.seams.messages import ConfigChange, Error, Hints, Info, Language, LanguageSettings, Outbound

log = logging.getLogger(__name__)

LANGUAGES_DECLARED = 100
"""Most languages that a manager may declare in one call."""


class Configuration:
    """The settings of one call.

    Args:
        call: the call.
        turns: receives the new defaults for later turns.
        caller: receives the new settings for listening.
        instructions: switches the language of speech.
        hearing: the route's settings for listening; None without a recogniser.
        voice_problem: see ``gateway.call.session.Services``.
        tell: sends to the manager.
        announced: True if the manager receives ``configUpdated``.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        call: CallInfo,
        turns: Turns,
        caller: Caller,
        instructions: Instructions,
        hearing: ListeningSettings | None,
        *,
        voice_problem: Callable[[str, str, str], str],
        tell: Callable[[Outbound], None],
        announced: bool,
        clock: Callable[[], float],
    ) -> None:
        self._call = call
        self._turns = turns
        self._caller = caller
        self._instructions = instructions
        self._hearing = hearing
        self._route_rules = turns.defaults.barge_in
        self._voice_problem = voice_problem
        self._tell = tell
        self._announced = announced
        self._now = clock
        self._unused: set[str] = set()

    def declare(self, languages: Iterable[RouteLanguage]) -> None:
        """Declare the route's languages at the beginning of the call. The manager is told nothing."""
        known = tuple(LanguageSettings(code=each.code, voice=each.voice, hints=each.hints) for each in languages)
        if known:
            self._expect_hints(known)
            self._instructions.on_message(Language(languages=known), self._now())

    def change(self, message: ConfigChange | Hints | Language) -> None:
        """Apply a message of the manager."""
        match message:
            case Language():
                self._switch(message)
            case ConfigChange():
                self._configure(message, {}, shown(message))
            case Hints() if message.language:
                told = {"hints": list(message.hints), "language": message.language}
                self._configure(ConfigChange(), {message.language: message.hints}, told)
            case Hints():
                self._configure(hints_of(message), {}, {"hints": list(message.hints)})

    def _configure(
        self, config: ConfigChange, hints: Mapping[str, tuple[str, ...]], told: Mapping[str, object]
    ) -> None:
        """Change settings. ``hints`` are keyed by language; ``told`` is what ``configUpdated`` reports."""
        self._log_unused(unused(config, self._hearing))
        defaults = turn_settings(config, self._turns.defaults)
        if config.interrupt_sensitivity is not None:
            self._caller.be_sensitive(config.interrupt_sensitivity)
        if config.background_noise_reduction is not None:
            if not self._caller.reduce_noise(config.background_noise_reduction):
                self._log_unused(("backgroundNoiseReduction",))
        if config.ignore_backchannel is not None:
            defaults = replace(defaults, barge_in=rules(config, self._route_rules, self._hearing))
        self._turns.configure(defaults)
        if self._hearing is not None:
            self._hearing = hearing_settings(config, self._hearing)
            self._caller.configure(self._hearing, hints)
        self._caller.refresh(self._now())
        self._announce(told)

    def _switch(self, message: Language) -> None:
        """Declare languages, then switch to one. If any part is not possible, send an error and change nothing."""
        self._log_unused(message.ignored)
        error = self._problem_with(message)
        if error is not None:
            self._tell(error)
            return
        self._expect_hints(message.languages)
        if not self._caller.transcribe(message.transcription_language):
            return
        self._instructions.on_message(message, self._now())
        switched = {"ttsLanguage": message.tts_language, "transcriptionLanguage": message.transcription_language}
        declared = [
            {"code": each.code, "voice": each.voice, "hints": list(each.hints or ())} for each in message.languages
        ]
        told_languages: dict[str, object] = {"languages": declared} if declared else {}
        self._announce({**{name: tag for name, tag in switched.items() if tag}, **told_languages})

    def _expect_hints(self, languages: Iterable[LanguageSettings]) -> None:
        hints = {each.code: each.hints for each in languages if each.hints is not None}
        if self._hearing is not None and hints:
            self._caller.configure(self._hearing, hints)

    def _problem_with(self, message: Language) -> Error | None:
        for field_name, language, voice in (
            ("ttsLanguage", message.tts_language, ""),
            *(("voice", each.code, each.voice) for each in message.languages if each.voice),
        ):
            problem = self._voice_problem(self._call.route, language, voice) if language or voice else ""
            if problem:
                return Error(description=f"language.{field_name}: {problem}", code="not_supported", field=field_name)
        if self._instructions.declared_languages + len(message.languages) > LANGUAGES_DECLARED:
            told = f"language: expected at most {LANGUAGES_DECLARED} declared languages in a call"
            return Error(description=told, code="too_many_languages", field="code")
        return None

    def _announce(self, changed: Mapping[str, object]) -> None:
        if self._announced and changed:
            self._tell(Info(name="configUpdated", value=orjson.dumps(changed).decode()))

    def _log_unused(self, names: tuple[str, ...]) -> None:
        """Log each setting that has no effect in this call, once per call."""
        new = [name for name in names if name not in self._unused]
        if new:
            self._unused.update(new)
            log.info(
                "settings without effect",
                extra={"call": self._call.call_id, "route": self._call.route, "settings": " ".join(new)},
            )
