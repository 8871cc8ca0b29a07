"""The forward kernel as its callers see it: how to compile it, and which tensors it takes.

    compiled = compile_kernel(build_forward, config, sources=FORWARD_SOURCES)
    compiled.on_device(*forward_arguments(config, q, k, v, o, lse, tables, scale=scale, ctas=148))

Importing this module imports neither cutlass nor torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels_sm100.argument_checks import LOG2_E, Checks
from kernels_sm100.config import MASK_WORDS, TILE_K, ForwardConfig
from kernels_sm100.modes import InnerLoadMode

_MOST_ROWS = 1 << 31  # that a gather numbers
TABLES = ("pattern_id", "row_ptr", "col", "tile_id", "tiles", "order")
TOKEN_TABLES = ("tokens", "keys")  # of gathered lists, after the others
_RANKS = {
    "pattern_id": 2, "row_ptr": 1, "col": 1, "tile_id": 2, "tiles": 3, "order": 1, "tokens": 2,
    "keys": 1,
}  # fmt: skip
_KINDS = dict.fromkeys(_RANKS, "int32") | {"row_ptr": "int64"}
_HERE = Path(__file__).parent
FORWARD_SOURCES = tuple(
    _HERE / f"{name}.py"
    for name in (
        "barriers", "bulk", "config", "forward", "forward_blocks", "forward_gathered",
        "forward_store", "gather", "mask", "mma", "modes", "output", "softmax", "walk",
    )
)  # fmt: skip


def build_forward(config: ForwardConfig) -> tuple[Any, Mapping[str, Any]]:
    """(kernel, fake arguments by name), for `launch.compile_kernel`; imports cutlass."""
    from kernels_sm100 import forward, forward_blocks, forward_gathered

    if config.gathered:
        made = forward_gathered.GatheredForward(config)
        return made, forward_gathered.fake_arguments(config)
    return forward_blocks.BlockForward(config), forward.fake_arguments(config)


def tables_of(config: ForwardConfig) -> tuple[str, ...]:
    """Names of the tables that a kernel takes, in its order."""
    return (*TABLES, *TOKEN_TABLES) if config.gathered else TABLES


def even_rows(tensor: Any) -> bool:
    """Whether all tokens of a tensor [B, S, H, D] are rows of one matrix, whole tokens apart.

    That is what a TMA gather takes; heads may lie within a token, or apart as batches do.
    """
    batches, seqlen, heads, _ = tensor.shape
    batch_stride, stride, head_stride, _ = tensor.stride()
    if stride <= 0 or stride % 8:
        return False
    batches_fit = batches == 1 or batch_stride % stride == 0
    heads_fit = heads == 1 or head_stride < stride or head_stride % stride == 0
    rows = max(batches - 1, 0) * batch_stride + max(heads - 1, 0) * head_stride
    return bool(batches_fit and heads_fit and rows // stride + seqlen < _MOST_ROWS)


def check_rows(checks: Checks, **tensors: Any) -> None:
    """K and V whose tokens TMA is to gather.

    Args:
        checks: of the kernel that gathers.
        **tensors: torch tensors [B, S, H, D], by argument.

    Raises:
        ConfigError: for the first of which `even_rows` is not true.
    """
    for name, tensor in tensors.items():
        if not even_rows(tensor):
            raise checks.refuse(
                f"layout of {name} not available to TMA gathers",
                f"strides {tuple(tensor.stride())}",
                "batches and heads whole tokens apart, or heads within a token",
                f"compile with inner_load=CP_ASYNC, or pass {name}.contiguous()",
            )


def _check_tables(
    checks: Checks, config: ForwardConfig, tables: Mapping[str, Any], rows: int
) -> None:
    for name in tables_of(config):
        checks.table(name, tables[name], _KINDS[name], _RANKS[name])
    batches, heads = tables["pattern_id"].shape
    entries = len(tables["col"])
    sizes: dict[str, tuple[object, object]] = {
        "tile_id": (tuple(tables["tile_id"].shape), (entries, config.parts)),
        "words of tiles": (tables["tiles"].shape[2], MASK_WORDS),
        "order": (len(tables["order"]), batches * heads * rows),
        "row_ptr modulo rows": ((len(tables["row_ptr"]) - 1) % rows, 0),
    }
    if config.gathered:
        sizes["tokens of a chunk"] = (tables["tokens"].shape[1], TILE_K)
        sizes["keys"] = (len(tables["keys"]), entries)
    checks.sizes(sizes)


def forward_arguments(
    config: ForwardConfig,
    q: Any,
    k: Any,
    v: Any,
    o: Any,
    lse: Any,
    tables: Mapping[str, Any] | Any,
    *,
    scale: float,
    ctas: int,
) -> tuple[Any, ...]:
    """Arguments of the compiled kernel, checked, in its order.

    Args:
        config: what it was compiled for.
        q: torch tensor [B, SQ, HQ, D].
        k: [B, SK, HK, D].
        v: [B, SK, HK, DV].
        o: [B, SQ, HQ, DV], written.
        lse: float32 [B, HQ, SQ] contiguous, written.
        tables: by the names of `tables_of`, as `walk.Walk` describes them. Their values are
            trusted: columns inside SK or the chunks, tile ids inside the tiles, tokens inside SK,
            and no -1 before a chunk's last token. Or padded lists, which `padded.padded_tables`
            makes tables of.
        scale: of the scores before softmax; positive.
        ctas: CTAs to launch at most: the GPU's SMs.

    Raises:
        ConfigError: naming what does not fit.
    """
    checks = Checks("the sm100 forward")
    checks.rank(q=q, k=k, v=v, o=o)
    batch, seqlen_q, heads, _ = q.shape
    seqlen_k, kv_heads = k.shape[1], k.shape[2]
    if 0 in (batch, seqlen_q, seqlen_k, heads, kv_heads):
        raise checks.refuse(
            "nothing to compute",
            f"q {tuple(q.shape)}, k {tuple(k.shape)}",
            "sizes of at least 1",
            "return O = 0 and LSE = -inf without a launch",
        )
    checks.heads(heads, kv_heads, config.group)
    of_queries, of_keys = (batch, seqlen_q, heads), (batch, seqlen_k, kv_heads)
    checks.activation("q", q, (*of_queries, config.head_dim), config.dtype)
    checks.activation("k", k, (*of_keys, config.head_dim), config.dtype)
    checks.activation("v", v, (*of_keys, config.head_dim_v), config.dtype)
    checks.activation("o", o, (*of_queries, config.head_dim_v), config.dtype, written=True)
    if config.inner_load is InnerLoadMode.TMA_GATHER4:
        check_rows(checks, k=k, v=v)
    checks.compact("lse", lse, (batch, heads, seqlen_q), "float32")
    checks.scale(scale)
    checks.ctas(ctas)
    if not isinstance(tables, Mapping):
        from kernels_sm100.padded import padded_tables

        tables = padded_tables(config, tables, seqlen_q=seqlen_q, seqlen_k=seqlen_k)
    checks.named("table", tables, tables_of(config))
    packed = tables["tiles"].shape[1] * config.rows_per_bit_row * config.parts
    if packed == 0 or packed % config.cta_rows:
        raise checks.refuse(
            "rows of a bit tile do not fit",
            f"{tables['tiles'].shape[1]} of them, {packed} packed rows in a list row",
            f"a multiple of {config.cta_rows} packed rows",
            "lower the plan for this configuration",
        )
    rows = -(-seqlen_q * config.rows_per_token // packed)
    _check_tables(checks, config, tables, rows)
    known = (1, kv_heads) if config.pack_gqa else (1, kv_heads, heads)
    checks.pattern(tables["pattern_id"], batch, known)
    return (
        q, k, v, o, lse, *(tables[name] for name in tables_of(config)), rows, scale * LOG2_E, ctas,
    )  # fmt: skip
