"""Traces of turns, as a collector gets them: real calls, and a real receiver of OTLP over HTTP."""

import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from tests.gateway.http.api_gateway import api_gateway
from tests.peers.live_server import TestCall
from tests.waiting import until


class Collector:
    """Keeps every span that it is sent."""

    def __init__(self) -> None:
        self.spans: list[Any] = []
        self.services: set[str] = set()
        self.keys: set[str] = set()
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        self.keys.add(request.headers.get("X-Key", ""))
        sent = ExportTraceServiceRequest.FromString(await request.read())
        for of_resource in sent.resource_spans:
            resource = {one.key: one.value.string_value for one in of_resource.resource.attributes}
            self.services.add(resource["service.name"])
            for scope in of_resource.scope_spans:
                self.spans += scope.spans
        body = ExportTraceServiceResponse().SerializeToString()
        return web.Response(body=body, content_type="application/x-protobuf")

    def traces(self) -> dict[str, tuple[Any, list[Any]]]:
        """The span of a turn and its children, by the turn's outcome."""
        return {
            attributes(turn)["talkspurt.outcome"]: (
                turn,
                [span for span in self.spans if span.parent_span_id == turn.span_id],
            )
            for turn in self.named("turn")
        }

    def named(self, name: str) -> list[Any]:
        return [span for span in self.spans if span.name == name]


def attributes(span: Any) -> dict[str, Any]:
    return {one.key: getattr(one.value, one.value.WhichOneof("value")) for one in span.attributes}


@pytest.fixture
async def collector() -> AsyncIterator[Collector]:
    made = Collector()
    app = web.Application()
    app.router.add_post("/v1/traces", made.take)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    made.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/traces"
    yield made
    await runner.cleanup()


SECRET = "Sesame 4711"


async def test_the_spans_of_a_turn_are_the_stages_that_its_manager_is_told(
    tmp_path: Path, collector: Collector
) -> None:
    sections: dict[str, Any] = {
        "carriers": {"twilio": {"verify": False}},
        "routes": {"default": {}},
        "tracing": {"endpoint": collector.url, "headers": {"X-Key": "k"}, "service_name": "bot"},
    }
    async with api_gateway(tmp_path, clones=False, **sections) as (made, _, url):
        live: Any = SimpleNamespace(ws=url.replace("http", "ws"))
        async with TestCall(live, "default") as test:
            heard = await test.spoken(f"{SECRET} is the word.")
            cut = test.call.speak(f"{SECRET} is a long story that is cut before its end.")
            await until(lambda: "firstPacketMs" in cut.reported)
            test.call.send("cancel")
            await until(lambda: cut.outcome)
            test.call.send("play", source="missing.wav", turn="p4711")
            await until(lambda: any(m.get("event") == "failed" for m in test.messages))
    traces = collector.traces()
    failed, children = traces["failed"]
    assert (failed.status.code, children) == (2, []), "an error, and nothing that was heard"
    for turn in (heard, cut):
        root, children = traces[turn.outcome]
        assert root.name == "turn"
        assert attributes(root)["talkspurt.call"] == test.call.session_id
        spans = {span.name: span for span in children}
        speaking = spans.pop("speaking")
        stages = {name: ms for name, ms in turn.reported["stages"].items() if ms}
        lasted = {name: (s.end_time_unix_nano - s.start_time_unix_nano) / 1e6 for name, s in spans.items()}
        assert set(stages) <= set(lasted)
        assert lasted == pytest.approx({name: stages.get(name, 0.0) for name in lasted}, abs=0.06)
        first_ms = (speaking.start_time_unix_nano - root.start_time_unix_nano) / 1e6
        assert first_ms == pytest.approx(turn.reported["firstPacketMs"], abs=0.1)
        assert speaking.end_time_unix_nano == root.end_time_unix_nano
        in_a_row = sorted(spans.values(), key=lambda span: span.start_time_unix_nano)
        ends = [root.start_time_unix_nano, *(span.end_time_unix_nano for span in in_a_row)]
        starts = [*(span.start_time_unix_nano for span in in_a_row), speaking.start_time_unix_nano]
        assert starts == pytest.approx(ends, abs=2000)
    assert attributes(traces["interrupted"][0])["talkspurt.reason"] == "cancel"
    (call,) = collector.named("call")
    assert attributes(call)["talkspurt.outcome"] == "completed" and not call.parent_span_id
    assert {turn.parent_span_id for turn in collector.named("turn")} == {call.span_id}
    assert {span.trace_id.hex() for span in collector.spans} == {test.call.session_id.removeprefix("VX")}
    assert all(call.start_time_unix_nano <= span.start_time_unix_nano for span in collector.spans)
    assert all(span.end_time_unix_nano <= call.end_time_unix_nano for span in collector.spans)
    assert (collector.services, collector.keys) == ({"bot"}, {"k"})
    told = b"".join(span.SerializeToString() for span in collector.spans)
    for word in (*SECRET.split(), "story", "missing", "p4711", "15550100"):
        assert word.encode() not in told


async def test_a_collector_that_is_gone_holds_up_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gateway.tracing.EXPORT_S", 0.2)
    sections: dict[str, Any] = {
        "carriers": {"twilio": {"verify": False}},
        "routes": {"default": {}},
        "tracing": {"endpoint": "http://127.0.0.1:9/v1/traces"},
    }
    async with api_gateway(tmp_path, clones=False, **sections) as (made, _, url):
        async with TestCall(SimpleNamespace(ws=url.replace("http", "ws")), "default") as test:  # type: ignore[arg-type]
            assert (await test.spoken("Hello there.")).outcome == "finished"


def test_without_the_section_nothing_of_it_is_imported() -> None:
    code = (
        "import sys, talkspurt.build, talkspurt.cli; from talkspurt.config.settings import Config; Config(); "
        "sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
