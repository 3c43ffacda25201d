"""``talkspurt recording decrypt`` turns an encrypted recording into a WAV file."""

from __future__ import annotations

import argparse
import os
import wave
from pathlib import Path

from gateway.errors import RecordingError
from gateway.uplink.sealing import Sealed
from talkspurt.cli import JobError, UsageError
from talkspurt.config.settings import load


def run(args: argparse.Namespace) -> int:
    """Run ``talkspurt recording decrypt``."""
    source: Path = args.file
    target: Path = args.output or source.with_suffix("")
    key = load(args.config).recording.key
    if key is None:
        raise UsageError("recording.encrypt is not set; name a configuration, or set TALKSPURT__RECORDING__ENCRYPT")
    if args.output is None and source.suffix != ".enc":
        raise UsageError(f"{source} does not end in .enc; name the WAV file by -o")
    if target.exists():
        raise UsageError(f"{target} is there already")
    part = target.with_name(f"{target.name}.part")
    try:
        _decrypt(source, part, key)
        part.rename(target)
    except RecordingError as exc:
        part.unlink()
        raise JobError(f"{source}: {exc}") from None
    except OSError as exc:
        part.unlink(missing_ok=True)  # as of a full disk
        raise JobError(f"{exc.filename or target}: {exc.strerror}") from None
    print(target)
    return 0


def _decrypt(source: Path, target: Path, key: bytes) -> None:
    with (
        source.open("rb") as file,
        os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as to,
    ):
        sealed = Sealed(file, key=key)
        with wave.open(to, "wb") as out:
            out.setnchannels(sealed.channels)
            out.setsampwidth(2)
            out.setframerate(sealed.rate)
            for frames in sealed.frames():
                out.writeframesraw(frames)
