"""The program as its tests call it."""

import pytest

from maskplan.cli import main


def run(capsys, *arguments) -> tuple[int, str, str]:
    """(exit code, stdout, stderr) of `maskplan` with these arguments."""
    with pytest.raises(SystemExit) as stopped:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    code = stopped.value.code
    if isinstance(code, str):  # what sys.exit prints and turns into 1
        return 1, captured.out, captured.err + code
    return code or 0, captured.out, captured.err


def succeed(capsys, *arguments) -> str:
    """What the program prints, which has to exit with 0 and without a warning."""
    code, out, err = run(capsys, *arguments)
    assert code == 0, err
    assert err == ""
    return out


def refuse(capsys, *arguments) -> str:
    """The one line that it prints to stderr, with exit code 1."""
    code, _, err = run(capsys, *arguments)
    assert code == 1, err
    assert err.startswith("maskplan: ")
    assert len(err.strip().splitlines()) == 1
    return err
