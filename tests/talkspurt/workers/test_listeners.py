import socket

import pytest

from talkspurt.config.settings import Config
from talkspurt.workers.listeners import ServerSockets, check

KINDS = {"http": "server", "audiosocket": "audiosocket", "sip": "sip", "sip over UDP": "sip", "sips": "sip.tls"}


def configured(**ports: int) -> Config:
    ports = dict.fromkeys(("http", "audiosocket", "sip", "sips"), 0) | ports
    return Config.model_validate(
        {
            "server": {"host": "127.0.0.1", "port": ports["http"]},
            "audiosocket": {"host": "127.0.0.1", "port": ports["audiosocket"]},
            "sip": {
                "host": "127.0.0.1",
                "port": ports["sip"],
                "tls": {"port": ports["sips"], "certificate": "a.pem", "key": "a.pem"},
            },
        }
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_port_in_use_is_named_with_its_setting(kind: str) -> None:
    with socket.socket(type=socket.SOCK_DGRAM if "UDP" in kind else socket.SOCK_STREAM) as taken:
        taken.bind(("127.0.0.1", 0))
        if "UDP" not in kind:
            taken.listen()
        port = taken.getsockname()[1]
        section = KINDS[kind]
        with pytest.raises(
            OSError, match=rf"127.0.0.1:{port} \({section[:3]}\S*.host, {section}.port\) is in use"
        ) as said:
            check(configured(**{kind.partition(" ")[0]: port}))
    assert ("serve -c FILE --port N` takes another" in str(said.value)) == (kind == "http")


def test_ports_that_were_looked_at_are_free_again() -> None:
    opened = ServerSockets(configured())
    ports = {name: listeners[0].getsockname()[1] for name, listeners in opened.tcp.items()}
    opened.close()
    check(configured(**ports))
    check(configured(**ports))
