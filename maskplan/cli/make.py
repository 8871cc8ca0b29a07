"""`maskplan plan`: make a plan from a named pattern or from an array, and save it."""

from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

import maskplan as mp
from maskplan.cli.options import Block, Output, pair, triple
from maskplan.errors import PlanError, PlanTypeError, sentence

make = typer.Typer(help="Make a plan and save it.", no_args_is_help=True)

Length = Annotated[int, typer.Argument(metavar="SQ", help="Queries, in tokens.")]
KeyLength = Annotated[int | None, typer.Option(help="Keys, in tokens; SQ where not given.")]
Align = Annotated[
    str | None, typer.Option(help="top_left or bottom_right, needed when the lengths differ.")
]


def _keep(plan: mp.Plan, out: Path) -> None:
    """Save `plan` and say what it is."""
    plan.save(out)
    figures = plan.stats()
    print(f"{out}: {plan.geometry}, density {figures.density:.4%}, digest {plan.digest}")


@make.command()
def causal(
    seqlen_q: Length,
    out: Output,
    seqlen_k: KeyLength = None,
    align: Align = None,
    block_size: Block = "128,128",
) -> None:
    """Each query sees the keys up to its own position."""
    keys = seqlen_q if seqlen_k is None else seqlen_k
    block = pair(block_size, "--block-size")
    _keep(mp.causal(seqlen_q, keys, align=align, block_size=block), out)


@make.command()
def sliding_window(
    seqlen_q: Length,
    out: Output,
    left: Annotated[int | None, typer.Option(help="Keys before; all where not given.")] = None,
    right: Annotated[int | None, typer.Option(help="Keys after; all where not given.")] = None,
    seqlen_k: KeyLength = None,
    align: Align = None,
    block_size: Block = "128,128",
) -> None:
    """Each query sees the keys around its own position."""
    keys = seqlen_q if seqlen_k is None else seqlen_k
    block = pair(block_size, "--block-size")
    plan = mp.sliding_window(seqlen_q, keys, left=left, right=right, align=align, block_size=block)
    _keep(plan, out)


@make.command()
def documents(
    lengths: Annotated[list[int], typer.Argument(help="Tokens of each document, in order.")],
    out: Output,
    causal: Annotated[bool, typer.Option("--causal", help="Causal in each document.")] = False,
    block_size: Block = "128,128",
) -> None:
    """Documents one after another, each attending to itself only."""
    _keep(mp.documents(lengths, causal=causal, block_size=pair(block_size, "--block-size")), out)


@make.command()
def sliding_tile(
    grid: Annotated[
        str, typer.Argument(help="Latent frames, height, width: 21,45,80; or wan2.1-720p.")
    ],
    out: Output,
    tile: Annotated[str, typer.Option(help="Tokens of a tile on each axis.")] = "6,8,8",
    window: Annotated[str, typer.Option(help="Tiles seen on each axis.")] = "3,3,3",
    text: Annotated[int, typer.Option(help="Text tokens.")] = 0,
    text_first: Annotated[bool, typer.Option("--text-first", help="Text before video.")] = False,
    pad: Annotated[bool, typer.Option("--pad", help="Pad edge tiles to whole ones.")] = False,
    block_size: Block = "128,128",
) -> None:
    """Sliding tile attention of a video model, over tokens in tile order."""
    if grid[:1].isalpha():
        latent = mp.video.Grid.preset(grid)
    else:
        latent = mp.video.Grid(*triple(grid, "GRID"), text=text, text_first=text_first)
    plan = mp.video.sliding_tile(
        latent,
        pad=pad,
        tile=triple(tile, "--tile"),
        window=triple(window, "--window"),
        block_size=pair(block_size, "--block-size"),
    )
    _keep(plan, out)


@make.command()
def topk(
    array: Annotated[
        Path, typer.Argument(help="An .npy of integers [B, H, rows, topk], -1 padded.")
    ],
    out: Output,
    seqlen_k: Annotated[int, typer.Option(help="Keys, in tokens.", show_default=False)],
    block_size: Block = "128,128",
) -> None:
    """The keys that an array of token indices selects for each query."""
    indices = torch.from_numpy(_array(array, "iu", 4))
    block = pair(block_size, "--block-size")
    _keep(mp.from_topk(indices, seqlen_k, block_size=block), out)


@make.command()
def block_mask(
    array: Annotated[Path, typer.Argument(help="An .npy of bools [.., Q blocks, KV blocks].")],
    out: Output,
    seqlen_q: Annotated[int, typer.Option(help="Queries, in tokens.", show_default=False)],
    seqlen_k: Annotated[int, typer.Option(help="Keys, in tokens.", show_default=False)],
    block_size: Block = "128,128",
) -> None:
    """The blocks that an array of bools keeps, each of them whole."""
    mask = torch.from_numpy(_array(array, "b", None))
    block = pair(block_size, "--block-size")
    _keep(mp.from_block_mask(mask, seqlen_q, seqlen_k, block_size=block), out)


def _array(path: Path, kinds: str, rank: int | None) -> np.ndarray:
    """The array of an .npy file, which is never unpickled.

    Raises:
        PlanError: if the file is no such array.
        PlanTypeError: if its dtype or rank is another.
        OSError: if it cannot be read.
    """
    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise PlanError(
            sentence(
                what="not an array",
                where=str(path),
                got=str(error).partition("\n")[0],
                wanted="an .npy file of plain numbers",
                remedy="write it with numpy.save",
            )
        ) from error
    wanted = {"iu": "integers", "b": "bools"}[kinds]
    if (
        not isinstance(array, np.ndarray)
        or array.dtype.kind not in kinds
        or rank not in {None, array.ndim}
    ):
        got = f"{array.dtype} {list(array.shape)}" if isinstance(array, np.ndarray) else "an .npz"
        raise PlanTypeError(
            sentence(
                what="array has the wrong type or rank",
                where=str(path),
                got=got,
                wanted=f"{wanted} of rank {rank or 'at least 2'}",
                remedy="see the command's --help",
            )
        )
    return array
