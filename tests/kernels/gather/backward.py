"""Runs LoopK over listed tokens in the emulator, with canaries around what it writes."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import torch

from tests.kernels.backward.run import LOG2_E, POISON, BackwardKernel, Outcome, padded_rows
from tests.kernels.forward.run import aligned
from tests.kernels.forward.walks import TILE
from tests.kernels.gather.lists import token_tables

NAMES = ("pattern_id", "row_ptr", "col", "tile_id", "tiles", "order", "tokens", "keys")
CANARY = 12345.0
AROUND = 1024  # elements before and behind an output


def transposed_bits(tiles):
    """Bits of S [T, 128 rows, 4 words] as those of S^T."""
    bits = np.unpackbits(tiles.view(np.uint8), axis=2, bitorder="little")
    flipped = np.ascontiguousarray(bits.swapaxes(1, 2))
    return np.packbits(flipped, axis=2, bitorder="little").view(np.int32)


def sums_of(shape):
    """(float32 sums, all of the memory around them): -0, which adding so much as 0 would show."""
    count = int(np.prod(shape))
    room = aligned((count + 2 * AROUND,), torch.float32, -0.0)
    return room[AROUND : AROUND + count].view(*shape), room


def untouched(values):
    """Whether nothing has been added to any of them."""
    return bool(((values == 0) & torch.signbit(values)).all())


def selected(given):
    """Bool [B, HK, SK]: tokens that a query of the group selects."""
    batch, _, heads, _ = given.q.shape
    kv_heads = given.k.shape[2]
    per_head = np.repeat(given.masks.any(2), heads // given.masks.shape[1], axis=1)
    per_head = np.repeat(per_head, batch // len(per_head), axis=0)
    return torch.from_numpy(per_head.reshape(batch, kv_heads, -1, per_head.shape[2]).any(2))


class GatheredBackward(BackwardKernel):
    """One compiled configuration over tokens."""

    def tables(self, given, **options):
        """Lists of the tokens that any row of a Q tile keeps."""
        tile = SimpleNamespace(rows_per_token=self.config.rows_per_token, cta_rows=TILE, q_tiles=1)
        found = token_tables(given.masks, tile, **options)
        return replace(found, tiles=transposed_bits(found.tiles))

    def arguments(self, given, walk, ctas, bias=None, delta=None):
        """(arguments of the host program, outputs and the memory around sums)."""
        log2 = np.where(np.isneginf(given.wanted.lse), -np.inf, -given.wanted.lse * LOG2_E)
        pack = self.config.rows_per_token
        bias = padded_rows(log2, -np.inf, pack) if bias is None else bias
        delta = padded_rows(given.delta, 0.0, pack) if delta is None else delta
        lists = []
        for name in NAMES:
            array = torch.from_numpy(getattr(walk, name))
            lists.append(aligned(array.shape, array.dtype).copy_(array))
        batch, _, heads, width = given.q.shape
        shape = (batch, given.k.shape[2], given.k.shape[1], width)
        (dk, dk_room), (dv, dv_room) = sums_of(shape), sums_of(shape)
        seqlen_q = given.q.shape[1]
        dq_room = aligned((batch, seqlen_q + 2, heads + 1, width + 16), given.q.dtype, CANARY)
        dq = dq_room[:, 1 : seqlen_q + 1, :heads, 8 : width + 8].fill_(POISON)
        inputs = (given.q, given.k, given.v, given.do, bias, delta, dq, dk, dv)
        scales = (given.scale, given.scale * LOG2_E)
        outputs = (dq, dk, dv, dq_room, dk_room, dv_room)
        return (*inputs, *lists, bias.shape[2] // TILE, *scales, ctas), outputs

    def outcome(self, given, raw, report):
        """Gradients of what a launch wrote, where it was to write and nowhere else."""
        dq, dk, dv, dq_room, dk_room, dv_room = raw
        for sums, room in ((dk, dk_room), (dv, dv_room)):
            assert untouched(room[:AROUND])
            assert untouched(room[-AROUND:])
            assert untouched(sums[~selected(given)])
        outside = torch.ones(dq_room.shape, dtype=torch.bool)
        outside[:, 1:-1, :-1, 8:-8] = False
        assert (dq_room[outside] == torch.tensor(CANARY, dtype=dq.dtype)).all()
        by_token = [x.double().permute(0, 2, 1, 3).numpy() for x in (dk, dv)]
        return Outcome(dq.double().numpy(), by_token[0] * given.scale, by_token[1], raw, report)
