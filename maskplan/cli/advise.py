"""`maskplan advise`: what a size of video costs with a pattern, and which near it cost less."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Annotated, Any, NoReturn

import typer

import maskplan as mp
from maskplan.cli.options import HeadDim, PlanFile, numbers
from maskplan.cli.plain import plain
from maskplan.cli.progress import working
from maskplan.cli.source import load_plan
from maskplan.errors import PlanError, sentence
from maskplan.plan import Plan
from maskplan.provenance import Provenance

# Patterns that a grid alone decides: their provenance says all that makes them again.
_BUILDERS: Mapping[str, Callable[..., Plan]] = {
    "sliding_tile": mp.video.sliding_tile,
    "svg": mp.video.svg,
    "radial": mp.video.radial,
    "radial_shrunk": mp.video.radial_shrunk,
    "neighborhood": mp.video.neighborhood,
    "nested_neighborhood": mp.video.nested_neighborhood,
    "block_causal": mp.video.block_causal,
    "magi": mp.video.magi,
}
_FOLLOWS = {"svg": {"band"}}  # what provenance says besides the arguments
_OWN_BLOCKS = {"radial_shrunk"}


def advise(
    plan: PlanFile,
    spread: Annotated[
        str, typer.Option(help="Latent frames, rows, columns to go up and down.")
    ] = "0,2,2",
    most: Annotated[int, typer.Option(help="Sizes to name at most.")] = 5,
    arch: Annotated[
        str | None, typer.Option(help="Count in the blocks of its kernels: sm90, sm100, cpu.")
    ] = None,
    head_dim: HeadDim = 128,
) -> None:
    """Say what the ragged ends of a size cost, and which sizes near it cost less.

    The pattern is that of a plan made by maskplan plan; it is planned again for
    every size of the spread.
    """
    loaded = load_plan(plan)
    grid, pattern = _pattern(loaded)
    t, h, w = numbers(spread, "--spread", 3)
    target = None if arch is None else mp.target(arch, head_dim=head_dim)
    with working("planning sizes"):
        advice = mp.video.advise(grid, pattern, target=target, spread=(t, h, w), most=most)
    print(f"{plan}: {plain(loaded.provenance)}, {advice}")


def _pattern(plan: Plan) -> tuple[mp.video.Grid, Callable[[mp.video.Grid], Plan]]:
    """The grid of a plan, and its pattern on any other.

    Raises:
        PlanError: if its provenance is not enough to make it again, or says something else.
    """
    origin = plan.provenance
    if origin is None or origin.grid is None or origin.builder not in _BUILDERS:
        _refuse("unknown" if origin is None else f"made by {origin.builder!r:.40}")
    try:
        grid = mp.video.Grid.from_provenance(origin)
        assert grid is not None, "refused"
        fits = grid.seqlen <= plan.seqlen_k
        pattern = partial(_BUILDERS[origin.builder], **_arguments(origin, plan))
        again = pattern(grid) if fits else None
    except (TypeError, ValueError, KeyError) as error:  # what a stranger's file may say
        _refuse(f"{error}"[:160])
    if again != plan:
        _refuse(f"a plan that differs from its provenance, {origin}"[:160])
    return grid, pattern


def _arguments(origin: Provenance, plan: Plan) -> dict[str, Any]:
    follows = _FOLLOWS.get(origin.builder, set())
    arguments = {name: v for name, v in origin.parameters.items() if name not in follows}
    own = origin.builder in _OWN_BLOCKS
    return arguments if own else arguments | {"block_size": plan.block_size}


def _refuse(got: str) -> NoReturn:
    raise PlanError(
        sentence(
            what="plan cannot be made for another size",
            where="advise",
            got=got,
            wanted=f"a plan of {', '.join(_BUILDERS)}",
            remedy="make one with maskplan plan, or call maskplan.video.advise",
        )
    )
