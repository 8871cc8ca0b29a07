"""`maskplan plan`: each command makes what its builder makes, with every option handed on."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

import maskplan as mp
from tests.cli.program import refuse, succeed

Grid, video = mp.video.Grid, mp.video
TEXT = Grid(4, 8, 8, text=10, text_first=True)

CASES = {
    "sliding-tile 4,8,8 --text 10 --text-first --tile 2,4,4 --window 1,9,2 --clamp --pad "
    "--queries video --block-size 32,16": lambda: video.sliding_tile(
        TEXT,
        tile=(2, 4, 4),
        window=(1, 9, 2),
        clamp=True,
        pad=True,
        queries="video",
        block_size=(32, 16),
    ),
    "svg 4,8,8 --head temporal --model hunyuan --density 0.6 --multiple 16 --prompt 0 --text 10 "
    "--text-first --first-frame --block-size 32,32": lambda: video.svg(
        TEXT,
        head="temporal",
        model="hunyuan",
        frames=video.svg_frames(TEXT, 0.6),
        prompt=0,
        first_frame=True,
        multiple=16,
        block_size=(32, 32),
    ),
    "svg 4,8,8 --head spatial --model wan --frames 0.7": lambda: video.svg(
        Grid(4, 8, 8), head="spatial", model="wan", frames=0.7
    ),
    "radial 4,8,8 --decay 0.3 --least 4 --split 8 --adjacent 0.5 --no-sink": lambda: video.radial(
        Grid(4, 8, 8), decay=0.3, least=4, split=8, adjacent=0.5, sink=False
    ),
    "radial-shrunk 4,8,8 --decay 0.3 --block 16 --split 8": lambda: video.radial_shrunk(
        Grid(4, 8, 8), decay=0.3, block=16, split=8
    ),
    "block-causal 5,8,8 --chunk 2 --first-chunk 1 --local 2 --sink 1 --pad-to 128": lambda: (
        video.block_causal(Grid(5, 8, 8), chunk=2, first_chunk=1, local=2, sink=1, pad_to=128)
    ),
    "magi 6,8,8 --reach 1,2,2 --chunk 2 --active 1,3": lambda: video.magi(
        Grid(6, 8, 8), reach=[1, 2, 2], chunk=2, active=(1, 3)
    ),
    "magi 6,8,8 --reach 2 --chunk 2": lambda: video.magi(Grid(6, 8, 8), reach=2, chunk=2),
    "neighborhood 4,8,8 --kernel 3,4,5 --stride 1,2,1 --dilation 1,1,1 --causal t --tile 2,4,4 "
    "--pad": lambda: video.neighborhood(
        Grid(4, 8, 8),
        kernel=(3, 4, 5),
        stride=(1, 2, 1),
        causal=(True, False, False),
        tile=(2, 4, 4),
        pad=True,
    ),
    "nested-neighborhood 4,16,16 --coefficients 1,0.5 --min-width 2 --block 32": lambda: (
        video.nested_neighborhood(Grid(4, 16, 16), coefficients=(1.0, 0.5), min_width=2.0, block=32)
    ),
    "full 100 --seqlen-k 50": lambda: mp.full(100, 50),
    "a-shape 300 --n-init 5 --n-local 20": lambda: mp.select.a_shape(300, n_init=5, n_local=20),
    "radial cogvideox-480p --decay 0.2 --block-size 512,512": lambda: video.radial(
        Grid.preset("cogvideox-480p"), decay=0.2, block_size=(512, 512)
    ),
}


@pytest.mark.parametrize("line", CASES, ids=lambda line: line.partition(" --")[0])
def test_a_command_makes_what_its_builder_makes(capsys, tmp_path, line):
    path = tmp_path / "made.plan"
    out = succeed(capsys, "plan", *line.split(), "-o", path)
    made, expected = mp.load(path), CASES[line]()

    assert made == expected
    assert made.provenance == expected.provenance
    assert made.digest in out


def test_text_may_be_added_to_a_preset(capsys, tmp_path):
    path = tmp_path / "made.plan"
    line = ["sliding-tile", "wan2.1-480p", "--clamp", "--text", "77", "--block-size", "512,512"]
    succeed(capsys, "plan", *line, "-o", path)

    grid = Grid.from_provenance(mp.load(path).provenance)
    assert grid == Grid(21, 30, 52, text=77)


def test_every_preset_is_named(capsys):
    out = succeed(capsys, "plan", "grids")

    assert [line.split()[0] for line in out.splitlines()] == list(Grid.presets())
    assert "13,30,45" in out
    assert "226 text tokens first" in out


# Patterns that scores decide


@pytest.fixture
def qk(tmp_path, monkeypatch):
    """q and k of 3 x 10 x 18 tokens and 4 text tokens: files, and the tensors."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    q, k = (rng.standard_normal((1, 544, 2, 16)).astype(np.float32) for _ in "qk")
    np.save("q.npy", q)
    np.save("k.npy", k)
    return torch.from_numpy(q), torch.from_numpy(k)


def pooled(q, k, tile):
    """Scores of mean queries by mean keys of each tile of the video, one tile at a time."""
    grid = Grid(3, 10, 18)
    order = video.TokenOrder.tiles(grid, tile)
    starts = order.tile_starts.tolist()
    slots = order.slots
    groups = [slots[a:b] for a, b in pairwise(starts)]
    mean_q, mean_k = (
        torch.stack([x[:, group].mean(dim=1) for group in groups], dim=2) for x in (q, k)
    )
    return mean_q @ mean_k.transpose(-1, -2) / 4


def test_vsa_takes_the_best_tiles_of_q_and_k(capsys, qk):
    files = [
        "--q",
        "q.npy",
        "--k",
        "k.npy",
        "--text",
        "4",
        "--block-size",
        "32,32",
        "-o",
        "made.plan",
    ]
    out = succeed(capsys, "plan", "vsa", "3,10,18", "--sparsity", 0.7, *files)
    scores = pooled(*qk, (4, 4, 4))
    best = scores.argsort(dim=-1, descending=True)[..., : -(-3 * 15 // 10)]
    expected = video.vsa(Grid(3, 10, 18, text=4), best, block_size=(32, 32))

    assert "q of q.npy and k of k.npy" in out
    assert mp.load("made.plan") == expected


def test_draft_takes_the_best_regions(capsys, qk):
    files = ["--q", "q.npy", "--k", "k.npy", "--text", "4", "-o", "made.plan"]
    succeed(capsys, "plan", "draft", "3,10,18", "--sparsity", 0.5, *files)
    kept = video.draft_kept(pooled(*qk, (1, 8, 16)).softmax(-1), 0.5)

    assert mp.load("made.plan") == video.draft(Grid(3, 10, 18, text=4), kept)


def test_choices_may_be_given(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    selected = torch.tensor([[[[0, 1], [1, -1]]]])
    np.save("selected.npy", selected)
    np.save("kept.npy", selected[..., :2] >= 0)
    succeed(capsys, "plan", "vsa", "4,4,8", "--selected", "selected.npy", "-o", "vsa.plan")
    draft = ["draft", "4,4,8", "--tile", "4,4,4", "--kept", "kept.npy", "-o", "draft.plan"]
    succeed(capsys, "plan", *draft)

    assert mp.load("vsa.plan") == video.vsa(Grid(4, 4, 8), selected)
    expected = video.draft(Grid(4, 4, 8), selected >= 0, tile=(4, 4, 4))
    assert mp.load("draft.plan") == expected


def test_synthetic_is_said_and_repeats(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    line = [
        "plan",
        "vsa",
        "4,8,8",
        "--sparsity",
        "0.5",
        "--synthetic",
        "smooth",
        "--heads",
        "2",
        "--seed",
        "3",
    ]
    outs = [succeed(capsys, *line, "-o", name) for name in ("a", "b")]
    succeed(capsys, *line[:-1], 4, "-o", "c")

    assert "synthetic smooth q and k (seed 3), no model's" in outs[0]
    assert mp.load("a") == mp.load("b") != mp.load("c")
    assert mp.load("a").heads == 2


def test_svg2_takes_labels(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    ql, kl = rng.integers(0, 3, (1, 2, 90)), rng.integers(0, 4, (1, 2, 90))
    kept = rng.random((1, 2, 3, 4)) < 0.5
    for name, array in (("ql", ql), ("kl", kl), ("kept", kept)):
        np.save(f"{name}.npy", array)
    files = [
        "--q-labels",
        "ql.npy",
        "--k-labels",
        "kl.npy",
        "--kept",
        "kept.npy",
        "--text",
        "7",
        "--multiple",
        "8",
    ]
    succeed(capsys, "plan", "svg2", *files, "-o", "made.plan")
    orders = [
        video.LabelOrder(labels=torch.from_numpy(labels), clusters=count, text=7, multiple=8)
        for labels, count in ((ql, 3), (kl, 4))
    ]

    assert mp.load("made.plan") == video.svg2(*orders, torch.from_numpy(kept))


@pytest.mark.usefixtures("qk")
@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("svg 4,8,8 --head spatial --model wan", "not given once in --density, --frames"),
        ("svg 4,8,8 --head spatial --model wan --density 1 --frames 1", "got both"),
        ("svg 4,8,8 --head big --model wan --frames 1", "'big'"),
        ("neighborhood 4,8,8 --kernel 3,3,3 --causal tt", "unknown axes"),
        ("neighborhood 4,8,8 --kernel 9,3,3", "axis"),
        ("nested-neighborhood 4,8,8 --coefficients 1,x", "not a list of numbers"),
        ("nested-neighborhood 4,8,8 --coefficients 1,nan", "nan"),
        ("sliding-tile mars-720p", "unknown model in GRID"),
        ("sliding-tile 4,8,0", "size is below 1 in GRID"),
        ("sliding-tile 4,8,²", "not a list of whole numbers in GRID"),
        ("sliding-tile 4,8,--8", "not a list of whole numbers in GRID"),
        ("sliding-tile 4,8,99999999999", "not a list of whole numbers in GRID"),
        ("sliding-tile 4000,8000,8000", "argument out of range"),
        ("magi 6,8,8 --reach , --chunk 2", "--reach"),
        ("radial 4,8,8 --decay nan", "decay"),
        ("vsa 4,8,8 --sparsity 0.5", "queries and keys are not given once"),
        ("vsa 4,8,8 --sparsity 0.5 --q q.npy", "got --q"),
        ("vsa 4,8,8 --sparsity 0.5 --q q.npy --k k.npy --synthetic random", "--synthetic"),
        ("vsa 4,8,8 --synthetic random", "share is not given in --sparsity"),
        ("vsa 4,8,8 --sparsity 2 --synthetic random", "sparsity out of range"),
        ("vsa 4,8,8 --sparsity 0.5 --synthetic rough", "'rough'"),
        ("vsa 4,8,8 --selected q.npy --sparsity 0.5", "choice is given twice"),
        ("vsa 4,8,8 --sparsity 0.5 --q q.npy --k k.npy", "q does not fit in q.npy: got 544"),
        ("vsa 3,10,18 --text 4 --sparsity 0.5 --q q.npy --k nan.npy", "NaN or infinity"),
        ("a-shape 100 --n-init -1 --n-local 3", "n_init"),
    ],
)
def test_mistakes_are_one_line(capsys, line, part):
    np.save("nan.npy", np.full((1, 544, 2, 16), np.nan, dtype=np.float32))

    assert part in refuse(capsys, "plan", *line.split(), "-o", "x")
    assert not Path("x").exists()
