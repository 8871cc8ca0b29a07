"""Tensors that the kernel was not compiled for are refused before a launch, by name."""

import numpy as np
import pytest
import torch

from kernels_sm100.config import ForwardConfig
from kernels_sm100.errors import ConfigError
from kernels_sm100.forward_host import TABLES, forward_arguments
from tests.kernels.forward.run import table_tensors
from tests.kernels.forward.walks import tables

CONFIG = ForwardConfig(head_dim=64, head_dim_v=64, group=2)


def inputs():
    mask = np.ones((1, 1, 256, 200), dtype=bool)
    q, k, v, o = (
        torch.zeros(1, seqlen, heads, 64, dtype=torch.bfloat16)
        for seqlen, heads in ((256, 4), (200, 2), (200, 2), (256, 4))
    )
    return {
        "q": q,
        "k": k,
        "v": v,
        "o": o,
        "lse": torch.zeros(1, 4, 256),
        "tables": table_tensors(tables(mask, parts=2), TABLES),
        "scale": 0.125,
        "ctas": 1,
    }


def call(given):
    return forward_arguments(CONFIG, **given)


def test_arguments_come_in_the_order_of_the_kernel():
    given = inputs()
    q, k, v, o, lse, *rest = call(given)

    for got, name in zip((q, k, v, o, lse), ("q", "k", "v", "o", "lse"), strict=True):
        assert got is given[name]
    assert rest[6:] == [1, pytest.approx(0.125 * 1.4426950408889634), 1]


def table(name, make):
    def change(given):
        given["tables"][name] = make(given["tables"][name])

    return change


def tensor(name, make):
    def change(given):
        given[name] = make(given[name])

    return change


REFUSALS = [
    (
        tensor("q", lambda q: q.float()),
        (
            "q does not fit in the sm100 forward: got float32 (1, 256, 4, 64), wanted bfloat16 "
            "(1, 256, 4, 64); compile for this shape and dtype."
        ),
    ),
    (
        tensor("v", lambda v: v[:, :, :, :48]),
        (
            "v does not fit in the sm100 forward: got bfloat16 (1, 200, 2, 48), wanted bfloat16 "
            "(1, 200, 2, 64); compile for this shape and dtype."
        ),
    ),
    (
        tensor("k", lambda k: k[:, :0]),
        (
            "nothing to compute in the sm100 forward: got q (1, 256, 4, 64), k (1, 0, 2, 64), "
            "wanted sizes of at least 1; return O = 0 and LSE = -inf without a launch."
        ),
    ),
    (
        tensor("k", lambda k: k[:, :, :1]),
        (
            "heads do not fit in the sm100 forward: got 4 query and 1 KV heads, wanted 2 query "
            "heads per KV head; compile for this group."
        ),
    ),
    (
        tensor("lse", lambda lse: lse[:, :2]),
        (
            "lse does not fit in the sm100 forward: got float32 (1, 2, 256), wanted float32 (1, "
            "4, 256); allocate it so."
        ),
    ),
    (
        tensor("scale", lambda _: -1.0),
        (
            "scale not available in the sm100 forward: got -1.0, wanted a positive number; negate "
            "q instead."
        ),
    ),
    (
        table("col", lambda col: col.long()),
        (
            "table col does not fit in the sm100 forward: got int64 with 1 axes, wanted int32 "
            "with 1; pass the tables of a lowered plan."
        ),
    ),
    (
        table("tile_id", lambda ids: ids[:1]),
        (
            "size of tile_id does not fit in the sm100 forward: got (1, 2), wanted (2, 2); lower "
            "the plan again."
        ),
    ),
    (
        table("order", lambda order: torch.cat([order, order])),
        "size of order does not fit in the sm100 forward: got 2, wanted 1; lower the plan again.",
    ),
    (
        table("tiles", lambda tiles: tiles.new_zeros(0, 64, 4)),
        (
            "rows of a bit tile do not fit in the sm100 forward: got 64 of them, 128 packed "
            "rows in a list row, wanted a multiple of 256 packed rows; lower the plan for this "
            "configuration."
        ),
    ),
    (
        lambda given: given["tables"].pop("col"),
        "table col is missing in the sm100 forward: got pattern_id, row_ptr, tile_id,",
    ),
    (
        tensor("q", lambda q: q[0]),
        ("q does not fit in the sm100 forward: got 3 axes, wanted [B, S, H, D]; add missing axes."),
    ),
    (
        tensor("o", lambda o: o[:, :1].expand(-1, 256, -1, -1)),
        (
            "elements of o share memory in the sm100 forward: got strides (65536, 0, 64, 1), "
            "wanted an element of its own for everything that is written; allocate it; do not "
            "expand it."
        ),
    ),
    (
        tensor("lse", lambda lse: lse.transpose(1, 2).contiguous().transpose(1, 2)),
        "layout of lse not available in the sm100 forward: got strides (1024, 1, 4) at",
    ),
    (
        tensor("lse", lambda lse: torch.zeros(lse.numel() + 1)[1:].view(lse.shape)),
        "layout of lse not available in the sm100 forward",
    ),
    *(
        (
            tensor("scale", lambda _, scale=scale: scale),
            f"scale not available in the sm100 forward: got {scale}, wanted {wanted}",
        )
        for scale, wanted in (
            (float("nan"), "a positive number"),
            ("1", "a positive number"),
            (1e39, "1.2e-38 to 2.4e+38, as float32 holds it"),
            (3e38, "1.2e-38 to 2.4e+38, as float32 holds it"),
            (1e-46, "1.2e-38 to 2.4e+38, as float32 holds it"),
        )
    ),
    *(
        (tensor("ctas", lambda _, ctas=ctas: ctas), f"no CTA in the sm100 forward: got {ctas},")
        for ctas in (0, 1.5)
    ),
    (
        table("pattern_id", lambda ids: ids.expand(1, 3)),
        "layout of table pattern_id not available in the sm100 forward",
    ),
]


@pytest.mark.parametrize(("change", "text"), REFUSALS)
def test_what_does_not_fit_is_refused(change, text):
    given = inputs()
    change(given)

    with pytest.raises(ConfigError) as raised:
        call(given)
    assert str(raised.value).startswith(text)


def test_a_layout_that_tma_cannot_take_is_refused():
    given = inputs()
    given["q"] = given["q"].transpose(2, 3).contiguous().transpose(2, 3)

    with pytest.raises(ConfigError, match=r"layout of q not available to TMA .*q\.contiguous\(\)"):
        call(given)


def test_plan_heads_that_are_no_share_of_the_heads_are_refused():
    given = inputs()
    given["tables"] = table_tensors(tables(np.ones((1, 3, 256, 200), dtype=bool), parts=2), TABLES)

    with pytest.raises(ConfigError, match=r"pattern_id does not fit .* 1 batches, 3 heads"):
        call(given)
