"""Each long-lived task and thread belongs to the supervisor. All others are listed here with their owner."""

import ast
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parent.parent
ROOMS = ("codecs/voicecodecs", "gateway", "sip_bridge", "tts_engine", "talkspurt")
NOT_SERVED = ("talkspurt/bench/", "talkspurt/conformance/", "talkspurt/simulator/")
"""Clients: they end with their command."""

SHORT = {
    "gateway/call/calls.py:begin": 1,
    "gateway/call/calls.py:_run": 1,
    "gateway/call/handoff.py:leave": 1,
    "gateway/call/hearing/listening.py:_close": 1,
    "gateway/call/speech.py:open": 1,
    "gateway/carriers/freeswitch/esl.py:_own": 1,
    "gateway/carriers/telnyx/calls.py:run": 1,
    "gateway/clips/clips.py:_load": 1,
    "gateway/call/joined/bridge.py:_own": 1,
    "gateway/call/joined/room_place.py:_own": 1,
    "gateway/cluster/manager_relay.py:handle": 1,
    "gateway/cluster/manager_relay.py:run": 3,
    "gateway/cluster/passing.py:_socket_by": 2,
    "gateway/cluster/siblings.py:_events": 1,
    "gateway/dialogue/line.py:serve_socket": 1,
    "gateway/dialogue/hub.py:aclose": 1,
    "gateway/dialogue/line.py:run": 3,
    "gateway/dialogue/relay.py:start": 1,
    "gateway/http/after.py:answer": 1,
    "gateway/http/call_api/listen.py:handle": 1,
    "gateway/http/request/auth.py:watch": 2,
    "gateway/http/speech_api/speech_socket.py:_begin": 1,
    "gateway/listener/audiosocket.py:_on_message": 1,
    "gateway/listener/audiosocket.py:_take": 1,
    "gateway/listener/passed_streams.py:pass_on": 1,
    "gateway/listener/server.py:adopt": 1,
    "gateway/listener/stream_claims.py:begun": 1,
    "gateway/placing/carrier_calls.py:_start": 1,
    "gateway/recognition/client.py:__init__": 1,
    "gateway/recognition/client.py:_use_connection": 1,
    "talkspurt/recognisers.py:recognisers_for_gateway": 1,
    "gateway/webrtc/peer.py:_begin_ice": 1,
    "gateway/webrtc/peer.py:answer": 1,
    "gateway/webrtc/signalling.py:_later": 1,
    "sip_bridge/call.py:transfer": 1,
    "sip_bridge/io/endpoint.py:_queue": 1,
    "sip_bridge/io/endpoint.py:_take": 1,
    "sip_bridge/outgoing.py:_own": 1,
    "sip_bridge/siprec/client.py:_invited": 1,
    "sip_bridge/siprec/client.py:_on_offer": 1,
    "sip_bridge/siprec/client.py:record": 1,
    "tts_engine/cosyvoice/lm/torch_lm.py:generate_streamed": 1,
    "tts_engine/cosyvoice/lm/vllm_lm.py:generate_streamed": 1,
    "tts_engine/pipeline/draft.py:__init__": 1,
    "tts_engine/pipeline/engine.py:_warm": 1,
    "tts_engine/pipeline/utterance_speech.py:drop_draft": 1,
    "tts_engine/pipeline/utterance.py:_start": 1,
    "tts_engine/service/child.py:_spawn": 2,
    "tts_engine/service/child.py:_until_it_ends": 2,
    "tts_engine/service/child.py:_hangs": 1,
    "tts_engine/service/client.py:add_voice": 1,
    "tts_engine/service/client.py:renew": 1,
    "tts_engine/service/garbage.py:collect_between_calls": 2,
    "tts_engine/service/link_server.py:_begin": 1,
    "tts_engine/service/runner.py:_serve": 2,
    "tts_engine/service/server.py:_speak": 1,
    "tts_engine/service/server.py:_tell": 1,
    "tts_engine/service/speak_call.py:_prepare_rpc": 1,
    "tts_engine/service/speak_call.py:gather": 1,
    "tts_engine/service/speak_call.py:receive": 1,
    "tts_engine/voice_model/child.py:_serve": 3,
    "tts_engine/voice_model/child.py:__init__": 1,
    "tts_engine/voice_model/parent.py:warm": 1,
    "tts_engine/voice_model/parent.py:synthesize": 1,
    "talkspurt/cluster.py:check_health": 1,
    "talkspurt/workers/supervisor.py:_start_workers": 1,
    "talkspurt/workers/worker.py:_adopt": 1,
}
"""Calls that start a task, by file and function. The task belongs to one call, connection, request or start, which
waits for it or cancels it."""

STARTS = {"create_task", "ensure_future", "Thread", "start_new_thread"}


def _starts(path: Path) -> Counter[str]:
    found: Counter[str] = Counter()

    def walk(node: ast.AST, function: str) -> None:
        for child in ast.iter_child_nodes(node):
            inside = child.name if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) else function
            if isinstance(child, ast.Call):
                name = child.func.attr if isinstance(child.func, ast.Attribute) else getattr(child.func, "id", "")
                if name in STARTS:
                    found[inside] += 1
            walk(child, inside)

    walk(ast.parse(path.read_text()), "")
    return found


def test_no_task_and_no_thread_is_started_beside_the_supervisor() -> None:
    found = {
        f"{path.relative_to(ROOT)}:{function}": count
        for room in ROOMS
        for path in sorted((ROOT / room).rglob("*.py"))
        if not str(path.relative_to(ROOT)).startswith(NOT_SERVED) and path.name != "supervision.py"
        for function, count in _starts(path).items()
    }
    assert found == SHORT
