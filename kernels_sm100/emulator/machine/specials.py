"""Special registers: where a thread is in its warp, CTA, cluster and grid."""

from typing import TYPE_CHECKING, Any

import numpy as np

from kernels_sm100.emulator.lanes.exchange import LANE
from kernels_sm100.emulator.lanes.types import Lanes

if TYPE_CHECKING:
    from kernels_sm100.emulator.machine.cta import Cta


class Specials(dict[str, Lanes]):
    """Special registers by name, made when they are first read."""

    def __init__(self, cta: "Cta", first_thread: int) -> None:
        super().__init__()
        self.cta = cta
        self.threads = np.arange(first_thread, first_thread + 32)

    def __missing__(self, name: str) -> Lanes:
        value = np.broadcast_to(np.asarray(self._make(name)), 32).astype(np.uint32)
        self[name] = value
        return value

    def _make(self, name: str) -> Any:
        cta, (x, y, _) = self.cta, self.cta.grid.launch.block
        base, _dot, axis = name.partition(".")
        at = "xyz".find(axis) if axis else -1
        launch = cta.grid.launch
        triples: dict[str, Any] = {
            "tid": (self.threads % x, self.threads // x % y, self.threads // (x * y)),
            "ntid": launch.block,
            "ctaid": cta.index,
            "nctaid": launch.grid,
            "cluster_nctaid": launch.cluster,
            "cluster_ctaid": [c % n for c, n in zip(cta.index, launch.cluster, strict=True)],
            "clusterid": [c // n for c, n in zip(cta.index, launch.cluster, strict=True)],
            "nclusterid": [g // n for g, n in zip(launch.grid, launch.cluster, strict=True)],
        }
        if at >= 0:
            return triples[base][at]
        masks = {
            "lanemask_eq": [1 << i for i in range(32)],
            "lanemask_lt": [(1 << i) - 1 for i in range(32)],
            "lanemask_le": [(2 << i) - 1 for i in range(32)],
            "lanemask_gt": [0xFFFFFFFF ^ ((2 << i) - 1) for i in range(32)],
            "lanemask_ge": [0xFFFFFFFF ^ ((1 << i) - 1) for i in range(32)],
        }
        singles: dict[str, Any] = {
            "laneid": LANE,
            "warpid": self.threads[0] // 32,
            "nwarpid": len(cta.warps),
            "smid": cta.slot,
            "nsmid": cta.grid.resident,
            "cluster_ctarank": cta.rank,
            "cluster_nctarank": cta.cluster.size,
            "dynamic_smem_size": launch.shared_bytes,
            "total_smem_size": cta.shared.end - cta.shared.start,
            "is_explicit_cluster": int(launch.cluster != (1, 1, 1)),
            "gridid": 0,
        }
        return masks[name] if name in masks else singles[name]
