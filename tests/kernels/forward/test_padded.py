"""Padded lists, as kernels of others take them, are the walk that they stand for."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import maskplan as mp
from kernels_sm100.config import ForwardConfig
from kernels_sm100.errors import ConfigError
from kernels_sm100.forward_host import TABLES
from kernels_sm100.modes import InnerLoadMode
from kernels_sm100.padded import PaddedLists, padded_tables
from tests.kernels.forward import masks
from tests.kernels.forward.run import judge, problem
from tests.oracle import plan_of_dense

PAIR = ForwardConfig(head_dim=64, head_dim_v=64)
PACKED = ForwardConfig(head_dim=64, head_dim_v=64, group=4, pack_gqa=True)
ONE_TILE = ForwardConfig(head_dim=64, head_dim_v=64, q_tiles=1, parts=1)
SHARED = ForwardConfig(head_dim=64, head_dim_v=64, parts=1)
POISON = -(1 << 31)


def bits_of(block, rows):
    """int32 [rows, 4] of bool [up to rows, up to 128]."""
    whole = np.zeros((rows, 128), dtype=bool)
    whole[: block.shape[0], : block.shape[1]] = block
    return np.packbits(whole, axis=1, bitorder="little").view(np.int32)


def lists_of(mask, tokens, rows_per_token=1, *, seed=0, full=True):
    """Padded lists of bool [B, H, SQ, SK] in Q blocks of `tokens`, in random order, poisoned."""
    rng = np.random.default_rng(seed)
    batches, heads, seqlen_q, seqlen_k = mask.shape
    rows, cols = -(-seqlen_q // tokens), -(-seqlen_k // 128)
    count = np.zeros((2, batches, heads, rows), dtype=np.int32)
    index = np.full((3, batches, heads, rows, cols + 1), POISON, dtype=np.int32)
    tiles = [np.zeros((tokens, 4), dtype=np.int32)]
    for b, h, r in np.ndindex(batches, heads, rows):
        for c in rng.permutation(cols):
            block = mask[b, h, r * tokens : (r + 1) * tokens, 128 * c : 128 * (c + 1)]
            if not block.any():
                continue
            kind = int(full and block.all())
            slot = count[kind, b, h, r]
            index[kind, b, h, r, slot] = c
            if not kind:
                index[2, b, h, r, slot] = len(tiles)
                tiles.append(bits_of(block, tokens))
            count[kind, b, h, r] += 1
    found = [torch.from_numpy(a) for a in (count[0], index[0], count[1], index[1], index[2])]
    kinds = found if full else [*found[:2], None, None, found[4]]
    return PaddedLists(*kinds, torch.from_numpy(np.stack(tiles)), (tokens * rows_per_token, 128))


def dense_of(config, tables, seqlen_q, seqlen_k):
    """Bool [PB, PH, SQ, SK] that the tables stand for, entry by entry; no entry may be idle."""
    pattern_id = tables["pattern_id"].numpy()
    tokens = tables["tiles"].shape[1]
    rows = -(-seqlen_q // (tokens * config.parts))
    out = np.zeros(
        (*pattern_id.shape, rows * config.parts * tokens, -(-seqlen_k // 128) * 128), bool
    )
    for place, pattern in np.ndenumerate(pattern_id):
        for row in range(rows):
            begin, end = tables["row_ptr"][pattern * rows + row :][:2].tolist()
            cols = tables["col"][begin:end].tolist()
            assert cols == sorted(set(cols))
            for entry, col in enumerate(cols, begin):
                ids = tables["tile_id"][entry].tolist()
                assert set(ids) != {-2}
                for part, tile in enumerate(ids):
                    first = (row * config.parts + part) * tokens
                    cell = out[
                        (*place, slice(first, first + tokens), slice(128 * col, 128 * col + 128))
                    ]
                    if tile == -1:
                        cell[:] = True
                    elif tile >= 0:
                        words = tables["tiles"][tile].numpy().view(np.uint8)
                        cell[:] = np.unpackbits(words, axis=1, bitorder="little")
    return out[:, :, :seqlen_q, :seqlen_k]


# config, tokens of a Q block, what lowering gives it in maskplan: (block size), shape of the mask
WALKS = [
    (PAIR, 128, (1, 1, 300, 500)),
    (PAIR, 256, (2, 3, 600, 300)),
    (PAIR, 512, (1, 1, 700, 200)),
    (PACKED, 32, (1, 2, 100, 300)),
    (PACKED, 64, (1, 2, 100, 300)),
    (ONE_TILE, 128, (2, 1, 100, 300)),
    (ONE_TILE, 256, (1, 1, 300, 300)),
    (SHARED, 256, (1, 1, 300, 300)),
    (SHARED, 512, (1, 2, 700, 130)),
]


@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize(("config", "tokens", "shape"), WALKS)
def test_tables_stand_for_the_mask(config, tokens, shape, full):
    mask = masks.blocks(shape, 0.6, seed=sum(shape), tokens=128 // config.rows_per_token)
    mask[..., shape[2] // 2 : shape[2] // 2 + 40, :] = False
    lists = lists_of(mask, tokens, config.rows_per_token, full=full)

    found = padded_tables(config, lists, seqlen_q=shape[2], seqlen_k=shape[3])

    assert (dense_of(config, found, *shape[2:]) == mask).all()
    work = found["row_ptr"].diff()[found["order"].long()]
    assert sorted(found["order"].tolist()) == list(range(len(work)))
    assert (work.diff() <= 0).all()


@pytest.mark.parametrize(("config", "group"), [(PAIR, 1), (PACKED, 4), (ONE_TILE, 1)])
def test_tables_are_those_that_a_plan_is_lowered_to(config, group):
    """Of its own 128-row blocks entry by entry; what lowering cuts from larger ones in meaning."""
    tokens = 128 // group
    seqlen_q = tokens if config is ONE_TILE else 5 * tokens - 7
    mask = masks.blocks((1, 2, seqlen_q, 500), 0.7, seed=3, tokens=tokens)
    patterns = torch.arange(2).view(1, 2)
    target = mp.target("sm100", head_dim=64, group=group, pack_gqa=group > 1)
    for block in (tokens, 2 * tokens):
        plan = plan_of_dense(torch.from_numpy(mask[0]), patterns, (block, 128)).canonical()
        lists = replace(plan.block_sparse_tensors(width="dense"), block_size=(block * group, 128))
        wanted = plan.lower(target, backward=()).forward

        found = padded_tables(config, lists, seqlen_q=seqlen_q, seqlen_k=500)

        if block == tokens:
            for name in TABLES[1:]:
                assert torch.equal(found[name], getattr(wanted, name)), name
        for name in ("row_ptr", "col", "order"):
            assert torch.equal(found[name], getattr(wanted, name)), name
        theirs = {name: getattr(wanted, name) for name in TABLES[1:]}
        theirs["pattern_id"] = patterns
        assert (dense_of(config, found, seqlen_q, 500) == mask).all()
        assert (dense_of(config, theirs, seqlen_q, 500) == mask).all()


@pytest.mark.parametrize(
    ("config", "tokens", "shape", "kv_heads"),
    [
        (PAIR, 128, (1, 1, 300, 300), 1),
        (PAIR, 256, (2, 2, 300, 200), 2),
        (PACKED, 64, (1, 2, 90, 300), 2),
        (ONE_TILE, 128, (1, 1, 100, 500), 1),
        (SHARED, 512, (1, 1, 700, 200), 1),
    ],
)
def test_a_kernel_walks_them(forward_kernel, config, tokens, shape, kv_heads):
    mask = masks.blocks(shape, 0.7, seed=1, tokens=64)
    given = problem(config, mask, batch=2, kv_heads=kv_heads)
    lists = lists_of(mask, tokens, config.rows_per_token)

    judge(given, forward_kernel(config).run(given, walk=lists, ctas=2))


def test_halves_of_a_block_are_full_skipped_or_bits():
    mask = np.zeros((1, 1, 512, 384), dtype=bool)
    mask[..., :128, :128] = True
    mask[..., 128:256, 128:256] = mask[..., 128:256, 300:301] = True
    mask[..., 300:500, 256:] = True

    found = padded_tables(PAIR, lists_of(mask, 256), seqlen_q=512, seqlen_k=384)

    assert found["col"].tolist() == [0, 1, 2, 2]
    (full, skip), (also_skip, also_full), (none, bits), (some, others) = found["tile_id"].tolist()
    assert (full, also_full, skip, also_skip, none) == (-1, -1, -2, -2, -2)
    assert len({bits, some, others}) == 3
    assert min(bits, some, others) >= 0


def given_lists():
    mask = np.ones((1, 2, 300, 500), dtype=bool)
    mask[..., 7] = False  # the first block of a row has bits
    return lists_of(mask, 128)


def changed(name, place, value):
    """`given_lists` with one value of a list changed."""
    lists = given_lists()
    getattr(lists, name)[place] = value
    return lists


REFUSALS = [
    (
        lambda: changed("full_block_cnt", (0, 1, 2), 6),
        (
            "full_block_cnt is out of range in padded_tables: got full_block_cnt[0, 1, 2]=6, "
            "wanted 0 to 5, the list's width; correct the lists."
        ),
    ),
    (
        lambda: changed("mask_block_cnt", (0, 0, 0), -1),
        (
            "mask_block_cnt is out of range in padded_tables: got mask_block_cnt[0, 0, 0]=-1, "
            "wanted 0 to 5, the list's width; correct the lists."
        ),
    ),
    (
        lambda: changed("full_block_idx", (0, 1, 2, 2), 4),
        (
            "full_block_idx is out of range in padded_tables: got full_block_idx[0, 1, 2, "
            "2]=4, wanted 0 <= block < 4; correct the lists."
        ),
    ),
    (
        lambda: changed("mask_block_idx", (0, 0, 1, 0), -1),
        (
            "mask_block_idx is out of range in padded_tables: got mask_block_idx[0, 0, 1, "
            "0]=-1, wanted 0 <= block < 4; correct the lists."
        ),
    ),
    (
        lambda: changed("mask_tile_id", (0, 1, 0, 0), 7),
        (
            "mask_tile_id is out of range in padded_tables: got mask_tile_id[0, 1, 0, 0]=7, "
            "wanted 0 <= tile < 7; correct the lists."
        ),
    ),
    (
        lambda: changed("mask_block_idx", (0, 1, 2, 0), 3),
        (
            "block is listed twice in padded_tables: got KV block 3 of [0, 1, 2], wanted once, "
            "as a full or as a mask block; correct the lists."
        ),
    ),
    (
        lambda: given_lists()._replace(tiles=None),
        (
            "mask blocks without tiles in padded_tables: got 6 mask blocks and tiles=None, "
            "wanted a bit tile for each; pass both, or list as full what is full."
        ),
    ),
    (
        lambda: given_lists()._replace(mask_tile_id=None),
        "mask blocks without tiles in padded_tables: got 6 mask blocks and mask_tile_id=None",
    ),
    (
        lambda: given_lists()._replace(full_block_idx=None),
        (
            "full_block_cnt and full_block_idx do not fit in padded_tables: got "
            "full_block_idx=None, wanted both of them, or neither; pass the other one too."
        ),
    ),
    (
        lambda: given_lists()._replace(mask_block_cnt=given_lists().mask_block_cnt.long()),
        (
            "mask_block_cnt does not fit in padded_tables: got int64 (1, 2, 3), wanted int32 "
            "(1, 2, 3); make the lists for these lengths and this block size."
        ),
    ),
    (
        lambda: given_lists()._replace(block_size=(256, 128)),
        "mask_block_cnt does not fit in padded_tables: got int32 (1, 2, 3), wanted int32 (1, 2, 2)",
    ),
    (
        lambda: given_lists()._replace(tiles=given_lists().tiles[:, :64]),
        (
            "tiles does not fit in padded_tables: got int32 (7, 64, 4), wanted int32 (7, 128, "
            "4); make the tiles for this block size."
        ),
    ),
    (
        lambda: given_lists()._replace(block_size=(192, 128)),
        (
            "block size does not fit in padded_tables: got (192, 128), wanted a multiple of "
            "128 packed rows by 128 keys; make the lists for this kernel."
        ),
    ),
    (
        lambda: SimpleNamespace(**given_lists()._asdict(), cu_total_m_blocks=torch.zeros(2)),
        (
            "ragged batches not available in padded_tables: got cu_total_m_blocks, wanted one "
            "length for all sequences of a batch; pad them, and mask what pads."
        ),
    ),
]


@pytest.mark.parametrize(("make", "text"), REFUSALS)
def test_what_does_not_fit_is_refused(make, text):
    padded_tables(PAIR, given_lists(), seqlen_q=300, seqlen_k=500)

    with pytest.raises(ConfigError) as raised:
        padded_tables(PAIR, make(), seqlen_q=300, seqlen_k=500)
    assert str(raised.value).startswith(text)


def test_what_no_kernel_walks_is_refused():
    with pytest.raises(ConfigError, match="got CP_ASYNC, wanted a kernel whose keys come by whole"):
        padded_tables(
            ForwardConfig(inner_load=InnerLoadMode.CP_ASYNC), given_lists(), seqlen_q=300,
            seqlen_k=500,
        )  # fmt: skip
    with pytest.raises(ConfigError, match=r"got \(128, 128\), wanted a multiple of 256 packed"):
        padded_tables(SHARED, given_lists(), seqlen_q=300, seqlen_k=500)


def test_what_lies_behind_a_count_is_not_read():
    lists = given_lists()
    wanted = padded_tables(PAIR, lists, seqlen_q=300, seqlen_k=500)
    for name in ("mask_block_idx", "full_block_idx", "mask_tile_id"):
        index = getattr(lists, name)
        assert (index == POISON).any()
        index[index == POISON] = 0

    found = padded_tables(PAIR, lists, seqlen_q=300, seqlen_k=500)

    assert all(torch.equal(found[name], wanted[name]) for name in TABLES)


def test_an_expanded_axis_is_one_pattern():
    lists = given_lists()
    one = [t[:, :1] if t is not None and t.ndim > 2 else t for t in lists[:5]]
    wide = [t.expand(4, 8, *t.shape[2:]) for t in one]

    found = [
        padded_tables(PAIR, PaddedLists(*some, *lists[5:]), seqlen_q=300, seqlen_k=500)
        for some in (one, wide)
    ]

    assert found[1]["pattern_id"].tolist() == [[0]]
    assert all(torch.equal(found[0][name], found[1][name]) for name in TABLES)


def test_no_mask_blocks_need_no_tiles():
    """flash-attn-4's own lists of full blocks have neither tiles nor numbers of them."""
    whole = lists_of(np.ones((1, 1, 300, 500), dtype=bool), 256)._asdict()
    names = ("mask_block_cnt", "mask_block_idx", "full_block_cnt", "full_block_idx", "block_size")
    theirs = SimpleNamespace(**{name: whole[name] for name in names}, cu_total_m_blocks=None)

    found = padded_tables(PAIR, theirs, seqlen_q=300, seqlen_k=500)

    assert found["tiles"].shape == (0, 128, 4)
    assert found["tile_id"].tolist() == [[-1, -1]] * 4 + [[-1, -2]] * 4
