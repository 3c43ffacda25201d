"""Engines on Ray Serve, with the embedded voice on the CPU: found, streamed from directly, cancelled, killed.

CI has no Ray (half a gigabyte): ``pip install 'talkspurt[cluster]'``, then ``pytest -m cluster``.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import pytest_asyncio
import yaml

from talkspurt.engines import in_directory
from tests.peers.ports import free_port
from tests.waiting import until
from tts_engine.api import UtteranceRequest
from tts_engine.config import EngineConfig
from tts_engine.service.client import GrpcEngine
from tts_engine.service.targets import Targets

ray = pytest.importorskip("ray")

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.filterwarnings("ignore"),  # Ray's own
]

CONFIG = "engine: {kind: embedded, drain_s: 5, embedded: {threads: 1}}\n"
TEXT = "The parcel left our house this morning and it will arrive on Thursday before noon. "


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the directory."""
    from ray import serve

    from talkspurt.cluster import Directory, Engine

    file = tmp_path_factory.mktemp("ray") / "engine.yaml"
    file.write_text(CONFIG)
    ray.init(num_cpus=4, _node_ip_address="127.0.0.1", include_dashboard=False, log_to_driver=False)
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    engines = serve.deployment(
        name="Engine", num_replicas=2, health_check_period_s=1, ray_actor_options={"num_cpus": 0.5}
    )(Engine)
    directory = serve.deployment(name="Directory", ray_actor_options={"num_cpus": 0})(Directory)
    serve.run(directory.bind(engines.bind(str(file))), name="talkspurt", route_prefix="/engines")
    yield f"http://127.0.0.1:{port}/engines"
    serve.shutdown()
    ray.shutdown()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(application: str) -> AsyncIterator[GrpcEngine]:
    client = GrpcEngine(Targets((), source=partial(in_directory, application)), EngineConfig())
    watching = asyncio.create_task(client.watch())
    await until(lambda: len(client._by_address) == 2, "two engines in the directory")
    yield client
    watching.cancel()
    await client.aclose()


async def speak(client: GrpcEngine, number: int, text: str = TEXT) -> float:
    """Speak a text to its end; return the seconds of sound."""
    async with client.open(UtteranceRequest(utterance_id=f"u{number}")) as utterance:
        utterance.feed(text)
        utterance.end_text()
        return sum([chunk.samples async for chunk in utterance]) / 8000


async def test_a_cancelled_stream_frees_its_replica(client: GrpcEngine) -> None:
    freed: list[float] = []
    for number in range(40):
        utterance = client.open(UtteranceRequest(utterance_id=f"c{number}"))
        utterance.feed(TEXT * 20)
        utterance.end_text()
        await anext(aiter(utterance))
        begun = time.monotonic()
        await utterance.aclose()
        while any([(await _status(one)).active for one in client._by_address.values()]):
            pass
        freed.append((time.monotonic() - begun) * 1000)
    assert not [one for one in client._by_address.values() if (await _status(one)).active]
    exposed = (await client.metrics()).decode()
    metric = "talkspurt_engine_freed_seconds"
    counted = {
        name: sum(float(line.split()[-1]) for line in exposed.splitlines() if line.startswith(f"{metric}{suffix}"))
        for name, suffix in (("all", "_count"), ("within 50 ms", '_bucket{le="0.05"'))
    }
    print("cancels by the engines' own clocks:", counted)
    freed.sort()
    print(f"cancel until the replica says that it has none: median {freed[20]:.1f}, largest {freed[-1]:.1f} ms")


async def test_the_sample_is_what_ray_takes_and_more_wait_means_more_engines() -> None:
    from ray.serve.schema import ServeDeploySchema

    from talkspurt.cluster import by_wait, wanted_engines

    sample = yaml.safe_load((Path(__file__).parents[3] / "configs" / "cluster.yaml").read_text())
    ServeDeploySchema.model_validate(sample)
    assert [wanted_engines(waits, 2, 1000.0) for waits in ([], [0.0, 0.0], [0.03], [0.06], [9.0])] == [2, 1, 2, 3, 4]
    assert wanted_engines([0.0], 2, 10.0) == 2, "not twice in five minutes"
    context = SimpleNamespace(
        aggregated_metrics={"queue_seconds": {"a": 0.2, "b": 0.1}}, policy_state={}, current_time=1000.0,
        target_num_replicas=2, capacity_adjusted_min_replicas=1, capacity_adjusted_max_replicas=3,
    )  # fmt: skip
    assert by_wait(context) == (3, {})


async def _status(backend: Any) -> Any:
    from tts_engine.proto.talkspurt.v1 import speech_engine_pb2 as pb

    return await backend.ask("GetStatus", pb.GetStatusRequest(), timeout_s=5.0)


async def test_a_killed_replica_loses_no_utterance_and_is_replaced(client: GrpcEngine, application: str) -> None:
    whole_s = await speak(client, 0)
    speaking = [asyncio.create_task(speak(client, number)) for number in range(1, 21)]
    await until(lambda: all(one.active for one in client._by_address.values()), "work in both")
    from ray import serve

    handle = serve.get_deployment_handle("Engine", "talkspurt")
    target, pid = await asyncio.to_thread(lambda: handle.address.remote().result())
    os.kill(_parent(pid), signal.SIGKILL)
    for sound_s in await asyncio.gather(*speaking):
        assert sound_s > 0.9 * whole_s
    await until(lambda: target not in [address.target for address in client._by_address], "the dead one forgotten")
    await until(lambda: len(client._by_address) == 2, "a new one")
    assert await speak(client, 99) > 0.9 * whole_s


def _parent(pid: int) -> int:
    """The replica's process: the parent of the engine's."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
