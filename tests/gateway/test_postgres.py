"""A gateway whose PostgreSQL is not there; with a real one see tests/peers/server/test_shared_store.py."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import StaticPool, create_engine

from gateway.config import PostgresConfig, RecordsConfig
from gateway.metering.store import Records
from tests.gateway.metering.test_store import NOON, Lost, call, ended, found

NOBODY = "postgresql://talkspurt:secret@127.0.0.1:1/talkspurt?sslmode=disable"


async def test_of_too_many_that_wait_the_oldest_are_given_up_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.postgres.MAX_WAITING", 3)
    lost = Lost()
    config = RecordsConfig(database_url=f"sqlite:///{tmp_path}/records.sqlite3")
    postgres = PostgresConfig.model_validate({"url": NOBODY})
    records = Records(config, lost, postgres=postgres, clock=lambda: NOON)
    await records.start()
    shared = records.shared
    assert shared is not None
    for number in range(5):
        records.end(ended(call(number)))
    await records.in_thread(lambda: None)
    assert shared.move() == 0 and not shared.state.answers
    assert lost.reasons == ["given_up", "given_up"]
    assert shared.move() == 0 and shared.state.waiting == 3
    records.shared = None
    assert [record.id for record in await found(records)] == [call(number).id for number in (2, 3, 4)]
    await shared.aclose()
    await records.aclose()


async def test_of_reads_that_wait_together_one_finds_the_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = RecordsConfig(database_url=f"sqlite:///{tmp_path}/records.sqlite3")
    records = Records(config, Lost(), postgres=PostgresConfig.model_validate({"url": NOBODY}), clock=lambda: NOON)
    await records.start()
    shared = records.shared
    assert shared is not None
    tried, all_wait = [], threading.Event()

    def hangs(config: PostgresConfig) -> None:
        tried.append(config)
        all_wait.wait()
        raise TimeoutError("timed out")

    monkeypatch.setattr("gateway.postgres.opened", hangs)
    shared._note(None)  # it answered a moment ago
    asked = [asyncio.create_task(shared.ask(lambda connection: None)) for _ in range(5)]
    await asyncio.sleep(0)
    all_wait.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert {str(answer) for answer in answers} == {"PostgreSQL: timed out"} and len(tried) == 1
    await records.aclose()


async def test_a_fault_of_the_local_file_is_none_of_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The shared database is another SQLite file here."""
    config = RecordsConfig(database_url=f"sqlite:///{tmp_path}/records.sqlite3")
    records = Records(config, Lost(), postgres=PostgresConfig.model_validate({"url": NOBODY}), clock=lambda: NOON)
    await records.start()
    shared = records.shared
    assert shared is not None
    monkeypatch.setattr("gateway.postgres.opened", lambda config: create_engine("sqlite://", poolclass=StaticPool))
    monkeypatch.setattr(shared, "_begin", lambda connection: None)
    monkeypatch.setattr(shared, "_locked", lambda connection, function, number: True)
    records.end(ended(call(1)))
    await records.in_thread(lambda: None)
    handover = shared._handover
    shared._handover = replace(handover, local=lambda: create_engine(f"sqlite:///{tmp_path}/nowhere/records.sqlite3"))
    for _ in range(2):
        assert shared.move() == 0 and shared.state.answers
    assert caplog.text.count("rows wait for PostgreSQL") == 1
    shared._handover = handover
    assert shared.move() == 1
    await records.aclose()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("postgres://u:p@host/db", "expected postgresql://"),
        ("postgresql://u:p@/db", "expected postgresql://"),
        ("postgresql://u:p@host:port/db", "expected postgresql://"),
        ("postgresql://u:p@host/db?application_name=x", "expected postgresql://"),
        ("postgresql://host/db", "a user and a database"),
        ("postgresql://u:p@host/", "a user and a database"),
        ("postgresql://u:p@host/db?sslmode=verify", "sslmode is unknown"),
    ],
)
def test_an_address_that_cannot_work_is_refused(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        PostgresConfig.model_validate({"url": url})
