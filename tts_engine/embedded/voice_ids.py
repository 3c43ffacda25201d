"""Lists the voices of the embedded engine without loading any."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from tts_engine.config import EmbeddedConfig

ENGLISH = "heart"
"""The only voice whose model is part of the package."""

ESPEAK = "espeak:"
"""Prefix of espeak's voice ids; the language follows."""

KOKORO_LANGUAGES = {"a": "en-US", "b": "en-GB", "e": "es", "p": "pt-BR", "z": "zh-CN"}
"""First letter of a Kokoro voice -> language tag. The other voices have no reader here."""


def kokoro_tables(folder: str) -> list[Path]:
    """Return the files of the voices that can be spoken, by name; a file's name without its ending is the voice's id.

    Args:
        folder: folder with the tables of ``kokoro-js``. Spanish and Portuguese need the extra [kokoro].
    """
    romance = importlib.util.find_spec("piper_plus_g2p") is not None
    files = Path(folder).glob("[abepz][fm]_*.bin")
    return sorted(file for file in files if romance or file.name[0] not in "ep")


def voice_ids(config: EmbeddedConfig) -> list[str] | None:
    """Return the ids of all voices. None: only the running engine knows them, because a package holds them."""
    mandarin: list[str] = []
    if config.mandarin is not None:
        folder = config.mandarin.voices_folder
        mandarin = [file.stem for file in kokoro_tables(folder)] if folder else []
        if not mandarin:
            return None
    return [ENGLISH, *mandarin, *(ESPEAK + language for language in config.espeak)]
