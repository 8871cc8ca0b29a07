"""The bench's machinery, with clocks and works that take no time."""

import json
from collections import Counter
from itertools import count, pairwise

import pytest
import torch

import maskplan as mp
from maskplan.bench import Case, Figure, Journal, Machine, Missing, run
from maskplan.bench.attention_cases import Shape, ours
from maskplan.bench.cases import cases_for
from maskplan.bench.clock import FEWEST_RUNS, balanced_order, interleaved
from maskplan.bench.inputs import block_mask, selection
from maskplan.bench.peers import sdpa, sorted_lists
from maskplan.bench.planning_cases import scattered, topk_lists
from maskplan.bench.runner import judged
from maskplan.bench.table import tables
from tests.bench.works import HERE, Script, case, makers, named, steady

# Medians


def test_works_take_turns_and_times_are_medians():
    clock = Script(a=[9.0, 1.0, 2.0], b=[4.0, 4.0, 5.0])

    times = interleaved(named("a", "b"), clock, runs=3)

    assert clock.order == ["a", "b", "b", "a", "a", "b"]
    assert (times["a"].median, times["a"].low, times["a"].high, times["a"].runs) == (2, 1, 9, 3)
    assert times["b"].median == 4


@pytest.mark.parametrize("works", range(1, 8))
def test_each_work_follows_each_other_one_equally_often(works):
    rounds = works if works % 2 == 0 else 2 * works
    followed = Counter()
    for turn in range(rounds):
        order = balanced_order(works, turn)
        assert sorted(order) == list(range(works))
        followed.update(pairwise(order))

    assert set(followed) == {(a, b) for a in range(works) for b in range(works) if a != b}
    assert len(set(followed.values())) <= 1


def test_time_that_is_over_stops_runs_but_not_before_three():
    seconds = count()
    times = interleaved(
        named("a"), lambda _: 1.0, runs=50, seconds=10, now=lambda: float(next(seconds))
    )
    fewest = interleaved(
        named("a"), lambda _: 1.0, runs=50, seconds=0, now=lambda: float(next(seconds))
    )

    assert FEWEST_RUNS < times["a"].runs < 50
    assert fewest["a"].runs == FEWEST_RUNS


# Figures


@pytest.mark.parametrize(
    ("figure", "value", "aim", "met"),
    [
        (Figure(label="", top="a", bottom="b"), 0.5, "", None),
        (Figure(label="", top="b", bottom="a", at_most=2), 2.0, "<= 2x", True),
        (Figure(label="", top="b", bottom="a", at_most=1.5), 2.0, "<= 1.5x", False),
        (Figure(label="", top="a", bottom="b", at_least=0.98), 0.5, ">= 0.98x", False),
        (
            Figure(label="", top="b", bottom="a", at_most=30, difference=True),
            2000,
            "<= 30 us",
            False,
        ),
        (Figure(label="", top="a", at_most=2.5), 2.0, "<= 2.5 ms", True),
        (Figure(label="", top="a", bottom="gone"), None, "", None),
        (Figure(label="", top="gone", at_most=1), None, "<= 1 ms", None),
    ],
)
def test_figures(figure, value, aim, met):
    found = figure.value({"a": 2.0, "b": 4.0})

    assert found == value
    assert figure.aim == aim
    assert found is None or figure.met(found) is met


# Rows


def test_a_row_holds_times_figures_and_reasons(tmp_path):
    def absent():
        raise Missing("not installed")

    def broken():
        raise ValueError("first line\nsecond line")

    works = makers("ours", "theirs") | {"absent": absent, "broken": lambda: broken}
    journal, said = Journal(tmp_path / "rows", HERE), []
    figures = (
        Figure(label="theirs / ours", top="theirs", bottom="ours", at_least=1),
        Figure(label="absent / ours", top="absent", bottom="ours"),
    )
    left = run(
        [case(works=works, figures=figures, flops={"ours": 4e9, "absent": 1})],
        journal,
        steady,
        runs=2,
        say=said.append,
        now=lambda: 0.0,
    )

    (row,) = journal.rows()
    assert left == []
    assert row["milliseconds"]["ours"] == {"median": 2.0, "low": 2.0, "high": 2.0, "runs": 2}
    assert row["figures"] == [
        {"label": "theirs / ours", "value": 1.5, "unit": "x", "aim": ">= 1x", "met": True}
    ]
    assert row["flops"] == {"ours": 4e9}
    assert row["left_out"] == {"absent": "not installed", "broken": "ValueError: first line"}
    assert row["machine"] == HERE.to_json()
    assert said == ["row: theirs / ours 1.5x (>= 1x: met)  [0 s]"]


@pytest.mark.parametrize("where", ["inputs", "work"])
def test_a_row_that_cannot_be_measured_is_left_and_others_go_on(tmp_path, where):
    def fail():
        raise RuntimeError("out of memory")

    bad = Case(name="bad", title="", prepare=fail)
    if where == "work":
        bad = case("bad", works={"ours": fail, **makers("theirs")})
    journal, said = Journal(tmp_path / "rows", HERE), []

    left = run([bad, case("good")], journal, steady, say=said.append)

    assert left == ["bad"]
    assert [row["name"] for row in journal.rows()] == ["good"]
    assert said[0] == "bad: not measured: RuntimeError: out of memory"


# Text


def test_the_table_puts_what_is_judged_first():
    row = {
        "name": "row",
        "title": "forward, S=8",
        "date": "2026-11-30",
        "milliseconds": {
            "ours": {"median": 2.0, "low": 1.5, "high": 3.0, "runs": 9},
            "theirs": {"median": 4.0, "low": 4.0, "high": 4.0, "runs": 9},
        },
        "flops": {"ours": 1e12},
        "figures": [
            {"label": "theirs / ours", "value": 2.0, "unit": "x", "aim": ">= 1x", "met": True}
        ],
        "left_out": {"absent": "not installed"},
    }

    assert tables(HERE, [row]).splitlines() == [
        "a machine; torch 2; 2026-11-30",
        "",
        "| work         | figure        | measured        |",
        "| ------------ | ------------- | --------------- |",
        "| forward, S=8 | theirs / ours | 2x (>= 1x: met) |",
        "",
        "| work         | engine | ms    | lowest to highest | TFLOP/s |",
        "| ------------ | ------ | ----- | ----------------- | ------- |",
        "| forward, S=8 | ours   | 2.000 | 1.500 to 3.000    | 500     |",
        "|              | theirs | 4.000 | 4.000 to 4.000    |         |",
        "",
        "left out:",
        "- forward, S=8: absent: not installed",
    ]


def test_a_missed_aim_says_so():
    figure = {"value": 33.333, "unit": " us", "aim": "<= 30 us", "met": False}

    assert judged(figure) == "33.3 us (<= 30 us: missed)"


def test_an_empty_table_is_a_table():
    assert tables(HERE, []).startswith("a machine; torch 2\n\n| work")


# Cases


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_cases_have_names_of_their_own_and_prepare_nothing(device):
    cases = cases_for(device)
    names = [one.name for one in cases]

    assert len(set(names)) == len(names) >= 15
    assert len({one.title for one in cases}) == len(names)


def test_what_the_speed_targets_are_about_comes_first():
    names = [one.name for one in cases_for("cuda")]

    assert names.index("planning/topk/cuda/131072") < 10
    assert max(names.index(name) for name in names if name.startswith("overhead/")) < 6
    assert max(names.index(f"attention/fa4/{way}/0.1") for way in ("forward", "backward")) < 12
    video = [name for name in names if name.startswith("video/")]
    assert len(video) == 5 * 2 * 2


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(
        mp.PlanError, match=r"no such device here in device: got 'tpu', wanted 'aut"
    ):
        Machine.here("tpu")


def test_this_machine_is_described():
    machine = Machine.here("cpu")

    assert "threads" in machine.name
    assert dict(machine.versions)["torch"] == torch.__version__
    assert json.loads(json.dumps(machine.to_json())) == machine.to_json()


# Inputs, by loops


def test_sorted_lists_are_the_masks():
    mask = block_mask((2, 5, 7), 0.3, "cpu")
    counts, indices = sorted_lists(mask)

    for head in range(2):
        for row in range(5):
            kept = [col for col in range(7) if mask[0, head, row, col]]
            assert kept == indices[0, head, row, : counts[0, head, row]].tolist()
            assert row * 7 // 5 in kept


def test_peers_and_lists_of_ours_say_the_same():
    indices = selection(6, 1024, 384, "cpu")
    counts, blocks = scattered(indices, 8)

    for whole in (False, True):
        lists = topk_lists(indices, 1024, whole=whole)
        assert torch.equal(lists.full_block_cnt[0, 0], counts)
        assert int(lists.mask_block_cnt.sum()) == 0
        assert torch.equal(lists.full_block_idx[0, 0], blocks[:, :3])


def test_engines_of_a_cpu_case_agree():
    shape = Shape(seqlen=256, heads=2, head_dim=16, dtype=torch.float32, device="cpu")
    tensors, mask = shape.tensors(), shape.mask(1.0)
    mine = ours(tensors, shape.plan(mask), "cpu")
    dense = sdpa(tensors)

    for one, other in zip(mine, dense, strict=True):
        torch.testing.assert_close(one()(), other()(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("share", [1, 2])
def test_selections_are_whole_blocks_that_queries_share(share):
    rows = selection(4, 64, 24, "cpu", block=8, share=share)[0, 0]

    assert rows.dtype == torch.int32
    for number, row in enumerate(rows.tolist()):
        assert row == sorted(set(row))
        assert {token // 8 for token in row} == {row[i] // 8 for i in range(0, 24, 8)}
        assert all(row[i] % 8 == 0 for i in range(0, 24, 8))
        assert row == rows[number - number % share].tolist()
    assert len({tuple(row) for row in rows.tolist()}) == 4 // share
