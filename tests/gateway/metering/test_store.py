"""Records on a real SQLite file: each is counted once, however often it is told and whoever dies."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.config import RecordsConfig
from gateway.metering.record import MeterRecord
from gateway.metering.store import Records

DAY_S = 86_400
NOON = 1_800_014_400.0  # 2027-01-15, 12:00 UTC


def call(number: int, **fields: Any) -> MeterRecord:
    return MeterRecord(id=f"VX{number:032x}", kind="call", tenant="shop", startedAt=NOON + number, route="a", **fields)


def ended(record: MeterRecord, **fields: Any) -> MeterRecord:
    said = {"endedAt": record.startedAt + 10, "outcome": "completed", "reason": "hangup", "characters": 20}
    return record.model_copy(update={**said, "audioSeconds": 1.5, **fields})


@asynccontextmanager
async def opened(folder: Path, *, now: float = NOON, **fields: Any) -> AsyncIterator[Records]:
    config = RecordsConfig.model_validate({"database_url": f"sqlite:///{folder}/new/records.sqlite3", **fields})
    records = Records(config, clock=lambda: now)
    await records.start()
    try:
        yield records
    finally:
        await records.aclose()


async def found(records: Records, tenant: str = "shop") -> list[MeterRecord]:
    return list(await records.find(tenant, since=0, until=1e12, limit=10_000))


async def test_a_record_comes_back_as_it_was_and_its_day_counts_it(tmp_path: Path) -> None:
    over = ended(call(1), cuts=1, gaps=2, gapMs=300, turns=4, firstPacketMs=88.5, from_="+4930", to="+4989")
    async with opened(tmp_path) as records:
        records.begin(call(1))
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
        for told in (records.end, records.begin, records.end):
            told(ended(call(1)))
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
            records.begin(call(number).model_copy(update={"startedAt": NOON + 0.1}))
        seen: list[str] = []
        after = None
        while page := await records.find("shop", since=0, until=1e12, after=after, limit=2):
            seen += [record.id for record in page]
            after = (page[-1].startedAt, page[-1].id)
        assert seen == [call(number).id for number in range(5)]


async def test_old_records_go_and_their_days_stay(tmp_path: Path) -> None:
    async with opened(tmp_path) as records:
        records.end(ended(call(1)))
        records.begin(call(2))
    async with opened(tmp_path, now=NOON + 3 * DAY_S, keep_days=2) as records:
        records.end(ended(call(3 * DAY_S)))
        assert [record.startedAt - NOON for record in await found(records)] == [3 * DAY_S]
        assert [day.calls for day in await records.usage("shop")] == [1, 1]


async def test_without_a_database_usage_is_counted_in_memory_and_no_record_is_kept() -> None:
    records = Records(RecordsConfig(), clock=lambda: NOON)
    await records.start()
    for number in range(3):
        records.begin(call(number))
        records.end(ended(call(number)))
    assert [day.calls for day in await records.usage("shop")] == [3] and await found(records) == []
    await records.aclose()
    records.end(ended(call(4)))  # too late, and no error


async def test_another_living_process_keeps_what_it_has_open(tmp_path: Path) -> None:
    async with opened(tmp_path) as one:
        one.begin(call(1))
        await found(one)
        async with opened(tmp_path) as two:
            assert [record.outcome for record in await found(two)] == ["open"]
            two.end(ended(call(2)))
        one.end(ended(call(1)))
        assert [record.outcome for record in await found(one)] == ["completed", "completed"]
        assert [day.calls for day in await one.usage("shop")] == [2]


async def test_a_full_or_lost_disk_costs_the_record_and_nothing_else(tmp_path: Path) -> None:
    async with opened(tmp_path) as records:
        await found(records)
        assert records._database is not None
        with records._database.begin() as connection:
            connection.exec_driver_sql("DROP TABLE usage")
        records.end(ended(call(1)))
        assert await found(records) == [], "half of it is there"


@pytest.mark.parametrize("url", ["postgresql://host/db", "sqlite://", "sqlite:///", "records.sqlite3"])
def test_another_database_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="other databases are not available"):
        RecordsConfig(database_url=url)
