"""Tests of bearer keys and sealed secrets: shown once, compared in constant time, and not readable
at rest."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import pytest

from holdfast.errors import ConfigurationError
from holdfast.server.keys import Keys
from holdfast.server.records import Records
from holdfast.server.sealing import Seal


def opened(folder: Path) -> Records:
    return Records(folder / "server.db", Seal.of_file(folder / "server.key"))


def test_a_key_is_known_by_its_hash_alone(tmp_path: Path) -> None:
    records = opened(tmp_path)
    keys = Keys(records)
    ours, theirs = keys.create("acme", "laptop"), keys.create("umbrella")
    assert ours.startswith("hf_")
    assert len(ours) > 40
    assert (keys.tenant_of(ours), keys.tenant_of(theirs)) == ("acme", "umbrella")
    assert keys.tenant_of(ours[:-1]) is None
    assert keys.tenant_of("") is None
    records.close()
    for file in tmp_path.iterdir():
        assert ours.encode() not in file.read_bytes()


def test_keys_are_listed_without_their_secret_and_revoked_by_id(tmp_path: Path) -> None:
    records = opened(tmp_path)
    keys = Keys(records)
    key = keys.create("acme", "laptop")
    (info,) = keys.list()
    assert (info.tenant, info.label) == ("acme", "laptop")
    assert info.id not in key
    with pytest.raises(ConfigurationError, match="no key 'ffff'"):
        keys.revoke("ffff")
    keys.revoke(info.id)
    assert keys.tenant_of(key) is None
    records.close()


def test_a_given_key_is_taken_if_it_cannot_be_guessed(tmp_path: Path) -> None:
    records = opened(tmp_path)
    keys = Keys(records)
    keys.add("acme", "0123456789abcdef")
    keys.add("acme", "0123456789abcdef")
    assert keys.tenant_of("0123456789abcdef") == "acme"
    assert len(keys.list()) == 1
    with pytest.raises(ConfigurationError, match="tenant 'acme'"):
        keys.add("other", "0123456789abcdef")
    for bad in ("short", "with space 0123456789", "späße-0123456789012345"):
        with pytest.raises(ConfigurationError):
            keys.add("acme", bad)
    records.close()


def test_a_key_file_is_made_once_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "server.key"
    seals: list[Seal] = []
    threads = [threading.Thread(target=lambda: seals.append(Seal.of_file(path))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [file.name for file in tmp_path.iterdir()] == ["server.key"]
    sealed = seals[0].seal(b"sk-secret", "a")
    assert all(seal.open(sealed, "a") == b"sk-secret" for seal in seals)


def test_what_is_sealed_opens_with_the_same_key_about_the_same_thing_alone(tmp_path: Path) -> None:
    seal, other = Seal(b"k" * 32), Seal(b"o" * 32)
    sealed = seal.seal(b"sk-secret", "tenant/a")
    assert b"sk-secret" not in sealed
    assert sealed != seal.seal(b"sk-secret", "tenant/a")
    for opener, data, about in (
        (other, sealed, "tenant/a"),
        (seal, sealed, "tenant/b"),
        (seal, sealed[:-1] + b"x", "tenant/a"),
        (seal, b"", ""),
    ):
        with pytest.raises(ConfigurationError, match="cannot be decrypted with"):
            opener.open(data, about)
    assert "kkk" not in repr(seal)


def test_a_wrong_or_broken_key_file_is_named(tmp_path: Path) -> None:
    opened(tmp_path).close()
    (tmp_path / "server.key").unlink()
    with pytest.raises(ConfigurationError, match=r"server\.key"):
        opened(tmp_path)
    (tmp_path / "server.key").write_text("not hex")
    with pytest.raises(ConfigurationError, match=r"64 hex digits.*server\.key"):
        opened(tmp_path)
