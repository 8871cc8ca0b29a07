"""The backward kernels as their callers see them: how to compile each, and which tensors it takes.

    rows = backward_shapes.rows_config(config)
    prepare = compile_kernel(build_preprocess, rows, sources=BACKWARD_SOURCES)
    backward = compile_kernel(build_backward, config, sources=BACKWARD_SOURCES)
    finish = compile_kernel(build_postprocess, rows, sources=BACKWARD_SOURCES)
    prepare.on_device(*preprocess_arguments(rows, o, do, lse, dlse, bias, delta, clear))
    backward.on_device(*backward_arguments(config, inputs, outputs, tables, scale=scale, ctas=148))
    finish.on_device(*postprocess_arguments(rows, dq_sums, dq, scale))

Importing this module imports neither cutlass nor torch.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels_sm100.argument_checks import LOG2_E, Checks
from kernels_sm100.backward_config import TILE, BackwardConfig
from kernels_sm100.backward_shapes import (
    TABLES,
    TOKEN_TABLES,
    dq_sums_shape,
    kv_sums_shape,
    row_tiles,
    rows_shape,
    tables_of,
)
from kernels_sm100.forward_host import check_rows
from kernels_sm100.modes import InnerLoadMode

_TYPES = dict.fromkeys((*TABLES, *TOKEN_TABLES), "int32") | {"row_ptr": "int64"}
_RANKS = dict.fromkeys(_TYPES, 1) | {"tiles": 3}
_RANKS |= dict.fromkeys(("pattern_id", "tile_id", "write_order", "tokens"), 2)
_INPUTS = ("q", "k", "v", "do", "bias", "delta")
_OF_LOOP_Q = ("dq_sums", "semaphores")
_MOST_SUMS = 1 << 31  # offsets into sums are 32-bit
_FOUR = 4  # elements that the preprocess clears at a time
_HERE = Path(__file__).parent
BACKWARD_SOURCES = tuple(
    _HERE / f"{name}.py"
    for name in (
        "backward",
        "backward_config",
        "backward_fakes",
        "backward_loopk",
        "backward_loopk_gathered",
        "backward_loopq",
        "barriers",
        "bulk",
        "columns",
        "config",
        "gather",
        "mask",
        "mma",
        "modes",
        "postprocess",
        "preprocess",
        "softmax",
        "walk",
    )
)


def build_preprocess(config: BackwardConfig) -> tuple[Any, Mapping[str, Any]]:
    """(kernel, fake arguments by name), for `launch.compile_kernel`; imports cutlass."""
    from kernels_sm100.preprocess import Preprocess, fake_arguments

    return Preprocess(config), fake_arguments(config)


def build_postprocess(config: BackwardConfig) -> tuple[Any, Mapping[str, Any]]:
    """(kernel, fake arguments by name), for `launch.compile_kernel`; imports cutlass."""
    from kernels_sm100.postprocess import Postprocess, fake_arguments

    return Postprocess(config), fake_arguments(config)


def build_backward(config: BackwardConfig) -> tuple[Any, Mapping[str, Any]]:
    """(kernel of the configured direction, fake arguments by name); imports cutlass."""
    if config.direction == "loop_q":
        from kernels_sm100.backward_loopq import LoopQ, fake_arguments

        return LoopQ(config), fake_arguments(config)
    if config.gathered:
        from kernels_sm100.backward_loopk_gathered import GatheredLoopK
        from kernels_sm100.backward_loopk_gathered import fake_arguments as gathered_arguments

        return GatheredLoopK(config), gathered_arguments(config)
    from kernels_sm100.backward_loopk import LoopK
    from kernels_sm100.backward_loopk import fake_arguments as loop_k_arguments

    return LoopK(config), loop_k_arguments(config)


def preprocess_arguments(
    config: BackwardConfig,
    o: Any,
    do: Any,
    lse: Any,
    dlse: Any,
    bias: Any,
    delta: Any,
    clear: tuple[Any, Any],
) -> tuple[Any, ...]:
    """Arguments of the compiled preprocess, checked, in its order.

    Args:
        config: what it was compiled for, `rows_config`.
        o: torch tensor [B, SQ, HQ, D].
        do: likewise, its gradient.
        lse: float32 [B, HQ, SQ] contiguous.
        dlse: likewise, its gradient.
        bias: float32, see `rows_shape`; written.
        delta: likewise.
        clear: two float32 tensors [n], n a multiple of 4; set to zero.

    Raises:
        ConfigError: naming what does not fit.
    """
    checks = Checks("the sm100 preprocess")
    checks.rank(o=o)
    batch, seqlen_q, heads, _ = o.shape
    for name, tensor in (("o", o), ("do", do)):
        checks.activation(name, tensor, (batch, seqlen_q, heads, config.head_dim), config.dtype)
    for name, tensor in (("lse", lse), ("dlse", dlse)):
        checks.compact(name, tensor, (batch, heads, seqlen_q), "float32")
    for name, tensor in (("bias", bias), ("delta", delta)):
        checks.compact(name, tensor, rows_shape(config, batch, heads, seqlen_q), "float32")
    for name, tensor in zip(("clear_a", "clear_b"), clear, strict=True):
        checks.compact(name, tensor, (-(-tensor.numel() // _FOUR) * _FOUR,), "float32")
    return o, do, lse, dlse, bias, delta, *clear


def postprocess_arguments(
    config: BackwardConfig, sums: Any, out: Any, scale: float
) -> tuple[Any, ...]:
    """Arguments of the compiled postprocess, checked, in its order.

    Args:
        config: what it was compiled for: `rows_config` for dQ, `keys_config` for dK and dV.
        sums: float32, of `dq_sums_shape` or `kv_sums_shape`.
        out: torch tensor [B, S, H, D], written: scale * sums.
        scale: any finite number.

    Raises:
        ConfigError: naming what does not fit.
    """
    checks = Checks("the sm100 postprocess")
    checks.rank(out=out)
    batch, seqlen, heads, _ = out.shape
    of_out = (batch, seqlen, heads, config.head_dim)
    checks.activation("out", out, of_out, config.dtype, written=True)
    tiled = dq_sums_shape(config, batch, heads, seqlen)
    shape = kv_sums_shape(config, batch, heads, seqlen) if config.gathered else tiled
    checks.compact("sums", sums, shape, "float32")
    checks.factor(scale)
    return sums, out, scale


def backward_arguments(
    config: BackwardConfig,
    inputs: Mapping[str, Any],
    outputs: Mapping[str, Any],
    tables: Mapping[str, Any],
    *,
    scale: float,
    ctas: int,
) -> tuple[Any, ...]:
    """Arguments of the compiled backward, checked, in its order.

    Args:
        config: what it was compiled for.
        inputs: torch tensors: q and do [B, SQ, HQ, D], k and v [B, SK, HK, D]; bias and delta of
            the preprocess.
        outputs: of LoopQ dq_sums, semaphores (int32 [B, HQ, M], zero, used if deterministic), dk
            and dv, or with head_split dk_sums and dv_sums; of LoopK dq, dk_sums and dv_sums. Sums
            are zero. There may be more.
        tables: by the names of `tables_of`.
        scale: of the scores before softmax; positive.
        ctas: CTAs to launch at most: the GPU's SMs. If deterministic all have to be resident.

    Raises:
        ConfigError: naming what does not fit.
    """
    loop_q, splits = config.direction == "loop_q", config.head_split > 1
    checks = Checks(f"the sm100 {config.direction} backward")
    checks.named("input", inputs, _INPUTS)
    checks.named("table", tables, tables_of(config))
    sums = ("dk_sums", "dv_sums")
    wanted = ("dq", *sums) if not loop_q else (*(sums if splits else ("dk", "dv")), *_OF_LOOP_Q)
    checks.named("output", outputs, wanted)
    q, k, v, do = (inputs[name] for name in _INPUTS[:4])
    checks.rank(q=q, k=k, v=v, do=do)
    batch, seqlen_q, heads, _ = q.shape
    seqlen_k, kv_heads = k.shape[1], k.shape[2]
    if 0 in (batch, seqlen_q, seqlen_k, heads, kv_heads):
        raise checks.refuse(
            "nothing to compute",
            f"q {tuple(q.shape)}, k {tuple(k.shape)}",
            "sizes of at least 1",
            "return gradients of zero without a launch",
        )
    checks.heads(heads, kv_heads, config.group)
    of_queries = (batch, seqlen_q, heads, config.head_dim)
    of_keys = (batch, seqlen_k, kv_heads, config.head_dim)
    owned: dict[str, tuple[int, ...]] = {} if loop_q else {"dq": of_queries}
    if loop_q and not splits:
        owned = {"dk": of_keys, "dv": of_keys}
    shapes = {"q": of_queries, "k": of_keys, "v": of_keys, "do": of_queries} | owned
    tensors = {"q": q, "k": k, "v": v, "do": do} | {name: outputs[name] for name in owned}
    for name, tensor in tensors.items():
        checks.activation(name, tensor, shapes[name], config.dtype, written=name in owned)
    if config.inner_load is InnerLoadMode.TMA_GATHER4:
        check_rows(checks, k=k, v=v)
    for name in ("bias", "delta"):
        checks.compact(name, inputs[name], rows_shape(config, batch, heads, seqlen_q), "float32")
    _check_sums(checks, config, outputs, of_queries, of_keys)
    checks.scale(scale)
    checks.ctas(ctas)
    _check_tables(checks, config, tables, of_queries, of_keys)
    given = (q, k, v, do, inputs["bias"], inputs["delta"])
    scales = (scale, scale * LOG2_E, ctas)
    if loop_q:
        pair = ("dk_sums", "dv_sums") if splits else ("dk", "dv")
        written = tuple(outputs[name] for name in ("dq_sums", *pair, "semaphores"))
        return (*given, *written, *(tables[name] for name in tables_of(config)), *scales)
    written = tuple(outputs[name] for name in ("dq", "dk_sums", "dv_sums"))
    lists = (tables[name] for name in tables_of(config))
    return (*given, *written, *lists, row_tiles(config, seqlen_q), *scales)


def _check_sums(
    checks: Checks,
    config: BackwardConfig,
    outputs: Mapping[str, Any],
    of_queries: tuple[int, ...],
    of_keys: tuple[int, ...],
) -> None:
    """The float32 sums of a direction, and LoopQ's semaphores."""
    batch, seqlen_q, heads, _ = of_queries
    for name, tensor in outputs.items():
        if name.endswith("_sums") and tensor.numel() >= _MOST_SUMS:
            raise checks.refuse(
                f"{name} is too large",
                f"{tensor.numel():,} elements",
                f"fewer than {_MOST_SUMS:,}",
                "take fewer heads or batches at a time",
            )
    if config.direction == "loop_k" or config.head_split > 1:
        shape = kv_sums_shape(config, batch, of_keys[2], of_keys[1])
        checks.compact("dk_sums", outputs["dk_sums"], shape, "float32")
        checks.compact("dv_sums", outputs["dv_sums"], shape, "float32")
    if config.direction == "loop_k":
        return
    shape = dq_sums_shape(config, batch, heads, seqlen_q)
    checks.compact("dq_sums", outputs["dq_sums"], shape, "float32")
    checks.compact("semaphores", outputs["semaphores"], shape[:3], "int32")


def _check_tables(
    checks: Checks,
    config: BackwardConfig,
    tables: Mapping[str, Any],
    of_queries: tuple[int, ...],
    of_keys: tuple[int, ...],
) -> None:
    """Types and sizes of a walk's tables; their values are trusted."""
    loop_q = config.direction == "loop_q"
    for name in tables_of(config):
        checks.table(name, tables[name], _TYPES[name], _RANKS[name])
    batch, seqlen_q, heads, _ = of_queries
    seqlen_k, kv_heads = of_keys[1:3]
    known = (1, kv_heads) if config.rows_per_token > 1 else (1, kv_heads, heads)
    checks.pattern(tables["pattern_id"], batch, known)
    plan_batches, plan_heads = tables["pattern_id"].shape
    entries = (len(tables["col"]), config.parts)
    rows = -(-seqlen_k // TILE) if loop_q else row_tiles(config, seqlen_q)
    tile = (TILE, config.mask_words)
    sizes: dict[str, tuple[object, object]] = {
        "tile_id": (tuple(tables["tile_id"].shape), entries),
        "tiles": (tuple(tables["tiles"].shape[1:]), tile),
        "row_ptr modulo rows": ((len(tables["row_ptr"]) - 1) % rows, 0),
    }
    if loop_q:
        sizes["write_order"] = (tuple(tables["write_order"].shape), entries)
    if config.gathered:
        sizes["tokens"] = (tables["tokens"].shape[1], TILE)
        sizes["keys"] = (len(tables["keys"]), entries[0])
    if not config.deterministic:
        owners = min(plan_heads, kv_heads) if loop_q else plan_heads
        sizes["order"] = (len(tables["order"]), plan_batches * owners * rows)
    checks.sizes(sizes)
