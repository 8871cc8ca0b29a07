"""Files of strangers: damaged, lying or malicious ones are one line of error, in little memory."""

import io
import json
import resource
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

import maskplan as mp
from maskplan.cli.plain import plain
from tests.cli.program import refuse, run, succeed

ROOT = Path(mp.__file__).parents[1]
MASK = "--from block-mask --seqlen-q 8 --seqlen-k 8 --block-size 4,4"
Q2K = "--from q2k --seqlen-q 8 --seqlen-k 8 --block-size 4,4"


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def npy(header: str, content: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    """An .npy file with a header of one's own."""
    text = header.encode() + b" " * (-(len(header) + 11) % 64) + b"\n"
    return b"\x93NUMPY" + version + len(text).to_bytes(2, "little") + text + content


def header(shape: str, descr: str = "'|b1'") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


def saved(array) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array, allow_pickle=True)
    return stream.getvalue()


def zipped(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


class Trap:
    """An object that writes a file when it is unpickled."""

    def __reduce__(self):
        return Path.touch, (Path("sprung"),)


GOOD = saved(np.ones((2, 2), dtype=bool))

ARRAYS = {
    "empty": (b"", "not an array"),
    "text": (b"hello", "not an array"),
    "truncated": (GOOD[:-1], "truncated or damaged"),
    "too long": (GOOD + b"\0", "truncated or damaged"),
    "header cut": (GOOD[:40], "not an array"),
    "huge": (npy(header("(1000000000000, 1000000)")), "truncated or damaged"),
    "beyond integers": (npy(header("(99999999999999999999999, 1)")), "truncated or damaged"),
    "negative": (npy(header("(-1, -4)"), b"\0" * 4), "truncated or damaged"),
    "no shape": (npy(header("'x'")), "not an array"),
    "code": (npy("__import__('pathlib').Path('sprung').touch()"), "not an array"),
    "deep": (npy("(" * 3000), "not an array"),
    "version": (npy(header("(1,)"), b"\1", b"\x09\x00"), "format version (9, 0)"),
    "objects": (saved(np.array([[Trap()]], dtype=object)), "not an array of plain numbers"),
    "records": (saved(np.zeros((2, 2), dtype=[("a", "i4")])), "not an array of plain numbers"),
    "text array": (saved(np.array([["a"]])), "not an array of plain numbers"),
    "complex": (saved(np.zeros((2, 2), dtype=complex)), "not an array of plain numbers"),
    "floats": (saved(np.ones((2, 2))), "wanted bools of rank any"),
    "npz": (zipped({"a.npy": GOOD}), "not an array"),
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays(capsys, name):
    content, part = ARRAYS[name]
    Path("a.npy").write_bytes(content)

    assert part in refuse(capsys, "convert", "a.npy", "b.plan", *MASK.split())
    assert not Path("b.plan").exists()
    assert not Path("sprung").exists()


def bomb() -> bytes:
    """A member that claims, and unpacks to, many times what it takes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("q2k_index.npy", b"\0" * 2**16)
    content = bytearray(stream.getvalue())
    for mark, place in ((b"PK\x01\x02", 24), (b"PK\x03\x04", 22)):  # its size, in both headers
        at = content.find(mark) + place
        content[at : at + 4] = (2**32 - 2).to_bytes(4, "little")
    return bytes(content)


LISTS = {"q2k_index.npy": saved(np.zeros((1, 1, 2, 1), dtype=np.int32))}
NUM = {"q2k_num.npy": saved(np.ones((1, 1, 2), dtype=np.int32))}

ARCHIVES = {
    "empty": (b"", "not an .npz file"),
    "npy": (GOOD, "not an .npz file"),
    "truncated": (zipped(LISTS | NUM)[:-30], "damaged .npz file"),
    "missing": (zipped(LISTS), "arrays have other names"),
    "extra": (zipped(LISTS | NUM | {"more.npy": GOOD}), "arrays have other names"),
    "no npy": (zipped(LISTS | {"q2k_num.txt": b"1"}), "archive is no .npz"),
    "objects": (zipped(LISTS | {"q2k_num.npy": ARRAYS["objects"][0]}), "plain numbers"),
    "huge": (zipped(LISTS | {"q2k_num.npy": ARRAYS["huge"][0]}), "truncated or damaged"),
    "bomb": (bomb(), "in q2k_index"),
    "floats": (zipped(LISTS | {"q2k_num.npy": saved(np.ones((1, 1, 2)))}), "wanted integers"),
    "unsigned": (
        zipped(LISTS | {"q2k_num.npy": saved(np.full((1, 1, 2), 2**64 - 1, dtype=np.uint64))}),
        "too large",
    ),
}


@pytest.mark.parametrize("name", ARCHIVES)
def test_archives(capsys, name):
    content, part = ARCHIVES[name]
    Path("a.npz").write_bytes(content)

    assert part in refuse(capsys, "convert", "a.npz", "b.plan", *Q2K.split())
    assert not Path("sprung").exists()


def test_every_bit_of_an_archive_may_be_wrong(capsys):
    whole = zipped(LISTS | NUM)
    rng = np.random.default_rng(0)
    for _ in range(40):
        content = bytearray(whole)
        content[rng.integers(len(whole))] ^= 1 << rng.integers(8)
        Path("a.npz").write_bytes(content)
        code, _, err = run(capsys, "convert", "a.npz", "b.plan", "--force", *Q2K.split())

        assert code in (0, 1)
        assert code == 0 or err.startswith("maskplan: ")
        assert len(err.strip().splitlines()) == code


SCIPY = {
    "format.npy": saved(np.array(b"csr")),
    "shape.npy": saved(np.array([2, 2])),
    "data.npy": saved(np.ones(2)),
    "indices.npy": saved(np.array([0, 1])),
    "indptr.npy": saved(np.array([0, 1, 2])),
}
MATRICES = {
    "good": ({}, ""),
    "format": ({"format.npy": saved(np.array(b"coo"))}, "no CSR or BSR matrix of SciPy"),
    "format of objects": ({"format.npy": saved(np.array([Trap()], dtype=object))}, "plain numbers"),
    "shape": ({"shape.npy": saved(np.array([2, 2, 2]))}, "no matrix"),
    "huge shape": ({"shape.npy": saved(np.array([2**40, 2**40]))}, ""),
    "negative shape": ({"shape.npy": saved(np.array([-2, 2]))}, ""),
    "column": ({"indices.npy": saved(np.array([0, 5]))}, ""),
    "negative column": ({"indices.npy": saved(np.array([0, -1]))}, ""),
    "indptr": ({"indptr.npy": saved(np.array([0, 9, 2]))}, ""),
    "nan": ({"data.npy": saved(np.array([1.0, np.nan]))}, "NaN"),
    "blocks of nothing": (
        {"format.npy": saved(np.array("bsr")), "data.npy": saved(np.ones((2, 0, 0)))},
        "",
    ),
}


@pytest.mark.parametrize("name", MATRICES)
def test_matrices(capsys, name):
    changes, part = MATRICES[name]
    Path("a.npz").write_bytes(zipped(SCIPY | changes))
    line = "convert a.npz b.plan --from scipy-csr"
    if name == "good":
        succeed(capsys, *line.split())
    else:
        assert part in refuse(capsys, *line.split())
    assert not Path("sprung").exists()


@pytest.mark.parametrize(
    ("content", "part"),
    [
        ("", "file is not JSON"),
        ("[1, 2", "file is not JSON"),
        ("[" * 100000, "file is not JSON"),
        ('{"0_0_0": [1, 1, 1], "0_0_0": [1, 1, 1]}', "stands twice"),
        ('{"0_0_0": [1, 1, NaN]}', "NaN"),
        ('{"0_0_0": [9, 1, 1]}', "window does not fit the canvas"),
        ('{"9_0_0": [1, 1, 1]}', "key is outside the model"),
        ('{"\\u001b[2J": [1, 1, 1]}', "unknown key"),
        ("{}", "keys are missing"),
        ("[]", "not a mask strategy"),
    ],
)
def test_strategies(capsys, content, part):
    Path("s.json").write_text(content)
    line = "book make s.json --canvas 2,8,8 --tile 2,4,4 --steps 1 --layers 1 --heads 1 -o b.book"

    assert part in refuse(capsys, *line.split())


@pytest.mark.parametrize(
    "value",
    [
        [],
        {"q_ranges": [[0, 8]], "k_ranges": [[0, 8]]},
        {"q_ranges": [[0, 8]], "k_ranges": [[0, 8]], "attn_type_map": [9]},
        {"q_ranges": [[0, "x"]], "k_ranges": [[0, 8]], "attn_type_map": [0]},
        {"q_ranges": [[0, 2**70]], "k_ranges": [[0, 8]], "attn_type_map": [0]},
        {"q_ranges": [[0, 8], [0]], "k_ranges": [[0, 8]], "attn_type_map": [0]},
        {"q_ranges": {}, "k_ranges": None, "attn_type_map": "full"},
    ],
)
def test_ranges(capsys, value):
    Path("r.json").write_text(json.dumps(value))
    line = "convert r.json b.plan --from magi-ranges --seqlen-q 8 --seqlen-k 8"

    assert refuse(capsys, *line.split())


def test_words_of_a_file_cannot_move_the_cursor(capsys):
    words = mp.Provenance(builder="\x1b[2Jevil\n\r\x07", parameters={"a": "\x1b]0;title\x07"})
    plan = mp.full(8, 8, block_size=(4, 4))
    object.__setattr__(plan, "provenance", words)
    plan.save("a.plan")
    mp.causal(8, 8, block_size=(4, 4)).save("b.plan")
    mp.PlanBook.from_plans({(0, 0, 0): plan}).save("a.book")
    for line in ("show a.plan", "diff a.plan b.plan", "book info a.book", "show a.book"):
        out = succeed(capsys, *line.split())

        assert "\\x1b[2Jevil" in out or line == "show a.book"
        assert all(each.isprintable() or each == "\n" for each in out)


def test_plain_leaves_text_alone():
    assert plain("naïve █ 漢字") == "naïve █ 漢字"
    assert plain("a\nb\x00") == "a\\nb\\x00"


def test_a_name_with_an_escape_is_shown_plain(capsys):
    assert "\x1b" not in refuse(capsys, "show", "\x1b[2J.plan")


def limited(*arguments) -> subprocess.CompletedProcess:
    """The program in a process of its own with 6 GiB of addresses."""
    return subprocess.run(
        [sys.executable, "-c", "from maskplan.cli import main; main()", *arguments],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (6 * 2**30,) * 2),
        env={"PYTHONPATH": str(ROOT), "HOME": str(Path.cwd()), "OMP_NUM_THREADS": "1"},
    )


def test_too_much_memory_is_one_line():
    np.save("m.npy", np.ones((1, 1), dtype=bool))
    line = "plan full 2000000000 --block-size 1,1 -o a.plan"
    done = limited(*line.split())

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert done.stderr.startswith("maskplan: ")


def test_weights_are_not_read_whole(capsys):
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(4)}, "weights.safetensors")
    for line in ("show weights.safetensors", "convert weights.safetensors a.npz --to bsr"):
        assert "not a plan" in refuse(capsys, *line.split())
