"""What every pattern of the video module has in common, on awkward and on large grids."""

import inspect

import pytest
import torch

import maskplan as mp
from maskplan import video
from maskplan.video import (
    Grid,
    TokenOrder,
    block_causal,
    magi,
    neighborhood,
    nested_neighborhood,
    radial,
    radial_shrunk,
    sliding_tile,
    svg,
    tile_map,
)

# Name to (grid, options) -> plan, blocks of 128 unless it makes its own.
PATTERNS = {
    "sliding_tile": lambda grid, **o: sliding_tile(grid, window=(3, 3, 3), clamp=True, **o),
    "neighborhood": lambda grid, **o: neighborhood(
        grid, kernel=tuple(max(n // 3, 1) for n in grid.shape), **o
    ),
    "neighborhood in tiles": lambda grid, **o: neighborhood(
        grid, kernel=tuple(max(n // 3, 1) for n in grid.shape), tile=(2, 8, 8), pad=True, **o
    ),
    "radial": lambda grid, **o: radial(grid, decay=0.2, **o),
    "radial_shrunk": lambda grid, **o: radial_shrunk(grid, decay=0.2, **o),
    "svg spatial": lambda grid, **o: svg(grid, head="spatial", model="wan", frames=1.5, **o),
    "svg temporal": lambda grid, **o: svg(grid, head="temporal", model="wan", frames=1.5, **o),
    "block_causal": lambda grid, **o: block_causal(grid, chunk=3, local=5, sink=1, **o),
    "magi": lambda grid, **o: magi(grid, reach=2, chunk=2, **o),
    "nested_neighborhood": lambda grid, **o: nested_neighborhood(
        grid, coefficients=(1.0, 0.5), **o
    ),
    "tile_map": lambda grid, **o: tile_map(
        grid,
        torch.eye(len(TokenOrder.tiles(grid, (4, 4, 4)).tile_counts), dtype=torch.bool)[None, None],
        tile=(4, 4, 4),
        **o,
    ),
}
AWKWARD = [
    Grid(5, 7, 11, 13),
    Grid(5, 7, 11, 13, text_first=True),
    Grid(7, 9, 5),
    Grid(2, 1, 1, 300),
]


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("grid", AWKWARD, ids=str)
def test_plans_are_valid_canonical_and_say_how_tokens_lie(name, grid):
    plan = PATTERNS[name](grid).validate()
    assert plan == plan.canonical()
    assert plan.num_tiles == plan.canonical().num_tiles
    kept = mp.Provenance.from_json(plan.provenance.to_json())
    assert Grid.from_provenance(kept) == grid
    assert TokenOrder.from_provenance(kept).seqlen == plan.seqlen_k
    assert bool(plan.to_dense()[0, 0][TokenOrder.from_provenance(kept).inverse].any(1).all())


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("grid", AWKWARD, ids=str)
def test_b12_queries_of_the_video_alone_are_a_crop(name, grid):
    """SQ != SK: the video's rows, with the text's columns as cross-attention."""
    plan, video = PATTERNS[name](grid), PATTERNS[name](grid, queries="video")
    order = TokenOrder.from_provenance(plan.provenance)
    start, stop = int(order.tile_starts[0]), int(order.tile_starts[-1])
    assert video == plan.crop(q=(start, stop))
    assert (video.seqlen_q, video.seqlen_k) == (stop - start, plan.seqlen_k)


def test_attention_with_text_as_keys_only():
    """Video queries over video and text keys, against PyTorch's attention with the mask."""
    grid = Grid(3, 4, 5, 7)
    plan = radial(grid, decay=0.2, least=3, queries="video", block_size=(16, 16))
    torch.manual_seed(0)
    q = torch.randn(1, 60, 2, 16, dtype=torch.float64)
    k, v = (torch.randn(1, 67, 2, 16, dtype=torch.float64) for _ in range(2))
    out = mp.attention(q, k, v, plan, backend="reference")
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=plan.to_dense()
    )
    torch.testing.assert_close(out, wanted.transpose(1, 2))


def test_attention_with_text_as_keys_only_in_tile_order():
    """q in the order without text, k and v in the order with it, o back again."""
    grid = Grid(3, 4, 5, 7, text_first=True)
    plan = sliding_tile(
        grid, tile=(2, 2, 2), window=(1, 2, 1), queries="video", block_size=(16, 16)
    )
    order = TokenOrder.from_provenance(plan.provenance)
    torch.manual_seed(0)
    q = torch.randn(1, 60, 2, 16, dtype=torch.float64)
    k, v = (torch.randn(1, 67, 2, 16, dtype=torch.float64) for _ in range(2))
    there = mp.attention(
        order.without_text().apply(q, 1),
        *(order.apply(x, 1) for x in (k, v)),
        plan,
        backend="reference",
    )
    mask = order.undo(order.without_text().undo(plan.to_dense(), 2), 3)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), attn_mask=mask
    )
    torch.testing.assert_close(order.without_text().undo(there, 1), wanted.transpose(1, 2))


@pytest.mark.parametrize("name", PATTERNS)
def test_a2_plans_at_video_size_hold_lists_and_few_tiles(name):
    """115,200 tokens and text: lists of the blocks kept, and no more tiles than phases."""
    plan = PATTERNS[name](Grid(30, 48, 80, 256))
    held = sum(
        tensor.numel() * tensor.element_size()
        for tensor in (plan.row_ptr, plan.col, plan.tile_id, plan.tiles)
        if tensor is not None
    )
    assert held < 16 * 2**20
    assert plan.num_tiles < 2000


def test_a2_a_tail_of_32_is_no_trouble():
    """93,600 tokens are 731 blocks of 128 and 32 tokens."""
    plan = block_causal(Grid(60, 30, 52), chunk=3)
    assert (plan.seqlen_q, plan.geometry.num_q_blocks) == (93_600, 732)
    assert plan.seqlen_q % 128 == 32


def test_every_pattern_names_its_source_and_its_arguments():
    made_here = {"tile_map"}  # a map that the caller brings
    assert video.__all__ == sorted(video.__all__)
    for name in video.__all__:
        value = getattr(video, name)
        text = inspect.getdoc(value)
        assert text, name
        if inspect.isclass(value):
            continue
        signature = inspect.signature(value)
        undocumented = [p for p in signature.parameters if f"{p}:" not in text]
        assert undocumented == [], name
        if signature.return_annotation is mp.Plan and name not in made_here:
            assert "Source:" in text, name


_SMALL = Grid(2, 3, 4)


def _given(value):
    return "" if value is None else value  # None is an argument left out there


@pytest.mark.parametrize("wrong", ["1", None, True, [1], torch.ones(2), 10**400])
@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("frames", lambda x: video.svg(_SMALL, head="spatial", model="wan", frames=x)),
        ("density", lambda x: video.svg_frames(_SMALL, x)),
        ("decay", lambda x: video.radial(_SMALL, decay=x)),
        ("adjacent", lambda x: video.radial_shrunk(_SMALL, decay=1, adjacent=x)),
        (
            "coefficients",
            lambda x: video.nested_neighborhood(_SMALL, coefficients=[x], min_width=1),
        ),
        ("min_width", lambda x: video.nested_neighborhood(_SMALL, coefficients=[1], min_width=x)),
        ("sparsity", lambda x: video.vsa_topk(_SMALL, x)),
        ("sparsity", lambda x: video.draft_kept(torch.rand(1, 1, 2, 2), x)),
        ("sparsity", lambda x: mp.select.budget(4, sparsity=_given(x), rounding="ceil")),
    ],
)
def test_what_is_no_number_is_named(name, call, wrong):
    with pytest.raises(mp.PlanTypeError, match=f"argument is not a number in {name}:"):
        call(wrong)
