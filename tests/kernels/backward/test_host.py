"""Tensors that a backward was not compiled for are refused before a launch, by name."""

import numpy as np
import pytest
import torch

from kernels_sm100 import backward_host as host
from kernels_sm100 import backward_shapes as shapes
from kernels_sm100.backward_config import BackwardConfig
from kernels_sm100.errors import ConfigError
from kernels_sm100.modes import InnerLoadMode, InnerStoreMode
from tests.kernels.backward.walks import tables as make_tables

LOOP_Q = BackwardConfig(head_dim=64, group=2, parts=2, deterministic=True)
LOOP_K = BackwardConfig(direction="loop_k", head_dim=64, group=2)
SPLIT = BackwardConfig(head_dim=64, group=2, head_split=2)
PACKED = BackwardConfig(head_dim=64, group=2, pack_gqa=True, direction="loop_k")
GATHERED = BackwardConfig(
    direction="loop_k",
    head_dim=64,
    group=2,
    inner_load=InnerLoadMode.CP_ASYNC,
    inner_store=InnerStoreMode.TMA_1D,
)
BATCH, SQ, SK, HQ, HK = 1, 200, 130, 4, 2


def activation(seqlen, heads, width=64):
    return torch.zeros(BATCH, seqlen, heads, width, dtype=torch.bfloat16)


def float32(shape):
    return torch.zeros(shape, dtype=torch.float32)


def given_to(config):
    rows = float32(shapes.rows_shape(config, BATCH, HQ, SQ))
    sums = float32(shapes.kv_sums_shape(config, BATCH, HK, SK))
    dq_sums = float32(shapes.dq_sums_shape(config, BATCH, HQ, SQ))
    by = "keys" if config.direction == "loop_q" else "queries"
    walk = make_tables(np.ones((1, 1, SQ, SK), dtype=bool), by=by, parts=config.parts)
    tables = {name: torch.from_numpy(getattr(walk, name)) for name in shapes.TABLES}
    if config.rows_per_token > 1:  # 64 tokens a tile: four of them, all full
        tables["row_ptr"] = torch.arange(0, 9, 2)
        tables["col"] = torch.arange(2, dtype=torch.int32).repeat(4)
        tables["tile_id"] = torch.full((8, 1), -1, dtype=torch.int32)
        tables["tiles"] = torch.zeros(0, 128, 2, dtype=torch.int32)
        tables["order"] = torch.arange(4, dtype=torch.int32)
    if config.gathered:
        tables["tokens"] = torch.zeros(2, 128, dtype=torch.int32)
        tables["keys"] = torch.ones(4, dtype=torch.int32)
    return {
        "inputs": {
            "q": activation(SQ, HQ), "k": activation(SK, HK), "v": activation(SK, HK),
            "do": activation(SQ, HQ), "bias": rows, "delta": rows.clone(),
        },
        "outputs": {
            "dq": activation(SQ, HQ), "dk": activation(SK, HK), "dv": activation(SK, HK),
            "dq_sums": dq_sums, "dk_sums": sums, "dv_sums": sums.clone(),
            "semaphores": torch.zeros(dq_sums.shape[:3], dtype=torch.int32),
        },
        "tables": tables,
        "scale": 0.125,
        "ctas": 1,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("config", "outputs", "tables"),
    [
        (LOOP_Q, ("dq_sums", "dk", "dv", "semaphores"), shapes.TABLES),
        (SPLIT, ("dq_sums", "dk_sums", "dv_sums", "semaphores"), shapes.TABLES),
        (LOOP_K, ("dq", "dk_sums", "dv_sums"), [t for t in shapes.TABLES if t != "write_order"]),
        (PACKED, ("dq", "dk_sums", "dv_sums"), [t for t in shapes.TABLES if t != "write_order"]),
        (
            GATHERED,
            ("dq", "dk_sums", "dv_sums"),
            [*(t for t in shapes.TABLES if t != "write_order"), "tokens", "keys"],
        ),
    ],
    ids=["loop_q", "split", "loop_k", "packed", "gathered"],
)
def test_arguments_come_in_the_order_of_the_kernel(config, outputs, tables):
    given = given_to(config)

    found = host.backward_arguments(config, **given)

    wanted = [
        *given["inputs"].values(),
        *(given["outputs"][name] for name in outputs),
        *(given["tables"][name] for name in tables),
    ]
    assert all(a is b for a, b in zip(found, wanted, strict=False))
    rest = list(found[len(wanted) :])
    scales = [0.125, pytest.approx(0.125 * 1.4426950408889634), 1]
    rows = {"loop_q": [], "loop_k": [2 * config.rows_per_token]}[config.direction]
    assert rest == rows + scales


def test_arguments_are_those_that_the_kernel_was_compiled_with():
    pytest.importorskip("cutlass", reason="names are those of CuTe DSL's kernels (extra sm100)")
    for config in (LOOP_Q, SPLIT, LOOP_K, PACKED, GATHERED):
        _, fakes = host.build_backward(config)

        assert len(host.backward_arguments(config, **given_to(config))) == len(fakes) - 1


def change(kind, name, make):
    def planted(given):
        given[kind][name] = make(given[kind][name])

    return planted


REFUSALS = [
    (
        LOOP_Q,
        change("inputs", "q", lambda x: x.float()),
        (
            "q does not fit in the sm100 loop_q backward: got float32 (1, 200, 4, 64), wanted "
            "bfloat16 (1, 200, 4, 64); compile for this shape and dtype."
        ),
    ),
    (
        LOOP_Q,
        change("inputs", "v", lambda x: x[..., :48]),
        (
            "v does not fit in the sm100 loop_q backward: got bfloat16 (1, 130, 2, 48), wanted "
            "bfloat16 (1, 130, 2, 64); compile for this shape and dtype."
        ),
    ),
    (
        LOOP_K,
        change("inputs", "k", lambda x: x[:, :0]),
        (
            "nothing to compute in the sm100 loop_k backward: got q (1, 200, 4, 64), k (1, 0, 2, "
            "64), wanted sizes of at least 1; return gradients of zero without a launch."
        ),
    ),
    (
        LOOP_K,
        change("inputs", "k", lambda x: x[:, :, :1]),
        (
            "heads do not fit in the sm100 loop_k backward: got 4 query and 1 KV heads, wanted 2 "
            "query heads per KV head; compile for this group."
        ),
    ),
    (
        LOOP_Q,
        change("inputs", "do", lambda x: x.transpose(2, 3).contiguous().transpose(2, 3)),
        (
            "layout of do not available to TMA in the sm100 loop_q backward: got strides (51200, "
            "256, 1, 4) at ADDRESS, wanted a last stride of 1, others multiples of 8 elements, an "
            "address multiple of 16; pass do.contiguous()."
        ),
    ),
    (
        LOOP_Q,
        change("inputs", "bias", lambda x: x[..., :128].contiguous()),
        (
            "bias does not fit in the sm100 loop_q backward: got float32 (1, 4, 128), wanted "
            "float32 (1, 4, 256); allocate it so."
        ),
    ),
    (
        PACKED,
        change("inputs", "delta", lambda x: x[:, :1].expand(-1, 2, -1)),
        (
            "layout of delta not available in the sm100 loop_k backward: got strides (1024, 0, 1) "
            "at ADDRESS, wanted a compact tensor at an address multiple of 16; pass "
            "delta.contiguous()."
        ),
    ),
    (
        LOOP_Q,
        change("outputs", "dk", lambda x: x[:, :64]),
        (
            "dk does not fit in the sm100 loop_q backward: got bfloat16 (1, 64, 2, 64), wanted "
            "bfloat16 (1, 130, 2, 64); compile for this shape and dtype."
        ),
    ),
    (
        SPLIT,
        change("outputs", "dk_sums", lambda x: x[:, :, :1].contiguous()),
        (
            "dk_sums does not fit in the sm100 loop_q backward: got float32 (1, 2, 1, 16, 128, 4), "
            "wanted float32 (1, 2, 2, 16, 128, 4); allocate it so."
        ),
    ),
    (
        LOOP_Q,
        change("outputs", "semaphores", lambda x: x.long()),
        (
            "semaphores does not fit in the sm100 loop_q backward: got int64 (1, 4, 2), wanted "
            "int32 (1, 4, 2); allocate it so."
        ),
    ),
    (
        LOOP_Q,
        change("tables", "row_ptr", lambda x: x.int()),
        (
            "table row_ptr does not fit in the sm100 loop_q backward: got int32 with 1 axes, "
            "wanted int64 with 1; pass the tables of a lowered plan."
        ),
    ),
    (
        LOOP_Q,
        change("tables", "write_order", lambda x: x[:1]),
        (
            "size of write_order does not fit in the sm100 loop_q backward: got (1, 2), wanted (2, "
            "2); lower the plan again."
        ),
    ),
    (
        LOOP_K,
        change("tables", "tile_id", lambda x: x.repeat(1, 2)),
        (
            "size of tile_id does not fit in the sm100 loop_k backward: got (4, 2), wanted (4, 1); "
            "lower the plan again."
        ),
    ),
    (
        PACKED,
        change("tables", "tiles", lambda x: x.new_zeros(1, 128, 4)),
        (
            "size of tiles does not fit in the sm100 loop_k backward: got (128, 4), wanted (128, "
            "2); lower the plan again."
        ),
    ),
    (
        LOOP_K,
        change("tables", "row_ptr", lambda x: x[:2]),
        (
            "size of row_ptr modulo rows does not fit in the sm100 loop_k backward: got 1, wanted "
            "0; lower the plan again."
        ),
    ),
    (
        SPLIT,
        change("tables", "order", lambda x: x[:1]),
        (
            "size of order does not fit in the sm100 loop_q backward: got 1, wanted 2; lower the "
            "plan again."
        ),
    ),
    (
        LOOP_Q,
        change("tables", "pattern_id", lambda x: x.repeat(1, 3)),
        (
            "pattern_id does not fit in the sm100 loop_q backward: got 1 batches, 3 heads, wanted "
            "1 or 1 batches, 1, 2 or 4 heads; expand or share the plan's heads."
        ),
    ),
    (
        GATHERED,
        change("tables", "keys", lambda x: x[:1]),
        (
            "size of keys does not fit in the sm100 loop_k backward: got 1, wanted 4; lower the "
            "plan again."
        ),
    ),
    (
        GATHERED,
        change("outputs", "dv_sums", lambda x: x[:, :, :64].contiguous()),
        (
            "dv_sums does not fit in the sm100 loop_k backward: got float32 (1, 2, 64, 64), wanted "
            "float32 (1, 2, 130, 64); allocate it so."
        ),
    ),
    (
        LOOP_K,
        change("outputs", "dk_sums", lambda x: x[..., :1].expand(*x.shape[:5], 1 << 19)),
        (
            "dk_sums is too large in the sm100 loop_k backward: got 4,294,967,296 elements, wanted "
            "fewer than 2,147,483,648; take fewer heads or batches at a time."
        ),
    ),
    (
        LOOP_Q,
        lambda given: given.update(scale=-1.0),
        (
            "scale not available in the sm100 loop_q backward: got -1.0, wanted a positive number; "
            "negate q instead."
        ),
    ),
    (
        LOOP_K,
        lambda given: given["inputs"].pop("do"),
        (
            "input do is missing in the sm100 loop_k backward: got q, k, v, bias, delta, wanted q, "
            "k, v, do, bias, delta; pass all of them by name."
        ),
    ),
    (
        LOOP_Q,
        lambda given: given["tables"].pop("write_order"),
        (
            "table write_order is missing in the sm100 loop_q backward: got pattern_id, row_ptr, "
            "col, tile_id, tiles, order, wanted pattern_id, row_ptr, col, tile_id, write_order, "
            "tiles, order; pass all of them by name."
        ),
    ),
    (
        SPLIT,
        lambda given: given["outputs"].pop("dv_sums"),
        (
            "output dv_sums is missing in the sm100 loop_q backward: got dq, dk, dv, dq_sums, "
            "dk_sums, semaphores, wanted dk_sums, dv_sums, dq_sums, semaphores; pass all of them "
            "by name."
        ),
    ),
    (
        LOOP_K,
        change("outputs", "dq", lambda x: x[:, :, :1].expand(-1, -1, HQ, -1)),
        (
            "elements of dq share memory in the sm100 loop_k backward: got strides (51200, 256, 0, "
            "1), wanted an element of its own for everything that is written; allocate it; do not "
            "expand it."
        ),
    ),
    (
        LOOP_Q,
        lambda given: given.update(ctas=0),
        "no CTA in the sm100 loop_q backward: got 0, wanted at least 1; pass the GPU's SMs.",
    ),
]


@pytest.mark.parametrize(("config", "plant", "text"), REFUSALS, ids=range(len(REFUSALS)))
def test_what_does_not_fit_is_refused(config, plant, text):
    given = given_to(config)
    plant(given)

    with pytest.raises(ConfigError) as caught:
        host.backward_arguments(config, **given)

    said = str(caught.value)
    at = text.find("ADDRESS")
    if at >= 0:
        said = said[:at] + "ADDRESS" + said[said.index(",", at) :]
    assert said == text


def ends():
    sums = float32(shapes.dq_sums_shape(PACKED, BATCH, HQ, SQ))
    rows = float32(shapes.rows_shape(PACKED, BATCH, HQ, SQ))
    return {
        "o": activation(SQ, HQ), "do": activation(SQ, HQ), "lse": float32((BATCH, HQ, SQ)),
        "dlse": float32((BATCH, HQ, SQ)), "bias": rows, "delta": rows.clone(),
        "clear": (sums.view(-1), float32((4,))),
    }  # fmt: skip


def test_what_does_not_fit_a_preprocess_is_refused():
    rows = shapes.rows_config(PACKED)
    assert len(host.preprocess_arguments(rows, **ends())) == 8
    for name, value, text in (
        ("do", activation(SQ, HQ, 128), "do does not fit in the sm100 preprocess: got bfloat16"),
        ("lse", float32((BATCH, SQ, HQ)), "lse does not fit in the sm100 preprocess: got float32"),
        ("bias", float32((BATCH, HQ, 256)), "bias does not fit in the sm100 preprocess"),
        ("clear", (float32((8,)), float32((3,))), "clear_b does not fit in the sm100 preprocess"),
    ):
        with pytest.raises(ConfigError, match=text):
            host.preprocess_arguments(rows, **ends() | {name: value})


def test_what_does_not_fit_a_postprocess_is_refused():
    rows, keys = shapes.rows_config(PACKED), shapes.keys_config(PACKED)
    sums = float32(shapes.dq_sums_shape(rows, BATCH, HQ, SQ))

    assert host.postprocess_arguments(rows, sums, activation(SQ, HQ), -0.5)[2] == -0.5
    with pytest.raises(ConfigError, match="sums does not fit in the sm100 postprocess"):
        host.postprocess_arguments(keys, sums, activation(SQ, HQ), 1.0)
    with pytest.raises(ConfigError) as caught:
        host.postprocess_arguments(rows, sums, activation(SQ, HQ), float("inf"))
    with pytest.raises(ConfigError, match=r"got 1e\+39, wanted a finite number"):
        host.postprocess_arguments(rows, sums, activation(SQ, HQ), 1e39)
    assert str(caught.value) == (
        "scale not available in the sm100 postprocess: got inf, wanted a finite number; scale by a "
        "number."
    )


@pytest.mark.parametrize("config", [LOOP_Q, LOOP_K, SPLIT, PACKED, GATHERED])
def test_ends_are_compiled_for_what_they_read_alone(config):
    rows, keys = shapes.rows_config(config), shapes.keys_config(config)

    assert rows.rows_per_token == config.rows_per_token
    assert keys.rows_per_token == 1
    assert (keys.dtype, keys.head_dim) == (config.dtype, config.head_dim)
    assert keys.gathered == config.gathered
    assert not rows.gathered
    if config not in (PACKED, GATHERED):
        assert rows == keys
