"""A carrier's REST interface for outgoing calls: requests as values, and what its status callbacks say. Pure.

Formats: each vendor's own SDK, whose requests are kept in ``tests/vectors/carriers/outgoing``.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic
from urllib.parse import urlencode

import orjson
from pydantic import SecretStr

from gateway.carriers.settings import S

CODE_CHARS = 64
"""Most characters of a carrier's code that are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """A request to a carrier's REST interface."""

    method: str
    url: str
    authorization: str
    content_type: str = ""
    """Empty: there is no body."""
    body: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class CarrierOrder:
    """A call that the carrier must place."""

    to: str
    from_: str
    answer_url: str
    """The webhook that the carrier asks when the call is answered."""
    status_url: str
    """The webhook that gets the status callbacks."""
    now: float
    """Seconds since the epoch, for signed times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing(Generic[S]):
    """One carrier's REST interface for outgoing calls."""

    needs: Sequence[str]
    """Names of the keys of the carrier's section without which no call can be placed."""
    place: Callable[[S, CarrierOrder], ApiRequest]
    hang_up: Callable[[S, str, float], ApiRequest]
    """Makes the request that ends a call. Arguments: settings, the carrier's id of the call, seconds since the
    epoch."""
    sid_field: str
    """Field of the answer to ``place`` with the carrier's id of the call."""

    def missing(self, settings: S) -> list[str]:
        """Return the names of the keys that are not set."""
        return [name for name in self.needs if not getattr(settings, name)]


def text_of(secret: SecretStr | None) -> str:
    """Return a secret's text; empty for None."""
    return "" if secret is None else secret.get_secret_value()


def basic(user: str, password: SecretStr | None) -> str:
    """Return ``Authorization`` for HTTP Basic (RFC 7617)."""
    return "Basic " + b64encode(f"{user}:{text_of(password)}".encode()).decode()


def form_request(url: str, authorization: str, fields: Sequence[tuple[str, str]]) -> ApiRequest:
    """Return a POST with a form."""
    return ApiRequest(
        method="POST", url=url, authorization=authorization,
        content_type="application/x-www-form-urlencoded", body=urlencode(fields).encode(),
    )  # fmt: skip


def json_request(url: str, authorization: str, value: Any, *, method: str = "POST") -> ApiRequest:
    """Return a request with a JSON body."""
    return ApiRequest(
        method=method, url=url, authorization=authorization,
        content_type="application/json", body=orjson.dumps(value),
    )  # fmt: skip


def twilio_order(url: str, authorization: str, order: CarrierOrder) -> ApiRequest:
    """Return the order of Twilio and its relatives (Twilio, Call resource)."""
    return form_request(
        url,
        authorization,
        [
            ("To", order.to),
            ("From", order.from_),
            ("Url", order.answer_url),
            ("Method", "POST"),
            ("StatusCallback", order.status_url),
            *(("StatusCallbackEvent", event) for event in ("initiated", "ringing", "answered", "completed")),
            ("StatusCallbackMethod", "POST"),
        ],
    )


def read_answer(body: bytes) -> Any:
    """Return the JSON value of an answer. None: the body is not JSON."""
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return None


def call_sid_of(answer: object, field: str) -> str:
    """Return the carrier's id of the call in the answer to an order. Empty: the answer has none."""
    value = answer.get(field) if isinstance(answer, Mapping) else None
    return value if isinstance(value, str) and len(value) <= 256 and value.isprintable() else ""


def error_code_of(answer: object) -> str:
    """Return the carrier's code in the answer that refuses an order. Empty: it has none."""
    found = answer if isinstance(answer, Mapping) else {}
    errors = found.get("errors")
    if isinstance(errors, list) and errors and isinstance(errors[0], Mapping):
        found = errors[0]
    for name in ("code", "error_code", "type", "title"):
        value = found.get(name)
        if isinstance(value, int | str) and not isinstance(value, bool) and str(value).isprintable():
            return str(value).rpartition("/")[2][:CODE_CHARS]
    return ""
