"""What a page needs to know of a plan or a book, as one JSON value: compact lists, no matrix."""

import json
import zlib
from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from maskplan.book.plan_book import PlanBook
from maskplan.book.runs import runs_of
from maskplan.geometry import Geometry
from maskplan.pairs import by_pattern, kept_by_block
from maskplan.plan import BlockLists, Plan
from maskplan.provenance import Provenance
from maskplan.viz.palette import DROPPED, EMPTY, FULL, MASK, PADDING
from maskplan.viz.places import places_of


def embedded(source: BlockLists | PlanBook) -> dict[str, Any]:
    """Everything of `source` that a page shows, as a JSON value; O(blocks + tokens).

    Lists are the runs of each distinct pattern, bit tiles are kept whole, and both are deflated. A
    token order is kept once for all the patterns that have it.
    """
    if isinstance(source, PlanBook):
        plans: BlockLists = source.plans
        axes = [_axis(name, getattr(source, f"{name}s")) for name in ("step", "layer", "head")]
        origins: Sequence[Provenance | None] = source.pattern_provenance
    else:
        plans = source
        axes = [_axis("batch", range(plans.batch)), _axis("head", range(plans.heads))]
        origins = [plans.provenance] * plans.num_patterns
    blocks = plans.axes
    orders, places, notes = _orders(origins, plans.geometry)
    runs = runs_of(*_lists(plans))
    arrays = {
        "index": packed(plans.pattern_id.cpu().numpy().ravel()),
        "row_runs": packed(runs.row_runs),
        "run_start": packed(runs.start),
        "run_length": packed(runs.length),
        "tiles": packed(plans.tiles.cpu().numpy().ravel()),
        **places,
    }
    if runs.tile is not None:
        arrays["run_tile"] = packed(runs.tile)
    every = max(blocks.row_len * blocks.col_len, 1)
    return {
        "title": f"{type(source).__name__}: {plans.geometry}",
        "row": "query" if isinstance(plans, Plan) else "key",
        "col": "key" if isinstance(plans, Plan) else "query",
        "rows": blocks.rows,
        "cols": blocks.cols,
        "rowLen": blocks.row_len,
        "colLen": blocks.col_len,
        "rowBlock": blocks.row_block,
        "colBlock": blocks.col_block,
        "words": blocks.words,
        "axes": axes,
        "patterns": [
            {
                "madeBy": "" if origin is None else _short(str(origin)),
                "density": pairs / every,
                "order": orders[number],
                "note": notes[number],
            }
            for number, (origin, pairs) in enumerate(
                zip(origins, by_pattern(plans, kept_by_block(plans)).tolist(), strict=True)
            )
        ],
        "colours": {
            "full": FULL,
            "mask": MASK,
            "dropped": DROPPED,
            "empty": EMPTY,
            "padding": PADDING,
        },
        "arrays": arrays,
    }


def packed(values: np.ndarray[Any, Any], *, delta: bool = False) -> dict[str, Any]:
    """int32 values as base64 of their deflated bytes; with `delta`, each less the one before."""
    array = values.astype("<i4")
    if delta:
        array = np.diff(array, prepend=array.dtype.type(0)).astype("<i4")
    data = b64encode(zlib.compress(array.tobytes(), 6)).decode("ascii")
    return {"length": len(array), "delta": delta, "data": data}


def script_safe(value: object) -> str:
    """`value` as JSON that cannot end the script element it stands in, nor start a comment."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    for sign in "<>&":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _axis(name: str, numbers: range) -> dict[str, Any]:
    return {"name": name, "start": numbers.start, "count": len(numbers)}


def _lists(plans: BlockLists) -> tuple[Any, Any, Any]:
    tile_id = None if plans.tile_id is None else plans.tile_id.cpu().numpy()
    return plans.row_ptr.cpu().numpy(), plans.col.cpu().numpy(), tile_id


def _short(text: str, limit: int = 400) -> str:
    return text if len(text) <= limit else text[:limit] + " ..."


def _orders(
    origins: Sequence[Provenance | None], geometry: Geometry
) -> tuple[list[dict[str, Any] | None], dict[str, dict[str, Any]], list[str]]:
    """(the order of each pattern's tokens or None, slots by name, why there is none)."""
    known: dict[str, tuple[dict[str, Any] | None, str]] = {}
    arrays: dict[str, dict[str, Any]] = {}
    found = []
    for origin in origins:
        key = _key(origin)
        if key not in known:
            places, note = places_of(origin, geometry)
            order = None
            if places is not None:
                name = f"slots{len(arrays)}"
                arrays[name] = packed(places.slots, delta=True)
                order = {**places.grid.to_json(), "slots": name, "queryStart": places.query_start}
            known[key] = order, note
        found.append(known[key])
    return [order for order, _ in found], arrays, [note for _, note in found]


def _key(origin: Provenance | None) -> str:
    fields: Mapping[str, Any] = {} if origin is None else origin.to_json()
    return json.dumps([fields.get("grid"), fields.get("token_order")], sort_keys=True)
