"""FastVideo's search logs: the loss of each window at each step, layer and head, for one prompt."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import torch
from torch import Tensor

from maskplan.errors import PlanError, sentence
from maskplan.interop.untrusted import MAX_BYTES, read_json, refuse

Triple = tuple[int, int, int]
_WINDOW = re.compile(r"\[([1-9][0-9]{0,5}), ([1-9][0-9]{0,5}), ([1-9][0-9]{0,5})\]")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SearchLog:
    """Losses of windows.

    Attributes:
        windows: (kt, kh, kw) in tiles.
        losses: by name of the loss ("L2_loss", "L1_loss"): float64 [windows, steps, layers, heads].
    """

    windows: tuple[Triple, ...]
    losses: Mapping[str, Tensor]

    @classmethod
    def read(cls, path: str | PathLike[str], *, max_bytes: int = MAX_BYTES) -> "SearchLog":
        """The log in a JSON file, plain or gzipped; see `from_json`."""
        return cls.from_json(read_json(path, max_bytes=max_bytes))

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> "SearchLog":
        """The log {loss name: {"[kt, kh, kw]": [steps][layers][heads] of numbers}}.

        Raises:
            PlanFileError: if it has another form, losses name different windows or differ in
                shape, lists are ragged, or a loss is not finite or negative.
        """
        if not isinstance(value, Mapping) or not value:
            refuse("search log", "not a search log", f"{value!r:.40}", "an object of losses")
        windows: tuple[Triple, ...] | None = None
        sizes: tuple[int, ...] | None = None
        losses = {}
        for name, by_window in value.items():
            if not isinstance(by_window, Mapping) or not by_window:
                refuse(
                    f"search log, {name!r:.40}", "not losses by window", f"{by_window!r:.40}", "{}"
                )
            own = tuple(_parsed(key, name) for key in by_window)
            if windows is not None and own != windows:
                where = f"search log, {name!r:.40}"
                refuse(where, "losses name different windows", own, f"{windows}, as the first")
            windows = own
            arrays = {key: _array(part, name, key) for key, part in by_window.items()}
            for key, array in arrays.items():
                sizes = tuple(array.shape) if sizes is None else sizes
                if tuple(array.shape) != sizes:
                    where = f"search log, {name!r:.40}, {key}"
                    got, wanted = list(array.shape), f"{list(sizes)}, as the first"
                    refuse(where, "losses differ in steps, layers or heads", got, wanted)
            losses[name] = torch.stack(list(arrays.values()))
        assert windows is not None
        return cls(windows=windows, losses=losses)


def best_windows(
    logs: Sequence[SearchLog],
    *,
    loss: str = "L2_loss",
    windows: Sequence[Triple] | None = None,
    dense_steps: int,
    dense_window: Triple,
) -> dict[str, list[int]]:
    """The mask strategy that takes, for each (step, layer, head), the window of least mean loss.

    Args:
        logs: one for each prompt; their losses are averaged.
        loss: which of the losses.
        windows: candidates, all that the logs hold by default. Of equal ones the first is taken.
        dense_steps: the first steps, which use `dense_window`.
        dense_window: the window that covers the canvas.

    Returns:
        "t_l_h" -> [kt, kh, kw], as `maskplan.interop.fastvideo.book_of_mask_strategy` takes it.

    Raises:
        PlanError: if there are no logs, they differ in shape, or lack the loss or a window.

    Source: FastVideo's `average_head_losses` and `select_best_mask_strategy`.
    """
    candidates = tuple(logs[0].windows if windows is None and logs else windows or ())
    total: Tensor | None = None
    for number, log in enumerate(logs):
        if loss not in log.losses or not set(candidates) <= set(log.windows):
            got = f"losses {sorted(log.losses)}, windows {list(log.windows)}"
            _fail(f"logs[{number}]", got, f"{loss!r} of windows {list(candidates)}")
        own = log.losses[loss][[log.windows.index(window) for window in candidates]]
        if total is not None and own.shape != total.shape:
            _fail(f"logs[{number}]", list(own.shape), f"{list(total.shape)}, as the first")
        total = own if total is None else total + own
    if total is None or not candidates:
        _fail("logs", f"{len(logs)} logs, {len(candidates)} windows", "at least one of both")
    assert total is not None
    choice = total.argmin(dim=0)
    steps, layers, heads = choice.shape
    numbers = choice.tolist()
    return {
        f"{t}_{layer}_{h}": list(
            dense_window if t < dense_steps else candidates[numbers[t][layer][h]]
        )
        for t in range(steps)
        for layer in range(layers)
        for h in range(heads)
    }


def _fail(where: str, got: object, wanted: str) -> None:
    raise PlanError(
        sentence(
            what="search logs do not go together",
            where=where,
            got=got,
            wanted=wanted,
            remedy="pass logs of one model, resolution and list of candidates",
        )
    )


def _parsed(key: str, loss: str) -> Triple:
    match = _WINDOW.fullmatch(key)
    if match is None:
        where = f"search log, {loss!r:.40}"
        refuse(where, "key is not a window", f"{key!r:.80}", '"[kt, kh, kw]" in tiles')
    t, h, w = map(int, match.groups())
    return t, h, w


def _array(value: object, loss: str, key: str) -> Tensor:
    where = f"search log, {loss!r:.40}, {key}"
    if not _numbers(value, 3):
        refuse(where, "losses are not numbers", f"{value!r:.60}", "lists [steps][layers][heads]")
    try:
        array = torch.tensor(value, dtype=torch.float64)
    except (ValueError, RuntimeError, OverflowError) as error:
        refuse(where, "lists are ragged", str(error)[:80], "one length on each axis", cause=error)
    if not bool((torch.isfinite(array) & (array >= 0)).all()):
        refuse(where, "loss is negative or not finite", "such a number", "finite, at least 0")
    return array


def _numbers(value: object, depth: int) -> bool:
    if depth == 0:
        return type(value) in (int, float)
    return isinstance(value, list) and bool(value) and all(_numbers(v, depth - 1) for v in value)
