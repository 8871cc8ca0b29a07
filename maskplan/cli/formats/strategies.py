"""Formats in JSON: FastVideo's mask strategies and search logs, MInference's, MagiAttention's."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maskplan.book import PlanBook
from maskplan.build import from_ranges
from maskplan.cli.formats.answers import Answers, need
from maskplan.container import replacing
from maskplan.interop import fastvideo, fastvideo_search, magi, minference
from maskplan.interop.untrusted import read_json, refuse, whole
from maskplan.plan import Plan
from maskplan.provenance import Provenance

_RANGES = ("q_ranges", "k_ranges", "attn_type_map")


def read_strategy(path: Path, answers: Answers) -> PlanBook:
    """FastVideo's mask strategy, "step_layer_head" -> window in tiles."""
    return _book(read_json(path), answers, answers.steps, answers.layers, answers.heads)


def write_strategy(book: PlanBook, path: Path, _: Answers) -> None:
    """FastVideo's mask strategy."""
    fastvideo.write_mask_strategy(book, path)


def read_search_log(path: Path, answers: Answers) -> PlanBook:
    """FastVideo's search log of one prompt: the book of the windows of least loss."""
    return book_of_logs([path], answers)


def book_of_logs(paths: Sequence[Path], answers: Answers) -> PlanBook:
    """The book of the windows of least mean loss over search logs."""
    logs = [fastvideo_search.SearchLog.read(path) for path in paths]
    loss = "L2_loss" if answers.loss is None else answers.loss
    strategy = fastvideo_search.best_windows(
        logs,
        loss=loss,
        dense_steps=need(answers.dense_steps),
        dense_window=need(answers.dense_window),
    )
    return _book(strategy, answers, *logs[0].losses[loss].shape[1:])


def _book(
    strategy: Mapping[str, Sequence[int]],
    answers: Answers,
    steps: int | None,
    layers: int | None,
    heads: int | None,
) -> PlanBook:
    return fastvideo.book_of_mask_strategy(
        strategy,
        canvas=need(answers.canvas),
        tile=need(answers.tile),
        steps=need(steps),
        layers=need(layers),
        heads=need(heads),
        text=answers.text or 0,
        pad=bool(answers.pad),
        missing=answers.missing,
        block_size=answers.block,
    )


def read_minference(path: Path, answers: Answers) -> PlanBook:
    """MInference's configuration, if all heads are A-shapes: a book of one step."""
    layers = minference.read_patterns(path)
    made: dict[minference.HeadPattern, Plan] = {}
    plans: dict[tuple[int, int, int], Plan] = {}
    for layer, heads in enumerate(layers):
        for number, head in enumerate(heads):
            if head not in made:
                made[head] = head.plan(need(answers.seqlen_q), block_size=answers.block)
            plans[0, layer, number] = made[head]
    return PlanBook.from_plans(plans, provenance=Provenance(builder="minference.read_patterns"))


def read_ranges(path: Path, answers: Answers) -> Plan:
    """MagiAttention's arguments by name: q_ranges, k_ranges, attn_type_map."""
    value: Any = read_json(path)
    if not isinstance(value, dict) or set(value) != set(_RANGES):
        got = sorted(value) if isinstance(value, dict) else type(value).__name__
        refuse(path, "not ranges of MagiAttention", f"{got}"[:160], ", ".join(_RANGES))
    for name in _RANGES[:2]:
        pairs = value[name]
        if not isinstance(pairs, list) or not all(map(_pair, pairs)):
            refuse(f"{name} of {path}", "not ranges", f"{pairs!r:.80}", "[[first, stop], ...]")
    return from_ranges(
        value["q_ranges"],
        value["k_ranges"],
        value["attn_type_map"],
        need(answers.seqlen_q),
        need(answers.seqlen_k),
        block_size=answers.block,
    )


def _pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(whole, value))


def write_ranges(plan: Plan, path: Path, _: Answers) -> None:
    """MagiAttention's arguments by name."""
    found = magi.to_ranges(plan)
    value = {name: getattr(found, name).tolist() for name in _RANGES}
    with replacing(path) as file:
        file.write(json.dumps(value).encode())
