"""``talkspurt voices install`` copies the voices of a language from an unpacked ``kokoro-js``, after checking them."""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

from talkspurt.cli import JobError, UsageError
from talkspurt.config.settings import load
from tts_engine.embedded import espeak_text, japanese_text, romance_text
from tts_engine.embedded.kokoro_hashes import TABLES_SHA256
from tts_engine.embedded.mandarin_text import HOW_TO_INSTALL
from tts_engine.embedded.voice_ids import KOKORO_LANGUAGES

_WITHOUT = {
    "hi": "Kokoro has Hindi voices, but no one here could say how they sound; use espeak:hi",
    "de": "Kokoro has no German voice; use espeak:de or CosyVoice 3",
}


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt voices install``."""
    language = args.language.replace("_", "-").partition("-")[0].lower()
    wanted = [name for name in TABLES_SHA256 if KOKORO_LANGUAGES[name[0]].partition("-")[0] == language]
    if not wanted:
        known = sorted({tag.partition("-")[0] for tag in KOKORO_LANGUAGES.values()})
        raise UsageError(f"language {args.language!r}: {_WITHOUT.get(language, 'expected ' + ', '.join(known))}")
    source = next((each for each in (args.source / "package/voices", args.source / "voices", args.source)
                   if (each / f"{wanted[0]}.bin").is_file()), None)  # fmt: skip
    if source is None:
        raise UsageError(
            f"{args.source} has no {wanted[0]}.bin; make it by npm pack kokoro-js@1.2.1 && tar xzf kokoro-js-1.2.1.tgz"
        )
    mandarin = load(args.config).engine.embedded.mandarin
    configured = mandarin.voices_folder if mandarin is not None else ""
    target = args.to or (Path(configured) if configured else Path("kokoro-voices"))
    tables = {name: _checked(source / f"{name}.bin", TABLES_SHA256[name]) for name in wanted}
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, table in tables.items():
            part = target / f".{name}.part"
            part.write_bytes(table)
            os.replace(part, target / f"{name}.bin")
    except OSError as exc:
        raise JobError(f"{target} cannot be written: {exc.strerror}") from None
    print(f"{', '.join(wanted)} are in {target}")
    if not configured or target != Path(configured):
        print(f"configuration: engine: {{embedded: {{mandarin: {{voices_folder: {target.resolve()}}}}}}}")
    if language in romance_text.LANGUAGES and not romance_text.installed():
        print(f"and install the reader: {romance_text.HOW_TO_INSTALL}")
    elif language in espeak_text.LANGUAGES and not espeak_text.installed():
        print(f"and install the reader: {espeak_text.HOW_TO_INSTALL}")
    elif language == "ja" and not japanese_text.installed():
        print(f"and install the reader: {japanese_text.HOW_TO_INSTALL}")
    elif language == "zh":
        print(f"and install the reader, unless you have it: {HOW_TO_INSTALL}")
    return 0


def _checked(path: Path, sha256: str) -> bytes:
    try:
        table = path.read_bytes()
    except OSError as exc:
        raise JobError(f"{path} cannot be read: {exc.strerror}") from None
    found = hashlib.sha256(table).hexdigest()
    if found != sha256:
        raise JobError(f"{path} is another file than that of kokoro-js 1.2.1: SHA-256 {found}, expected {sha256}")
    return table
