"""Whole methods put together from the parts, as their sources run them."""

import torch

import maskplan as mp
from maskplan import select
from maskplan.interop import flashinfer, sparge


def tokens(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def sparge_map(q, k, bar, share, sizes):
    """SpargeAttn's block map of one head, [S, D] each, by loops over blocks."""
    blocks_q, blocks_k = (list(x.split(size)) for x, size in zip((q, k), sizes, strict=True))

    def similar(block):
        unit = block / block.norm(dim=1, keepdim=True)
        return float((unit @ unit.T).mean()) > bar

    similar_q, similar_k = [similar(b) for b in blocks_q], [similar(b) for b in blocks_k]
    keep = torch.zeros(len(blocks_q), len(blocks_k), dtype=torch.bool)
    for i, query in enumerate(blocks_q):
        scores = torch.tensor([float(query.mean(0) @ key.mean(0)) for key in blocks_k])
        scores = (scores / q.shape[1] ** 0.5).masked_fill(~torch.tensor(similar_k), -torch.inf)
        values, order = scores.softmax(0).sort(descending=True)
        count = int(torch.searchsorted(values.double().cumsum(0), share, right=True))
        keep[i, order[: max(count, 1)]] = True
        for j, alike in enumerate(similar_k):
            keep[i, j] |= not alike or not similar_q[i]
    return keep


def test_sparge_attention():
    """Dissimilar key blocks are columns kept whole, dissimilar query blocks rows."""
    q, k = tokens(1, 700, 2, 16), tokens(1, 700, 2, 16, seed=1)
    q[:, :500] += 2 * tokens(1, 1, 2, 16, seed=2)  # most blocks point one way, some do not
    k[:, 100:600] += 2 * tokens(1, 1, 2, 16, seed=3)
    bq, bk = sparge.block_size_of("sm80")
    alike_q, alike_k = select.similar_blocks(q, bq, 0.3), select.similar_blocks(k, bk, 0.3)
    assert 0 < int(alike_q.sum()) < alike_q.numel()
    assert 0 < int(alike_k.sum()) < alike_k.numel()
    scores = select.pooled_scores(q, k, (bq, bk)).masked_fill(~alike_k[:, :, None], -torch.inf)
    plan = select.top_p(
        scores.softmax(-1),
        0.7,
        700,
        700,
        rule="sparge",
        block_size=(bq, bk),
        always=~alike_k[:, :, None] | ~alike_q[..., None],
    )

    mask = sparge.to_sparge(plan, "sm80").mask_id.bool()
    for h in range(2):
        assert torch.equal(mask[0, h], sparge_map(q[0, :, h], k[0, :, h], 0.3, 0.7, (bq, bk)))


def test_clusters_of_svg2():
    """Clusters are selected as blocks of one, then take their sizes."""
    sizes_q, sizes_k = torch.tensor([[5, 0, 9]]), torch.tensor([[4, 7, 0, 3]])
    scores = tokens(1, 1, 3, 4)
    mass = select.size_weighted_softmax(scores, sizes_k[:, None])
    least = select.budget(4, density=0.25, rounding="floor")
    chosen = select.top_p(mass, 0.6, 3, 4, rule="svg2", at_least=least, block_size=(1, 1))
    plan = flashinfer.from_variable_blocks(
        chosen.to_dense()[0], sizes_q, sizes_k, block_size=(4, 4)
    )

    weights = scores[0, 0].exp() * sizes_k
    weights = weights / weights.sum(1, keepdim=True)
    expected = torch.zeros(14, 14, dtype=torch.bool)
    starts_q, starts_k = [0, 5, 5, 14], [0, 4, 11, 11, 14]
    kept = 0
    for i in range(3):
        below = 0.0
        for rank, j in enumerate(weights[i].argsort(descending=True).tolist()):
            if (below <= 0.6 or rank < least) and weights[i, j] > 0:
                expected[starts_q[i] : starts_q[i + 1], starts_k[j] : starts_k[j + 1]] = True
                kept += int(sizes_q[0, i] * sizes_k[0, j])
            below += float(weights[i, j])
    assert torch.equal(plan.to_dense()[0, 0], expected)
    assert plan.stats().pairs == kept  # density counts tokens, not clusters


def test_video_sparse_attention():
    """Tiles padded to one size: 3 x 5 tokens in tiles of 2 x 2, means and keys without padding."""
    valid = [4, 4, 2, 2, 2, 1]
    q, k = tokens(1, 24, 1, 8), tokens(1, 24, 1, 8, seed=1)
    for tile, count in enumerate(valid):
        q[:, 4 * tile + count : 4 * tile + 4] = float("nan")
        k[:, 4 * tile + count : 4 * tile + 4] = float("nan")
    scores = select.pooled_scores(q, k, (4, 4), q_sizes=valid, k_sizes=valid)
    total = select.tile_total((1, 3, 5), (1, 2, 2), of="padded")
    count = select.budget(total, sparsity=0.7, rounding="ceil")
    plan = select.top_k(scores, count, 24, 24, block_size=(4, 4))

    assert count == 2
    means = torch.stack([q[0, 4 * t : 4 * t + n, 0].mean(0) for t, n in enumerate(valid)])
    mean_k = torch.stack([k[0, 4 * t : 4 * t + n, 0].mean(0) for t, n in enumerate(valid)])
    for tile, row in enumerate(means @ mean_k.T):
        best = sorted(row.topk(2).indices.tolist())
        assert plan.col[plan.row_ptr[tile] : plan.row_ptr[tile + 1]].tolist() == best
    assert isinstance(plan, mp.Plan)
