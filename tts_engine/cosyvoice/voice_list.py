"""The voices of a model directory and a registry together. It needs no networks, so voices can be listed and added
without the process that owns the device."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tts_engine.api import VoiceInfo
from tts_engine.cosyvoice.frontend.features import FeatureExtractor
from tts_engine.cosyvoice.frontend.tokenizer import Version
from tts_engine.cosyvoice.voices import VoiceRegistry
from tts_engine.errors import InvalidRequest, NotFound


class VoiceList:
    """The built-in voices (``spk2info.pt``), then those of the registry."""

    def __init__(self, folder: Path, version: Version, builtin: Sequence[str], registered: Path | None) -> None:
        """
        Args:
            folder: the model directory.
            builtin: ids of the built-in voices.
            registered: folder of the voices that users add. None: users cannot add voices.
        """
        self.engine = f"cosyvoice{version}"
        self._infos = [
            VoiceInfo(voice_id=voice_id, name=voice_id, languages=(), engine=self.engine) for voice_id in builtin
        ]
        self._ids = frozenset(builtin)
        self.registry: VoiceRegistry | None = None
        if registered is not None:
            extractor = FeatureExtractor(folder, version=version)
            self.registry = VoiceRegistry(registered, engine=self.engine, builtin=self._infos, extractor=extractor)

    def infos(self) -> Sequence[VoiceInfo]:
        """Return the built-in voices, then those registered for this version."""
        if self.registry is None:
            return self._infos
        return [voice for voice in self.registry.voices() if voice.engine == self.engine]

    def add(self, *, voice_id: str, name: str, wav: bytes, transcript: str, language: str) -> VoiceInfo:
        """See ``VoiceRegistry.add``."""
        if self.registry is None:
            raise InvalidRequest("this engine has no folder for registered voices", field="audio")
        return self.registry.add(voice_id=voice_id, name=name, wav=wav, transcript=transcript, language=language)

    def remove(self, voice_id: str) -> None:
        """See ``VoiceRegistry.remove``."""
        if self.registry is None:
            raise NotFound(f"no registered voice {voice_id!r}")
        self.registry.remove(voice_id)

    def revision(self, voice_id: str) -> str:
        """See ``VoiceEditor``."""
        voice_id = voice_id or self.first()
        if self.registry is None or voice_id in self._ids:
            return ""
        return self.registry.get(voice_id).revision

    def first(self) -> str:
        """Return the id of the default voice. Raises NotFound if there is no voice."""
        if not self._infos and not (voices := self.infos()):
            raise NotFound(
                "there is no voice yet: the model directory has no spk2info.pt, and none is registered; "
                "`talkspurt voices add` makes one from a recording"
            )
        return (self._infos or voices)[0].voice_id
