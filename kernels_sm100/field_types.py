"""Fields of a configuration are of the types that they declare.

Values that compare alike compile to other code or to none: 2.0 heads, True stages, and a mode by
its name in text, which equals no mode and so would be taken for every other one.
"""

from dataclasses import fields
from types import UnionType
from typing import Any, get_args

from kernels_sm100.errors import ConfigError, sentence


def check_field_types(config: Any) -> None:
    """Refuse a frozen dataclass with a field that holds something of another type.

    Args:
        config: with fields of plain classes, or unions of them.

    Raises:
        ConfigError: naming the first such field.
    """
    for field in fields(config):
        value, declared = getattr(config, field.name), field.type
        kinds = get_args(declared) if isinstance(declared, UnionType) else (declared,)
        if type(value) not in kinds:
            raise ConfigError(
                sentence(
                    what=f"{field.name} of the wrong type",
                    where=type(config).__name__,
                    got=f"{value!r} of type {type(value).__name__}",
                    wanted=" or ".join(getattr(kind, "__name__", str(kind)) for kind in kinds),
                    remedy="convert it",
                )
            )
