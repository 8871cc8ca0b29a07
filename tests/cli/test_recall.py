"""`maskplan recall`: on files and on made-up q and k, in the order that a plan has."""

from pathlib import Path

import numpy as np
import pytest
import torch

import maskplan as mp
from maskplan.cli.synthetic import PEAK, places, tokens
from tests.cli.program import refuse, succeed

GRID = mp.video.Grid(2, 6, 8, text=5)


@pytest.fixture(autouse=True)
def _files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiles = {"tile": (2, 3, 4), "window": (1, 1, 1), "block_size": (16, 16)}
    mp.video.sliding_tile(GRID, **tiles).save("tiles.plan")
    mp.video.sliding_tile(GRID, **tiles, queries="video").save("cross.plan")
    mp.video.sliding_tile(GRID, **tiles | {"tile": (2, 4, 4)}, pad=True).save("pad.plan")
    mp.video.radial(GRID, decay=0.2, least=4, block_size=(16, 16)).save("radial.plan")
    mp.causal(101, 101, block_size=(16, 16)).save("causal.plan")
    mp.full(101, 101, block_size=(16, 16)).save("full.plan")
    rng = np.random.default_rng(0)
    for name in "qkv":
        np.save(f"{name}.npy", rng.standard_normal((1, 101, 2, 16)).astype(np.float32))
    np.save("video.npy", np.load("q.npy")[:, :96])


def expected(plan: mp.Plan, *, queries: slice = slice(None)) -> str:
    """What the library says of the files, their tokens in tile order."""
    order = mp.video.TokenOrder.from_provenance(plan.provenance)
    q, k, v = (torch.from_numpy(np.load(f"{name}.npy")) for name in "qkv")
    if order is not None:
        q, k, v = (order.apply(x, 1) for x in (q, k, v))
    return str(mp.quality(q[:, queries], k, v, plan))


FILES = ["--q", "q.npy", "--k", "k.npy", "--v", "v.npy"]


def test_files_in_raster_order(capsys):
    out = succeed(capsys, "recall", "tiles.plan", *FILES, "--order", "raster")

    assert expected(mp.load("tiles.plan")) in out
    assert "q of q.npy and k of k.npy" in out
    assert "v of v.npy" in out


def test_text_that_is_no_query(capsys):
    files = ["--q", "video.npy", *FILES[2:]]
    out = succeed(capsys, "recall", "cross.plan", *files, "--order", "raster")

    assert expected(mp.load("cross.plan"), queries=slice(96)) in out


@pytest.mark.parametrize("name", ["radial.plan", "causal.plan"])
def test_no_order_is_asked_for_where_there_is_one_only(capsys, name):
    out = succeed(capsys, "recall", name, *FILES)

    assert expected(mp.load(name)) in out


def test_files_in_the_order_of_the_plan(capsys):
    plan = mp.load("tiles.plan")
    q, k, v = (torch.from_numpy(np.load(f"{name}.npy")) for name in "qkv")
    out = succeed(capsys, "recall", "tiles.plan", *FILES, "--order", "plan")

    assert str(mp.quality(q, k, v, plan)) in out


def test_everything_is_kept_by_the_full_plan(capsys):
    for kind in ("random", "smooth"):
        out = succeed(capsys, "recall", "full.plan", "--synthetic", kind)

        assert "mean recall 1.0000, output error 0.0000 over 101 queries" in out
        assert f"synthetic {kind} q and k (seed 0), no model's; " in out
        assert "v noise" in out
        assert ("places in one line" in out) == (kind == "smooth")


def recall_of(out: str) -> float:
    return float(out.partition("mean recall ")[2].partition(",")[0])


def test_smooth_scores_favour_neighbours(capsys):
    found = {
        kind: recall_of(succeed(capsys, "recall", "tiles.plan", "--synthetic", kind))
        for kind in ("random", "smooth")
    }

    assert found["random"] == pytest.approx(mp.load("tiles.plan").density, abs=0.1)
    assert found["smooth"] > found["random"] + 0.2


def test_a_sample_of_blocks(capsys):
    out = succeed(capsys, "recall", "tiles.plan", "--synthetic", "random", "--q-blocks", 2)

    assert "over 32 queries" in out


def test_a_picture_of_all_heads(capsys):
    line = ["recall", "tiles.plan", "--synthetic", "smooth", "--heads", 3, "-o", "heads.png"]
    out = succeed(capsys, *line)

    assert out.endswith("heads.png\n")
    assert Path("heads.png").read_bytes().startswith(b"\x89PNG")
    assert "output exists" in refuse(capsys, *line)


def test_smooth_scores_fall_with_distance():
    where = places((64,))
    q, k = (
        tokens("smooth", where, heads=1, head_dim=512, seed=1, role=role)[0, :, 0] for role in "qk"
    )
    scores = (q @ k.T / 512**0.5).numpy()
    gaps = np.abs(np.subtract.outer(np.arange(64), np.arange(64)))
    mean = [scores[gaps == gap].mean() for gap in range(32)]

    assert mean[0] == pytest.approx(PEAK, rel=0.1)
    assert mean[6] == pytest.approx(PEAK * np.exp(-((6 / 63) ** 2) / (2 * 0.1**2)), abs=1)
    assert abs(mean[31]) < 1
    assert torch.equal(q, k)


def test_text_has_no_place():
    where = places((2, 1, 2), text=3, text_first=True)
    made = tokens("smooth", where, heads=1, head_dim=8, seed=1, role="q")

    assert where.isnan().all(dim=1).tolist() == [True] * 3 + [False] * 4
    assert made.isfinite().all()


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("tiles.plan", "queries and keys are not given once in the options: got none"),
        ("tiles.plan --q q.npy --synthetic random", "got --q and --synthetic"),
        ("tiles.plan --q q.npy --k k.npy", "order of tokens in the files is not known"),
        ("tiles.plan --q q.npy --k k.npy --order x", "got 'x'"),
        ("causal.plan --q q.npy --k k.npy --order raster", "plan names no latent grid"),
        ("tiles.plan --q video.npy --k k.npy --order plan", "q does not fit in video.npy"),
        ("tiles.plan --synthetic random --q-blocks 0", "number of Q blocks out of range"),
        ("tiles.plan --synthetic random --heads 0", "heads"),
        ("tiles.plan --synthetic random --head-dim 0", "head_dim"),
        ("tiles.plan --synthetic random --seed -1", "seed"),
        ("tiles.plan --synthetic random --v v.npy", "--v"),
        ("tiles.plan --synthetic random --order plan", "--order"),
        ("pad.plan --synthetic random", "plan has slots that hold no token"),
        ("missing.plan --synthetic random", "No such file"),
        ("q.npy --synthetic random", "not a plan"),
    ],
)
def test_mistakes_are_one_line(capsys, line, part):
    assert part in refuse(capsys, "recall", *line.split())
    assert Path("q.npy").exists()
