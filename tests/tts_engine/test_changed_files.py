"""Files that change while a process runs, and that cannot be read at the moment of their change."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from gateway.credentials import api_keys
from gateway.credentials.watched_file import WatchedFile
from gateway.listener.certificates import Certificates
from tests.gateway.listener.test_certificates import write
from tests.no_room import no_file_free


def test_a_key_that_is_revoked_while_no_file_is_free_is_revoked_when_one_is(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys.json"
    made, _ = api_keys.create(file, now=1.0, tenant="shop")
    watched = WatchedFile(file, api_keys.read)
    api_keys.revoke(file, made.id, now=2.0)
    with no_file_free():
        assert not watched.look() and not watched.look()
    assert watched.value[0].revoked_at is None
    assert watched.look() and watched.value[0].revoked_at == 2.0
    assert not watched.look()
    assert caplog.text.count("cannot be used") == 1


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**30)


@pytest.mark.parametrize("odd", [os.mkfifo, Path.mkdir, huge, lambda path: path.symlink_to("/dev/zero")])
def test_a_file_that_would_hold_its_reader_is_told_once_and_a_good_one_is_taken_later(
    odd: Callable[[Path], None], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, certificate_folder = tmp_path / "keys", tmp_path / "tls"
    folder.mkdir(), certificate_folder.mkdir()
    file, authority = folder / "keys.json", trustme.CA()
    api_keys.create(file, now=1.0, tenant="shop")
    chain, key = write(authority, certificate_folder, "first.example")
    watched, certificates = WatchedFile(file, api_keys.read), Certificates([], chain, key)
    for replaced in (file, Path(chain)):
        replaced.rename(f"{replaced}.good")
        odd(replaced)
    for _ in range(2):
        assert not watched.look() and not certificates._changed()
    assert len(watched.value) == 1 and len(caplog.records) == 2, caplog.text
    for replaced in (file, Path(chain)):
        replaced.rename(f"{replaced}.odd")
        Path(f"{replaced}.good").rename(replaced)
    api_keys.create(file, now=2.0, tenant="shop")
    write(authority, certificate_folder, "second.example")
    assert watched.look() and len(watched.value) == 2 and certificates._changed()


async def test_a_certificate_that_is_renewed_while_no_file_is_free_is_taken_when_one_is(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificates = Certificates([], *write(authority, tmp_path, "first.example"))
    write(authority, tmp_path, "second.example")
    with no_file_free():
        assert not certificates._changed()
    assert certificates._changed()
