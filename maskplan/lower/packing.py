"""A lowered plan as a registered operator can take it: tensors, and one string for all the rest.

NOTE [Packed plans]: the schema of an operator knows tensors, numbers and strings, and no classes.
So a frozen dataclass of tensors and plain values is packed once, when it is made, into the list of
its tensors and a JSON text of everything else, and the operator makes the object again from the
two. The text says all there is to say, so a compiled graph that was cached on disk, or exported,
means the same in another process; and since it is equal for plans of one shape, a compiled
region does not tell them apart.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from importlib import import_module
from operator import itemgetter
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from maskplan.provenance import Provenance

_PACKAGE = "maskplan."


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """What an operator is given of a plan.

    Attributes:
        tensors: each tensor once, in the order in which fields name them.
        spec: the classes, the values that are no tensors, and which tensor goes where, as JSON.
    """

    tensors: tuple[Tensor, ...]
    spec: str

    def writes(self) -> tuple[int, ...]:
        """How often each tensor was written to in place, see NOTE [Overwritten plans]."""
        return writes_to(self.tensors)


def writes_to(tensors: Sequence[Tensor]) -> tuple[int, ...]:
    """How often each of `tensors` was written to in place; 0 of inference tensors.

    These do not count. To ask each of them first whether it counts would take twice as long.
    """
    try:
        return tuple([tensor._version for tensor in tensors])  # noqa: SLF001 - it has no other name
    except RuntimeError:
        return tuple([0 if x.is_inference() else x._version for x in tensors])  # noqa: SLF001


def pack(value: object) -> Packed:
    """`value`, a frozen dataclass of maskplan, taken apart. Provenance is left out.

    Fields that are not arguments of the constructor are left out too. Values may be tensors, None,
    numbers, text, tuples, dicts with names as keys, and further dataclasses of maskplan.
    """
    tensors: dict[int, tuple[int, Any]] = {}
    spec = _describe(value, tensors)
    return Packed(
        tensors=tuple(tensor for _, tensor in tensors.values()),
        spec=json.dumps(spec, separators=(",", ":")),
    )


def unpack(tensors: Sequence[Any], spec: str) -> Any:
    """What `pack` took apart, with `tensors` in place of its own.

    Nothing is checked: the tensors may be fakes, or stand for tensors.
    """
    return _maker(spec)(tensors)


def _describe(value: object, tensors: dict[int, tuple[int, Any]]) -> Any:
    """JSON of `value`: what is a list has its kind first."""
    if isinstance(value, Tensor):
        number, _ = tensors.setdefault(id(value), (len(tensors), value))
        return ["tensor", number]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Provenance):
        return None
    if isinstance(value, tuple):
        return ["tuple", *(_describe(item, tensors) for item in value)]
    if isinstance(value, dict):
        return {name: _describe(item, tensors) for name, item in value.items()}
    kind = type(value)
    named = f"{kind.__module__}:{kind.__qualname__}"
    assert is_dataclass(value), f"cannot pack {named}"
    assert named.startswith(_PACKAGE), f"cannot pack {named}"
    parts = {
        field.name: _describe(getattr(value, field.name), tensors)
        for field in fields(value)
        if field.init
    }
    return ["object", named, parts]


@lru_cache(maxsize=1024)
def _maker(spec: str) -> Callable[[Sequence[Any]], Any]:
    """A function from tensors to the object; a memo of parsed text, since each call needs it."""
    return _making(json.loads(spec))


def _making(spec: Any) -> Callable[[Sequence[Any]], Any]:
    if not _names_tensors(spec):
        constant = _constant(spec)
        return lambda _tensors: constant
    kind, *rest = spec
    if kind == "tensor":
        return itemgetter(rest[0])
    if kind == "tuple":
        items = [_making(item) for item in rest]
        return lambda tensors: tuple(item(tensors) for item in items)
    return _object_making(_class(rest[0]), rest[1])


def _object_making(kind: type, parts: dict[str, Any]) -> Callable[[Sequence[Any]], Any]:
    makers = [(name, _making(part)) for name, part in parts.items()]

    def make(tensors: Sequence[Any]) -> Any:
        # Without the constructor: its checks were done when the object was first made.
        made: Any = object.__new__(kind)
        for name, maker in makers:
            object.__setattr__(made, name, maker(tensors))
        return made

    return make


def _names_tensors(spec: Any) -> bool:
    if isinstance(spec, dict):
        return any(_names_tensors(part) for part in spec.values())
    if not isinstance(spec, list):
        return False
    return spec[0] == "tensor" or any(_names_tensors(part) for part in spec[1:])


def _constant(spec: Any) -> Any:
    if isinstance(spec, dict):
        return {name: _constant(part) for name, part in spec.items()}
    if not isinstance(spec, list):
        return spec
    if spec[0] == "tuple":
        return tuple(_constant(item) for item in spec[1:])
    return _class(spec[1])(**{name: _constant(part) for name, part in spec[2].items()})


def _class(named: str) -> type:
    module, _, name = named.partition(":")
    assert module.startswith(_PACKAGE), f"no class of maskplan: {named}"
    found: type = getattr(import_module(module), name)
    return found


def register(kind: type, name: str, restore: Callable[[Sequence[Any], str], Any] = unpack) -> None:
    """Make `kind` a pytree whose leaves are its tensors, under `name` in what is serialised."""

    def flatten(value: Any) -> tuple[list[Tensor], str]:
        packed = getattr(value, "packed", None) or pack(value)
        return list(packed.tensors), packed.spec

    def flatten_with_keys(value: Any) -> tuple[list[tuple[pytree.KeyEntry, Tensor]], str]:
        tensors, spec = flatten(value)
        return [(pytree.SequenceKey(i), tensor) for i, tensor in enumerate(tensors)], spec

    pytree.register_pytree_node(
        kind,
        flatten,
        lambda tensors, spec: restore(list(tensors), spec),
        serialized_type_name=name,
        flatten_with_keys_fn=flatten_with_keys,  # torch.export names its inputs by them
    )
