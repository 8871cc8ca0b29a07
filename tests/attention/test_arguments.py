"""Arguments of the wrong type: one sentence, whatever was given."""

import re
from pathlib import Path

import numpy as np
import pytest
import torch

import maskplan as mp
from maskplan.attention import attention, backends, verify
from maskplan.attention.choice import BACKENDS, ONLY_BY_NAME
from tests.attention.problems import problem

CALL = problem(torch.ones(1, 1, 12, 10, dtype=torch.bool).tril(), (4, 4), heads=2)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"cache": 3}, mp.PlanTypeError, "no cache of plans in cache: got int, wanted a maskplan"),
        ({"deterministic": "yes"}, mp.PlanTypeError, "no flag in deterministic: got 'yes' of type"),
        ({"deterministic": []}, mp.PlanTypeError, "wanted True or False; pass one of these"),
        ({"backend": ["cpu"]}, mp.PlanError, r"unknown backend in attention: got \['cpu'\]"),
        ({"backend": None}, mp.PlanError, "unknown backend in attention: got None"),
        ({"layout": np.zeros(2)}, mp.PlanError, "unknown layout in attention: got array"),
        ({"backward": []}, mp.PlanError, r"unknown backward in attention: got \[\]"),
        ({"scale": np.ones(2)}, mp.PlanTypeError, "scale is not a plain number in scale: got arr"),
        ({"scale": torch.ones(2)}, mp.PlanTypeError, "scale is not a plain number in scale"),
        ({"scale": "1"}, mp.PlanTypeError, "got '1' of type str"),
        ({"scale": np.array("a")}, mp.PlanTypeError, "not a plain number in scale: got array"),
        ({"scale": torch.tensor(1j)}, mp.PlanTypeError, "not a plain number in scale: got tensor"),
        ({"scale": 10**400}, mp.PlanTypeError, "not a plain number in scale: got 1000"),
        ({"return_lse": 1}, mp.PlanTypeError, "argument is no flag in return_lse: got 1 of type"),
        ({"return_lse": "no"}, mp.PlanTypeError, "no flag in return_lse: got 'no' of type str"),
    ],
)
def test_options_of_attention(options, error, message):
    for plan in (CALL.plan, CALL.plan.lower("cpu")):
        with pytest.raises(error, match=message):
            attention(CALL.q, CALL.k, CALL.v, plan, **options)


def test_a_flag_of_backends():
    with pytest.raises(mp.PlanTypeError, match="argument is no flag in deterministic"):
        backends(CALL.q, CALL.k, CALL.v, CALL.plan, deterministic=1)


@pytest.mark.parametrize("scale", [1, np.float32(1), np.ones(()), torch.tensor(1.0)])
def test_numbers_of_any_kind_are_scales(scale):
    q, k, v = CALL.q, CALL.k, CALL.v

    assert torch.equal(attention(q, k, v, CALL.plan, scale=scale),
                       attention(q, k, v, CALL.plan, scale=1.0))  # fmt: skip


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"samples": 0}, mp.PlanError, "samples: got 0, wanted 2 <= samples"),
        ({"samples": "a"}, mp.PlanTypeError, "not an integer in samples"),
        ({"seed": "a"}, mp.PlanTypeError, "not an integer in seed"),
        ({"seed": 1 << 70}, mp.PlanError, "out of range in seed"),
        ({"dtype": torch.int32}, mp.PlanTypeError, "no floating dtype in dtype: got torch.int32"),
        ({"dtype": "float32"}, mp.PlanTypeError, "no floating dtype in dtype: got 'float32'"),
        ({"device": "bogus"}, mp.PlanError, "no such device here in device: got 'bogus'"),
        ({"device": 3.5}, mp.PlanTypeError, "argument is not a device in device: got 3.5"),
        ({"head_dim": -4}, mp.PlanError, "out of range in head_dim: got -4"),
        ({"head_dim": 2.5}, mp.PlanTypeError, "not an integer in head_dim: got 2.5"),
        ({"head_dim_v": 0}, mp.PlanError, "out of range in head_dim_v: got 0"),
        ({"heads": 0}, mp.PlanError, "out of range in heads: got 0"),
        ({"kv_heads": 0}, mp.PlanError, "out of range in kv_heads: got 0"),
        ({"heads": 3, "kv_heads": 2}, mp.PlanError, "HQ=3 with HK=2"),
        ({"backend": []}, mp.PlanError, r"unknown backend in attention: got \[\]"),
    ],
)
def test_options_of_verify(options, error, message):
    with pytest.raises(error, match=message):
        verify(CALL.plan, **options)


@pytest.mark.parametrize("direction", ["loop_q", "sideways", []])
@pytest.mark.parametrize("target", [None, mp.target("cpu")])
def test_a_direction_that_forward_lists_have_not(direction, target):
    with pytest.raises(mp.PlanError, match="direction not available in block_sparse_tensors"):
        CALL.plan.block_sparse_tensors(target, direction=direction)


def test_the_order_of_auto_is_documented():
    order = [backend.NAME for backend in BACKENDS if backend.NAME not in ONLY_BY_NAME]
    root = Path(__file__).parents[2]

    for name in ("README.md", "examples/attention_with_plan.py"):
        text = (root / name).read_text(encoding="utf-8").replace("`", "")
        assert f"the first of {', '.join(order)} that supports the call" in text, name
    found = [text for text in re.findall(r'"([\w-]+)"', attention.__doc__) if text in order]
    assert found[: len(order)] == order
