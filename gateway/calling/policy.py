"""The policy for call targets. Every transfer and every placed call uses it, on any transport. Pure.

A target that no list names is refused. A denied target is refused even if another pattern allows it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from gateway.calling.allowance import CountedAllowance
from gateway.calling.targets import Patterns, Target, read_target
from gateway.config import CallingConfig, RouteConfig
from gateway.errors import ProtocolError, Rejected
from gateway.seams.calling import Allowed
from gateway.seams.leg import CallInfo
from gateway.seams.originate import CallOrder

_CALL_ID = re.compile(r"VX[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class _Route:
    allowed: Patterns
    on_sip: Patterns
    """Additional targets of SIP calls."""
    allowance: CountedAllowance
    tenant: str
    own_list: bool
    """True if the route has a list of its own, which alone counts."""


class CallingPolicy:
    """Implements ``gateway.seams.calling.TransferPolicy``.

    Args:
        sip_targets: ``sip.allowed_targets``, additional targets of SIP calls.
    """

    def __init__(
        self, config: CallingConfig, routes: Mapping[str, RouteConfig], *, sip_targets: Sequence[str] = ()
    ) -> None:
        self.on_count: Callable[[], None] = lambda: None
        """Called when ``tallies`` has changed."""
        self._config = config
        self._denied = self._patterns(config.denied_targets)
        self._caller_ids = self._patterns(config.caller_ids)
        self._routes = {
            name: _Route(
                self._patterns(config.allowed_targets if own.allowed_targets is None else own.allowed_targets),
                self._patterns(sip_targets if own.allowed_targets is None else ()),
                CountedAllowance(per_minute=own.calls_per_minute, at_once=own.calls_at_once, whose=f"route {name}"),
                route.tenant,
                own.allowed_targets is not None,
            )
            for name, route, own in ((name, route, route.calling) for name, route in routes.items())
        }

    @property
    def default_caller_id(self) -> str:
        """The first number of ``calling.caller_ids`` that is no pattern. Empty: there is none."""
        whole = (each for each in self._config.caller_ids if "*" not in each)
        for each in whole:
            found = self._read(each, "calling.caller_ids")
            if found.number and not found.scheme:
                return str(found)
        return ""

    def tallies(self) -> dict[str, tuple[int, int]]:
        """Return ``CountedAllowance.tally`` by route, for routes that have counted calls."""
        return {name: tally for name, route in self._routes.items() if any(tally := route.allowance.tally)}

    def add(self, elsewhere: Mapping[str, tuple[int, int]], *, now: float) -> None:
        """Add what other processes with the same configuration have counted: the sums of their ``tallies``."""
        for name, route in self._routes.items():
            route.allowance.add(elsewhere.get(name, (0, 0)), now=now)

    def _patterns(self, patterns: Sequence[str]) -> Patterns:
        return Patterns(patterns, self._config.international_prefixes)

    def transfer(self, call: CallInfo, target: str, *, now: float, by_sip: bool = False) -> str:
        """Count a transfer and return its target as it is dialled. A SIP call may also be joined with another live call
        by that call's id; ``may_join`` and ``check_joined`` check such a join.

        Args:
            by_sip: the gateway calls the target by SIP, whatever the call's transport.

        Raises:
            Rejected: 422 if the target cannot be read; 403 if it is not allowed; 429 if the route has made too many
                calls in this minute.
        """
        if call.transport == "sip" and _CALL_ID.fullmatch(target):
            dialled = target
        else:
            transport = "sip" if by_sip else call.transport
            dialled = self.target(target, route=call.route, transport=transport, domain=call.domain)
        allowance = self._routes[call.route].allowance
        allowance.check_rate(now)
        allowance.count(now)
        self.on_count()
        return dialled

    def fallback(self, call: CallInfo, target: str) -> str:
        """Return the target of a route's ``fallback.transfer`` as it is dialled; only a denied target is refused."""
        return self._undenied(target, call.domain)

    def _undenied(self, target: str, domain: str) -> str:
        read = self._read(target, "fallback.transfer")
        if self._denied.match(read.aliases(domain)):
            raise _not_allowed(read, "is in calling.denied_targets", "fallback.transfer")
        return str(read)

    def place(self, order: CallOrder, *, transport: str, domain: str, now: float) -> Allowed:
        """Check and count a call to be placed.

        Args:
            domain: host at which numbers are users.

        Raises:
            Rejected: 422 and 403 as for ``transfer``, also for the caller id and the headers; 429 if the key or the
                route has too many calls, in this minute or at a time.
        """
        if order.second_leg is not None and order.second_leg.by_operator:
            target = self._undenied(order.target, domain)
        else:
            target = self.target(order.target, route=order.route, transport=transport, domain=domain)
        from_ = self._caller_id(order.from_, domain) if order.from_ else ""
        if refused := next((name for name in order.headers if not self.may_set(name)), ""):
            raise Rejected(
                f"header {refused[:40]!r} is not in calling.sip_headers",
                status=403, code="header_not_allowed", param="headers",
            )  # fmt: skip
        allowances = [self._routes[order.route].allowance, *([order.allowance] if order.allowance else [])]
        for each in allowances:
            each.check_rate(now)
            each.check_room()
        for each in allowances:
            each.count(now)
            each.enter()
        self.on_count()

        def over() -> None:
            for each in allowances:
                each.leave()
            self.on_count()

        return Allowed(target, from_, over)

    def target(self, text: str, *, route: str, transport: str, domain: str = "") -> str:
        """Return a target as it is dialled; nothing is counted.

        Raises:
            Rejected: 422 if the target cannot be read; 403 if it is not allowed.
        """
        target = self._read(text, "target")
        rules = self._routes[route]
        if self._denied.match(target.aliases(domain)):
            raise _not_allowed(target, "is in calling.denied_targets")
        names = target.names(domain)
        if not (rules.allowed.match(names) or (transport == "sip" and rules.on_sip.match(names))):
            raise _not_allowed(target, f"is not an allowed target ({self._lists(route, transport)})")
        return str(target)

    def _lists(self, route: str, transport: str) -> str:
        """Return the names of the lists that may allow a target."""
        if self._routes[route].own_list:
            return f"routes.{route}.calling.allowed_targets"
        return "calling.allowed_targets" + (" or sip.allowed_targets" if transport == "sip" else "")

    def check_joined(self, contact: str, *, at_peer: bool, route: str, domain: str) -> None:
        """Check the Contact address of a live SIP call's other end before a peer is told to call it there. The address
        is allowed at the host with which the call's messages are exchanged, elsewhere only if the route may call it. A
        denied address is always refused.

        Args:
            contact: the address without URI parameters.
            at_peer: True if the address is at that host.

        Raises:
            Rejected: 422 and 403 as for ``target``.
        """
        target = self._read(contact, "the other call's Contact")
        if at_peer and not self._denied.match(target.aliases(domain)):
            return
        self.target(contact, route=route, transport="sip", domain=domain)

    def may_join(self, route: str, other: str) -> bool:
        """Return True if calls of these two routes may be joined: both routes belong to one tenant."""
        return self._routes[route].tenant == self._routes[other].tenant

    def may_set(self, header: str) -> bool:
        """Return True if a request or its parameters may set this header of a SIP call."""
        name = header.lower()
        return any(
            name.startswith(pattern[:-1]) if pattern.endswith("*") else name == pattern
            for pattern in map(str.lower, self._config.sip_headers)
        )

    def _caller_id(self, text: str, domain: str) -> str:
        caller = self._read(text, "from")
        if not self._caller_ids.match(caller.names(domain)):
            raise Rejected(
                f"from, {caller.kind}, is not in calling.caller_ids",
                status=403, code="caller_id_not_allowed", param="from",
            )  # fmt: skip
        return str(caller)

    def _read(self, text: str, param: str) -> Target:
        try:
            target = read_target(text, self._config.international_prefixes)
        except ProtocolError as exc:
            raise Rejected(f"{param} {exc}", status=422, code=exc.code, param=param) from None
        if target.after and not self._config.post_dial:
            raise _not_allowed(target, "has keys after it, which calling.post_dial does not allow", param)
        return target


def _not_allowed(target: Target, why: str, param: str = "target") -> Rejected:
    return Rejected(f"{param}, {target.kind}, {why}", status=403, code="target_not_allowed", param=param)
