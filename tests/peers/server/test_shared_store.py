"""Gateways that keep ended calls and records together in a real PostgreSQL, which may be gone, slow or hung."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from gateway.call_log.log import CallLog, Query
from gateway.call_log.schema import SCHEMA as CALLS
from gateway.config import CallsConfig, PostgresConfig, RecordsConfig
from gateway.errors import Rejected
from gateway.metering.schema import SCHEMA as RECORDS
from gateway.metering.store import Records
from gateway.postgres import DatabaseState
from talkspurt.config.settings import load
from talkspurt.doctor.checks import check_postgres
from tests.gateway.call_log.test_log import record as logged
from tests.gateway.metering.test_store import DAY_S, NOON, Lost, begun, call, ended, found
from tests.peers.live_server import TestCall, serve
from tests.peers.postgres_server import PASSWORD, PostgresServer
from tests.peers.programs import needs_postgres
from tests.peers.slow_line import Line
from tests.waiting import PATIENCE_S, until

pytestmark = [
    needs_postgres,
    # pg8000 leaves the socket of a connection that fails to the garbage collector, which closes it.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]

SOON = {"timeout_s": PATIENCE_S}


@pytest.fixture(scope="module")
def started() -> Iterator[PostgresServer]:
    server = PostgresServer()
    try:
        server.start()
        yield server
    finally:
        server.close()


@pytest.fixture
def server(started: PostgresServer) -> Iterator[PostgresServer]:
    """A running one, whatever the test before did to it."""
    if not started.runs:
        started.start()
    yield started
    gc.collect()


@pytest.fixture
def database(server: PostgresServer, request: pytest.FixtureRequest) -> str:
    """An empty database's name."""
    return server.make_database(request.node.name[:60])


@asynccontextmanager
async def sharing(
    folder: Path, url: str, *, now: float = NOON, meter: Lost | None = None, more: Any = None, **fields: Any
) -> AsyncIterator[Records]:
    """The records of one gateway, with a local file of their own."""
    config = RecordsConfig.model_validate({"database_url": f"sqlite:///{folder}/records.sqlite3", **fields})
    postgres = PostgresConfig.model_validate({"url": url, **SOON, **(more or {})})
    records = Records(config, meter or Lost(), postgres=postgres, clock=lambda: now)
    await records.start()
    assert records.shared is not None
    watching = asyncio.create_task(records.shared.watch())
    try:
        yield records
    finally:
        watching.cancel()
        await records.aclose()


def state(records: Records) -> DatabaseState:
    assert records.shared is not None
    return records.shared.state


async def moved(*kept: Records) -> None:
    for records in kept:
        await records.in_thread(lambda: None)  # what was told is written

        def is_moved(records: Records = records) -> bool:
            return state(records).answers and not rows_of(records)

        await until(is_moved, "an empty local file")


def rows_of(records: Records) -> int:
    """Ended records that are still in the local file."""
    with records._opened().connect() as connection:
        return connection.exec_driver_sql("SELECT count(*) FROM records WHERE outcome != 'open'").scalar_one()


async def test_two_gateways_that_start_together_have_one_store(
    tmp_path: Path, server: PostgresServer, database: str
) -> None:
    url = server.url(database)
    async with sharing(tmp_path / "a", url) as one, sharing(tmp_path / "b", url) as two:
        for number in range(0, 250, 2):
            one.end(ended(call(number), from_="+49\x0030", cuts=1))
            two.end(ended(call(number + 1)))
        begun(one, call(300))
        for same in (ended(call(5)), ended(call(5), characters=99)):  # told again, and elsewhere
            one.end(same)
        await moved(one, two)
        assert [record.id for record in await found(two)] == [call(number).id for number in range(250)]
        assert (await found(one))[0].from_ == "+49\ufffd30"
        assert [record.outcome for record in await found(one)][-2:] == ["completed", "open"]
        for records in (one, two):
            (day,) = await records.usage("shop")
            assert (day.calls, day.characters, day.callSeconds) == (250, 5000, 2500.0)
            assert await records.usage("bank") == []
        pages, after = [], None
        while page := await one.find("shop", since=0, until=1e12, after=after, limit=60):
            pages += [record.id for record in page]
            after = (page[-1].startedAt, page[-1].id)
        assert pages == [call(number).id for number in (*range(250), 300)]
    async with sharing(tmp_path / "a", url, now=NOON + 3 * DAY_S, keep_days=2) as later:
        await moved(later)
        await until(lambda: _count(server, database, "records", 0), "no old records")
        (day,) = await later.usage("shop")
        assert day.calls == 251, "the one that was open has crashed, and days stay"


def _count(server: PostgresServer, database: str, table: str, wanted: int) -> bool:
    with server.engine(database).connect() as connection:
        return connection.exec_driver_sql(f"SELECT count(*) FROM {table}").scalar_one() == wanted


KILLED = """
import asyncio, os, signal, sys
from gateway.config import PostgresConfig, RecordsConfig
from gateway.metering import ledger
from gateway.metering.record import MeterRecord
from gateway.metering.store import Records
from gateway.postgres import SharedDatabase

class Meter:
    def shared_database(self, state):
        assert state.answers, state

def die(*arguments):
    os.kill(os.getpid(), signal.SIGKILL)

async def main(folder, url, moment, first):
    config = RecordsConfig(database_url=f"sqlite:///{folder}/records.sqlite3")
    postgres = PostgresConfig.model_validate({"url": url, "timeout_s": 60})
    records = Records(config, Meter(), postgres=postgres)
    await records.start()
    for number in range(first, first + 5):
        at = 1_800_014_400.0 + number
        records.end(MeterRecord(id=f"VX{number:032x}", kind="call", tenant="shop", startedAt=at, endedAt=at + 10,
                                outcome="completed"))
    await records.in_thread(lambda: None)
    owner, name = {
        "taken": (SharedDatabase, "_put"),
        "written": (ledger, "count"),
        "committed": (SharedDatabase, "_forget"),
        "deleted": (SharedDatabase, "_tidy"),
    }[moment]
    setattr(owner, name, die)
    records.shared.move()

asyncio.run(main(*sys.argv[1:4], int(sys.argv[4])))
"""


async def test_a_gateway_killed_at_each_step_of_moving_doubles_and_loses_nothing(
    tmp_path: Path, server: PostgresServer, database: str
) -> None:
    url = server.url(database)
    for round_, moment in enumerate(("taken", "written", "committed", "deleted")):
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, str(tmp_path), url, moment, str(round_ * 10),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip
        assert await process.wait() == -9
    async with sharing(tmp_path, url) as records:
        await moved(records)
        ids = [record.id for record in await found(records)]
        assert ids == [call(round_ * 10 + number).id for round_ in range(4) for number in range(5)]
        (day,) = await records.usage("shop")
        assert day.calls == 20


async def test_a_database_that_is_slow_hung_or_gone_costs_no_record_and_reads_say_so(
    tmp_path: Path, server: PostgresServer, database: str
) -> None:
    lost = Lost()
    async with Line(server.port) as line:
        url = server.url(database, line.port)
        async with sharing(tmp_path, url, meter=lost, more={"timeout_s": 1.0}) as records:

            async def refused() -> bool:
                with pytest.raises(Rejected) as refusal:
                    await records.usage("shop")
                assert refusal.value.status == 503 and refusal.value.code == "records_unavailable"
                return True

            line.delay_s = 0.02
            records.end(ended(call(1)))
            await moved(records)
            line.delay_s = 0.0

            line.hang()
            records.end(ended(call(2)))
            await until(lambda: not state(records).answers, "a fault")
            await until(lambda: state(records).waiting == 1 == rows_of(records), "what waits")
            await refused()
            line.go_on()
            await moved(records)

            server.stop()
            await until(lambda: not state(records).answers, "a fault")
            records.end(ended(call(3)))
            await until(lambda: state(records).waiting == 1 == rows_of(records), "what waits")
            await refused()
            server.start()
            await moved(records)

            async def counted() -> int:
                try:
                    return sum(day.calls for day in await records.usage("shop"))
                except Rejected:  # a starved machine may be too slow for it
                    return 0

            assert await until(counted, "the days") == 3 and lost.reasons == []


CHANGED = {
    "read only": (
        'ALTER DATABASE "{0}" SET default_transaction_read_only = on',
        'ALTER DATABASE "{0}" RESET default_transaction_read_only',
    ),
    "another password": ("ALTER ROLE talkspurt PASSWORD 'other'", f"ALTER ROLE talkspurt PASSWORD '{PASSWORD}'"),
    "another name": ('ALTER DATABASE "{0}" RENAME TO "{0} away"', 'ALTER DATABASE "{0} away" RENAME TO "{0}"'),
    "replaced by an empty one": ('ALTER DATABASE "{0}" RENAME TO "{0} old"', 'CREATE DATABASE "{0}"'),
}
"""Changes of a database by a failover, a restore or an administrator while gateways run, each with its end."""


@pytest.mark.parametrize("change", CHANGED)
async def test_a_changed_database_is_used_again(
    tmp_path: Path, server: PostgresServer, database: str, change: str
) -> None:
    breaks, mends = (statement.format(database) for statement in CHANGED[change])
    lost = Lost()
    engine = server.engine("postgres").execution_options(isolation_level="AUTOCOMMIT")
    with engine.connect() as administrator:
        async with sharing(tmp_path, server.url(database), meter=lost) as records:
            records.end(ended(call(1)))
            await moved(records)
            administrator.exec_driver_sql(f"""ALTER DATABASE "{database}" ALLOW_CONNECTIONS off""")
            administrator.exec_driver_sql(
                f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{database}'"
            )
            await until(
                lambda: (
                    not administrator.exec_driver_sql(
                        f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{database}'"
                    ).scalar_one()
                ),
                "the end of the connections",
            )
            administrator.exec_driver_sql(breaks)
            if "RENAME" not in breaks:
                administrator.exec_driver_sql(f"""ALTER DATABASE "{database}" ALLOW_CONNECTIONS on""")
            records.end(ended(call(2)))
            await until(lambda: not state(records).answers and state(records).waiting == 1, "the fault")
            administrator.exec_driver_sql(mends)
            administrator.exec_driver_sql(f"""ALTER DATABASE "{database}" ALLOW_CONNECTIONS on""")
            await moved(records)
            assert call(2).id in {record.id for record in await found(records)} and lost.reasons == []


async def test_tables_of_a_later_version_are_left_alone(tmp_path: Path, server: PostgresServer, database: str) -> None:
    url = server.url(database)
    async with sharing(tmp_path / "a", url) as records:
        await moved(records)
    with server.engine(database).begin() as connection:
        connection.exec_driver_sql("UPDATE records_schema SET version = 99")
    async with sharing(tmp_path / "b", url) as records:
        records.end(ended(call(1)))

        async def is_refused() -> bool:
            assert records.shared is not None
            try:
                await records.shared.ask(lambda connection: None)
            except OSError as exc:
                return "schema 99, expected" in str(exc)
            return False

        await until(is_refused, "the reason")
        assert rows_of(records) == 1


def test_doctor_names_what_a_database_lacks(server: PostgresServer, database: str) -> None:
    kept = {"calls.folder": "calls", "records.database_url": "sqlite:///records.sqlite3"}

    def found(url: str = server.url(database)) -> tuple[str, str]:
        finding = check_postgres(load(None, environment={}, overrides={"postgres.url": url, **kept}))
        return finding.state, finding.detail

    with server.engine(database).connect() as connection:
        new = ("ok", "tables of calls will be made, tables of records will be made")
        assert (found()[0], found()[1].partition(": ")[2]) == new
        CALLS.bring_up_to_date(connection)
        RECORDS.bring_up_to_date(connection)
        connection.commit()
        versions = f"tables of calls have version {CALLS.version}, tables of records have version {RECORDS.version}"
        assert (found()[0], found()[1].partition(": ")[2]) == ("ok", versions)

        stranger = server.url(database).replace("//talkspurt:", "//stranger:")
        assert found(stranger)[0] == "fail" and found(stranger)[1].endswith(" 28P01")  # no such account, or password
        connection.exec_driver_sql("DROP ROLE IF EXISTS stranger")
        connection.exec_driver_sql(f"CREATE ROLE stranger LOGIN PASSWORD '{PASSWORD}'")
        connection.exec_driver_sql("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO stranger")
        connection.exec_driver_sql("REVOKE DELETE ON calls FROM stranger")
        connection.commit()
        assert found(stranger) == ("fail", "the database of postgres.url, as stranger: DELETE on calls is missing")

        connection.exec_driver_sql("GRANT DELETE ON calls TO stranger")
        connection.exec_driver_sql("UPDATE records_schema SET version = 1")
        connection.commit()
        assert found()[0] == "ok" and f"version 1, will have {RECORDS.version}" in found()[1]
        assert "for which the account has to own them" in found(stranger)[1]
        connection.exec_driver_sql("UPDATE records_schema SET version = 99")
        connection.commit()
        assert found()[0] == "fail" and "version 99, expected" in found()[1]
        connection.exec_driver_sql("DROP TABLE calls")
        connection.exec_driver_sql("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM stranger")
        connection.commit()
        assert "tables of calls have to be made, and CREATE on the schema is missing" in found(stranger)[1]
        connection.exec_driver_sql("DROP ROLE stranger")
        connection.exec_driver_sql("ALTER ROLE talkspurt SET default_transaction_read_only = on")
        connection.commit()
        assert "it only takes reads" in found()[1]
        connection.exec_driver_sql("ALTER ROLE talkspurt RESET default_transaction_read_only")
        connection.commit()


@asynccontextmanager
async def logging_calls(folder: Path, url: str, **fields: Any) -> AsyncIterator[CallLog]:
    config = CallsConfig(folder=str(folder), keep_text=True, **fields)
    postgres = PostgresConfig.model_validate({"url": url, **SOON})
    kept = CallLog(config, on_lost=lambda why: None, postgres=postgres, meter=Lost())
    kept.start()
    assert kept.shared is not None
    watching = asyncio.create_task(kept.shared.watch())
    try:
        yield kept
    finally:
        watching.cancel()
        await kept.aclose()


async def test_ended_calls_of_two_gateways_are_searched_filtered_and_paged_as_one_log(
    tmp_path: Path, server: PostgresServer, database: str
) -> None:
    url = server.url(database)
    async with logging_calls(tmp_path / "a", url) as one, logging_calls(tmp_path / "b", url) as two:
        for number in range(0, 240, 2):
            one.add(logged(number, age_s=1000 - number))
            two.add(logged(number + 1, route="help", text="100 % \0 sure_", age_s=1000 - number - 1))
        assert one.shared is not None and two.shared is not None
        for shared in (one.shared, two.shared):
            await until(lambda shared=shared: shared.state.answers, "an answer")
        await until(lambda: _count(server, database, "calls", 240), "all calls")
        assert await two.get(logged(0).callId) is not None and await two.get("VX" + "f" * 32) is None
        assert len(await one.find(Query(text="100 % \ufffd SURE_", limit=1000))) == 120
        assert len(await one.find(Query(route="sales", from_number="+4930", limit=1000))) == 120
        assert await one.find(Query(routes=frozenset({"none"}))) == []
        seen, before = [], None
        while page := await two.find(Query(before=before, limit=110)):
            seen += [found.callId for found in page]
            before = (page[-1].startedAt, page[-1].callId)
        assert seen == [logged(number).callId for number in range(239, -1, -1)]
    async with logging_calls(tmp_path / "a", url, max_calls=7):
        await until(lambda: _count(server, database, "calls", 7), "the newest calls")


CONFIG = """
engine: {kind: tone}
carriers: {twilio: {verify: false}}
routes: {default: {}, meanwhile: {}}
records: {database_url: "sqlite:///records.sqlite3"}
calls: {folder: calls}
postgres: {url: "${DATABASE_URL}", timeout_s: 2}
"""


async def test_calls_speak_on_while_the_database_hangs_and_another_gateway_sees_them_later(
    tmp_path: Path, server: PostgresServer, database: str
) -> None:
    async with AsyncExitStack() as stack:
        line = await stack.enter_async_context(Line(server.port))
        environment = {"DATABASE_URL": server.url(database, line.port)}
        one, two = await asyncio.gather(
            stack.enter_async_context(serve(tmp_path / "one", CONFIG, environment)),
            stack.enter_async_context(serve(tmp_path / "two", CONFIG, {"DATABASE_URL": server.url(database)})),
        )
        http = await stack.enter_async_context(aiohttp.ClientSession(two.http))

        async def seen(calls: int, requests: int) -> bool:
            async with http.get("/v1/usage") as usage, http.get("/v1/calls?ended=true") as log:
                if usage.status != 200 or log.status != 200:
                    return False
                days, listed = (await usage.json())["days"], (await log.json())["calls"]
            return (sum(day["requests"] for day in days), len(listed)) == (requests, calls)

        async with TestCall(one, "default") as first:
            await first.spoken("Hello.")
        assert await one.status("/v1/tts", method="POST", json={"text": "Hello."}) == 200
        await until(lambda: seen(1, 1), "the first call")

        line.hang()
        async with TestCall(one, "default", number=2) as second:
            assert (await second.spoken("Still here.")).outcome == "finished"
            await until(lambda: one.metric_is("talkspurt_database_answers", 0.0, of="records"), "the fault")
            assert (await second.spoken("And still.")).outcome == "finished"
        assert await one.status("/v1/tts", method="POST", json={"text": "Hello."}) == 200
        assert await one.status("/v1/usage") == await one.status("/v1/calls?ended=true") == 503
        assert await one.status("/readyz") == 200
        async with aiohttp.ClientSession() as other, other.get(f"{one.http}/v1/health") as answer:
            states = {state["of"]: state["answers"] for state in (await answer.json())["databases"]}
        assert states == {"calls": False, "records": False}

        line.go_on()
        await until(lambda: seen(2, 2), "the second call")
        assert server.url(database, line.port) not in one.logged()


async def test_calls_that_begin_speak_and_end_while_the_database_is_gone_are_found_when_it_is_back(
    tmp_path: Path, server: PostgresServer, database: str
) -> None:
    environment = {"DATABASE_URL": server.url(database)}
    async with serve(tmp_path, CONFIG, environment) as live, aiohttp.ClientSession(live.http) as http:

        async def listed() -> list[str]:
            async with http.get("/v1/calls?ended=true") as answer:
                return [call["callId"] for call in (await answer.json())["calls"]] if answer.status == 200 else []

        async with TestCall(live, "default") as first:
            assert (await first.spoken("Hello.")).outcome == "finished"
            server.stop()
            assert (await first.spoken("Still here.")).outcome == "finished"
            await until(lambda: live.metric_is("talkspurt_database_answers", 0.0, of="records"), "the fault")
            async with TestCall(live, "meanwhile", number=2) as second:
                assert (await second.spoken("I called meanwhile.")).outcome == "finished"
            ended_meanwhile = second.call.session_id
            assert await live.status("/readyz") == 200 and await listed() == []
            server.start()

            async def found() -> bool:
                return ended_meanwhile in await listed()

            await until(found, "the call that ended meanwhile")
            assert (await first.spoken("And now.")).outcome == "finished"
