"""A program on the generated client ``talkspurt_client``: places a call, speaks in it, ends it, and finds it again.

python client_round_trip.py http://127.0.0.1:8080 sip:alice@192.0.2.1
"""

# mypy: ignore-errors
# ``talkspurt_client`` exists where the test has made it.

import os
import sys
import time

from talkspurt_client import AuthenticatedClient
from talkspurt_client.api.calls import (
    delete_v1_calls_id,
    get_v1_calls,
    get_v1_calls_id,
    get_v1_records,
    post_v1_calls,
    post_v1_calls_id_messages,
)
from talkspurt_client.api.default import get_v1_health, get_v1_routes
from talkspurt_client.api.models import get_v1_models
from talkspurt_client.api.rooms import get_v1_rooms
from talkspurt_client.api.speech import get_v1_usage
from talkspurt_client.api.voices import get_v1_voices
from talkspurt_client.models import (
    AttemptView,
    CallList,
    CallView,
    EndedCallList,
    EndedCallView,
    HealthView,
    MessageBody,
    ModelList,
    PlaceCallBody,
    RecordsView,
    RoomList,
    RouteListView,
    UsageView,
    VoicesView,
)

STEP_S = 0.05


def until(ask, kind, holds=lambda answer: True):
    """Ask again until the answer is of a kind and a condition holds. The test ends a program that waits too long."""
    while not (isinstance(answer := ask(), kind) and holds(answer)):
        time.sleep(STEP_S)
    return answer


client = AuthenticatedClient(sys.argv[1], token=os.environ["TALKSPURT_API_KEY"], raise_on_unexpected_status=True)
pages = {
    get_v1_health: HealthView,
    get_v1_routes: RouteListView,
    get_v1_models: ModelList,
    get_v1_voices: VoicesView,
    get_v1_rooms: RoomList,
}
for operation, model in pages.items():
    answer = operation.sync(client=client)
    assert isinstance(answer, model), answer

placed = post_v1_calls.sync(client=client, body=PlaceCallBody(to=sys.argv[2], route="default"))
assert isinstance(placed, AttemptView), placed
print("placed")


def show():
    return get_v1_calls_id.sync(placed.call_id, client=client)


until(show, CallView)
live = get_v1_calls.sync(client=client)
assert isinstance(live, CallList) and [call.call_id for call in live.calls] == [placed.call_id], live
print("answered")

text = MessageBody.from_dict({"type": "text", "token": "Your order has been shipped.", "last": True})
done = post_v1_calls_id_messages.sync_detailed(placed.call_id, client=client, body=text)
assert done.status_code == 202, done
until(show, CallView, lambda call: call.outcome == "finished")
print("spoken")

assert delete_v1_calls_id.sync_detailed(placed.call_id, client=client).status_code == 204
ended = until(show, EndedCallView)
said = [entry.text for entry in ended.entries if entry.kind == "said"]
assert ended.reason == "hangup_by_api" and said == ["Your order has been shipped."], ended
print("over")

log = get_v1_calls.sync(client=client, ended=True)
assert isinstance(log, EndedCallList) and [call.call_id for call in log.calls] == [placed.call_id], log
print("found")

usage = get_v1_usage.sync(client=client)
assert isinstance(usage, UsageView) and sum(day.calls for day in usage.days) == 1, usage
records = get_v1_records.sync(client=client)
assert isinstance(records, RecordsView) and placed.call_id in [record.id for record in records.records], records
print("billed")
