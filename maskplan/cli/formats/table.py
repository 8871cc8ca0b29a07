"""The table of formats, and which of them a file name stands for."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from maskplan.cli.formats import lists, masks, matrices, strategies
from maskplan.cli.formats.answers import Answers
from maskplan.cli.source import load
from maskplan.errors import PlanError, sentence
from maskplan.plan import BlockLists, Plan, TransposedPlan

Read = Callable[[Path, Answers], Any]
Write = Callable[[Any, Path, Answers], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A kind of file.

    Attributes:
        name: what --from and --to call it.
        suffixes: endings of its files.
        content: what it holds, in words.
        holds: "plan", "book" or "either".
        read: None where it cannot be read to a plan.
        asks: options that reading needs.
        takes: options that reading may have.
        write: None where it cannot be written.
        write_asks: options that writing needs.
        write_takes: options that writing may have.
    """

    name: str
    suffixes: tuple[str, ...]
    content: str
    holds: str = "plan"
    read: Read | None
    asks: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    write: Write | None
    write_asks: tuple[str, ...] = ()
    write_takes: tuple[str, ...] = ()


def _read_maskplan(path: Path, _: Answers) -> Any:
    found = load(path)
    return found.transpose() if isinstance(found, TransposedPlan) else found


def _write_maskplan(source: Any, path: Path, answers: Answers) -> None:
    size = answers.block_size
    # A size that only said how to read the source asks for nothing more.
    if isinstance(source, BlockLists) and size not in (None, source.block_size):
        assert isinstance(source, Plan), "readers turn transposed lists back"
        source = source.reblock(size, superset=bool(answers.superset))
    source.save(path)


_LENGTHS = ("seqlen_q", "seqlen_k")
_CANVAS = ("canvas", "tile")
_WHOLE = ("block_size", "superset")

_ALL = (
    Format(
        name="maskplan",
        suffixes=(".plan", ".book", ".safetensors"),
        content="a plan or a book of maskplan",
        holds="either",
        read=_read_maskplan,
        write=_write_maskplan,
        write_takes=_WHOLE,
    ),
    Format(
        name="mask-strategy",
        suffixes=(".json", ".json.gz"),
        content="FastVideo, sglang, SparseVideo: step_layer_head -> window in tiles",
        holds="book",
        read=strategies.read_strategy,
        asks=(*_CANVAS, "steps", "layers", "heads"),
        takes=("text", "pad", "missing", "block_size"),
        write=strategies.write_strategy,
    ),
    Format(
        name="search-log",
        suffixes=(".json", ".json.gz"),
        content="FastVideo: losses of windows for one prompt; the least is taken",
        holds="book",
        read=strategies.read_search_log,
        asks=(*_CANVAS, "dense_steps", "dense_window"),
        takes=("text", "pad", "loss", "block_size"),
        write=None,
    ),
    Format(
        name="minference",
        suffixes=(".json", ".json.gz"),
        content="MInference, vLLM, SGLang: a pattern for each head; A-shapes alone are masks",
        holds="book",
        read=strategies.read_minference,
        asks=("seqlen_q",),
        takes=("block_size",),
        write=None,
    ),
    Format(
        name="magi-ranges",
        suffixes=(".json", ".json.gz"),
        content="MagiAttention: q_ranges, k_ranges, attn_type_map",
        read=strategies.read_ranges,
        asks=_LENGTHS,
        takes=("block_size",),
        write=strategies.write_ranges,
    ),
    Format(
        name="block-mask",
        suffixes=(".npy",),
        content="bools [.., M, N]: blocks that are kept whole",
        read=masks.read_block_mask,
        asks=(*_LENGTHS, "block_size"),
        write=masks.write_block_mask,
        write_takes=_WHOLE,
    ),
    Format(
        name="token-mask",
        suffixes=(".npy",),
        content="bools [.., SQ, SK]: pairs that are kept",
        read=masks.read_token_mask,
        takes=("block_size",),
        write=masks.write_token_mask,
    ),
    Format(
        name="topk",
        suffixes=(".npy",),
        content="integers [batch, heads, SQ, topk]: keys of each query, -1 padded",
        read=lists.read_topk,
        asks=("seqlen_k",),
        takes=("block_size",),
        write=lists.write_topk,
    ),
    Format(
        name="flashmla",
        suffixes=(".npy", ".npz"),
        content="FlashMLA: indices [s_q, h_kv, topk]; in an .npz with topk_length",
        read=lists.read_flashmla,
        asks=("seqlen_k",),
        takes=("block_size",),
        write=lists.write_flashmla,
    ),
    Format(
        name="nsa",
        suffixes=(".npy", ".npz"),
        content="fla: block_indices [B, T, H, S]; in an .npz with block_counts",
        read=lists.read_nsa,
        asks=("select_block",),
        takes=("block_size",),
        write=lists.write_nsa,
        write_asks=("select_block",),
    ),
    Format(
        name="q2k",
        suffixes=(".npz",),
        content="FastVideo VSA, FlashInfer: q2k_index, q2k_num, and kv_block_sizes if any",
        read=lists.read_q2k,
        asks=(*_LENGTHS, "block_size"),
        takes=("repeat",),
        write=lists.write_q2k,
        write_takes=("repeat", *_WHOLE),
    ),
    Format(
        name="bsr",
        suffixes=(".npz",),
        content="FlashInfer: indptr, indices, M, N, R, C, and mask if any",
        read=matrices.read_bsr,
        takes=(*_LENGTHS, "block_size"),
        write=matrices.write_bsr,
        write_takes=("block_size",),
    ),
    Format(
        name="variable-blocks",
        suffixes=(".npz",),
        content="FlashInfer: block_mask_map, block_row_sz, block_col_sz",
        read=matrices.read_variable,
        takes=("block_size",),
        write=matrices.write_variable,
        write_takes=("superset",),
    ),
    Format(
        name="sparge-mask",
        suffixes=(".npy",),
        content="SpargeAttn: mask_id [batch, heads, M, N]",
        read=masks.read_sparge_mask,
        asks=(*_LENGTHS, "arch"),
        write=masks.write_sparge_mask,
        write_asks=("arch",),
        write_takes=("superset",),
    ),
    Format(
        name="sparge-lut",
        suffixes=(".npz",),
        content="SpargeAttn: lut of deltas, valid_block_num",
        read=masks.read_sparge_lut,
        asks=(*_LENGTHS, "arch"),
        write=masks.write_sparge_lut,
        write_asks=("arch",),
        write_takes=("superset",),
    ),
    Format(
        name="bsa-mask",
        suffixes=(".npz",),
        content="Block-Sparse-Attention: head_mask_type, base_blockmask, streaming_info",
        read=masks.read_bsa,
        asks=(*_LENGTHS, "causal"),
        write=masks.write_bsa,
        write_asks=("causal",),
        write_takes=("superset",),
    ),
    Format(
        name="bsa-rows",
        suffixes=(".npy",),
        content="Block-Sparse-Attention: descending row_blockmask [B, heads, M, width]",
        read=lists.read_bsa_rows,
        asks=_LENGTHS,
        write=lists.write_bsa_rows,
        write_takes=("superset",),
    ),
    Format(
        name="fa4",
        suffixes=(".npz",),
        content="flash-attn-4: counts and indices of mask blocks (none) and full blocks",
        read=lists.read_fa4,
        asks=(*_LENGTHS, "block_size"),
        write=lists.write_fa4,
        write_takes=_WHOLE,
    ),
    Format(
        name="scipy-csr",
        suffixes=(".npz",),
        content="scipy.sparse.save_npz of a CSR matrix: pairs that are kept",
        read=matrices.read_scipy,
        takes=("block_size", "zeros"),
        write=matrices.write_scipy_csr,
    ),
    Format(
        name="scipy-bsr",
        suffixes=(".npz",),
        content="scipy.sparse.save_npz of a BSR matrix: blocks with bools inside",
        read=matrices.read_scipy,
        takes=("block_size", "zeros"),
        write=matrices.write_scipy_bsr,
        write_takes=("block_size", "pad"),
    ),
)
FORMATS = {each.name: each for each in _ALL}


def format_of(path: Path, name: str | None, option: str, *, written: bool) -> Format:
    """The format of a file: as named, or the only one that its ending may stand for.

    Args:
        path: the file.
        name: what the caller says it is, or None.
        option: where the caller would say so.
        written: whether it is to be written: formats that are only read do not count then.

    Raises:
        PlanError: if the name or the ending is unknown, or the ending stands for several.
    """
    if name is not None:
        if name not in FORMATS:
            _refuse("unknown format", option, repr(name), ", ".join(FORMATS), "name one of these")
        return FORMATS[name]
    possible = [each for each in _ALL if (each.write if written else each.read) is not None]
    found = [each for each in possible if any(path.name.endswith(end) for end in each.suffixes)]
    if not found:
        endings = ", ".join(sorted({end for each in possible for end in each.suffixes}))
        _refuse("unknown extension", str(path), repr(path.suffix), endings, f"or name {option}")
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        _refuse("file may be several things", str(path), repr(path.suffix), names, f"name {option}")
    return found[0]


def _refuse(what: str, where: str, got: str, wanted: str, remedy: str) -> None:
    raise PlanError(sentence(what=what, where=where, got=got, wanted=wanted, remedy=remedy))
