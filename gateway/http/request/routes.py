"""The declaration of an HTTP route. The application and its description are both made from it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from gateway.config import Scope
from gateway.errors import Rejected
from gateway.http.request.access import Access, access_of
from gateway.seams.plain_text import plain_json, read_json

JSON, FORM, MULTIPART = "application/json", "application/x-www-form-urlencoded", "multipart/form-data"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class ApiModel(BaseModel):
    """A body or an answer of the HTTP API. The docstrings of its fields appear in the API's description."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    @classmethod
    def from_json(cls, data: bytes | str) -> Self:
        """Return the model of JSON text. A lone surrogate in a string becomes ``REPLACEMENT``.

        Raises:
            ValidationError: the text is not JSON, or does not fit the model.
        """
        try:
            return cls.model_validate_json(data)
        except ValidationError as exc:
            if exc.errors(include_url=False, include_input=False)[0]["type"] != "json_invalid":
                raise
            try:
                value = read_json(data)
            except ValueError:
                raise exc from None
        return cls.model_validate(value)

    @model_validator(mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        return plain_json(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One route of the HTTP application.

    Raises:
        LookupError: no rights are stated for it in ``gateway.http.request.access.ACCESS``.
    """

    method: str
    path: str
    handler: Handler
    summary: str
    begins_call: bool = False
    """True if the route begins calls, so that its refusals count as refused calls."""
    body: type[BaseModel] | None = None
    takes: Sequence[str] = ()
    """Content types of the body. Empty: JSON if there is a ``body``, else any; then the handler checks."""
    answer: type[BaseModel] | tuple[type[BaseModel], ...] | None = None
    """Model of the answer, or all models that it may have."""
    content_type: str | Sequence[str] = "application/json"
    """Content type of the answer, or all those that a request may ask for."""
    tags: Sequence[str] = ()
    access: Access = field(init=False)
    """The rights that it asks for, from the table ``ACCESS``."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "access", access_of(self.method, self.path))

    @property
    def scope(self) -> Scope | None:
        """The scope that a key needs. None: the route needs no key."""
        return self.access.scope

    def check_type(self, request: web.Request) -> None:
        """Check the type of a request's body. Without asking us first, a browser sends forms and texts of other sites'
        pages, but not JSON (CORS).

        Raises:
            Rejected: 415, the body is of another type.
        """
        takes = self.takes or ((JSON,) if self.body is not None else ())
        if takes and request.content_type not in takes:
            raise Rejected(
                f"Content-Type is {request.content_type[:60]}, expected {' or '.join(takes)}",
                status=415, code="content_type", param="Content-Type",
            )  # fmt: skip
