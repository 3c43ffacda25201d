import asyncio
import os
import signal
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from talkspurt.config.settings import Config
from talkspurt.workers.control import ControlChannel, read_config, write_config
from talkspurt.workers.supervisor import Worker, WorkerState, WorkerSupervisor, for_workers, order, sums
from tests.no_room import without_files
from tests.waiting import until
from tts_engine.errors import Unavailable


def test_a_connection_goes_to_the_ready_worker_with_the_fewest_calls() -> None:
    def first(*standings: WorkerState) -> int:
        return order(list(standings))[0]

    assert first(WorkerState(True, 3), WorkerState(True, 2)) == 1
    assert first(WorkerState(False, 0), WorkerState(True, 90)) == 1, "one that is not ready is asked last"
    assert order([WorkerState(False, 1), WorkerState(False, 0)]) == [1, 0], (
        "somebody has to answer that there is no room"
    )


def test_a_sudden_crowd_is_spread_before_any_worker_has_said_that_it_came() -> None:
    standings = [WorkerState(True, 4), WorkerState(True, 0), WorkerState(True, 1)]
    for _ in range(40):
        standings[order(standings)[0]].given += 1
    assert [each.calls + each.given for each in standings] == [15, 15, 15]


def test_workers_share_the_calls_the_engine_and_the_key_of_tokens() -> None:
    config = Config.model_validate({"server": {"workers": 3}, "limits": {"calls": 100}})
    told, *others = for_workers(config, ("unix:/engine.sock",))
    assert others == [told, told]
    assert told.limits.calls == 34 and told.engine.targets == ("unix:/engine.sock",)
    assert told.server.stream_token_secret is not None
    again = read_config(write_config(told))
    assert again == told and again.server.stream_token_secret == told.server.stream_token_secret, "secrets included"


def test_workers_have_ports_of_their_own_for_the_sound_of_sip_calls() -> None:
    sections = {"server": {"workers": 3}, "sip": {"rtp_ports": "20001-20021"}}
    told = for_workers(Config.model_validate(sections), ())
    assert [each.sip.rtp_range for each in told if each.sip] == [(20002, 20007), (20008, 20013), (20014, 20021)]
    sections["sip"] = {"rtp_ports": "20001-20006"}
    with pytest.raises(ValidationError, match=r"sip.rtp_ports .* 20001-20006 are 2 pairs for 3 workers"):
        Config.model_validate(sections)


def test_what_workers_count_under_one_name_is_added_up() -> None:
    assert sums([]) == {}
    assert sums([{"a": [1, 2]}, {"b": [5, 5]}, {"a": [10, 20]}]) == {"a": [11, 22], "b": [5, 5]}


def test_reading_the_configuration_closes_its_file() -> None:
    descriptor = write_config(Config())
    read_config(descriptor)
    with pytest.raises(OSError):
        os.fstat(descriptor)


def test_limits_of_tenants_want_a_place_where_workers_count_together() -> None:
    sections = {"server": {"workers": 2}, "limits": {"tenant": {"calls_at_once": 5}}}
    with pytest.raises(ValidationError, match=r"server.workers is 2.*limits.redis_url"):
        Config.model_validate(sections)
    Config.model_validate({**sections, "server": {"workers": 1}})


class Counted:
    """Counts the calls of a method of the supervisor."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        self.calls = 0
        self._method: Callable[..., None] = getattr(WorkerSupervisor, name)
        monkeypatch.setattr(WorkerSupervisor, name, lambda *given: self._count(*given))

    def _count(self, *given: Any) -> None:
        self.calls += 1
        self._method(*given)


async def test_connections_wait_for_a_report_without_work_while_no_file_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = Counted(monkeypatch, "_accept")
    supervisor = WorkerSupervisor(Config.model_validate({"server": {"workers": 2, "port": 0}}), (), tmp_path)
    ours, theirs = (ControlChannel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    supervisor.workers[0].channel = ours
    supervisor._channels.add(ours)
    supervisor._listen()
    try:
        supervisor._accept_more()
        with socket.create_connection(("127.0.0.1", supervisor.port("http"))):
            await without_files()
            assert tries.calls == 1
            asyncio.get_running_loop().add_reader(ours.fileno(), supervisor._heard, ours)
            theirs.send({"ready": True, "calls": 0, "taken": 0, "told": {}})
            given: list[int] = []

            def taken() -> bool:
                while (received := theirs.receive()) is not None:
                    given.extend([] if received[1] is None else [received[1]])
                return bool(given)

            await until(taken, "the connection")
            os.close(given[0])
    finally:
        supervisor._close()
        theirs.close()


async def test_connections_wait_while_the_socket_of_a_busy_worker_is_full(tmp_path: Path) -> None:
    supervisor = WorkerSupervisor(Config.model_validate({"server": {"workers": 2, "port": 0}}), (), tmp_path)
    ours, theirs = (ControlChannel(end) for end in socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET))
    supervisor.workers[0].channel = ours
    supervisor._channels.add(ours)
    supervisor._listen()
    clients: list[socket.socket] = []
    given: list[int] = []

    def take() -> bool:
        while (received := theirs.receive()) is not None:
            given.extend([] if received[1] is None else [received[1]])
        return len(given) == len(clients)

    try:
        supervisor._accept_more()
        while ours.send({"told": "x" * 100}):
            pass
        clients = [socket.create_connection(("127.0.0.1", supervisor.port("http"))) for _ in range(20)]
        await until(lambda: supervisor._held is not None, "a full socket")
        await until(take, "all connections")
        for client in clients:
            client.setblocking(False)
            with pytest.raises(BlockingIOError):  # not closed
                client.recv(1)
    finally:
        supervisor._close()
        theirs.close()
        for descriptor in given:
            os.close(descriptor)
        for client in clients:
            client.close()


async def test_workers_that_begin_wait_without_work_while_no_file_is_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries = Counted(monkeypatch, "_welcome")
    supervisor = WorkerSupervisor(Config.model_validate({"server": {"workers": 2, "port": 0}}), (), tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as control:
        control.bind(str(tmp_path / "control.sock"))
        control.listen()
        control.setblocking(False)
        supervisor._invite(control)
        worker = ControlChannel.connect(tmp_path / "control.sock")
        try:
            await without_files()
            assert tries.calls == 1
            await until(lambda: supervisor._channels, "the worker")
        finally:
            asyncio.get_running_loop().remove_reader(control.fileno())
            supervisor._close()
            worker.close()


async def kill_at_once(worker: Worker, over: asyncio.Event) -> list[int]:
    """Kill each process of a worker before it serves. Return their ids."""
    killed: list[int] = []
    while not over.is_set():
        if worker.pid is not None and not worker.ready and worker.pid not in killed:
            killed.append(worker.pid)
            os.kill(worker.pid, signal.SIGKILL)
        await asyncio.sleep(0.005)
    return killed


async def test_a_server_whose_workers_are_all_killed_while_they_start_says_so(tmp_path: Path) -> None:
    config = Config.model_validate({"server": {"workers": 2, "port": 0}})
    supervisor = WorkerSupervisor(config, (), tmp_path)
    over = asyncio.Event()
    killing = [asyncio.create_task(kill_at_once(worker, over)) for worker in supervisor.workers]
    with pytest.raises(Unavailable, match=r"worker \d process ended with code -9"):
        async with supervisor.running():
            pass
    over.set()
    assert [len(killed) for killed in await asyncio.gather(*killing)] == [3, 3]
