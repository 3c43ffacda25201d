"""A network address translator between a browser and the server, on loopback."""

import asyncio
from typing import Any


class AddressTranslator:
    """A NAT between a phone and a port of the server. ``move`` gives it another outer address."""

    def __init__(self, server: tuple[str, int]) -> None:
        self.server = server
        self._inner: asyncio.DatagramTransport
        self._outer: asyncio.DatagramTransport
        self._phone: Any = None
        self.address: tuple[str, int]

    async def open(self) -> None:
        self._inner = await self._socket(self._from_phone)
        self.address = self._inner.get_extra_info("sockname")
        await self.move()

    async def move(self) -> None:
        old = getattr(self, "_outer", None)
        self._outer = await self._socket(lambda data, addr: self._inner.sendto(data, self._phone))
        if old is not None:
            old.close()

    def _from_phone(self, data: bytes, addr: Any) -> None:
        self._phone = addr
        self._outer.sendto(data, self.server)

    async def _socket(self, take: Any) -> asyncio.DatagramTransport:
        class Protocol(asyncio.DatagramProtocol):
            def datagram_received(self, data: bytes, addr: Any) -> None:
                take(data, addr)

        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(Protocol, local_addr=("127.0.0.1", 0))
        return transport

    def close(self) -> None:
        self._inner.close()
        self._outer.close()
