"""The registry of instruction forms: which PTX the emulator knows, each with its code generator.

A form is a regular expression over the opcode with all its modifiers. An instruction that no form
matches in full is an error, so a modifier nobody thought of cannot be ignored by accident.

NOTE [Kinds of instruction]: *blocking* instructions may have to wait; they are a block of their
own, which is executed again until it succeeds. *Convergent* ones need the lanes they name
together, so they begin a block: a fragment of a warp that arrives early waits there for the
others. *Moves* put bits from registers into registers and do nothing else.
"""

import re
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

Generator = Callable[[Any, Any, re.Match[str]], None]


@dataclass(frozen=True, slots=True)
class Form:
    """One known form: its pattern, its code generator and its kind."""

    pattern: re.Pattern[str]
    generate: Generator
    blocking: bool
    convergent: bool
    moves: bool


_FORMS: dict[str, list[Form]] = defaultdict(list)


def form(
    pattern: str, *, blocking: bool = False, convergent: bool = False, moves: bool = False
) -> Callable[[Generator], Generator]:
    """Register a code generator for every opcode that `pattern` matches in full.

    The pattern begins with the first word of the opcode, or with an alternation of such words in
    parentheses: `(min|max)...`.
    """
    words = re.match(r"\((?:\?P<\w+>)?([\w|]+)\)|(\w+)", pattern)
    assert words is not None, pattern
    names = (words[1] or words[2]).split("|")

    def register(generate: Generator) -> Generator:
        made = Form(re.compile(pattern), generate, blocking, convergent, moves)
        for name in names:
            _FORMS[name].append(made)
        return generate

    return register


@cache
def find(op: str) -> tuple[Form, re.Match[str]] | None:
    """The form of an opcode, and how its pattern matched; None if no form does."""
    for known in _FORMS.get(op.split(".", 1)[0], ()):
        if found := known.pattern.fullmatch(op):
            return known, found
    return None
