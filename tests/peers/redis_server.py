"""A real ``redis-server`` on a Unix socket, which keeps nothing on disk."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from redis.asyncio import Redis
from redis.exceptions import RedisError

from tests.waiting import until


@dataclass
class RedisServer:
    """``start`` and ``stop`` may be called again and again."""

    folder: Path
    process: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/redis.sock"

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            "redis-server", "--port", "0", "--unixsocket", f"{self.folder}/redis.sock", "--save", "",
            "--dir", str(self.folder), stdout=asyncio.subprocess.DEVNULL,
        )  # fmt: skip
        await until(self._answers, "Redis")

    async def _answers(self) -> bool:
        async with Redis.from_url(self.url) as redis:
            try:
                return bool(await redis.ping())
            except (RedisError, OSError):
                return False

    async def stop(self) -> None:
        assert self.process is not None
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
