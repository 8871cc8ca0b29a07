"""Provenance of plans made from plans."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from maskplan.plan import BlockLists
from maskplan.provenance import Provenance, shared_layout

ListsT = TypeVar("ListsT", bound=BlockLists)


def derived(
    result: ListsT,
    builder: str,
    *sources: BlockLists,
    parameters: Mapping[str, Any],
    keep_grid: bool = True,
) -> ListsT:
    """`result` with the provenance of something made by `builder` from `sources`.

    Grid and token order stay where every source has the same ones, and `keep_grid` says that the
    tokens are still those.
    """
    history = [None if s.provenance is None else s.provenance.to_json() for s in sources]
    grid, token_order = shared_layout(source.provenance for source in sources if keep_grid)
    provenance = Provenance(
        builder=builder,
        parameters={**parameters, "of": history},
        grid=grid,
        token_order=token_order,
    )
    return replace(result, provenance=provenance)
