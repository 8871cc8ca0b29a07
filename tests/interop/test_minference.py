"""MInference's configuration files: types are kept, and only A-shapes are masks by themselves."""

import json
import warnings

import pytest

import maskplan as mp
from maskplan.interop import minference

LAYER = {"0": ["vertical_and_slash", 500, 700, 0.99], "1": ["stream_llm", 3, 5, 336]}


def test_heads_keep_their_type_and_sizes(tmp_path):
    path = tmp_path / "best_pattern.json"
    path.write_text(json.dumps([LAYER, {"0": ["block_sparse", 100, 800, 1.0]}]))
    layers = minference.read_patterns(path)

    assert [len(layer) for layer in layers] == [2, 1]
    first, second = layers[0]
    assert (first.kind, first.first_size, first.second_size) == ("vertical_and_slash", 500, 700)
    assert (second.kind, second.score) == ("stream_llm", 336.0)
    assert layers[1][0].kind == "block_sparse"


def test_a_stream_head_is_an_a_shape():
    plan = minference.patterns_of([LAYER])[0][1].plan(20, block_size=(8, 8))
    for q in range(20):
        for k in range(20):
            sees = k <= q and (k < 3 or q - k <= 5)
            assert bool(plan.to_dense()[0, 0, q, k]) == sees


def test_other_heads_are_not_guessed():
    with pytest.raises(mp.UnsupportedError, match=r"'vertical_and_slash'.*maskplan\.select"):
        minference.patterns_of([LAYER])[0][0].plan(20)


def test_a_search_that_told_nothing_apart_warns():
    default = {"0": ["vertical_and_slash", 1000, 6096, 1]}
    with pytest.warns(UserWarning, match=r"every head has the same pattern.*2 times"):
        minference.patterns_of([default, default])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        minference.patterns_of([default, LAYER])


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({}, "not a list of layers"),
        ([], "0 entries"),
        ([[]], "layer 0"),
        ([{"1": ["stream_llm", 1, 1, 1]}], "heads are not numbered from 0"),
        ([{"0": ["stream_llm", 1, 1]}], "[type, size, size, score]"),
        ([{"0": ["flash", 1, 1, 1]}], "unknown type"),
        ([{"0": [[], 1, 1, 1]}], "unknown type"),
        ([{"0": ["stream_llm", -1, 1, 1]}], "size is not a whole number"),
        ([{"0": ["stream_llm", 1.5, 1, 1]}], "size is not a whole number"),
        ([{"0": ["stream_llm", True, 1, 1]}], "size is not a whole number"),
        ([{"0": ["stream_llm", 1, 1, "x"]}], "score is not a number"),
        ([{"0": ["stream_llm", 1, 1, 10**400]}], "score is not a number"),
        ([{"0": ["stream_llm", 1, 1, float("inf")]}], "score is not a number"),
        ([{"0": ["stream_llm", 1, 1, float("nan")]}], "score is not a number"),
        ([{}] * 5000, "5000 entries"),
    ],
)
def test_what_is_refused(value, part):
    with pytest.raises(mp.PlanFileError) as caught:
        minference.patterns_of(value)
    assert part in str(caught.value)
