"""`maskplan convert`: round trips through every format, and what is refused."""

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse
import torch

import maskplan as mp
from maskplan.cli.formats import FORMATS
from tests.cli.program import refuse, succeed


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def blocks(size=(128, 128), heads=2) -> mp.Plan:
    """Whole blocks, no row empty, ragged lengths."""
    generator = torch.Generator().manual_seed(0)
    rows, cols = -(-300 // size[0]), -(-500 // size[1])
    mask = torch.rand((1, heads, rows, cols), generator=generator) < 0.5
    mask[..., 0] = True
    return mp.from_block_mask(mask, 300, 500, block_size=size)


def tokens(heads=2) -> mp.Plan:
    """Pairs in no order of blocks, in every row some."""
    mask = torch.rand((1, heads, 60, 90), generator=torch.Generator().manual_seed(1)) < 0.2
    mask[..., 3] = True
    return mp.from_token_mask(mask, block_size=(32, 32))


LENGTHS = "--seqlen-q 300 --seqlen-k 500"
WAYS = {  # name: (plan, ending, options of writing, options of reading)
    "maskplan": (tokens, ".plan", "", ""),
    "magi-ranges": (
        lambda: mp.causal(300, 300, block_size=(64, 64)),
        ".json",
        "",
        "--seqlen-q 300 --seqlen-k 300 --block-size 64,64",
    ),
    "block-mask": (blocks, ".npy", "", f"{LENGTHS} --block-size 128,128"),
    "token-mask": (tokens, ".npy", "", "--block-size 32,32"),
    "topk": (tokens, ".npy", "", "--seqlen-k 90 --block-size 32,32"),
    "flashmla": (tokens, ".npy", "", "--seqlen-k 90 --block-size 32,32"),
    "flashmla.npz": (tokens, ".npz", "", "--seqlen-k 90 --block-size 32,32"),
    "nsa": (
        lambda: mp.causal(200, 200),
        ".npy",
        "--select-block 64",
        "--select-block 64",
    ),
    "nsa.npz": (lambda: mp.causal(200, 200), ".npz", "--select-block 32", "--select-block 32"),
    "q2k": (blocks, ".npz", "--repeat 2", f"{LENGTHS} --block-size 128,128 --repeat 2"),
    "bsr": (lambda: tokens(1), ".npz", "", ""),
    "variable-blocks": (blocks, ".npz", "", ""),
    "sparge-mask": (lambda: blocks((128, 64)), ".npy", "--arch sm80", f"{LENGTHS} --arch sm80"),
    "sparge-lut": (lambda: blocks((64, 128)), ".npz", "--arch sm90", f"{LENGTHS} --arch sm90"),
    "bsa-mask": (blocks, ".npz", "--no-causal", f"{LENGTHS} --no-causal"),
    "bsa-rows": (blocks, ".npy", "", LENGTHS),
    "fa4": (blocks, ".npz", "", f"{LENGTHS} --block-size 128,128"),
    "scipy-csr": (lambda: tokens(1), ".npz", "", "--block-size 32,32"),
    "scipy-bsr": (lambda: mp.causal(256, 128, align="top_left"), ".npz", "", ""),
}


def test_every_format_has_a_round_trip():
    both = {name for name, each in FORMATS.items() if each.read and each.write}

    assert {way.partition(".")[0] for way in WAYS} == both - {"mask-strategy"}


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_comes_back(capsys, way):
    make, ending, writing, reading = WAYS[way]
    plan, name = make(), way.partition(".")[0]
    plan.save("a.plan")
    there = succeed(capsys, "convert", "a.plan", f"b{ending}", "--to", name, *writing.split())
    succeed(capsys, "convert", f"b{ending}", "c.plan", "--from", name, *reading.split())

    assert f"b{ending}: plan of {plan.seqlen_q} x {plan.seqlen_k} tokens as {name}" in there
    back = mp.load("c.plan")
    assert back == plan or back.reblock(plan.block_size) == plan


def test_what_is_said_of_a_file_holds_for_its_block_size_too(capsys):
    mp.causal(100, 100, block_size=(32, 32)).save("a.plan")
    line = "convert a.plan b.plan --block-size 16,16"

    assert "b.plan: plan of 100 x 100 tokens as maskplan, " in succeed(capsys, *line.split())
    assert mp.load("b.plan").block_size == (16, 16)


def test_a_size_that_says_how_to_read_makes_no_other_plan(capsys):
    plan = blocks()
    plan.save("a.plan")
    succeed(capsys, "convert", "a.plan", "b.npy", "--to", "block-mask")
    line = f"convert b.npy c.plan --from block-mask {LENGTHS} --block-size 128,128"
    succeed(capsys, *line.split())

    assert mp.load("c.plan").provenance.builder == "from_block_mask"


def test_any_two_formats_meet(capsys):
    blocks().save("a.plan")
    succeed(capsys, "convert", "a.plan", "b.npy", "--to", "block-mask")
    line = f"convert b.npy c.npz --from block-mask --to q2k {LENGTHS} --block-size 128,128"
    succeed(capsys, *line.split())
    line = f"convert c.npz d.npz --from q2k --to fa4 {LENGTHS} --block-size 128,128"
    succeed(capsys, *line.split())
    line = f"convert d.npz e.plan --from fa4 {LENGTHS} --block-size 128,128"
    succeed(capsys, *line.split())

    assert mp.load("e.plan") == blocks()


def test_files_are_what_their_makers_read(capsys):
    plan = tokens(1)
    plan.save("a.plan")
    succeed(capsys, "convert", "a.plan", "csr.npz", "--to", "scipy-csr")
    succeed(capsys, "convert", "a.plan", "bsr.npz", "--to", "scipy-bsr", "--pad")
    dense = plan.to_dense()[0, 0].numpy()

    assert (scipy.sparse.load_npz("csr.npz").toarray() == dense).all()
    assert (scipy.sparse.load_npz("bsr.npz").toarray()[:60, :90] == dense).all()
    matrix = scipy.sparse.csr_matrix(dense.astype(np.float32))  # of the older kind, and floats
    scipy.sparse.save_npz("theirs.npz", matrix)
    line = "convert theirs.npz b.plan --from scipy-csr --block-size 32,32"
    succeed(capsys, *line.split())
    assert mp.load("b.plan") == plan


def test_stored_zeros_are_asked_for(capsys):
    matrix = scipy.sparse.csr_array((np.array([1, 0]), np.array([0, 1]), np.array([0, 2])))
    scipy.sparse.save_npz("a.npz", matrix)

    assert "stores zeros" in refuse(capsys, "convert", "a.npz", "b.plan", "--from", "scipy-csr")
    line = ["convert", "a.npz", "b.plan", "--from", "scipy-csr", "--zeros", "keep"]
    succeed(capsys, *line)
    assert mp.load("b.plan").stats().pairs == 2


def test_blocks_kept_in_part_need_a_superset(capsys):
    mp.causal(200, 200).save("a.plan")

    assert "kept in part" in refuse(capsys, "convert", "a.plan", "b.npy", "--to", "block-mask")
    succeed(capsys, "convert", "a.plan", "b.npy", "--to", "block-mask", "--superset")
    assert np.load("b.npy").tolist() == [[[[True, False], [True, True]]]]


def test_a_plan_is_cut_anew(capsys):
    mp.causal(200, 200).save("a.plan")
    succeed(capsys, "convert", "a.plan", "b.plan", "--block-size", "64,32")

    assert mp.load("b.plan") == mp.causal(200, 200, block_size=(64, 32))


def test_transposed_lists_are_turned_back(capsys):
    mp.causal(200, 200).transpose().save("a.plan")
    succeed(capsys, "convert", "a.plan", "b.plan")

    assert mp.load("b.plan") == mp.causal(200, 200)


STRATEGY = {
    f"{t}_{layer}_{h}": [1, 1, 1 + h] for t in range(2) for layer in range(2) for h in (0, 1)
}
CANVAS = ["--canvas", "2,8,8", "--tile", "2,4,4", "--block-size", "32,32"]
SIZES = ["--steps", "2", "--layers", "2", "--heads", "2"]


def test_a_strategy_becomes_a_book_and_back(capsys):
    Path("s.json.gz").write_bytes(gzip.compress(json.dumps(STRATEGY).encode()))
    succeed(capsys, "convert", "s.json.gz", "a.book", "--from", "mask-strategy", *CANVAS, *SIZES)
    succeed(capsys, "convert", "a.book", "t.json", "--to", "mask-strategy")

    assert json.loads(Path("t.json").read_text()) == STRATEGY
    assert mp.PlanBook.load("a.book").shape == (2, 2, 2)


def test_one_plan_of_a_strategy(capsys):
    Path("s.json").write_text(json.dumps(STRATEGY))
    line = ["convert", "s.json", "a.npz", "--from", "mask-strategy", "--to", "bsr", *CANVAS, *SIZES]

    assert "book holds many plans in --step" in refuse(capsys, *line)
    succeed(capsys, *line, "--step", 1, "--layer", 0, "--head", 1)
    assert np.load("a.npz")["M"] == 128


def test_search_logs_become_a_book(capsys):
    losses = {"[1, 1, 1]": [[[1.0, 3.0]], [[1.0, 3.0]]], "[1, 2, 1]": [[[2.0, 2.0]], [[2.0, 2.0]]]}
    Path("log.json").write_text(json.dumps({"L2_loss": losses, "L1_loss": losses}))
    line = ["convert", "log.json", "a.book", "--from", "search-log", *CANVAS]

    assert "no --dense-steps, no --dense-window" in refuse(capsys, *line)
    succeed(capsys, *line, "--dense-steps", 1, "--dense-window", "1,2,2")
    book = mp.PlanBook.load("a.book")
    windows = [list(origin.parameters["window"]) for origin in book.pattern_provenance]
    assert [windows[number] for number in book.index.flatten().tolist()] == [
        [1, 2, 2],
        [1, 2, 2],
        [1, 1, 1],
        [1, 2, 1],
    ]


def test_minference_files_of_a_shapes(capsys):
    heads = {"0": ["stream_llm", 10, 20, 1.0], "1": ["stream_llm", 10, 30, 1]}
    Path("p.json").write_text(json.dumps([heads, heads]))
    line = ["convert", "p.json", "a.book", "--from", "minference"]

    assert "no --seqlen-q" in refuse(capsys, *line)
    succeed(capsys, *line, "--seqlen-q", 100)
    book = mp.PlanBook.load("a.book")
    assert book.shape == (1, 2, 2)
    assert book[0, 1, 1] == mp.select.a_shape(100, n_init=10, n_local=30)
    Path("v.json").write_text(json.dumps([{"0": ["vertical_and_slash", 10, 20, 1.0]}]))
    line = ["convert", "v.json", "b.book", "--from", "minference", "--seqlen-q", 100]
    assert "no mask without its queries and keys" in refuse(capsys, *line)


def test_the_list_names_every_format(capsys):
    out = succeed(capsys, "formats")

    assert [line.split()[0] for line in out.splitlines() if line[:1] != " "] == list(FORMATS)
    assert "asks for --canvas --tile --steps --layers --heads" in out


@pytest.mark.parametrize(
    ("line", "part"),
    [
        ("a.plan b.xyz", "unknown extension in b.xyz"),
        ("a.plan b.npy", "file may be several things in b.npy"),
        ("a.plan b.json", "wanted mask-strategy, magi-ranges; name --to"),
        ("b.json a.plan", "wanted mask-strategy, search-log, minference, magi-ranges; name --from"),
        ("a.plan e.npz --to q2k", "pass --superset to keep"),
        ("a.plan b.json --to nonsense", "unknown format in --to"),
        ("a.plan b.json --to minference", "format goes one way"),
        ("a.plan b.json --to mask-strategy", "source is one plan"),
        ("a.plan d.npz --to bsr --step 0", "source is one plan"),
        ("a.plan d.npz --to bsr --arch sm90", "option has no meaning here"),
        ("a.plan b.npy --to sparge-mask", "no --arch"),
        ("a.plan b.npy --to sparge-mask --arch sm1", "sm1"),
        ("m.npy b.plan --from block-mask", "no --seqlen-q, no --seqlen-k, no --block-size"),
        ("m.npy b.plan --from topk --seqlen-k 8", "wrong type or rank in m.npy"),
        ("missing.plan b.plan", "No such file"),
        ("a.plan nowhere/b.plan", "no file can be written"),
        ("a.plan a.plan", "output exists in a.plan"),
        ("a.plan folder.npz --to bsr", "got a folder"),
        ("b.npz c.plan --from bsr --seqlen-q 7", "lengths disagree"),
        ("b.npz c.plan --from q2k --seqlen-q 9 --seqlen-k 9 --block-size 8,8", "other names"),
        ("b.npz c.plan --from q2k --seqlen-q 9 --seqlen-k 9 --block-size 8,8 --repeat 0", "names"),
    ],
)
def test_what_is_refused(capsys, line, part):
    mp.causal(8, 8, block_size=(4, 4)).save("a.plan")
    np.save("m.npy", np.ones((2, 2), dtype=bool))
    Path("folder.npz").mkdir()
    succeed(capsys, "convert", "a.plan", "b.npz", "--to", "bsr")

    assert part in refuse(capsys, "convert", *line.split())


def test_force_replaces(capsys):
    mp.causal(8, 8, block_size=(4, 4)).save("a.plan")
    mp.full(8, 8).save("b.plan")
    succeed(capsys, "convert", "a.plan", "b.plan", "--force")

    assert mp.load("b.plan") == mp.load("a.plan")


@pytest.mark.parametrize(
    "line",
    [
        "b.npy --to token-mask",
        "b.npy --to topk",
        "b.npy --to flashmla",
        "b.npz --to scipy-csr",
        "b.npz --to nsa --select-block 1",
    ],
)
def test_what_would_not_fit_is_not_begun(capsys, line):
    mp.causal(200_000, 200_000, block_size=(4096, 4096)).save("a.plan")

    assert "too large for this format" in refuse(capsys, "convert", "a.plan", *line.split())
