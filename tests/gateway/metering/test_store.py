"""Records on a real SQLite file: each is counted once, however often it is told and whichever process dies."""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import stat
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, event

from gateway.config import RecordsConfig
from gateway.errors import Rejected
from gateway.metering import disk_sync, ledger
from gateway.metering.record import MeterRecord
from gateway.metering.schema import SCHEMA
from gateway.metering.store import COUNTED_TOGETHER, Records, RecordsMeter
from gateway.postgres import DatabaseState
from tests.gateway.call_log.test_log import damage, damage_middle
from tests.waiting import PATIENCE_S, until

DAY_S = 86_400
NOON = 1_800_014_400.0  # 2027-01-15, 12:00 UTC


def call(number: int, **fields: Any) -> MeterRecord:
    return MeterRecord(id=f"VX{number:032x}", kind="call", tenant="shop", startedAt=NOON + number, route="a", **fields)


def ended(record: MeterRecord, **fields: Any) -> MeterRecord:
    said = {"endedAt": record.startedAt + 10, "outcome": "completed", "reason": "hangup", "characters": 20}
    return record.model_copy(update={**said, "audioSeconds": 1.5, **fields})


class Lost:
    """Notes what the metrics count."""

    def __init__(self) -> None:
        self.reasons: list[str] = []

    def record_lost(self, reason: str) -> None:
        self.reasons.append(reason)

    def record_late(self) -> None:
        self.reasons.append("late")

    def shared_database(self, state: DatabaseState) -> None:
        pass


def begun(records: Records, record: MeterRecord) -> None:
    records.begin(record, lambda: record)


@asynccontextmanager
async def opened(
    folder: Path, *, now: float = NOON, meter: RecordsMeter | None = None, begin_wait_s: float = 0.2, **fields: Any
) -> AsyncIterator[Records]:
    config = RecordsConfig.model_validate({"database_url": f"sqlite:///{folder}/new/records.sqlite3", **fields})
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("gateway.metering.store.BEGIN_WAIT_S", begin_wait_s)
        records = Records(config, meter or Lost(), clock=lambda: now)
    await records.start()
    try:
        yield records
    finally:
        await records.aclose()


async def found(records: Records, tenant: str = "shop") -> list[MeterRecord]:
    return list(await records.find(tenant, since=0, until=1e12, limit=10_000))


async def test_a_record_comes_back_as_it_was_and_its_day_counts_it(tmp_path: Path) -> None:
    over = ended(
        call(1),
        cuts=1,
        gaps=2,
        gapMs=300,
        turns=4,
        firstPacketMs=88.5,
        lossFraction=0.25,
        packetsLost=1,
        from_="+4930",
        to="+4989",
    )
    async with opened(tmp_path) as records:
        begun(records, call(1))
        (going_on,) = await found(records)
        assert (going_on.outcome, going_on.endedAt) == ("open", None)
        records.end(over)
        assert await found(records) == [over] and await found(records, "bank") == []
    async with opened(tmp_path) as records:
        (day,) = await records.usage("shop")
        assert (day.day, day.calls, day.callSeconds, day.characters) == ("2027-01-15", 1, 10.0, 20)
        assert (day.requests, day.audioSeconds) == (0, 1.5) and await records.usage("bank") == []
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "new").iterdir()} == {0o600}
    assert not list((tmp_path / "new").glob(".*.lock"))


async def test_what_is_told_again_counts_once_and_in_any_order(tmp_path: Path) -> None:
    async with opened(tmp_path) as records:
        records.end(ended(call(1)))
        begun(records, call(1))
        records.end(ended(call(1)))
        assert [record.outcome for record in await found(records)] == ["completed"]
        begun(records, call(1))
        records.end(ended(call(1)))
        assert [record.outcome for record in await found(records)] == ["completed"]
        assert [day.calls for day in await records.usage("shop")] == [1]


async def test_days_end_at_midnight_and_are_newest_first(tmp_path: Path) -> None:
    async with opened(tmp_path, now=NOON + DAY_S) as records:
        for number in (0, 1, DAY_S):
            records.end(ended(call(number)))
        request = MeterRecord(id="api.1", kind="request", tenant="shop", startedAt=NOON, endedAt=NOON + 1, characters=5)
        records.end(request.model_copy(update={"outcome": "completed"}))
        days = await records.usage("shop")
        assert [(day.day, day.calls, day.requests) for day in days] == [("2027-01-16", 1, 0), ("2027-01-15", 2, 1)]
        assert days[1].characters == 45


async def test_pages_lose_and_double_nothing_of_what_began_at_one_moment(tmp_path: Path) -> None:
    async with opened(tmp_path) as records:
        for number in (3, 1, 4, 0, 2):
            begun(records, call(number).model_copy(update={"startedAt": NOON + 0.1}))
        seen: list[str] = []
        after = None
        while page := await records.find("shop", since=0, until=1e12, after=after, limit=2):
            seen += [record.id for record in page]
            after = (page[-1].startedAt, page[-1].id)
        assert seen == [call(number).id for number in range(5)]


async def test_old_records_go_and_their_days_stay(tmp_path: Path) -> None:
    async with opened(tmp_path) as records:
        records.end(ended(call(1)))
        begun(records, call(2))
    async with opened(tmp_path, now=NOON + 3 * DAY_S, keep_days=2) as records:
        records.end(ended(call(3 * DAY_S)))
        assert [record.startedAt - NOON for record in await found(records)] == [3 * DAY_S]
        assert [day.calls for day in await records.usage("shop")] == [1, 2]  # one of them had crashed


async def test_without_a_database_usage_is_counted_in_memory_and_no_record_is_kept() -> None:
    records = Records(RecordsConfig(), Lost(), clock=lambda: NOON)
    await records.start()
    for number in range(COUNTED_TOGETHER + 3):
        begun(records, call(number % 10))
        records.end(ended(call(number % 10)))
    assert [day.calls for day in await records.usage("shop")] == [COUNTED_TOGETHER + 3] and await found(records) == []
    await records.aclose()
    records.end(ended(call(4)))  # too late, and no error


async def test_another_living_process_keeps_what_it_has_open(tmp_path: Path) -> None:
    async with opened(tmp_path) as one:
        begun(one, call(1))
        await found(one)
        async with opened(tmp_path) as two:
            assert [record.outcome for record in await found(two)] == ["open"]
            two.end(ended(call(2)))
        one.end(ended(call(1)))
        assert [record.outcome for record in await found(one)] == ["completed", "completed"]
        assert [day.calls for day in await one.usage("shop")] == [2]


async def test_a_process_that_died_leaves_calls_as_long_as_they_were_written_ahead(tmp_path: Path) -> None:
    async with opened(tmp_path) as dead, opened(tmp_path) as alive:
        so_far = call(1).model_copy(update={"endedAt": NOON + 8, "characters": 7, "audioSeconds": 0.5})
        dead.begin(call(1), lambda: so_far)
        begun(dead, call(2))
        del dead._open_records[call(2).id]  # it died before it wrote anything ahead
        dead.write_ahead()
        assert [(record.outcome, record.endedAt) for record in await found(dead)] == [("open", None)] * 2
        assert dead._lock_file is not None
        os.close(dead._lock_file)
        dead._lock_file = None
        alive.write_ahead()
        one, two = await found(alive)
        assert one == so_far.model_copy(update={"outcome": "crashed"})
        assert (two.outcome, two.endedAt) == ("crashed", two.startedAt)
        (day,) = await alive.usage("shop")
        assert (day.calls, day.callSeconds, day.characters) == (2, 7.0, 7)
        dead.end(ended(call(1)))  # a late word of it changes nothing
        assert await found(dead) == [one, two]


async def test_a_file_of_the_first_version_is_brought_up_to_date_and_a_later_one_is_refused(tmp_path: Path) -> None:
    async with opened(tmp_path) as records:
        begun(records, call(1))
        await found(records)
        assert records._database is not None
        with records._database.begin() as connection:
            connection.exec_driver_sql("DROP TABLE records_schema")
            connection.exec_driver_sql("UPDATE records SET outcome = 'crashed'")
            later = ["packetsReceived", "packetsLost", "lossFraction", "jitterMs", "maxJitterMs", "remotePacketsLost"]
            later += ["remoteJitterMs", "endedBy", "sipStatus", "q850", "endText", "correlationId"]
            for column in later:
                connection.exec_driver_sql(f'ALTER TABLE records DROP COLUMN "{column}"')
    async with opened(tmp_path) as records:
        (crashed,) = await found(records)
        assert crashed.endedAt == crashed.startedAt and crashed.packetsLost is None
        assert records._database is not None
        with records._database.begin() as connection:
            assert connection.exec_driver_sql("SELECT version FROM records_schema").scalars().all() == [SCHEMA.version]
            connection.exec_driver_sql("UPDATE records_schema SET version = 99")
    with pytest.raises(OSError, match=f"schema 99, expected {SCHEMA.version}"):
        async with opened(tmp_path):
            pass


async def test_a_full_or_lost_disk_costs_the_record_and_nothing_else(tmp_path: Path) -> None:
    lost = Lost()
    async with opened(tmp_path, meter=lost) as records:
        await found(records)
        assert records._database is not None
        with records._database.begin() as connection:
            connection.exec_driver_sql("DROP TABLE usage")
        records.end(ended(call(1)))
        assert await found(records) == [], "half of it is there"
    records.end(ended(call(2)))
    assert lost.reasons == ["not_written", "closed"]


async def test_ends_that_a_full_disk_refused_are_written_with_their_figures_when_there_is_room(tmp_path: Path) -> None:
    lost = Lost()
    async with opened(tmp_path, meter=lost) as records:
        await found(records)
        assert records._database is not None
        room = 1  # pages; SQLite takes the present size where this is less

        def bound(connection: Connection) -> None:
            connection.exec_driver_sql(f"PRAGMA max_page_count={room}")

        event.listen(records._database, "begin", bound)
        for number in range(300):
            records.end(ended(call(number)))
        assert len(await found(records)) < 300
        room = 1_000_000
        records.write_ahead()  # the server does this every few seconds
        after = await found(records)
    assert len(after) == 300
    assert {(record.outcome, record.audioSeconds) for record in after} == {("completed", 1.5)}
    assert lost.reasons == []


async def test_the_end_of_a_call_is_written_when_another_program_lets_go_of_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.metering.store._BUSY_S", 0.01)
    lost = Lost()
    async with opened(tmp_path, meter=lost) as records:
        begun(records, call(1))
        await found(records)
        with closing(sqlite3.connect(tmp_path / "new" / "records.sqlite3", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            records.end(ended(call(1)))
            assert [record.outcome for record in await found(records)] == ["open"]
        records.write_ahead()
        (record,) = await found(records)
    assert (record.outcome, record.audioSeconds) == ("completed", 1.5)
    assert lost.reasons == []


async def test_reads_do_not_wait_for_another_program_that_keeps_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.metering.store._BUSY_S", 600.0)
    async with opened(tmp_path) as records:
        begun(records, call(1))
        await found(records)
        monkeypatch.setattr("gateway.metering.store._READ_WAITS_S", 0.01)
        with closing(sqlite3.connect(tmp_path / "new" / "records.sqlite3", isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            records.end(ended(call(1)))
            assert [[record.outcome for record in await found(records)] for _ in range(3)] == [["open"]] * 3
            assert len(await records.usage("shop")) == 0
        monkeypatch.setattr("gateway.metering.store._READ_WAITS_S", 60.0)
        assert [record.outcome for record in await found(records)] == ["completed"]


@pytest.mark.parametrize("when", ["before the start", "while it is open"])
async def test_a_damaged_file_is_set_aside_and_records_continue_in_a_new_one(tmp_path: Path, when: str) -> None:
    lost, file = Lost(), tmp_path / "new" / "records.sqlite3"
    if when == "before the start":
        file.parent.mkdir()
        file.write_bytes(b"no database at all" * 1000)
    async with opened(tmp_path, meter=lost) as records:
        if when == "while it is open":
            begun(records, call(1))
            await found(records)
            await records.in_thread(lambda: records._opened().dispose())  # else SQLite has the pages in its memory
            damage(file)
        begun(records, call(2))
        records.end(ended(call(1)))
        records.end(ended(call(2)))
        after = await found(records)
        assert [(record.outcome, record.audioSeconds) for record in after] == [("completed", 1.5)] * 2
        assert sum(day.calls for day in await records.usage("shop")) == 2
    assert len(list(file.parent.glob("records.sqlite3.damaged-*[0-9]"))) == 1 and lost.reasons == []


async def test_damage_that_only_a_reader_meets_is_set_aside_too(tmp_path: Path) -> None:
    lost, file = Lost(), tmp_path / "new" / "records.sqlite3"
    async with opened(tmp_path, meter=lost) as records:
        for number in range(300):
            records.end(ended(call(number)))
    damage_middle(file)
    async with opened(tmp_path, meter=lost, begin_wait_s=PATIENCE_S) as records:
        with pytest.raises(Rejected, match="cannot be read"):
            await found(records)
        begun(records, call(1000))
        assert [record.id for record in await found(records)] == [call(1000).id]
    assert len(list(file.parent.glob("records.sqlite3.damaged-*[0-9]"))) == 1 and lost.reasons == []


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_records_whose_file_is_removed_continue_in_a_new_one(tmp_path: Path, what: str) -> None:
    lost, folder = Lost(), tmp_path / "new"
    async with opened(tmp_path, meter=lost) as records:
        begun(records, call(1))
        records.end(ended(call(2)))
        await found(records)
        if what == "folder":
            shutil.rmtree(folder)
        else:
            (folder / "records.sqlite3").unlink()
        records.end(ended(call(3)))
        await found(records)
        async with opened(tmp_path, meter=lost) as other:  # another process, which must not take the first for dead
            begun(records, call(4))
            await found(records)
            other.write_ahead()
            assert [record.outcome for record in await found(other)] == ["completed", "open"]
        records.end(ended(call(1)))
        records.end(ended(call(4)))
    async with opened(tmp_path, meter=lost) as records:
        assert [record.id for record in await found(records)] == [call(number).id for number in (1, 3, 4)]
    assert lost.reasons == []


@asynccontextmanager
async def held(records: Records) -> AsyncIterator[None]:
    """The thread is busy while the block lasts."""
    busy, go_on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def hold() -> None:
        loop.call_soon_threadsafe(busy.set)
        go_on.wait(PATIENCE_S)

    holding = asyncio.create_task(records.in_thread(hold))
    await busy.wait()
    try:
        yield
    finally:
        go_on.set()
    await holding


def ids_in_the_file(folder: Path) -> list[str]:
    """Return the ids that another process sees."""
    with closing(sqlite3.connect(folder / "new" / "records.sqlite3")) as file:
        return [row for (row,) in file.execute("SELECT id FROM records ORDER BY id")]


async def test_who_waits_for_a_beginning_goes_on_when_the_file_has_it(tmp_path: Path) -> None:
    async with opened(tmp_path, begin_wait_s=PATIENCE_S) as records:
        async with held(records):
            waits = [records.begin(call(number), lambda: call(1)) for number in range(3)]
            await asyncio.sleep(0)
            assert not any(wait.done() for wait in waits) and ids_in_the_file(tmp_path) == []
        await waits[0]
        assert ids_in_the_file(tmp_path) == [call(number).id for number in range(3)]


async def test_beginnings_go_together_and_before_what_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote: list[str] = []

    def noted(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def note(connection: Any, what: Any, *more: Any) -> Any:
            if not wrote or wrote[-1] != "end" or name != "begin":  # an end writes its beginning once more
                wrote.append(f"begin {len(what)}" if name == "begin" else name)
            return real(connection, what, *more)

        return note

    for name in ("begin", "end", "write_ahead"):
        monkeypatch.setattr(ledger, name, noted(name, getattr(ledger, name)))
    async with opened(tmp_path) as records:
        async with held(records):
            records.write_ahead()
            records.end(ended(call(9)))
            for number in range(3):
                begun(records, call(number))
        await found(records)
        assert wrote == ["begin 3", "write_ahead", "end"]


async def test_a_disk_that_hangs_holds_up_the_first_calls_for_the_bound_and_later_ones_not_at_all(
    tmp_path: Path,
) -> None:
    lost = Lost()
    async with opened(tmp_path, meter=lost, begin_wait_s=0.01) as records:
        async with held(records):
            first = records.begin(call(1), lambda: call(1))
            assert not first.done()
            await first
            assert records.begin(call(2), lambda: call(2)).done()
            assert lost.reasons == ["late", "late"] and ids_in_the_file(tmp_path) == []
        assert len(await found(records)) == 2, "late is not lost"
    async with opened(tmp_path, meter=lost, begin_wait_s=PATIENCE_S) as records:
        wait = records.begin(call(3), lambda: call(3))
        assert not wait.done(), "a disk that answers again is waited for"
        await wait
        assert len(lost.reasons) == 2


async def test_calls_wait_again_when_a_disk_that_hung_has_written(tmp_path: Path) -> None:
    lost = Lost()
    async with opened(tmp_path, meter=lost, begin_wait_s=0.01) as records:
        async with held(records):
            await records.begin(call(1), lambda: call(1))
        await found(records)
        async with held(records):
            assert not records.begin(call(2), lambda: call(2)).done()


async def test_reading_holds_up_no_beginning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, go_on = threading.Event(), threading.Event()

    def slowly(*_: Any, **__: Any) -> list[MeterRecord]:
        reading.set()
        go_on.wait(PATIENCE_S)
        return []

    monkeypatch.setattr(ledger, "find", slowly)
    async with opened(tmp_path, begin_wait_s=PATIENCE_S) as records:
        asked = asyncio.create_task(found(records))
        await until(reading.is_set)
        await records.begin(call(1), lambda: call(1))
        assert ids_in_the_file(tmp_path) == [call(1).id] and not asked.done()
        go_on.set()
        await asked


async def test_a_beginning_that_cannot_be_written_takes_none_along_and_holds_nobody_up(tmp_path: Path) -> None:
    lost = Lost()
    async with opened(tmp_path, meter=lost, begin_wait_s=PATIENCE_S, numbers=True) as records:
        async with held(records):
            waits = [
                records.begin(record, lambda: call(1))
                for record in (call(1), call(2).model_copy(update={"from_": "\ud800"}), call(3))
            ]
        await asyncio.gather(*waits)
        assert ids_in_the_file(tmp_path) == [call(1).id, call(3).id] and lost.reasons == ["not_written"]
        assert records._database is not None
        with records._database.begin() as connection:
            connection.exec_driver_sql("DROP TABLE records")
        await records.begin(call(4), lambda: call(4))
        assert lost.reasons == ["not_written"] * 2
    for number in (5, 6):
        await records.begin(call(number), lambda: call(1))
    assert lost.reasons[2:] == ["closed"] * 2


@pytest.mark.parametrize("url", ["postgresql://host/db", "sqlite://", "sqlite:///", "records.sqlite3"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="expected sqlite:///PATH"):
        RecordsConfig(database_url=url)


async def test_a_disk_that_is_slow_to_sync_holds_up_no_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncing, go_on = threading.Event(), threading.Event()

    def slowly(descriptor: int) -> None:
        syncing.set()
        go_on.wait(PATIENCE_S)

    monkeypatch.setattr(os, "fdatasync", slowly)
    async with opened(tmp_path, begin_wait_s=PATIENCE_S) as records:
        records.end(ended(call(1)))
        await until(syncing.is_set)
        await records.begin(call(2), lambda: call(2))
        records.end(ended(call(3)))
        assert len(await found(records)) == 3
        waits = asyncio.create_task(records.synced())
        await asyncio.sleep(0)
        assert not waits.done()
        go_on.set()
        await waits


async def test_every_end_is_synced_and_the_log_does_not_grow_for_ever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk_sync, "CHECKPOINT_EVERY", 5)
    syncs = 0

    def counted(descriptor: int) -> None:
        nonlocal syncs
        syncs += 1

    monkeypatch.setattr(os, "fdatasync", counted)
    async with opened(tmp_path) as records:
        for number in range(60):
            before = syncs
            records.end(ended(call(number)))
            await until(lambda before=before: syncs > before, "a sync")  # type: ignore[misc]
            await records.synced()
        log_bytes = (tmp_path / "new" / "records.sqlite3-wal").stat().st_size
        assert log_bytes < 600_000, "60 transactions take some 2 MB"
    async with opened(tmp_path) as records:
        assert len(await found(records)) == 60


@pytest.mark.parametrize("bad", [{"route": "a\udcff"}, {"reason": "\ud800"}, {"turns": 2**70}])
async def test_a_record_that_cannot_be_written_is_counted_and_the_next_ones_are_written(
    bad: dict[str, Any], tmp_path: Path
) -> None:
    lost = Lost()
    async with opened(
        tmp_path, meter=lost, webhook_url="https://example.com/", webhook_secret="whsec_" + "A" * 32
    ) as r:
        broken = ended(call(1)).model_copy(update=bad)
        begun(r, broken.model_copy(update={"outcome": "open"}))
        r.end(broken)
        r.end(ended(call(2)))
        assert [each.id for each in await r.find("shop", since=0, until=NOON * 2, limit=10)][-1] == call(2).id
    assert set(lost.reasons) == {"not_written"}


async def test_tables_of_another_program_cost_the_records_and_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    lost = Lost()
    async with opened(tmp_path, meter=lost) as records:
        begun(records, call(1))
        await found(records)
        with closing(sqlite3.connect(tmp_path / "new/records.sqlite3")) as other:
            other.execute("ALTER TABLE records RENAME COLUMN outcome TO other")
        for number in range(2, 7):
            records.end(ended(call(number)))
        await until(lambda: lost.reasons == ["not_written"] * 5, "the losses")
        assert "outcome" in records.fault.why and not records._unwritten
        assert caplog.messages.count("records cannot be written") == 1
        with closing(sqlite3.connect(tmp_path / "new/records.sqlite3")) as other:
            other.execute("ALTER TABLE records RENAME COLUMN other TO outcome")
        records.end(ended(call(7)))
        await until(lambda: records.fault.why == "", "a record")
        assert {record.id for record in await found(records)} == {call(1).id, call(7).id}
