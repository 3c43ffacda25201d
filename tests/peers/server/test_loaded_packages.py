"""A server does not load what only other commands, other routes or the tests need."""

from __future__ import annotations

from pathlib import Path

from tests.peers.live_server import serve


def loaded(pid: int) -> set[str]:
    """Return the files that a process and its descendants have mapped."""
    files = {line.split(maxsplit=5)[5].strip() for line in _lines(pid, "maps") if len(line.split()) > 5}
    children = [child for line in _lines(pid, f"task/{pid}/children") for child in line.split()]
    return files.union(*(loaded(int(child)) for child in children))


def _lines(pid: int, name: str) -> list[str]:
    return Path(f"/proc/{pid}/{name}").read_text().splitlines()


async def test_a_server_loads_neither_scipy_nor_torch(tmp_path: Path) -> None:
    async with serve(tmp_path, "routes: {default: {}}\n") as live:
        files = loaded(live.process.pid)
    assert any("/numpy/" in name for name in files)
    assert not [name for name in files if "/scipy/" in name or "/torch/" in name]
