"""`maskplan convert` and `maskplan formats`: plans between files of this project and of others."""

from pathlib import Path
from typing import Annotated, Any

import typer

from maskplan.book import PlanBook
from maskplan.cli.formats import FORMATS, Answers, Format, check, format_of
from maskplan.cli.formats.answers import flag
from maskplan.cli.options import Force, Head, Layer, Step, pair, triple
from maskplan.cli.output import free
from maskplan.cli.progress import working
from maskplan.cli.source import entry
from maskplan.errors import PlanError, sentence


def _option(text: str) -> Any:
    return typer.Option(help=text, show_default=False)


def convert(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="The file to read.")],
    target: Annotated[Path, typer.Argument(metavar="TARGET", help="The file to write.")],
    from_format: Annotated[
        str | None, typer.Option("--from", help="Format of SOURCE.", show_default=False)
    ] = None,
    to_format: Annotated[
        str | None, typer.Option("--to", help="Format of TARGET.", show_default=False)
    ] = None,
    step: Step = None,
    layer: Layer = None,
    head: Head = None,
    seqlen_q: Annotated[int | None, _option("Queries, in tokens.")] = None,
    seqlen_k: Annotated[int | None, _option("Keys, in tokens.")] = None,
    block_size: Annotated[str | None, _option("Tokens of a block: 128,128.")] = None,
    canvas: Annotated[str | None, _option("Latent frames, height, width: 30,48,80.")] = None,
    tile: Annotated[str | None, _option("Tokens of a tile: 6,8,8.")] = None,
    steps: Annotated[int | None, _option("Steps of the model's run.")] = None,
    layers: Annotated[int | None, _option("Layers of the model.")] = None,
    heads: Annotated[int | None, _option("Heads of the model.")] = None,
    text: Annotated[int | None, _option("Text tokens after the video.")] = None,
    pad: Annotated[bool | None, _option("Fill up edge tiles, or a matrix.")] = None,
    missing: Annotated[str | None, _option("Window of keys that a strategy leaves out.")] = None,
    dense_steps: Annotated[int | None, _option("First steps that see everything.")] = None,
    dense_window: Annotated[str | None, _option("Window that covers the canvas.")] = None,
    loss: Annotated[str | None, _option("Loss of a search log; L2_loss if not given.")] = None,
    arch: Annotated[str | None, _option("GPU architecture of SpargeAttn's blocks: sm90.")] = None,
    select_block: Annotated[int | None, _option("Keys of an NSA block: 64.")] = None,
    repeat: Annotated[int | None, _option("Rows that share one q2k list.")] = None,
    causal: Annotated[bool | None, _option("Whether the attention call is causal.")] = None,
    zeros: Annotated[str | None, _option("Stored zeros of a matrix: drop or keep.")] = None,
    superset: Annotated[
        bool | None, _option("Keep whole blocks where the plan keeps a part: more pairs.")
    ] = None,
    force: Force = False,
) -> None:
    """Move a plan between file formats: exactly, or not at all.

    The formats follow from the endings of the files where only one fits, and
    are named by --from and --to where several do; maskplan formats lists them,
    and what each leaves out. What a file leaves out has to be said: it is never
    guessed. Of a book, --step and --layer pick one plan.
    """
    answers = Answers(
        seqlen_q=seqlen_q,
        seqlen_k=seqlen_k,
        block_size=None if block_size is None else pair(block_size, "--block-size"),
        canvas=None if canvas is None else triple(canvas, "--canvas"),
        tile=None if tile is None else triple(tile, "--tile"),
        steps=steps,
        layers=layers,
        heads=heads,
        text=text,
        pad=pad,
        missing=None if missing is None else triple(missing, "--missing"),
        dense_steps=dense_steps,
        dense_window=None if dense_window is None else triple(dense_window, "--dense-window"),
        loss=loss,
        arch=arch,
        select_block=select_block,
        repeat=repeat,
        causal=causal,
        zeros=zeros,
        superset=superset,
    )
    reader = format_of(source, from_format, "--from", written=False)
    writer = format_of(target, to_format, "--to", written=True)
    _check(reader, writer, answers)
    free(target, force=force)
    with working(f"reading {source.name}"):
        assert reader.read is not None, "checked"
        held = reader.read(source, answers)
    held = _chosen(held, writer, (step, layer, head))
    with working(f"writing {target.name}"):
        assert writer.write is not None, "checked"
        writer.write(held, target, answers)
    what = "book" if isinstance(held, PlanBook) else "plan"
    tokens = f"{held.geometry.seqlen_q} x {held.geometry.seqlen_k} tokens"
    print(f"{target}: {what} of {tokens} as {writer.name}, {target.stat().st_size:,} bytes")


def formats() -> None:
    """List the file formats that convert reads and writes, and what each asks for."""
    for each in FORMATS.values():
        print(f"{each.name} ({', '.join(each.suffixes)})\n  {each.content}")
        ways = (
            ("read", each.read, each.asks, each.takes),
            ("write", each.write, each.write_asks, each.write_takes),
        )
        for way, can, asks, takes in ways:
            needs = " ".join(map(flag, asks)) or "nothing"
            may = f"; may have {' '.join(map(flag, takes))}" if takes else ""
            print(f"  {way:<5} " + (f"asks for {needs}{may}" if can else "no"))


def _check(reader: Format, writer: Format, answers: Answers) -> None:
    """Refuse a pair of formats that cannot be, and options that are missing or of no use."""
    if reader.read is None or writer.write is None:
        raise PlanError(
            sentence(
                what="format goes one way",
                where=f"{reader.name} to {writer.name}",
                got=f"no writer of {writer.name}",
                wanted="a format that can be written",
                remedy="`maskplan formats` says which can",
            )
        )
    known = {*reader.asks, *reader.takes, *writer.write_asks, *writer.write_takes}
    needed = tuple(dict.fromkeys((*reader.asks, *writer.write_asks)))
    check(answers, needed, known, f"{reader.name} to {writer.name}")


def _chosen(held: Any, writer: Format, place: tuple[int | None, int | None, int | None]) -> Any:
    """What is written: a book, a plan, or the plan at one place of a book."""
    if isinstance(held, PlanBook):
        whole = all(number is None for number in place)
        return held if whole and writer.holds != "plan" else entry(held, *place)
    if writer.holds == "book" or any(number is not None for number in place):
        raise PlanError(
            sentence(
                what="source is one plan",
                where=f"convert to {writer.name}",
                got="a plan",
                wanted="a book of plans for steps, layers and heads",
                remedy="convert a book, or leave out --step, --layer and --head",
            )
        )
    return held
