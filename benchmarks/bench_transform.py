"""What it costs to make plans from plans: transpose beside scipy's, lists, reblocking, algebra.

Every figure is a median of interleaved runs in one process; the ratio is to the peer beside it.
"""

import numpy as np
import scipy.sparse as sp
import torch
from measure import RUNS, medians

import maskplan as mp

HEADS, BLOCKS, TOKENS = 40, 591, 75_600  # Wan 2.1 720p: 40 heads, 591 blocks of 128


def head_matrices(plan: mp.Plan) -> list[sp.csr_matrix]:
    """Each pattern in the form of scipy, with the smallest data it takes."""
    row_ptr, col = plan.row_ptr.numpy(), plan.col.numpy()
    matrices = []
    for pattern in range(plan.num_patterns):
        ptr = row_ptr[pattern * BLOCKS : (pattern + 1) * BLOCKS + 1]
        index = col[ptr[0] : ptr[-1]]
        data = np.ones(len(index), dtype=np.int8)
        lists = (data, index, (ptr - ptr[0]).astype(np.int32))
        matrices.append(sp.csr_matrix(lists, shape=(BLOCKS, BLOCKS)))
    return matrices


def main() -> None:
    """Print the table."""
    generator = torch.Generator().manual_seed(0)
    print(f"threads {torch.get_num_threads()}, medians of {RUNS} interleaved runs, milliseconds")
    for density in (0.05, 0.3):
        mask = torch.rand(1, HEADS, BLOCKS, BLOCKS, generator=generator) < density
        plan = mp.from_block_mask(mask, TOKENS, TOKENS, block_size=(128, 128))
        matrices = head_matrices(plan)
        got = medians(
            {
                "transpose": plan.transpose,
                "scipy csr->csc": lambda matrices=matrices: [m.tocsc() for m in matrices],
                "lists + transpose": lambda mask=mask: mp.from_block_mask(
                    mask, TOKENS, TOKENS, block_size=(128, 128)
                ).transpose(),
                "reblock to (256, 128)": lambda plan=plan: plan.reblock((256, 128)),
                "canonical": plan.canonical,
                "padded lists": plan.block_sparse_tensors,
                "lower to sm100": lambda plan=plan: plan.lower("sm100"),
            }
        )
        print(
            f"\n{HEADS} x {BLOCKS} x {BLOCKS} blocks, density {density}: {plan.num_blocks} blocks"
        )
        for name, milliseconds in got.items():
            print(f"  {name:24s} {milliseconds:9.2f}")
        ratio = got["transpose"] / got["scipy csr->csc"]
        print(f"  transpose / scipy        {ratio:9.2f}")
    causal = mp.causal(115_200, 115_200, block_size=(128, 128))
    window = mp.sliding_window(115_200, 115_200, left=8000, right=8000, block_size=(128, 128))
    print("\ncausal and window of 115,200 tokens")
    works = {
        "&": lambda: causal & window,
        "|": lambda: causal | window,
        "-": lambda: causal - window,
        "transpose": causal.transpose,
        "reblock to (256, 128)": lambda: causal.reblock((256, 128)),
        "reblock to (64, 64)": lambda: causal.reblock((64, 64)),
        "crop at odd tokens": lambda: causal.crop(q=(77, 90_001), k=(31, 100_003)),
    }
    for name, milliseconds in medians(works).items():
        print(f"  {name:24s} {milliseconds:9.2f}")


if __name__ == "__main__":
    main()
