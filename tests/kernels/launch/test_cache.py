"""Compiled code on disk: what comes back, damage, and writers side by side."""

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
