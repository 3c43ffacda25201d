"""The call log on a real SQLite file: what is written is found, and no fault reaches the call."""

import errno
import shutil
import sqlite3
import stat
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest

from gateway.call_log.log import QUEUED, CallLog, Query, Sort, Totals, _open, in_parts, sorted_value
from gateway.config import CallsConfig
from gateway.errors import Rejected
from gateway.seams.call_record import CallRecord, CallSummary, Fault, HeardWords, Pressed, Said
from tests.no_room import needs_seccomp, no_file_free, refused_by_the_kernel
from tests.waiting import PATIENCE_S, until

NOW = time.time()


def record(number: int, *, route: str = "sales", text: str = "Hello.", age_s: float = 0.0) -> CallRecord:
    said = Said(
        atMs=100, turn="t1", what="text", text=text, heardChars=len(text), startedMs=140, endedMs=900,
        outcome="finished", reason="", firstPacketMs=40.0, stagesMs={"engine": 30.0, "send": 10.0}, gaps=0, gapMs=0,
    )  # fmt: skip
    return CallRecord(
        callId=f"VX{number:032x}", callSid=f"CA{number}", route=route, transport="twilio", direction="inbound",
        from_=f"+4930{number}", to="+49891", startedAt=NOW - age_s, durationMs=1000, reason="hangup",
        outcome="completed", turns=1, gaps=0, gapMs=0, firstPacketMs=40.0,
        entries=[
            said,
            HeardWords(atMs=950, text="Straße, please", lang="de-DE"),
            Pressed(atMs=960, digit="5"),
            Fault(atMs=970, code="bad", description=None),
        ],
        entriesLost=0,
    )  # fmt: skip


@pytest.fixture
async def kept(tmp_path: Path) -> AsyncIterator[CallLog]:
    kept = CallLog(CallsConfig(folder=str(tmp_path / "calls"), keep_text=True), on_lost=lambda why: None)
    kept.start()
    yield kept
    await kept.aclose()


async def written(kept: CallLog, *records: CallRecord) -> None:
    """Add records and wait for the last one. A damaged file cannot be read until the writing thread replaces it."""
    for each in records:
        kept.add(each)

    async def read() -> CallRecord | None:
        with suppress(Rejected):
            return await kept.get(records[-1].callId)
        return None

    await until(read, "the record")


async def test_a_call_comes_back_as_it_was(kept: CallLog, tmp_path: Path) -> None:
    await written(kept, record(1))
    assert await kept.get(record(1).callId) == record(1)
    assert await kept.get("VX" + "0" * 32) is None
    assert {stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "calls").iterdir()} == {0o600}
    assert stat.S_IMODE((tmp_path / "calls").stat().st_mode) == 0o700


async def test_calls_are_found_newest_first_page_by_page(kept: CallLog) -> None:
    await written(kept, *(record(number, age_s=100 - number) for number in range(10)))
    first = await kept.find(Query(limit=4))
    rest = await kept.find(Query(before=(first[-1].startedAt, first[-1].callId)))
    assert [call.from_ for call in (*first, *rest)] == [f"+4930{number}" for number in range(9, -1, -1)]


def test_rows_are_worked_on_in_parts_between_which_the_interpreter_is_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread that computes keeps the interpreter for 5 ms, which delays the packets of all calls."""
    offered: list[float] = []
    monkeypatch.setattr(time, "sleep", offered.append)
    assert [len(part) for part in in_parts(range(45))] == [20, 20, 5]
    assert offered == [0, 0, 0]


async def test_pages_lose_and_double_no_call_that_began_at_one_moment(kept: CallLog) -> None:
    await written(kept, *(record(number) for number in range(5)))
    seen: list[str] = []
    before = None
    while page := await kept.find(Query(before=before, limit=2)):
        seen += [call.callId for call in page]
        before = (page[-1].startedAt, page[-1].callId)
    assert seen == [record(number).callId for number in range(4, -1, -1)]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (Query(route="support"), {2}),
        (Query(routes=frozenset({"sales"})), {1, 3}),
        (Query(routes=frozenset()), set()),
        (Query(text="OPENING"), {3}),
        (Query(text="100%"), {2}),
        (Query(text="straße"), {1, 2, 3}),
        (Query(from_number="302"), {2}),
        (Query(to_number="+49"), {1, 2, 3}),
        (Query(since=NOW - 60), {1, 2}),
        (Query(until=NOW - 60), {3}),
        (Query(call_id=record(3).callId), {3}),
        (Query(number="302"), {2}),
        (Query(number="9891"), {1, 2, 3}),
        (Query(number="%"), set()),
        (Query(outcome="completed"), {1, 2, 3}),
        (Query(outcome="failed"), set()),
        (Query(shortest_ms=1000, longest_ms=1000), {1, 2, 3}),
        (Query(shortest_ms=1001), set()),
        (Query(longest_ms=999), set()),
    ],
)
async def test_calls_are_found_by_what_is_known_of_them(kept: CallLog, query: Query, found: set[int]) -> None:
    await written(
        kept,
        record(1, text="100 of them."),
        record(2, route="support", text="100% of them.", age_s=10),
        record(3, text="The opening hours.", age_s=100),
    )
    assert {int(call.callId[2:], 16) for call in await kept.find(query)} == found


@pytest.mark.parametrize("sort", get_args(Sort))
async def test_calls_are_sorted_by_what_is_measured_page_by_page(kept: CallLog, sort: Sort) -> None:
    waits, turns = (None, 40.0, 900.5, 40.0), (2, 3, 1, 2)
    measured = [
        record(number, age_s=number).model_copy(
            update={
                "durationMs": 1000 + number,
                "turns": turns[number],
                "gapMs": number,
                "firstPacketMs": waits[number],
                "outcome": "failed" if number else "completed",
            }  # fmt: skip
        )
        for number in range(4)
    ]
    await written(kept, *measured)
    for ascending in (False, True):
        seen: list[CallSummary] = []
        query = Query(sort=sort, ascending=ascending, limit=1)
        while page := await kept.find(query):
            seen += page
            query = replace(query, before=(sorted_value(page[-1], sort), page[-1].callId))
        values = [sorted_value(call, sort) for call in seen]
        assert values == sorted(values, reverse=not ascending)
        assert sorted(int(call.callId[2:], 16) for call in seen) == [0, 1, 2, 3]
    assert await kept.totals(Query(limit=1)) == Totals(calls=4, failed=3, duration_ms=4006, turns=8, gaps=0)
    assert await kept.totals(Query(outcome="unanswered")) == Totals()


async def test_the_same_record_twice_is_one_call(kept: CallLog) -> None:
    await written(kept, record(1), record(1), record(2))
    assert len(await kept.find(Query())) == 2


async def test_old_calls_and_the_oldest_of_too_many_go(tmp_path: Path) -> None:
    for limits, stay in (({"keep_days": 1}, {1, 2, 4}), ({"max_calls": 1}, {1, 4})):
        folder = str(tmp_path / str(limits))
        kept = CallLog(CallsConfig(folder=folder), on_lost=lambda why: None)
        kept.start()
        await written(kept, record(1, age_s=10), record(2, age_s=20), record(3, age_s=100_000))
        await kept.aclose()
        kept = CallLog(CallsConfig(folder=folder, **limits), on_lost=lambda why: None)
        kept.start()
        await written(kept, record(4))  # the first record of a process tidies up before it is written
        assert {int(call.callId[2:], 16) for call in await kept.find(Query())} == stay
        await kept.aclose()


async def test_a_folder_that_cannot_be_written_costs_the_records_alone(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    lost: list[str] = []
    kept = CallLog(CallsConfig(folder=str(tmp_path / "file" / "calls")), on_lost=lost.append)
    kept.start()
    kept.add(record(1))
    await until(lambda: lost == ["not_written"], "the loss")
    with pytest.raises(Rejected, match="cannot be read now") as refused:
        await kept.find(Query())
    assert refused.value.status == 503
    (tmp_path / "file").unlink()
    await written(kept, record(2))  # the disk was mended
    assert len(await kept.find(Query())) == 1
    await kept.aclose()


async def closed(kept: CallLog) -> None:
    """Close the connections to a file with one record, since SQLite keeps pages in its memory. The writing thread must
    be at rest."""
    await until(lambda: kept._written == 1, "the end of the transaction")
    kept._opened().dispose()


@pytest.mark.parametrize("when", ["before the start", "while it is open"])
async def test_a_damaged_file_is_set_aside_and_the_log_continues_in_a_new_one(tmp_path: Path, when: str) -> None:
    file, lost = tmp_path / "calls.sqlite3", list[str]()
    kept = CallLog(CallsConfig(folder=str(tmp_path)), on_lost=lost.append)
    if when == "before the start":
        file.write_bytes(b"no database at all" * 1000)
    kept.start()
    if when == "while it is open":
        await written(kept, record(1))
        await closed(kept)
        damage(file)
    await written(kept, record(2))
    assert [call.callId for call in await kept.find(Query())] == [record(2).callId] and lost == []
    (aside,) = tmp_path.glob("calls.sqlite3.damaged-*[0-9]")
    assert aside.stat().st_size > 1000 and stat.S_IMODE(file.stat().st_mode) == 0o600
    await kept.aclose()


async def test_of_two_processes_with_a_damaged_file_one_replaces_it_and_both_write_the_new_one(tmp_path: Path) -> None:
    logs = [CallLog(CallsConfig(folder=str(tmp_path)), on_lost=lambda why: None) for _ in range(2)]
    for number, kept in enumerate(logs, 1):
        kept.start()
        await written(kept, record(number))
        await closed(kept)
    damage(tmp_path / "calls.sqlite3")
    for number, kept in enumerate(logs, 3):
        await written(kept, record(number))
    assert len(list(tmp_path.glob("calls.sqlite3.damaged-*[0-9]"))) == 1
    for kept in logs:
        assert len(await kept.find(Query())) == 2
        await kept.aclose()


@pytest.mark.parametrize("what", ["file", "folder"])
async def test_a_log_whose_file_is_removed_continues_in_a_new_one(tmp_path: Path, what: str) -> None:
    folder, lost = tmp_path / "calls", list[str]()
    kept = CallLog(CallsConfig(folder=str(folder)), on_lost=lost.append)
    kept.start()
    await written(kept, record(1))
    await until(lambda: kept._written == 1, "the end of the transaction")
    if what == "folder":
        shutil.rmtree(folder)
    else:
        (folder / "calls.sqlite3").unlink()
    await written(kept, record(2))
    await kept.aclose()
    again = CallLog(CallsConfig(folder=str(folder)), on_lost=lost.append)
    assert [call.callId for call in await again.find(Query())] == [record(2).callId] and lost == []
    await again.aclose()


async def test_a_record_waits_while_no_file_can_be_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.call_log.log._AGAIN_S", 0.01)
    lost: list[str] = []
    kept = CallLog(CallsConfig(folder=str(tmp_path)), on_lost=lost.append)
    kept.start()
    with no_file_free():
        kept.add(record(1))
        await until(lambda: len(kept._unwritten) == 1, "a record that waits")
    await until(lambda: kept._written == 1, "the record")
    assert lost == []
    await kept.aclose()


async def test_a_record_waits_while_another_program_holds_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gateway.call_log.log._BUSY_S", 0.01)
    monkeypatch.setattr("gateway.call_log.log._AGAIN_S", 0.01)
    lost: list[str] = []
    kept = CallLog(CallsConfig(folder=str(tmp_path)), on_lost=lost.append)
    kept.start()
    await written(kept, record(1))
    with closing(sqlite3.connect(tmp_path / "calls.sqlite3", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        kept.add(record(2))
        await until(lambda: len(kept._unwritten) == 1, "a record that waits")
        assert await kept.get(record(2).callId) is None
    await until(lambda: kept.get(record(2).callId), "the record")
    assert lost == []
    await kept.aclose()


async def test_damage_that_only_a_reader_meets_is_set_aside_too(tmp_path: Path) -> None:
    config, lost = CallsConfig(folder=str(tmp_path)), list[str]()
    kept = CallLog(config, on_lost=lost.append)
    kept.start()
    await written(kept, *(record(number, text="Hello. " * 100) for number in range(100)))
    await kept.aclose()
    damage_middle(tmp_path / "calls.sqlite3")
    kept = CallLog(config, on_lost=lost.append)
    kept.start()
    with pytest.raises(Rejected, match="cannot be read"):
        await kept.find(Query())
    await until(lambda: list(tmp_path.glob("calls.sqlite3.damaged-*[0-9]")), "the damaged file")
    await written(kept, record(1000))
    assert [call.callId for call in await kept.find(Query())] == [record(1000).callId] and lost == []
    await kept.aclose()


@pytest.mark.parametrize("version", [-5, 0, "'new'", 99])
async def test_tables_without_a_version_that_there_was_are_left_alone(tmp_path: Path, version: object) -> None:
    _open(tmp_path).dispose()
    with sqlite3.connect(tmp_path / "calls.sqlite3") as other:
        other.execute("DROP TABLE call_log_schema")
        other.execute("CREATE TABLE call_log_schema (version)")
        other.execute(f"INSERT INTO call_log_schema VALUES ({version})")
    with pytest.raises(OSError, match="expected 4 at most"):
        _open(tmp_path)


def damage_middle(file: Path) -> None:
    """Overwrite pages in the middle of a database, which its first page does not show."""
    page = 4096
    with file.open("r+b") as written:
        written.seek(file.stat().st_size // page // 3 * page)
        written.write(b"\xff" * 6 * page)


def damage(file: Path) -> None:
    """Overwrite the database and its log, as a faulty disk does."""
    for path in (file, file.with_name(f"{file.name}-wal")):
        if path.exists():
            with path.open("r+b") as written:
                written.write(b"\xff" * path.stat().st_size)


async def test_a_full_queue_costs_the_newest_record(tmp_path: Path) -> None:
    lost: list[str] = []
    kept = CallLog(CallsConfig(folder=str(tmp_path)), on_lost=lost.append)  # its writer does not run yet
    for number in range(QUEUED + 2):
        kept.add(record(number))
    assert lost == ["queue_full"] * 2


@needs_seccomp
async def test_records_wait_for_a_faulty_disk_and_are_complete_when_it_writes_again(tmp_path: Path) -> None:
    lost: list[str] = []
    kept = CallLog(CallsConfig(folder=str(tmp_path)), on_lost=lost.append)
    kept._unwritten.append(record(0))
    kept._write_what_waits(last=False)
    kept._unwritten.extend(record(number) for number in range(1, 100))
    refused_by_the_kernel("write", errno.EIO, lambda: kept._write_what_waits(last=False))
    assert kept.fault.why == "disk I/O error"
    kept._write_what_waits(last=False)
    assert not kept.fault.why and not lost
    assert len(await kept.find(Query(limit=200))) == 100
    await kept.aclose()


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    _open(tmp_path).dispose()
    with sqlite3.connect(tmp_path / "calls.sqlite3") as other:
        for column in ("ended_by", "sip_status", "q850", "end_text", "correlation_id", "answered_by"):
            other.execute(f"ALTER TABLE calls DROP COLUMN {column}")
        other.execute("UPDATE call_log_schema SET version = 1")
    _open(tmp_path).dispose()
    with sqlite3.connect(tmp_path / "calls.sqlite3") as other:
        assert other.execute("SELECT ended_by, sip_status, q850, end_text FROM calls").fetchall() == []
        assert other.execute("SELECT max(version) FROM call_log_schema").fetchone() == (4,)


async def test_a_database_of_another_version_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "calls.sqlite3") as other:
        other.execute("CREATE TABLE call_log_schema (version INTEGER PRIMARY KEY)")
        other.execute("INSERT INTO call_log_schema VALUES (99)")
    lost: list[str] = []
    kept = CallLog(CallsConfig(folder=str(tmp_path)), on_lost=lost.append)
    kept.start()
    kept.add(record(1))
    await until(lambda: lost == ["not_written"], "the refusal")
    await kept.aclose()


def test_a_new_database_waits_for_another_process_that_writes(tmp_path: Path) -> None:
    with ThreadPoolExecutor(1) as pool, sqlite3.connect(tmp_path / "calls.sqlite3", isolation_level=None) as other:
        other.execute("BEGIN IMMEDIATE")
        opening = pool.submit(_open, tmp_path)
        with pytest.raises(TimeoutError):
            opening.result(0.2)  # nothing says that it waits
        other.execute("COMMIT")
        opening.result(PATIENCE_S).dispose()


def test_processes_that_begin_together_make_one_database(tmp_path: Path) -> None:
    """The workers of a new server do so with their first calls; threads with connections of their own serve as well."""
    together = threading.Barrier(4)

    def begin(folder: Path) -> None:
        together.wait(PATIENCE_S)
        _open(folder).dispose()

    with ThreadPoolExecutor(4) as pool:
        for number in range(10):
            list(pool.map(begin, [tmp_path / str(number)] * 4))


@pytest.mark.parametrize("bad", [{"callSid": "a\udcff"}, {"from_": object()}, {"durationMs": 2**70}])
async def test_a_record_that_cannot_be_written_is_counted_and_the_next_ones_are_written(
    bad: dict[str, Any], tmp_path: Path
) -> None:
    lost: list[str] = []
    kept = CallLog(CallsConfig(folder=str(tmp_path / "calls"), keep_text=True), on_lost=lost.append)
    kept.start()
    kept.add(record(1).model_copy(update=bad))
    await written(kept, record(2))
    assert [call.callId for call in await kept.find(Query())] == [record(2).callId]
    assert lost == ["not_written"]
    await kept.aclose()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ("DROP TABLE calls; CREATE TABLE calls (call_id VARCHAR)", "the table calls lacks "),
        ("ALTER TABLE calls DROP COLUMN words", "the table calls lacks words"),
        ("ALTER TABLE calls RENAME COLUMN entries TO other", "the table calls lacks entries"),
    ],
)
@pytest.mark.parametrize("when", ["before the start", "while it is open"])
async def test_tables_of_another_program_cost_the_records_and_are_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, change: str, why: str, when: str
) -> None:
    monkeypatch.setattr("gateway.call_log.log._AGAIN_S", 0.01)
    _open(tmp_path).dispose()
    lost: list[str] = []
    kept = CallLog(CallsConfig(folder=str(tmp_path)), on_lost=lost.append)

    def changed(script: str) -> None:
        with closing(sqlite3.connect(tmp_path / "calls.sqlite3")) as other:
            other.executescript(script)

    if when == "before the start":
        changed(change)
    kept.start()
    if when == "before the start":
        await until(lambda: kept.fault.why.startswith(why), "the fault, before any call has ended")
    else:
        await written(kept, record(1))
        changed(change)
    for number in range(2, 7):
        kept.add(record(number))
    await until(lambda: lost == ["not_written"] * 5, "the losses")
    assert kept.fault.why.startswith(why) and not kept._unwritten
    assert caplog.messages.count("call log cannot be written") <= (1 if when == "before the start" else 2)
    with pytest.raises(Rejected, match="cannot be read now"):
        await kept.find(Query())
    changed("DROP TABLE calls; DROP TABLE call_log_schema")
    await written(kept, record(7))
    assert kept.fault.why == "" and len(await kept.find(Query())) == 1
    await kept.aclose()
