"""Token tiles as a GPU makes them, of exact ones: room for more keys, nothing counted."""

from dataclasses import fields, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from maskplan.lower.token_tiles import NOT_COUNTED


def as_made_on_a_gpu(tiles, *, spare=128, device="cpu"):
    """The same tables with room for `spare` more keys, a status word, and pairs not counted.

    That a GPU makes such is shown in tests/device. Exact lists of logical blocks stay as they are:
    no kernel of ours walks them.
    """
    table, bits = tiles.tile_token_indices, tiles.row_bits
    moved = replace(
        tiles,
        tile_token_indices=pad(table, (0, spare), value=-1),
        row_bits=None if bits is None else pad(bits, (0, spare // 32)),
        wanted_pairs=NOT_COUNTED,
        kept_pairs=NOT_COUNTED,
        visited_pairs=NOT_COUNTED,
        status=torch.zeros(1, dtype=torch.int32),
    )
    blocks = replace(moved.blocks, **there(moved.blocks, device))
    return replace(moved, **there(moved, device), blocks=blocks)


def there(value, device):
    """Fields of a dataclass that are tensors, on a device."""
    found = {field.name: getattr(value, field.name) for field in fields(value)}
    return {name: x.to(device) for name, x in found.items() if isinstance(x, Tensor)}
