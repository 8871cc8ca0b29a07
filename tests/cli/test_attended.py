"""`maskplan plan xattention`, `nsa` and `vmoba`: from files of queries and keys."""

from pathlib import Path

import numpy as np
import pytest
import torch

import maskplan as mp
from tests.cli.program import refuse, succeed


@pytest.fixture(autouse=True)
def qk(tmp_path, monkeypatch):
    """q of 4 heads and k of 2, 150 tokens: files in both layouts, and the tensors."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((1, 150, heads, 8)).astype(np.float32) for heads in (4, 2))
    for name, array in (("q", q), ("k", k)):
        np.save(f"{name}.npy", array)
        np.save(f"{name}h.npy", array.swapaxes(1, 2))
    np.save("k90.npy", k[:, :90])
    np.save("k3.npy", np.repeat(k[:, :, :1], 3, axis=2))
    np.save("nan.npy", np.full_like(k, np.nan))
    np.save("none.npy", k[:, :0])
    np.save("q0.npy", q[:, :0])
    np.save("rank.npy", k[0])
    np.save("whole.npy", k.astype(np.int64))
    return torch.from_numpy(q), torch.from_numpy(k)


def test_xattention_causal(capsys, qk):
    line = "plan xattention q.npy k.npy --p 0.6 --causal --stride 4 --block 16 -o made.plan"
    out = succeed(capsys, *line.split())
    mass = mp.select.antidiagonal_mass(*qk, block=16, stride=4, causal=True)
    always = mp.select.sink_and_diagonal(10)
    blocks = mp.select.top_p(
        mass, 0.6, 150, 150, rule="xattention", always=always, block_size=(16, 16)
    )
    made = mp.load("made.plan")

    assert made == blocks & mp.causal(150, 150, block_size=(16, 16))
    assert made.heads == 4
    assert made.digest in out


def test_xattention_of_full_attention_may_have_other_keys(capsys, qk):
    line = "plan xattention q.npy k90.npy --p 0.6 --full --block 16 --norm 2 -o made.plan"
    succeed(capsys, *line.split())
    q, k = qk
    mass = mp.select.antidiagonal_mass(q, k[:, :90], block=16, causal=False, norm=2.0)
    expected = mp.select.top_p(mass, 0.6, 150, 90, rule="xattention", block_size=(16, 16))

    assert mp.load("made.plan") == expected


def selected_keys(q, k, t, *, count, length, stride, block, initial, local):
    """Keys that query t sees by NSA, bool [S]: one KV head, from the definitions.

    Scores by keys rather than by indices: a compressed block counts for a selection block once for
    each stride of keys that they share (equation 9).
    """
    seqlen, depth = k.shape
    starts = [s for s in range(0, seqlen - length + 1, stride) if s + length - 1 <= t]
    scores = [0.0] * (-(-seqlen // block))
    for query in q[:, t].double():
        logits = [float(query @ k[s : s + length].double().mean(0)) / depth**0.5 for s in starts]
        weights = torch.tensor(logits, dtype=torch.float64).softmax(0).tolist()
        for s, weight in zip(starts, weights, strict=True):
            for piece in range(s, s + length, stride):
                scores[piece // block] += weight
    own = t // block
    sure = {j for j in range(own + 1) if j < initial or j > own - local}
    others = sorted(set(range(own + 1)) - sure, key=lambda j: -scores[j])
    kept = sure | set(others[: max(count - len(sure), 0)])
    return torch.tensor([s <= t and s // block in kept for s in range(seqlen)])


def test_nsa_against_loops(capsys, qk):
    line = (
        "plan nsa q.npy k.npy --k 4 --select-block 16 --length 8 --stride 4 --initial 1 --local 1 "
        "--block-size 32,32 -o made.plan"
    )
    succeed(capsys, *line.split())
    q, k = (x[0].transpose(0, 1) for x in qk)
    dense = mp.load("made.plan").to_dense()[0]
    sizes = {"count": 4, "length": 8, "stride": 4, "block": 16, "initial": 1, "local": 1}

    assert mp.load("made.plan").block_size == (32, 32)
    for head in range(4):
        group = head // 2
        for t in range(0, 150, 7):
            shared = q[group * 2 : group * 2 + 2]
            assert torch.equal(dense[head, t], selected_keys(shared, k[group], t, **sizes)), t


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("--k 3 --scope query_head", {"k": 3, "scope": "query_head"}),
        ("--threshold 0.4 --scope block", {"threshold": 0.4, "scope": "block"}),
        ("--threshold 0.4 --scope overall", {"threshold": 0.4, "scope": "overall"}),
    ],
)
def test_vmoba(capsys, qk, line, rule):
    succeed(capsys, "plan", "vmoba", "q.npy", "k.npy", "--chunk", 20, *line.split(), "-o", "made")
    scores = mp.select.chunk_scores(*qk, 20)

    assert mp.load("made") == mp.select.vmoba(scores, chunk=20, **rule)


@pytest.mark.parametrize(
    "line",
    [
        "xattention {} --p 0.6 --causal --block 16",
        "nsa {} --k 4 --select-block 16 --initial 1 --local 1",
        "vmoba {} --chunk 20 --k 2 --scope head_global",
    ],
)
def test_heads_may_come_first(capsys, line):
    succeed(capsys, "plan", *line.format("q.npy k.npy").split(), "-o", "a")
    succeed(capsys, "plan", *line.format("qh.npy kh.npy --layout bhsd").split(), "-o", "b")

    assert mp.load("a") == mp.load("b")


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("xattention q.npy k90.npy --p 0.5 --causal", "the same S"),
        ("xattention q.npy k3.npy --p 0.5 --full", "q and k do not go together"),
        ("xattention q.npy kh.npy --p 0.5 --full", "--layout bhsd"),
        ("xattention q.npy nan.npy --p 0.5 --full", "array is not finite in nan.npy"),
        ("xattention q.npy none.npy --p 0.5 --full", "arrays are empty"),
        ("xattention q.npy rank.npy --p 0.5 --full", "rank.npy"),
        ("xattention q.npy whole.npy --p 0.5 --full", "whole.npy"),
        ("xattention q.npy k.npy --p 0.5 --full --layout sbhd", "'sbhd'"),
        ("xattention q.npy k.npy --p 1.5 --full", "1.5"),
        ("xattention q.npy k.npy --p 0.5 --full --norm 0", "scores cannot be divided in --norm"),
        ("xattention q.npy k.npy --p 0.5 --full --norm nan", "scores cannot be divided in --norm"),
        ("xattention q.npy k.npy --p 0.5 --full --stride 3", "stride does not divide the block"),
        ("nsa q.npy k90.npy --k 4", "the same S"),
        ("nsa q0.npy none.npy --k 4", "arrays are empty"),
        ("nsa q.npy k.npy --k 2", "too few blocks to select in k: got 2"),
        ("nsa q.npy k.npy --k 4 --stride 0", "--stride"),
        ("nsa q.npy k.npy --k 4 --stride 12", "size is no multiple of the stride in length"),
        ("nsa q.npy k.npy --k 4 --length 160", "no compressed block fits in --length"),
        ("vmoba q.npy k90.npy --k 4 --chunk 20 --scope overall", "the same S"),
        ("vmoba q.npy k.npy --chunk 20 --scope overall", "one rule is needed"),
        ("vmoba q.npy k.npy --chunk 20 --k 2 --threshold 0.5 --scope overall", "one rule"),
        ("vmoba q.npy k.npy --chunk 20 --k 2 --scope block", "a threshold for scope='block'"),
        ("vmoba q.npy k.npy --chunk 20 --k 2 --scope all", "'all'"),
        ("vmoba q.npy k.npy --chunk 20 --threshold nan --scope overall", "nan"),
        ("vmoba q.npy k.npy --chunk 0 --k 2 --scope overall", "got 0"),
    ],
)  # fmt: skip
def test_mistakes_are_one_line(capsys, line, part):
    assert part in refuse(capsys, "plan", *line.split(), "-o", "x")
    assert not Path("x").exists()


def test_nothing_is_read_before_the_output_is_free(capsys):
    Path("x").write_text("mine")

    line = "plan nsa nan.npy nan.npy --k 4 -o x"
    assert "output exists" in refuse(capsys, *line.split())
    assert Path("x").read_text() == "mine"
