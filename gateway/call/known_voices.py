"""Which voices are there, and which languages can a route speak with? Known before a turn asks, so a manager learns of
it at once, and a request for speech waits for no question to the engine."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from gateway.principal import sees_voice
from tts_engine.api import VoiceInfo
from tts_engine.errors import EngineError

_LOOK_S = 2.0
"""How old the list may be, seconds. The engine is not asked when a message or a request comes: messages keep their
order, and an answer takes a millisecond or two of the first sound."""


class KnownVoices:
    """The engine's voices as they were a moment ago. ``watch`` keeps them fresh.

    Args:
        list_voices: asks the engine; raises ``EngineError``.
        own: what ids of the voices of a route's tenant begin with; a route that is missing may use all voices.
    """

    def __init__(self, list_voices: Callable[[], Awaitable[Sequence[VoiceInfo]]], own: Mapping[str, str]) -> None:
        self._list_voices = list_voices
        self._own = own
        self._voices: Sequence[VoiceInfo] = ()

    async def look(self) -> None:
        """Ask for the voices. Raises ``EngineError``."""
        self._voices = await self._list_voices()

    async def ids(self) -> Collection[str]:
        """Return the ids of all voices. Before the first answer this waits for it.

        Raises:
            EngineError: there was no answer yet, and there is none now.
        """
        if not self._voices:
            await self.look()
        return {voice.voice_id for voice in self._voices}

    async def watch(self) -> None:
        """Ask for the voices again and again, until cancelled. The last ones count while the engine does not answer."""
        while True:
            with contextlib.suppress(EngineError):  # readiness tells
                await self.look()
            await asyncio.sleep(_LOOK_S)

    def problem(self, route: str, language: str, voice: str) -> str:
        """Say why a route cannot speak a language, or use a voice; empty where it can, or where no voice is known yet.

        A voice that was registered from a recording, and one that names no language, is taken to speak all of them.
        """
        voices = [each for each in self._voices if sees_voice(self._own.get(route, ""), each.voice_id)]
        if not voices:
            return ""
        if voice and voice not in {each.voice_id for each in voices}:
            return f"no voice {voice[:40]!r}, expected one of {_some(each.voice_id for each in voices)}"
        known = {_primary(tag) for each in voices for tag in each.languages}
        any_language = any(each.registered or not each.languages for each in voices)
        if language and not any_language and _primary(language) not in known:
            return f"no voice speaks {language[:40]!r}, expected one of {_some(known)}"
        return ""


def _primary(tag: str) -> str:
    return tag.partition("-")[0].lower()


def _some(names: Iterable[str]) -> str:
    all_names = sorted(set(names))
    return ", ".join(all_names[:20]) + (" ..." if len(all_names) > 20 else "")
