"""Every command's help, and the example in it, which has to work."""

import contextlib
import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import rich.markup
import typer
import typer.core

import maskplan as mp
from maskplan.cli.app import app
from tests.cli.program import run, succeed

ROOT = Path(mp.__file__).parents[1]


def commands(
    group: typer.core.TyperGroup, path: tuple[str, ...] = ()
) -> list[tuple[tuple[str, ...], str]]:
    """(words, example) of every command."""
    found = []
    for name, command in group.commands.items():
        words = (*path, name)
        if hasattr(command, "commands"):
            found += commands(command, words)
        else:
            found.append((words, command.epilog or ""))
    return found


PROGRAM = typer.main.get_command(app)
COMMANDS = commands(PROGRAM)
EXAMPLES = [
    (words, example.removeprefix("Example: maskplan "))
    for words, epilog in COMMANDS
    for example in epilog.split("\n\n")  # a command that does two things has two
    if words[0] != "demo" and example
]


@pytest.mark.parametrize("words", [(), *(words for words, _ in COMMANDS)], ids=" ".join)
def test_help_explains(capsys, words):
    code, out, _ = run(capsys, *words, "--help")

    assert code == 0
    assert "Usage: maskplan" in out


def test_every_command_has_an_example():
    assert [" ".join(words) for words, example in COMMANDS if not example] == []


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS], ids=" ".join)
def test_lines_of_a_help_are_not_broken(words):
    """Rich keeps line breaks, so that a line of more than 78 columns becomes two."""
    command = PROGRAM
    for word in words:
        command = command.commands[word]
    _, _, rest = command.help.partition("\n\n")

    assert [line for line in rest.splitlines() if len(line) > 78] == []


@pytest.mark.parametrize("words", [words for words, _ in COMMANDS], ids=" ".join)
def test_axes_in_a_help_are_shown(words):
    """Rich takes [batch, heads] for a style and drops it, unless its bracket is escaped."""
    command = PROGRAM
    for word in words:
        command = command.commands[word]
    texts = [command.help, *(parameter.help for parameter in command.params)]

    dropped = [text for text in texts if text and rich.markup.render(text).spans]
    assert dropped == []


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> Path:
    """The files that examples name, small where the example does not say their size."""
    folder = tmp_path_factory.mktemp("files")
    with contextlib.chdir(folder):
        make_files()
    return folder


@pytest.fixture
def inputs(files, tmp_path, monkeypatch) -> Path:
    """The same in a folder of each test's own."""
    shutil.copytree(files, tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def make_files() -> None:
    grid = mp.video.Grid(4, 8, 8)
    sta = mp.video.sliding_tile(grid, tile=(2, 4, 4), window=(1, 1, 1), block_size=(32, 32))
    sta.save("sta.plan")
    for name, decay in (("radial", 0.2), ("shrunk", 0.5)):
        mp.video.radial(grid, decay=decay, least=8, block_size=(32, 32)).save(f"{name}.plan")
    mp.causal(100, 100, block_size=(32, 32)).save("causal.plan")
    plans = {(step, layer): sta for step in range(22) for layer in range(5)}
    mp.PlanBook.from_layers(plans).save("run.book")
    np.save("topk.npy", np.zeros((1, 1, 4096, 2), dtype=np.int64))
    np.save("blocks.npy", np.eye(32, dtype=bool))
    rng = np.random.default_rng(0)
    np.save("scores.npy", rng.random((1, 1, 32, 32)))
    np.save("mass.npy", rng.dirichlet(np.ones(32), (1, 1, 32)))
    np.save("chunks.npy", rng.random((1, 1, 2048, 4)))
    np.save("columns.npy", np.array([[[0, 5]]]))
    np.save("diagonals.npy", np.array([[[0, 700]]]))
    for name in "qk":
        np.save(f"{name}.npy", rng.standard_normal((1, 1024, 2, 16)).astype(np.float32))
    np.save("ql.npy", rng.integers(0, 3, (1, 1, 200)))
    np.save("kl.npy", rng.integers(0, 4, (1, 1, 200)))
    np.save("kept.npy", np.ones((1, 1, 3, 4), dtype=bool))
    keys = (f"{t}_{layer}_{h}" for t in range(50) for layer in range(60) for h in range(24))
    Path("mask_strategy.json").write_text(json.dumps({key: [3, 3, 3] for key in keys}))


@pytest.mark.parametrize(
    ("words", "example"),
    EXAMPLES,
    ids=lambda part: " ".join(part) if isinstance(part, tuple) else "",
)
def test_the_example_works(capsys, inputs, words, example):
    arguments = shlex.split(example)
    target = None
    if "-o" in arguments:
        target = inputs / arguments[arguments.index("-o") + 1]
    elif words == ("convert",):
        target = inputs / arguments[2]
    if target is not None:
        target.unlink(missing_ok=True)

    assert tuple(arguments[: len(words)]) == words
    assert succeed(capsys, *arguments)
    assert target is None or target.stat().st_size


def test_the_version(capsys):
    assert succeed(capsys, "--version").split() == ["maskplan", mp.__version__]


def test_help_loads_nothing_heavy():
    work = (
        "import sys; from maskplan.cli import main\n"
        "try: main(['plan', '--help'])\n"
        "except SystemExit: pass\n"
        "print('loaded', *sorted({m.split('.')[0] for m in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", work], capture_output=True, text=True, cwd=ROOT, check=True
    )

    loaded = done.stdout.rpartition("loaded")[2].split()
    assert not {"numba", "scipy", "matplotlib", "safetensors"} & set(loaded)


def test_commands_of_the_readme_are_examples():
    lines = (ROOT / "README.md").read_text().splitlines()
    shown = [line.partition("#")[0].split() for line in lines if line.startswith("    maskplan ")]

    assert len(shown) >= 5
    for words in shown:
        assert " ".join(words[1:]) in [example for _, example in EXAMPLES]
