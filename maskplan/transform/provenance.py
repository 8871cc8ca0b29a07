"""Provenance of plans made from plans."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, TypeVar

from maskplan.plan import BlockLists
from maskplan.provenance import Provenance

ListsT = TypeVar("ListsT", bound=BlockLists)


def _common(sources: tuple[BlockLists, ...], name: str) -> Mapping[str, Any] | None:
    """The grid or token order that all sources agree on, else None."""
    values = [getattr(source.provenance, name, None) for source in sources]
    return values[0] if all(value == values[0] for value in values) else None


def derived(
    result: ListsT,
    builder: str,
    *sources: BlockLists,
    parameters: Mapping[str, Any],
    keep_grid: bool = True,
) -> ListsT:
    """`result` with the provenance of something made by `builder` from `sources`.

    Grid and token order stay where every source has the same, and `keep_grid` says that the tokens
    are still those.
    """
    history = [None if s.provenance is None else s.provenance.to_json() for s in sources]
    provenance = Provenance(
        builder=builder,
        parameters={**parameters, "of": history},
        grid=_common(sources, "grid") if keep_grid else None,
        token_order=_common(sources, "token_order") if keep_grid else None,
    )
    return replace(result, provenance=provenance)
