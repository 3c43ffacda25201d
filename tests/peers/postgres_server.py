"""A real ``postgres`` on a port of loopback, with databases that are gone when it is."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from sqlalchemy import Engine, NullPool, create_engine

from tests.peers.ports import free_port
from tests.peers.programs import postgres_program

USER, PASSWORD = "talkspurt", "secret"


class PostgresServer:
    """``start`` and ``stop`` may be called again and again. PostgreSQL refuses root: then it runs as another user."""

    def __init__(self) -> None:
        self.port = free_port()
        # Not in pytest's folders, which are root's alone.
        self._folder = Path(tempfile.mkdtemp(prefix="talkspurt-postgres-"))
        self._user = "nobody" if os.geteuid() == 0 else None
        if self._user is not None:
            shutil.chown(self._folder, self._user)
        password = self._folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        arguments = (
            "--no-sync",
            "--auth=scram-sha-256",
            f"--username={USER}",
            f"--pwfile={password}",
            "--encoding=UTF8",
        )
        subprocess.run(
            [_program("initdb"), *arguments, "--locale=C.UTF-8", self._data],
            check=True, stdout=subprocess.DEVNULL, user=self._user, cwd="/",
        )  # fmt: skip

    @property
    def _data(self) -> Path:
        return self._folder / "data"

    def start(self) -> None:
        # pg_ctl returns when the server takes connections.
        options = f"-h 127.0.0.1 -p {self.port} -k {self._folder} -F"
        self._control("start", "-o", options, "-l", str(self._folder / "log"), "-t", "60")

    def stop(self) -> None:
        """Kill the server: no connection is told."""
        self._control("stop", "-m", "immediate")

    @property
    def runs(self) -> bool:
        return (self._data / "postmaster.pid").exists()

    def close(self) -> None:
        if self.runs:
            self.stop()
        shutil.rmtree(self._folder)

    def make_database(self, name: str) -> str:
        """Make an empty database and return its name."""
        with self.engine("postgres").execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.exec_driver_sql(f'CREATE DATABASE "{name}"')
        return name

    def url(self, name: str, port: int | None = None) -> str:
        return f"postgresql://{USER}:{PASSWORD}@127.0.0.1:{port or self.port}/{name}"

    def engine(self, name: str) -> Engine:
        return create_engine(self.url(name).replace("://", "+pg8000://"), poolclass=NullPool)

    def _control(self, *arguments: str) -> None:
        subprocess.run(
            [_program("pg_ctl"), "-D", self._data, *arguments],
            check=True, stdout=subprocess.DEVNULL, user=self._user, cwd="/",
        )  # fmt: skip


def _program(name: str) -> str:
    path = postgres_program(name)
    assert path is not None, f"PostgreSQL without {name}"
    return path
