"""Where a plan came from: kept beside it, shown and saved, and no part of what it means."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from maskplan.errors import PlanTypeError, sentence

Json: TypeAlias = "bool | int | float | str | list[Json] | Mapping[str, Json] | None"


def _number(value: Any) -> bool | int | float:
    """A scalar of NumPy or torch as Python's own, since callers count with those too."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        number = value.item()
        if isinstance(number, (bool, int, float)):
            return number
    raise TypeError(f"{type(value).__name__} is not a number")


def _frozen(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A read-only deep copy of `value`, in which every tuple has become a list."""
    try:
        text = json.dumps(dict(value), sort_keys=True, default=_number)
        return MappingProxyType(json.loads(text))
    except (TypeError, ValueError) as error:
        raise PlanTypeError(
            sentence(
                what="provenance is not JSON",
                where=name,
                got=f"{value!r} ({error})",
                wanted="numbers, strings, lists and mappings with string keys",
                remedy="leave out what is not one of these",
            )
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """How a plan was made.

    Attributes:
        builder: name of the function that made it.
        parameters: that function's arguments, as JSON values.
        grid: the latent grid its tokens lie on, where there is one (`maskplan.video.Grid`).
        token_order: the order of the tokens, where it is not the grid's raster order.

    Raises:
        PlanTypeError: if a mapping holds what JSON cannot.
    """

    builder: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    grid: Mapping[str, Any] | None = None
    token_order: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", _frozen(self.parameters, "parameters"))
        for name in ("grid", "token_order"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _frozen(value, name))

    def to_json(self) -> dict[str, Any]:
        """The fields as plain JSON values; absent ones are left out."""
        fields: dict[str, Any] = {"builder": self.builder, "parameters": dict(self.parameters)}
        if self.grid is not None:
            fields["grid"] = dict(self.grid)
        if self.token_order is not None:
            fields["token_order"] = dict(self.token_order)
        return fields

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> "Provenance":
        """The inverse of `to_json`.

        Raises:
            TypeError: if a field is unknown or `builder` is missing.
        """
        return cls(**fields)

    def __reduce__(self) -> tuple[Any, ...]:
        return Provenance.from_json, (self.to_json(),)

    def __hash__(self) -> int:
        return hash(json.dumps(self.to_json(), sort_keys=True))

    def __str__(self) -> str:
        arguments = ", ".join(f"{name}={value}" for name, value in self.parameters.items())
        return f"{self.builder}({arguments})"


Layout: TypeAlias = tuple[Mapping[str, Any] | None, Mapping[str, Any] | None]


def shared_layout(sources: Iterable[Provenance | None]) -> Layout:
    """(grid, token order) that all sources have, or (None, None).

    Both have to agree: a grid without its order would be read as raster.
    """
    layouts: list[Layout] = [
        (None, None) if source is None else (source.grid, source.token_order) for source in sources
    ]
    if layouts and all(layout == layouts[0] for layout in layouts):
        return layouts[0]
    return None, None
