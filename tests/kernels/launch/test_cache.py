"""Compiled code on disk: what comes back, damage, and writers side by side."""

import json
import os
import stat
import warnings
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from kernels_sm100.launch import CompileCache
from kernels_sm100.launch.cache import CacheEntry, default_directory

ENTRY = CacheEntry(
    object_file=bytes(range(256)) * 40, ptx=".version 8.8 // é\n", cubin=b"\0\1", names=("q", "k"),
    seconds=1.25,
)  # fmt: skip


def test_an_entry_comes_back(tmp_path):
    cache = CompileCache(tmp_path / "not" / "there")

    assert cache.get("key") is None
    cache.put("key", ENTRY)
    assert cache.get("key") == ENTRY
    assert cache.get("other") is None
    assert [path.suffix for path in cache.directory.iterdir()] == [".zip"]


@pytest.mark.parametrize("kept", [0, 10, 0.5, 0.99])
def test_a_truncated_file_is_reported_and_no_entry(tmp_path, kept):
    cache = CompileCache(tmp_path)
    cache.put("key", ENTRY)
    whole = cache.path("key").read_bytes()
    cache.path("key").write_bytes(whole[: int(kept * len(whole)) if kept < 1 else kept])

    with pytest.warns(UserWarning, match="is damaged"):
        assert cache.get("key") is None


def test_a_flipped_byte_is_found(tmp_path):
    cache = CompileCache(tmp_path)
    cache.put("key", ENTRY)
    raw = bytearray(cache.path("key").read_bytes())
    raw[raw.index(b"host.o") + 40] ^= 1  # inside of the compressed object
    cache.path("key").write_bytes(raw)

    with pytest.warns(UserWarning, match="is damaged"):
        assert cache.get("key") is None


def test_whatever_byte_is_flipped_the_entry_comes_back_or_none(tmp_path):
    cache, small = CompileCache(tmp_path), CacheEntry(
        object_file=b"ELF", ptx="ptx", cubin=b"", names=("q",), seconds=1.0
    )  # fmt: skip
    cache.put("key", small)
    raw = cache.path("key").read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for place in range(len(raw)):
            for flip in (0x01, 0x80, 0xFF):
                damaged = bytearray(raw)
                damaged[place] ^= flip
                cache.path("key").write_bytes(damaged)
                assert cache.get("key") in (None, small), (place, flip)


@pytest.mark.parametrize("described", [[], None, {"names": 3, "seconds": 1}, {"names": ["q"]}])
def test_a_description_of_another_shape_is_no_entry(tmp_path, described):
    cache = CompileCache(tmp_path)
    cache.put("key", ENTRY)
    with zipfile.ZipFile(cache.path("key")) as archive:
        kept = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(cache.path("key"), "w") as archive:
        for name, content in (kept | {"entry.json": json.dumps(described)}).items():
            archive.writestr(name, content)

    with pytest.warns(UserWarning, match="is damaged"):
        assert cache.get("key") is None


def test_a_directory_that_cannot_be_made_is_reported_and_stops_nobody(tmp_path):
    (tmp_path / "file").write_text("")
    cache = CompileCache(tmp_path / "file" / "cache")

    assert cache.get("key") is None
    with pytest.warns(UserWarning, match=r"cannot be kept in .*KERNELS_SM100_CACHE"):
        cache.put("key", ENTRY)


def test_a_place_that_is_taken_is_reported_and_left_alone(tmp_path):
    cache = CompileCache(tmp_path)
    cache.path("key").mkdir()

    with pytest.warns(UserWarning, match="cannot be read"):
        assert cache.get("key") is None
    with pytest.warns(UserWarning, match="cannot be kept"):
        cache.put("key", ENTRY)
    assert list(tmp_path.iterdir()) == [cache.path("key")]


def test_users_who_share_a_cache_can_read_each_others_code(tmp_path):
    umask = os.umask(0o022)
    try:
        CompileCache(tmp_path).put("key", ENTRY)
    finally:
        os.umask(umask)

    assert stat.S_IMODE(CompileCache(tmp_path).path("key").stat().st_mode) == 0o644


def test_writers_do_not_disturb_each_other(tmp_path):
    cache = CompileCache(tmp_path)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: cache.put("key", ENTRY), range(40)))

    assert cache.get("key") == ENTRY
    assert len(list(tmp_path.iterdir())) == 1


def test_a_failed_write_leaves_nothing(tmp_path):
    cache = CompileCache(tmp_path)

    with pytest.raises(AttributeError):
        cache.put("key", None)
    assert list(tmp_path.iterdir()) == []


def test_the_directory_can_be_chosen(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("KERNELS_SM100_CACHE", raising=False)
    assert default_directory() == tmp_path / "kernels_sm100"
    monkeypatch.setenv("KERNELS_SM100_CACHE", str(tmp_path / "mine"))
    assert default_directory() == tmp_path / "mine"
