"""`maskplan book`: the plans of a whole run, for every step, layer and head."""

from pathlib import Path
from typing import Annotated

import typer

from maskplan.book import PlanBook
from maskplan.cli.formats import FORMATS, Answers, check
from maskplan.cli.formats.strategies import book_of_logs, read_strategy
from maskplan.cli.listing import book_of_files
from maskplan.cli.options import Force, Head, HeadDim, Layer, Output, Step, pair, triple
from maskplan.cli.output import free, keep
from maskplan.cli.plain import plain
from maskplan.cli.progress import working
from maskplan.cli.source import entry, load_book
from maskplan.errors import PlanError, sentence

book = typer.Typer(
    help="Keep the plans of a whole run, for every step, layer and head, in one file.",
    no_args_is_help=True,
)
BookFile = Annotated[Path, typer.Argument(metavar="BOOK", help="A book.", show_default=False)]


@book.command(
    name="make",
    epilog="Example: maskplan book make mask_strategy.json --canvas 30,48,80 --tile 6,8,8 "
    "--steps 50 --layers 60 --heads 24 -o run.book\n\n"
    "Example: maskplan book make --plans 0,0,0=sta.plan 0,0,1=radial.plan -o run.book",
)
def make_book(
    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="SOURCES",
            help="A mask strategy; with --search-logs logs of several prompts; with --plans "
            "step,layer,head=FILE for each plan, or listings of them.",
        ),
    ],
    out: Output,
    plans: Annotated[
        bool, typer.Option("--plans", help="Take plan files, each with its place in the run.")
    ] = False,
    canvas: Annotated[
        str | None, typer.Option(help="Latent frames, height, width in tokens; not of --plans.")
    ] = None,
    tile: Annotated[
        str | None, typer.Option(help="Tokens of a tile on each axis; not of --plans.")
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps of the model, from 0 on.")] = None,
    layers: Annotated[int | None, typer.Option(help="Layers of the model.")] = None,
    heads: Annotated[int | None, typer.Option(help="Heads of the model.")] = None,
    missing: Annotated[
        str | None, typer.Option(help="Window of keys that a strategy leaves out: 3,3,3.")
    ] = None,
    search_logs: Annotated[
        bool, typer.Option("--search-logs", help="Take windows of least mean loss from logs.")
    ] = False,
    dense_steps: Annotated[
        int | None, typer.Option(help="With logs: first steps that see everything.")
    ] = None,
    dense_window: Annotated[
        str | None, typer.Option(help="With logs: the window that covers the canvas: 5,6,10.")
    ] = None,
    loss: Annotated[
        str | None, typer.Option(help="With logs: which loss; L2_loss if not given.")
    ] = None,
    text: Annotated[int | None, typer.Option(help="Text tokens after the video.")] = None,
    pad: Annotated[bool | None, typer.Option("--pad", help="Pad edge tiles.")] = None,
    block_size: Annotated[
        str | None, typer.Option(help="Tokens per block; 128,128 if not given, not of --plans.")
    ] = None,
    force: Force = False,
) -> None:
    """Make a book from a mask strategy of FastVideo, from its search logs, or from plans.

    FastVideo's files say windows in tiles; the canvas, the tile and the size of
    the model are not in them.

    With --plans, step,layer,head=FILE is the plan of one head, and
    step,layer=FILE that of a layer with all of its heads. A listing is a .json
    object {"step,layer,head": "FILE"}, or a .tsv of a place, a tab and a FILE on
    each line; its paths start from its own folder. Every place from the first
    to the last step, layer and head (or from 0, of as many as --steps, --layers
    and --heads say) has to be named, and named once.
    """
    answers = Answers(
        canvas=None if canvas is None else triple(canvas, "--canvas"),
        tile=None if tile is None else triple(tile, "--tile"),
        steps=steps,
        layers=layers,
        heads=heads,
        missing=None if missing is None else triple(missing, "--missing"),
        dense_steps=dense_steps,
        dense_window=None if dense_window is None else triple(dense_window, "--dense-window"),
        loss=loss,
        text=text,
        pad=pad,
        block_size=None if block_size is None else pair(block_size, "--block-size"),
    )
    if plans and search_logs:
        got = "--plans and --search-logs"
        _refuse("sources are said to be two things", "SOURCES", got, "one", "leave one out")
    if plans:
        check(answers, (), {"steps", "layers", "heads"}, "--plans")
        free(out, force=force)
        with working("reading plans"):
            _save(book_of_files(sources, steps=steps, layers=layers, heads=heads), out)
        return
    form = FORMATS["search-log" if search_logs else "mask-strategy"]
    check(answers, form.asks, {*form.asks, *form.takes}, form.name)
    if not search_logs and len(sources) != 1:
        got = f"{len(sources)} files"
        _refuse("a book has one strategy", "SOURCES", got, "one file", "or pass --search-logs")
    free(out, force=force)
    with working(f"reading {sources[0].name}"):
        made = book_of_logs(sources, answers) if search_logs else read_strategy(sources[0], answers)
        _save(made, out)


@book.command(epilog="Example: maskplan book info run.book --step 20")
def info(
    file: BookFile,
    step: Annotated[int | None, typer.Option(help="Only this step.")] = None,
    layer: Annotated[int | None, typer.Option(help="Only this layer.")] = None,
    patterns: Annotated[int, typer.Option(help="Most distinct patterns listed.")] = 16,
    head_dim: HeadDim = 128,
) -> None:
    """Say what a book holds: densities by step and by layer, FLOPs, and its distinct patterns."""
    held = load_book(file)
    part = held.select(
        steps=None if step is None else range(step, step + 1),
        layers=None if layer is None else range(layer, layer + 1),
    )
    found = part.stats(head_dim=head_dim)
    print(found)
    print("\ndensity by layer")
    for number, density in zip(part.layers, found.density_by_layer.tolist(), strict=True):
        print(f"  layer {number:>4}  {density:>9.4%}")
    _print_patterns(part, found.pattern_uses.tolist(), found.pattern_pairs.tolist(), patterns)


@book.command(
    epilog="Example: maskplan book extract run.book --step 20 --layer 3 -o step20-layer3.plan"
)
def extract(
    file: BookFile,
    out: Output,
    step: Step = None,
    layer: Layer = None,
    head: Head = None,
    force: Force = False,
) -> None:
    """Save the plan of one layer at one step, with all of its heads or one of them."""
    free(out, force=force)
    keep(entry(load_book(file), step, layer, head), out)


def _save(made: PlanBook, out: Path) -> None:
    made.save(out)
    size = out.stat().st_size
    print(f"{out}: {made!r}, density {made.density:.4%}, {size:,} bytes, digest {made.digest}")


def _print_patterns(part: PlanBook, uses: list[int], pairs: list[int], limit: int) -> None:
    print(f"\ndistinct patterns, of {len(part)} entries")
    whole = part.geometry.seqlen_q * part.geometry.seqlen_k
    order = sorted(range(part.num_patterns), key=lambda number: -uses[number])
    for number in order[: max(limit, 0)]:
        origin = part.pattern_provenance[number]
        made = "unknown" if origin is None else plain(origin)
        density = pairs[number] / whole if whole else 0.0
        print(f"  {uses[number]:>8} entries  density {density:>9.4%}  {made}")
    if len(order) > limit:
        print(f"  ... {len(order) - max(limit, 0)} more")


def _refuse(what: str, where: str, got: str, wanted: str, remedy: str) -> None:
    raise PlanError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))
