"""A cached list of the engine's voices and languages. The manager learns of an unknown voice at once, and a request for
speech waits for no query to the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from gateway.principal import sees_voice
from tts_engine.api import VoiceInfo
from tts_engine.errors import EngineError

_QUERY_INTERVAL_S = 2.0
"""Interval between two queries of the list, seconds. Messages and requests do not query the engine: messages must keep
their order, and an answer would delay the first sound by a millisecond or two."""


class KnownVoices:
    """The engine's voices at the last query. ``watch`` keeps them fresh.

    Args:
        list_voices: asks the engine; raises ``EngineError``.
        own: prefix of the voice ids of a route's tenant, by route; a route that is missing may use all voices.
    """

    def __init__(self, list_voices: Callable[[], Awaitable[Sequence[VoiceInfo]]], own: Mapping[str, str]) -> None:
        self._list_voices = list_voices
        self._own = own
        self._voices: Sequence[VoiceInfo] = ()

    async def look(self) -> None:
        """Query the voices. Raises ``EngineError``."""
        self._voices = await self._list_voices()

    async def ids(self) -> Collection[str]:
        """Return the ids of all voices. Waits for the first answer.

        Raises:
            EngineError: no query has succeeded yet, and this one failed too.
        """
        if not self._voices:
            await self.look()
        return {voice.voice_id for voice in self._voices}

    async def watch(self) -> None:
        """Query the voices repeatedly until cancelled. The last list stays valid while the engine does not answer."""
        while True:
            with contextlib.suppress(EngineError):  # the readiness check reports it
                await self.look()
            await asyncio.sleep(_QUERY_INTERVAL_S)

    def problem(self, route: str, language: str, voice: str) -> str:
        """Return why a route cannot use a language or a voice; empty if it can, or if no voice is known yet.

        A voice that was registered from a recording and a voice that names no language count as speaking every
        language.
        """
        voices = [each for each in self._voices if sees_voice(self._own.get(route, ""), each.voice_id)]
        if not voices:
            return ""
        if voice and voice not in {each.voice_id for each in voices}:
            return f"no voice {voice[:40]!r}, expected one of {_listed(each.voice_id for each in voices)}"
        known = {_primary(tag) for each in voices for tag in each.languages}
        any_language = any(each.registered or not each.languages for each in voices)
        if language and not any_language and _primary(language) not in known:
            return f"no voice speaks {language[:40]!r}, expected one of {_listed(known)}"
        return ""


def _primary(tag: str) -> str:
    return tag.partition("-")[0].lower()


def _listed(names: Iterable[str]) -> str:
    all_names = sorted(set(names))
    return ", ".join(all_names[:20]) + (" ..." if len(all_names) > 20 else "")
