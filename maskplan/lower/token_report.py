"""What `print` says of `TokenTiles`: what is listed, for how many rows, and what it costs."""

from maskplan.lower.token_tiles import TokenTiles


def in_words(tiles: TokenTiles) -> str:
    """Tiles whose pairs are counted, in a few lines."""
    count = tiles.valid_counts
    group = tiles.rows_per_token
    rows = f"{tiles.tile_tokens} tokens" + (f" x {group} heads" if group > 1 else "")
    lengths = "no tiles"
    if count.numel():
        low, high = int(count.min()), int(count.max())
        lengths = f"{low:,} to {high:,} keys a tile, {float(count.double().mean()):,.1f} on average"
    wanted, kept = tiles.wanted_pairs, tiles.kept_pairs
    visits = f", {tiles.visited_pairs / wanted:.2f} visited for each" if wanted else ""
    lost = "all kept" if kept == wanted else f"{kept:,} kept ({kept / max(wanted, 1):.2%})"
    kind = f"{tiles.seqlen_q} x {tiles.seqlen_k} tokens, {tiles.policy}, listed as {tiles.form}"
    size = f"{count.shape[-1]} tiles of {tiles.tile_rows} rows ({rows})"
    cost = f"{wanted:,} pairs wanted, {lost}{visits} ({tiles.spurious_pairs:,} spurious)"
    return (
        f"TokenTiles: {kind}\n"
        f"{size}; batch {tiles.batch}, heads {tiles.heads}; {lengths}\n"
        f"{cost}; {tiles.nbytes:,} bytes"
    )
