"""Connection of calls to the managers of their routes: dialled out, scripted, dialled in, or with an
audio socket."""

from __future__ import annotations

from collections.abc import Mapping

from gateway.config import LimitsConfig, RouteConfig
from gateway.dialogue.audio_socket import AudioSockets
from gateway.dialogue.hub import DialogueHub
from gateway.dialogue.line import DialogueStats, setup_of
from gateway.dialogue.observers import Observers
from gateway.dialogue.relay import Relay
from gateway.dialogue.script import load
from gateway.dialogue.script_link import ScriptLink
from gateway.seams.dialogue import DialogueLink, DialogueSink
from gateway.seams.leg import CallInfo


class RouteDialogues:
    """The ``Dialogues`` of a gateway. Call ``aclose`` after the last call.

    Raises:
        ScriptError: a route names a script that cannot be used.
    """

    def __init__(
        self,
        routes: Mapping[str, RouteConfig],
        *,
        limits: LimitsConfig,
        hub: DialogueHub,
        observers: Observers,
        stats: DialogueStats,
        version: str,
    ) -> None:
        self._routes = routes
        self._limits = limits
        self._hub = hub
        self._observers = observers
        self._stats = stats
        self._version = version
        self.audio = AudioSockets(routes, hub=hub, limits=limits, stats=stats, version=version)
        """The calls whose managers make their own sound, and the handler of their sockets."""
        self._scripts = {name: load(route.dialogue.script) for name, route in routes.items() if route.dialogue.script}

    async def attach(self, call: CallInfo, sink: DialogueSink, *, codec: str) -> DialogueLink:
        """Connect a call to its route's manager; returns at once.

        Raises:
            KeyError: there is no such route. The edge that accepts a call looks its route up first.
        """
        config = self._routes[call.route].dialogue
        setup = setup_of(call, codec=codec, version=self._version, audio=config.audio)
        link: DialogueLink
        if config.url:
            link = self._dial(call, sink, codec)
        elif config.script:
            link = script = ScriptLink(self._scripts[call.route], setup, sink)
            script.start()
        elif config.audio:
            link = self.audio.attach(call, sink, codec=codec)
        else:
            link = self._hub.attach(call, sink, codec=codec)
        return self._observers.watch(call.route, setup, sink, link)

    def _dial(self, call: CallInfo, sink: DialogueSink, codec: str) -> DialogueLink:
        relay = Relay(
            call,
            sink,
            self._routes[call.route].dialogue,
            limits=self._limits,
            stats=self._stats,
            codec=codec,
            version=self._version,
        )
        relay.start()
        return relay

    async def aclose(self) -> None:
        """Close the sockets that dialled in, and end all subscriptions. Calls have closed their links by then."""
        self._observers.close()
        await self.audio.aclose()
        await self._hub.aclose()
