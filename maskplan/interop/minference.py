"""MInference's configuration files: what kind of sparse head each head is, and its sizes.

The file is JSON, a list of layers, each {"head": [type, vertical_size, slash_size, score]}. Only
stream_llm heads are masks by themselves; vertical_and_slash and block_sparse heads need queries and
keys to become one, so they are kept as parameters.

Source: MInference, `minference/configs/*_best_pattern.json`; vLLM and SGLang read the same files.
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

from maskplan.errors import UnsupportedError, sentence
from maskplan.interop.untrusted import MAX_BYTES, read_json, refuse, whole
from maskplan.plan import Plan
from maskplan.select.minference import a_shape

KINDS = ("vertical_and_slash", "stream_llm", "block_sparse")
_DEFAULT = ("vertical_and_slash", 1000, 6096)
_MAX_LAYERS = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadPattern:
    """One head, as the file says it.

    Attributes:
        kind: "vertical_and_slash", "stream_llm" or "block_sparse".
        first_size: vertical_size; of stream_llm the leading keys that all see (n_init).
        second_size: slash_size; of stream_llm the keys before a query that it sees (n_local).
        score: what the search gave it.
    """

    kind: str
    first_size: int
    second_size: int
    score: float

    def plan(self, seqlen: int, *, block_size: tuple[int, int] = (128, 128)) -> Plan:
        """The plan of a stream_llm head.

        Raises:
            UnsupportedError: of the other kinds, which need queries and keys.
        """
        if self.kind != "stream_llm":
            raise UnsupportedError(
                sentence(
                    what="head has no mask without its queries and keys",
                    where="HeadPattern.plan",
                    got=repr(self.kind),
                    wanted="'stream_llm'",
                    remedy="score q and k with maskplan.select and pass these sizes to it",
                )
            )
        return a_shape(
            seqlen, n_init=self.first_size, n_local=self.second_size, block_size=block_size
        )


def read_patterns(
    path: str | PathLike[str], *, max_bytes: int = MAX_BYTES
) -> tuple[tuple[HeadPattern, ...], ...]:
    """The heads of each layer in a configuration file; see `patterns_of`."""
    return patterns_of(read_json(path, max_bytes=max_bytes))


def patterns_of(value: Sequence[Any]) -> tuple[tuple[HeadPattern, ...], ...]:
    """The heads of each layer.

    Warns if every head has the sizes that MInference's search writes when it could not tell
    patterns apart (vertical_and_slash, 1000, 6096).

    Raises:
        PlanFileError: if the value has another form, a head is missing or a type unknown.
    """
    if not isinstance(value, list) or not 0 < len(value) <= _MAX_LAYERS:
        got = f"{len(value)} entries" if isinstance(value, list) else type(value).__name__
        refuse("patterns", "not a list of layers", got, f"1 to {_MAX_LAYERS} layers")
    layers = tuple(_layer(fields, number) for number, fields in enumerate(value))
    heads = [head for layer in layers for head in layer]
    if all((head.kind, head.first_size, head.second_size) == _DEFAULT for head in heads):
        warnings.warn(
            sentence(
                what="every head has the same pattern",
                where="patterns",
                got=f"{len(heads)} times {_DEFAULT}",
                wanted="patterns that a search told apart",
                remedy="search again if heads should differ",
            ),
            stacklevel=2,
        )
    return layers


def _layer(fields: object, number: int) -> tuple[HeadPattern, ...]:
    where = f"patterns, layer {number}"
    if not isinstance(fields, dict) or not fields:
        refuse(where, "layer is not an object of heads", f"{fields!r:.60}", '{"0": [...], ...}')
    wanted = [str(head) for head in range(len(fields))]
    if set(fields) != set(wanted):
        odd = sorted(set(fields) - set(wanted), key=str)
        refuse(where, "heads are not numbered from 0", odd[:4], f"heads 0 to {len(fields) - 1}")
    return tuple(_head(fields[head], f"{where}, head {head}") for head in wanted)


def _head(value: object, where: str) -> HeadPattern:
    if not isinstance(value, list) or len(value) != 4:
        refuse(where, "head has another form", f"{value!r:.80}", "[type, size, size, score]")
    kind, first, second, score = value
    if kind not in KINDS:
        refuse(where, "unknown type", f"{kind!r:.40}", " or ".join(map(repr, KINDS)))
    if not whole(first) or not whole(second):
        refuse(where, "size is not a whole number", [first, second], "two numbers from 0 up")
    # JSON has integers that no float holds, and reads 1e999 as infinity.
    if type(score) not in (int, float) or not abs(score) <= sys.float_info.max:
        refuse(where, "score is not a number", f"{score!r:.40}", "a finite number")
    return HeadPattern(kind=kind, first_size=first, second_size=second, score=float(score))
