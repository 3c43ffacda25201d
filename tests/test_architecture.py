"""The import rules of ARCHITECTURE.md, watched: who may import whom, and who must stay free of I/O."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

FORBIDDEN = {
    "codecs/voicecodecs": {"asyncio", "torch", "gateway", "tts_engine", "sip_bridge", "talkspurt"},
    "tts_engine": {"gateway", "sip_bridge", "talkspurt"},
    "gateway": {"torch", "sip_bridge", "talkspurt"},
    "sip_bridge": {"torch", "tts_engine", "talkspurt"},
}
"""Folder -> top-level modules that no file below it may import."""

PURE = [
    "gateway/wire",
    "gateway/dialogue/messages.py",
    "gateway/dialogue/wire.py",
    "gateway/dialogue/script.py",
    "gateway/recognition/api.py",
    "gateway/recognition/listen.py",
    "gateway/transport.py",
    "gateway/media",
    "gateway/turns.py",
    "gateway/source_limit.py",
    "tts_engine/admission.py",
    "tts_engine/api.py",
    "tts_engine/text",
    "tts_engine/silence.py",
    "tts_engine/clause_cache.py",
    "codecs/voicecodecs",
    "sip_bridge/sip.py",
    "sip_bridge/transaction.py",
    "sip_bridge/digest.py",
    "sip_bridge/sdp.py",
    "sip_bridge/dialog.py",
    "sip_bridge/trunks.py",
    "sip_bridge/targets.py",
    "sip_bridge/transfer.py",
    "sip_bridge/parameters.py",
]
"""Bytes in, messages out; time is an argument."""

IMPURE = {"asyncio", "socket", "threading", "torch", "time", "aiohttp", "grpc"}


def imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            yield node.module.split(".")[0]


def files(entry: str) -> list[Path]:
    path = ROOT / entry
    return sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []


@pytest.mark.parametrize("folder", FORBIDDEN)
def test_imports_point_one_way(folder: str) -> None:
    wrong = {str(p.relative_to(ROOT)): bad for p in files(folder) if (bad := FORBIDDEN[folder] & set(imported(p)))}
    assert not wrong


@pytest.mark.parametrize("entry", PURE)
def test_pure_code_does_no_io(entry: str) -> None:
    wrong = {str(p.relative_to(ROOT)): bad for p in files(entry) if (bad := IMPURE & set(imported(p)))}
    assert not wrong


def test_gateway_reaches_the_engine_through_its_seam_only() -> None:
    allowed = {"tts_engine.api", "tts_engine.client", "tts_engine.errors"}
    wrong = {}
    for path in files("gateway"):
        modules = {
            node.module
            for node in ast.walk(ast.parse(path.read_text()))
            if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("tts_engine")
        }
        if modules - allowed:
            wrong[str(path.relative_to(ROOT))] = modules - allowed
    assert not wrong
