"""Lists the voices of the embedded engine without loading any."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tts_engine.config import EmbeddedConfig

ENGLISH = "heart"
"""The only voice whose model is part of the package."""

ESPEAK = "espeak:"
"""Prefix of espeak's voice ids; the language follows."""

KOKORO_LANGUAGES = {
    "a": "en-US", "b": "en-GB", "e": "es", "f": "fr-FR", "i": "it-IT", "p": "pt-BR", "z": "zh-CN"
}  # fmt: skip
"""First letter of a Kokoro voice -> language tag. The other voices have no reader here."""

_READERS = {"e": "piper_plus_g2p", "p": "piper_plus_g2p", **dict.fromkeys("fi", "espeakng_loader")}
"""First letter of a voice -> the package without which it cannot be spoken."""


def kokoro_tables(folder: str) -> list[Path]:
    """Return the files of the voices that can be spoken, by name; a file's name without its ending is the voice's id.

    Args:
        folder: folder with the tables of ``kokoro-js``. Spanish and Portuguese need the extra [kokoro], French and
            Italian [espeak].
    """
    missing = {letter for letter, name in _READERS.items() if importlib.util.find_spec(name) is None}
    files = Path(folder).glob(f"[{''.join(KOKORO_LANGUAGES)}][fm]_*.bin")
    return sorted(file for file in files if file.name[0] not in missing)


def voice_ids(config: EmbeddedConfig) -> list[str] | None:
    """Return the ids of all voices. None: only the running engine knows them, because a package holds them."""
    mandarin: list[str] = []
    if config.mandarin is not None:
        folder = config.mandarin.voices_folder
        mandarin = [file.stem for file in kokoro_tables(folder)] if folder else []
        if not mandarin:
            return None
    return [ENGLISH, *mandarin, *(ESPEAK + language for language in config.espeak)]
