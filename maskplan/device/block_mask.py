"""Block masks to device plans."""

import torch
from torch import Tensor

from maskplan.device.lists import check_room, listing, on_device, power_of_two, words_of
from maskplan.device.status import new_status
from maskplan.geometry import Geometry
from maskplan.plan import Plan
from maskplan.provenance import Provenance


def mask_plan(
    mask: Tensor,
    geometry: Geometry,
    pattern_id: Tensor,
    provenance: Provenance,
    capacity: int | None,
) -> Plan:
    """The device plan of a block mask.

    Args:
        mask: bool [b, h, M, N], any strides.
        geometry: lengths and block size.
        pattern_id: int32 [batch, heads].
        provenance: how it was made.
        capacity: room for blocks, or None for as many as there can be.
    """
    from maskplan.device.topk_triton import mask_kernel

    device = mask.device
    with on_device(mask):
        heads, rows, cols = mask.shape[1:]
        lines = mask.shape[0] * heads * rows
        if not rows:  # no rows tell patterns apart
            pattern_id = torch.zeros_like(pattern_id)
        wanted = lines * cols if capacity is None else capacity
        room = check_room(wanted, "from_block_mask", "pass capacity=, ")
        status = new_status(device)
        listed = torch.empty(lines, words_of(cols), dtype=torch.int32, device=device)
        counts = torch.empty(lines, dtype=torch.int32, device=device)
        block = power_of_two(words_of(cols), 1, 32)
        mask_kernel[(lines,)](
            mask.view(torch.uint8), *mask.stride(), listed, counts, heads, rows, cols,
            words_of(cols), BLOCK_W=block,
        )  # fmt: skip
        row_ptr, col, _ = listing(listed, None, counts, cols, room, status, tiles=0)
        return Plan(
            geometry=geometry,
            pattern_id=pattern_id,
            row_ptr=row_ptr,
            col=col,
            tile_id=None,
            tiles=torch.empty(
                0, geometry.block_size[0], geometry.axes.words, dtype=torch.int32, device=device
            ),
            provenance=provenance,
            status=status,
        )
