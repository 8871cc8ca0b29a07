"""Flags of everything that makes or writes plans: what is only true in a condition is no flag."""

import importlib
import inspect
import pkgutil

import pytest
import torch

import maskplan as mp
from maskplan import interop
from maskplan.interop import block_sparse_attention as bsa
from maskplan.interop import fastvideo, flashinfer, q2k, scipy_sparse, sparge
from maskplan.patterns.radial import RadialRule

GRID = mp.video.Grid(2, 4, 4)
KEPT = torch.ones(1, 1, 8, 8, dtype=torch.bool)
TILE = {"tile": (1, 2, 2)}
LABELS = torch.zeros(1, 1, 32, dtype=torch.int64)
LABELLED = mp.video.LabelOrder(labels=LABELS, clusters=1)
PLAN = mp.causal(256, 256)
BLOCKS = (torch.ones(2, dtype=torch.int32), torch.zeros(2, 1, dtype=torch.int32))
STRATEGY = {"canvas": (2, 4, 4), "tile": (1, 2, 2), "steps": 1, "layers": 1, "heads": 1}

FLAGS = {
    "documents causal": lambda flag: mp.documents([3, 4], causal=flag),
    "from_block_lists sort": lambda flag: mp.from_block_lists(*BLOCKS, 256, 128, sort=flag),
    "from_bsr sort": lambda flag: mp.from_bsr([0, 1], [0], 128, 128, sort=flag),
    "from_topk whole": lambda flag: mp.from_topk(LABELS[None], 32, whole=flag),
    "target pack_gqa": lambda flag: mp.target("sm100", pack_gqa=flag),
    "Plan reblock superset": lambda flag: PLAN.reblock((64, 64), superset=flag),
    "TransposedPlan reblock superset": lambda flag: PLAN.transpose().reblock(
        (64, 64), superset=flag
    ),
    "BlockSparseTensors from_topk whole": lambda flag: mp.BlockSparseTensors.from_topk(
        LABELS[None], 32, whole=flag
    ),
    "Grid text_first": lambda flag: mp.video.Grid(1, 1, 1, text_first=flag),
    "LabelOrder text_first": lambda flag: mp.video.LabelOrder(
        labels=LABELS, clusters=1, text_first=flag
    ),
    "TokenOrder tiles pad": lambda flag: mp.video.TokenOrder.tiles(GRID, (1, 2, 2), pad=flag),
    "TokenOrder strips pad": lambda flag: mp.video.TokenOrder.strips(GRID, pad=flag),
    "draft pad": lambda flag: mp.video.draft(GRID, KEPT, **TILE, pad=flag),
    "draft free_rows": lambda flag: mp.video.draft(GRID, KEPT, **TILE, free_rows=flag),
    "neighborhood pad": lambda flag: mp.video.neighborhood(
        GRID, kernel=(1, 3, 3), tile=(1, 2, 2), pad=flag
    ),
    "radial sink": lambda flag: mp.video.radial(GRID, decay=0.5, sink=flag),
    "radial_shrunk sink": lambda flag: mp.video.radial_shrunk(GRID, decay=0.5, sink=flag),
    "sliding_tile pad": lambda flag: mp.video.sliding_tile(
        GRID, **TILE, window=(1, 1, 1), pad=flag
    ),
    "sliding_tile clamp": lambda flag: mp.video.sliding_tile(GRID, **TILE, clamp=flag),
    "svg first_frame": lambda flag: mp.video.svg(
        GRID, head="spatial", model="wan", frames=1, first_frame=flag
    ),
    "svg2 free_rows": lambda flag: mp.video.svg2(
        LABELLED, LABELLED, KEPT[..., :1, :1], free_rows=flag
    ),
    "tile_map pad": lambda flag: mp.video.tile_map(GRID, KEPT, **TILE, pad=flag),
    "tile_map free_rows": lambda flag: mp.video.tile_map(GRID, KEPT, **TILE, free_rows=flag),
    "vsa pad": lambda flag: mp.video.vsa(GRID, KEPT[..., :2].long(), **TILE, pad=flag),
    "vsa free_rows": lambda flag: mp.video.vsa(GRID, KEPT[..., :2].long(), **TILE, free_rows=flag),
    "antidiagonal_mass causal": lambda flag: mp.select.antidiagonal_mass(
        torch.ones(1, 128, 1, 8), torch.ones(1, 128, 1, 8), causal=flag
    ),
    "threshold strict": lambda flag: mp.select.threshold(
        torch.ones(1, 1, 1, 1), 0.5, 8, 8, strict=flag
    ),
    "from_head_masks causal": lambda flag: bsa.from_head_masks(
        None, [0], None, 128, 128, causal=flag
    ),
    "from_head_masks exact_streaming": lambda flag: bsa.from_head_masks(
        None, [0], None, 128, 128, causal=True, exact_streaming=flag
    ),
    "to_head_masks causal": lambda flag: bsa.to_head_masks(PLAN, causal=flag),
    "to_head_masks superset": lambda flag: bsa.to_head_masks(PLAN, causal=False, superset=flag),
    "to_row_lists superset": lambda flag: bsa.to_row_lists(PLAN, superset=flag),
    "book_of_mask_strategy pad": lambda flag: fastvideo.book_of_mask_strategy(
        {"0_0_0": [1, 1, 1]}, **STRATEGY, pad=flag
    ),
    "to_variable_blocks superset": lambda flag: flashinfer.to_variable_blocks(PLAN, superset=flag),
    "to_q2k superset": lambda flag: q2k.to_q2k(PLAN, (64, 64), superset=flag),
    "to_scipy_bsr pad": lambda flag: scipy_sparse.to_scipy_bsr(PLAN, pad=flag),
    "to_sparge superset": lambda flag: sparge.to_sparge(PLAN, "sm90", superset=flag),
}
# On the way to one of these; of `attention`, which has tests of its own; fields of results.
ELSEWHERE = {
    "attention deterministic", "attention return_lse", "backends deterministic",
    "verify deterministic", "whole_blocks superset", "read_mask_strategy pad",
    "BlockSparseTensors spt", "Target pack_gqa", "VerifyReport sampled",
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
@pytest.mark.parametrize("value", ["no", 0, torch.tensor(data=True)])
def test_what_is_no_bool_is_no_flag(name, value):
    with pytest.raises(mp.PlanTypeError, match=f"no flag in {name.split()[-1]}: got .* wanted T"):
        FLAGS[name](value)


@pytest.mark.parametrize("value", [1, None])
def test_a_rule_has_a_flag_too(value):
    with pytest.raises(mp.PlanTypeError, match="no flag in sink"):
        RadialRule(decay=0.5, sink=value)


def flags_of(name: str, value: object) -> list[str]:
    """The flags of a function, or of a class and its methods."""
    found = [
        f"{name} {parameter.name}"
        for parameter in inspect.signature(value).parameters.values()
        if parameter.annotation in (bool, bool | None)
    ]
    if inspect.isclass(value):
        for method, one in inspect.getmembers(
            value, lambda one: inspect.isfunction(one) or inspect.ismethod(one)
        ):
            if not method.startswith("_"):
                found += flags_of(f"{name} {method}", one)
    return found


def test_every_public_flag_is_in_the_table():
    spaces = [(mp, mp.__all__), (mp.video, mp.video.__all__), (mp.select, mp.select.__all__)]
    for info in pkgutil.iter_modules(interop.__path__):
        module = importlib.import_module(f"maskplan.interop.{info.name}")
        own = [n for n in vars(module) if inspect.isfunction(getattr(module, n)) and n[0] != "_"
               and getattr(module, n).__module__ == module.__name__]  # fmt: skip
        spaces.append((module, own))
    wanted = set()
    for space, names in spaces:
        for name in names:
            value = getattr(space, name)
            if inspect.isfunction(value) or (
                inspect.isclass(value) and not issubclass(value, Exception)
            ):
                wanted |= set(flags_of(name, value))

    assert wanted - set(FLAGS) - ELSEWHERE == set()
