"""`maskplan demo`: the whole way from a video model's pattern to checked gradients, on this CPU."""

import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console

import maskplan as mp
from maskplan.cli.options import HeadDim, triple
from maskplan.cli.sampled import Run, errors
from maskplan.errors import MaskplanError, sentence
from maskplan.stats import PlanStats
from maskplan.viz.text import picture

TILE = (6, 8, 8)
WINDOW = (3, 3, 3)
TINY = (7, 9, 33)  # a small latent with every kind of block, so that all code is compiled
TOLERANCE = 1e-4  # of the largest value: float32 sums of some 8,000 products


def demo(
    grid: Annotated[
        str, typer.Option(help="Latent frames, height and width; Wan 2.1 at 720p by default.")
    ] = "21,45,80",
    head_dim: HeadDim = 128,
) -> None:
    """Plan a video model's attention, run it forward and backward on this CPU, and check it."""
    started = time.perf_counter()
    console = Console(highlight=False, markup=False)
    shape = triple(grid, "--grid")
    _introduce(console, shape, head_dim)
    with _step(console, "compiling, or loading what an earlier start compiled"):
        _check(_attend(_kept(_plan(TINY)), head_dim))
    with _step(console, "plan"):
        plan = _plan(shape)
    with _step(console, "save, load and compare"):
        plan = _kept(plan)
    figures = plan.stats(head_dim=head_dim)
    console.print(f"\n{picture(plan)}\n\n{figures}\n", soft_wrap=True)
    run = _attend(plan, head_dim, console)
    with _step(console, "check 32 queries and 8 keys against the float64 reference"):
        found = _check(run)
    worst = ", ".join(f"{name} {error:.1e}" for name, error in found.items())
    console.print(f"largest error over largest value: {worst}", soft_wrap=True)
    _conclude(console, figures, time.perf_counter() - started)


def _introduce(console: Console, shape: tuple[int, int, int], head_dim: int) -> None:
    tokens = shape[0] * shape[1] * shape[2]
    console.print(
        f"Sliding tile attention over a latent video of {shape[0]} x {shape[1]} x {shape[2]} = "
        f"{tokens:,} tokens:\neach query sees a window of {WINDOW[0]} x {WINDOW[1]} x {WINDOW[2]} "
        f"tiles of {TILE[0]} x {TILE[1]} x {TILE[2]} tokens.\n"
        f"One head, D={head_dim}, float32, {torch.get_num_threads()} threads.\n"
    )


def _conclude(console: Console, figures: PlanStats, seconds: float) -> None:
    console.print(
        f"\nDone in {seconds:.1f} s. The plan kept {figures.density:.2%} of the pairs, exact to "
        f"the token;\nits file, its picture and both passes came from the same lists."
    )


@contextmanager
def _step(console: Console, name: str) -> Iterator[None]:
    """Show that `name` is running, then how long it took."""
    started = time.perf_counter()
    if console.is_terminal:
        with console.status(f"{name} ..."):
            yield
        console.print(f"{name}: ", end="")
    else:
        console.print(f"{name}: ", end="")
        console.file.flush()
        yield
    console.print(f"{time.perf_counter() - started:.2f} s")


def _plan(shape: tuple[int, int, int]) -> mp.Plan:
    grid = mp.video.Grid(*shape)
    return mp.video.sliding_tile(grid, tile=TILE, window=WINDOW, clamp=True)


def _kept(plan: mp.Plan) -> mp.Plan:
    """The plan as it comes back from a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.safetensors"
        plan.save(path)
        loaded = mp.load(path)
    assert isinstance(loaded, mp.Plan), "a plan file says which type it holds"
    assert loaded == plan, "load is the inverse of save"
    return loaded


def _attend(plan: mp.Plan, head_dim: int, console: Console | None = None) -> Run:
    """Attention over seeded noise, its tokens put into the plan's order, forward and backward."""
    console = Console(quiet=True) if console is None else console
    assert plan.provenance is not None, "a plan file keeps how its plan was made"
    order = mp.video.TokenOrder.from_provenance(plan.provenance)
    assert order is not None, "and the grid of a video plan"
    generator = torch.Generator().manual_seed(0)
    shape = (1, plan.seqlen_q, 1, head_dim)
    noise = (torch.randn(shape, generator=generator, device="cpu") for _ in range(4))
    q, k, v, grad_out = (order.apply(tensor, 1) for tensor in noise)
    q, k, v = (tensor.requires_grad_() for tensor in (q, k, v))
    with _step(console, "attention forward"):
        out, lse = mp.attention(q, k, v, plan, backend="cpu", return_lse=True)
    with _step(console, "attention backward"):
        torch.autograd.backward(out, grad_out)
    return Run(plan=plan, q=q, k=k, v=v, out=out.detach(), lse=lse.detach(), grad_out=grad_out)


def _check(run: Run) -> dict[str, float]:
    """Errors of the run, relative to the largest value.

    Raises:
        MaskplanError: if one is more than float32 explains.
    """
    found = errors(run, queries=32, keys=8)
    name, worst = max(found.items(), key=lambda item: item[1])
    if not worst <= TOLERANCE:
        raise MaskplanError(
            sentence(
                what="the cpu backend is wrong",
                where=name,
                got=f"an error of {worst:.1e} of the largest value",
                wanted=f"at most {TOLERANCE:.0e}",
                remedy="please report this with the output of `maskplan doctor`",
            )
        )
    return found
