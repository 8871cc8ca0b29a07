"""Which block sizes a kernel takes: one table per architecture, head dimension and direction.

The figures for sm90 and sm100 are those that flash-attn-4 4.0.0b36 checks for its block-sparse
kernels; LoopK is ours alone. Block sizes count packed rows along Q: bq * group with PackGQA, else
bq.
"""

from dataclasses import dataclass
from math import lcm

from maskplan.errors import PlanError, PlanTypeError, UnsupportedError, sentence
from maskplan.geometry import flag, integer

ARCHITECTURES = ("cpu", "sm90", "sm100")
DIRECTIONS = ("forward", "loop_q", "loop_k")
TILE_ROWS = 128  # packed rows of one Q tile on sm100


@dataclass(frozen=True, slots=True, kw_only=True)
class TileRule:
    """Legal block sizes of one direction.

    Attributes:
        q_multiple: packed rows of a Q block are a multiple of this.
        k_multiple: tokens of a KV block are a multiple of this,
        k_largest: and at most this, where there is a limit.
    """

    q_multiple: int = 1
    k_multiple: int = 1
    k_largest: int | None = None

    def allows(self, rows: int, keys: int) -> bool:
        """Whether a block of `rows` packed rows by `keys` tokens is legal."""
        small_enough = self.k_largest is None or keys <= self.k_largest
        return rows % self.q_multiple == 0 and keys % self.k_multiple == 0 and small_enough

    def __str__(self) -> str:
        limit = "" if self.k_largest is None else f" up to {self.k_largest}"
        return f"Q a multiple of {self.q_multiple} rows, KV of {self.k_multiple} keys{limit}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A kernel to plan for. Made by `target`.

    Attributes:
        arch: "cpu", "sm90" or "sm100".
        head_dim: D of q and k.
        head_dim_v: D of v.
        group: query heads per KV head, G.
        pack_gqa: whether the heads of a group are packed into rows, row = q * G + head in group.
        rules: direction -> its `TileRule`.
        refused: direction -> why it does not exist there.
    """

    arch: str
    head_dim: int
    head_dim_v: int
    group: int
    pack_gqa: bool
    rules: dict[str, TileRule]
    refused: dict[str, str]

    @property
    def rows_per_token(self) -> int:
        """Packed rows of one token: G with PackGQA, else 1."""
        return self.group if self.pack_gqa else 1

    def __hash__(self) -> int:
        return hash((self.arch, self.head_dim, self.head_dim_v, self.group, self.pack_gqa))

    def rule(self, direction: str, seqlen_q: int | None = None) -> TileRule:
        """The legal tiles of a direction.

        Args:
            direction: "forward", "loop_q" or "loop_k".
            seqlen_q: with it, the sm100 forward relaxes to one Q tile where all rows fit in one.

        Raises:
            PlanError: for an unknown direction.
            UnsupportedError: where the direction does not exist on this target, with the reason.
        """
        if isinstance(direction, str) and direction in self.refused:
            raise UnsupportedError(
                sentence(
                    what="direction not available",
                    where=str(self),
                    got=direction,
                    wanted=self.refused[direction],
                    remedy=f"use one of {', '.join(self.rules)}",
                )
            )
        if not isinstance(direction, str) or direction not in self.rules:
            raise PlanError(
                sentence(
                    what="unknown direction",
                    where=str(self),
                    got=repr(direction),
                    wanted=f"one of {', '.join(DIRECTIONS)}",
                    remedy="name one of these",
                )
            )
        rule = self.rules[direction]
        one_tile = seqlen_q is not None and seqlen_q * self.rows_per_token <= TILE_ROWS
        if self.arch == "sm100" and direction == "forward" and one_tile:
            return TileRule(q_multiple=TILE_ROWS, k_multiple=rule.k_multiple)
        return rule

    def check(
        self, block_size: tuple[int, int], direction: str, seqlen_q: int | None = None
    ) -> None:
        """Refuse a block size that the kernel does not take.

        Args:
            block_size: (bq, bk) of the plan, in tokens.
            direction: "forward", "loop_q" or "loop_k".
            seqlen_q: the plan's, for rules that depend on it.

        Raises:
            PlanError: with the legal sizes and the reblocking that gives one.
            UnsupportedError: where the direction does not exist.
        """
        rule = self.rule(direction, seqlen_q)
        if not rule.allows(block_size[0] * self.rows_per_token, block_size[1]):
            raise PlanError(
                sentence(
                    what="block size does not fit",
                    where=f"{direction} of {self}",
                    got=f"{block_size[0]} x {block_size[1]} tokens"
                    + (f", {block_size[0] * self.group} packed rows" if self.pack_gqa else ""),
                    wanted=str(rule),
                    remedy=f"use plan.reblock({self.fit(block_size, direction, seqlen_q)})",
                )
            )

    def fit(
        self, block_size: tuple[int, int], direction: str, seqlen_q: int | None = None
    ) -> tuple[int, int]:
        """The smallest legal block size, in tokens, that is not finer than `block_size`, if any.

        Where KV blocks are limited and `block_size` is beyond the limit, the largest legal one that
        divides it, so that whole blocks stay whole, unless that is less than half of the limit.
        """
        rule = self.rule(direction, seqlen_q)
        tokens = lcm(rule.q_multiple, self.rows_per_token) // self.rows_per_token
        block_q = -(-block_size[0] // tokens) * tokens
        block_k = -(-block_size[1] // rule.k_multiple) * rule.k_multiple
        if rule.k_largest is not None and block_k > rule.k_largest:
            parts = range(rule.k_largest, rule.k_largest // 2 - 1, -rule.k_multiple)
            whole = (part for part in parts if block_size[1] % part == 0)
            block_k = next(whole, rule.k_largest)
        return block_q, block_k

    def __str__(self) -> str:
        packed = " packed" if self.pack_gqa else ""
        dims = f"{self.head_dim}" + (
            "" if self.head_dim == self.head_dim_v else f"/{self.head_dim_v}"
        )
        return f"{self.arch} head_dim {dims} group {self.group}{packed}"


def check_target(target: object, where: str) -> None:
    """Refuse what is not a `Target`.

    Raises:
        PlanTypeError: if it is not.
    """
    if not isinstance(target, Target):
        raise PlanTypeError(
            sentence(
                what="target is of the wrong type",
                where=where,
                got=f"{target!r} of type {type(target).__name__}",
                wanted="a Target",
                remedy='make one with maskplan.target("sm100", head_dim=128), say',
            )
        )


def _sm90(head_dim: int, head_dim_v: int) -> tuple[dict[str, TileRule], dict[str, str]]:
    tile_n = 80 if head_dim > 192 else 112 if min(head_dim, head_dim_v) > 128 else 128
    bwd_q = 128 if head_dim <= 64 else 64
    bwd_k = 128 if head_dim <= 128 else 96 if head_dim <= 192 else 64
    rules = {
        "forward": TileRule(q_multiple=64, k_multiple=16, k_largest=tile_n),
        "loop_q": TileRule(q_multiple=bwd_q, k_multiple=bwd_k, k_largest=bwd_k),
    }
    return rules, {"loop_k": "a LoopK backward, which exists for sm100 alone"}


def _sm100(head_dim: int, head_dim_v: int) -> tuple[dict[str, TileRule], dict[str, str]]:
    two_stages = head_dim <= 192
    rules = {"forward": TileRule(q_multiple=256 if two_stages else 128, k_multiple=128)}
    refused = {}
    if head_dim > 192:
        refused["loop_q"] = "head_dim of at most 192 in a block-sparse backward"
    else:
        # Head dimension 192 runs its backward on pairs of CTAs, which share a KV column.
        k_multiple = 256 if head_dim > 128 else 128
        rules["loop_q"] = TileRule(q_multiple=128, k_multiple=k_multiple)
    if max(head_dim, head_dim_v) > 128:
        refused["loop_k"] = "head_dim of at most 128, so that dQ stays in tensor memory"
    else:
        rules["loop_k"] = TileRule(q_multiple=128, k_multiple=128)
    return rules, refused


def _legal_dims(arch: str, head_dim: int, head_dim_v: int) -> str | None:
    """None, or the head dimensions that `arch` takes."""
    small = head_dim <= 128 and head_dim_v <= 128 and head_dim % 8 == 0 and head_dim_v % 8 == 0
    if arch == "cpu" or small:
        return None
    if arch == "sm100":
        if (head_dim, head_dim_v) in {(192, 128), (256, 256)}:
            return None
        return "multiples of 8 up to 128, (192, 128) or (256, 256)"
    if head_dim <= 256 and head_dim_v <= 256 and head_dim % 8 == 0 and head_dim_v % 8 == 0:
        return None
    return "multiples of 8 up to 256"


def target(
    arch: str,
    *,
    head_dim: int = 128,
    head_dim_v: int | None = None,
    group: int = 1,
    pack_gqa: bool = False,
) -> Target:
    """The legal tiles of the kernels for one architecture and head shape.

    Args:
        arch: "cpu" (any tile), "sm90" or "sm100".
        head_dim: D of q and k.
        head_dim_v: D of v; that of q by default.
        group: query heads per KV head.
        pack_gqa: pack the heads of a group into rows. On sm100 the group has to divide the tile's
            128 rows.

    Raises:
        PlanTypeError: if a number is no integer, or `pack_gqa` no bool.
        PlanError: for an unknown architecture.
        UnsupportedError: for head dimensions or a packed group that its kernels do not take.
    """
    if arch not in ARCHITECTURES:
        raise PlanError(
            sentence(
                what="unknown architecture",
                where="target",
                got=repr(arch),
                wanted=f"one of {', '.join(ARCHITECTURES)}",
                remedy="name one of these",
            )
        )
    head_dim = integer(head_dim, "head_dim", low=1)
    head_dim_v = head_dim if head_dim_v is None else integer(head_dim_v, "head_dim_v", low=1)
    group = integer(group, "group", low=1)
    pack_gqa = flag(pack_gqa, "pack_gqa")
    wanted = _legal_dims(arch, head_dim, head_dim_v)
    if wanted is not None:
        raise UnsupportedError(
            sentence(
                what="head dimensions not available",
                where=f"target {arch}",
                got=f"({head_dim}, {head_dim_v})",
                wanted=wanted,
                remedy="pad the heads, or use the cpu target",
            )
        )
    if pack_gqa and arch != "cpu" and TILE_ROWS % group:
        raise UnsupportedError(
            sentence(
                what="group does not divide the tile",
                where=f"target {arch}",
                got=f"group={group}",
                wanted=f"a divisor of {TILE_ROWS} packed rows",
                remedy="do not pack: pack_gqa=False",
            )
        )
    rules: dict[str, TileRule] = dict.fromkeys(DIRECTIONS, TileRule())
    refused: dict[str, str] = {}
    if arch == "sm90":
        rules, refused = _sm90(head_dim, head_dim_v)
    elif arch == "sm100":
        rules, refused = _sm100(head_dim, head_dim_v)
    return Target(
        arch=arch,
        head_dim=head_dim,
        head_dim_v=head_dim_v,
        group=group,
        pack_gqa=pack_gqa,
        rules=rules,
        refused=refused,
    )


def target_of(given: object, where: str) -> Target:
    """A target as it is, or that of an architecture's name: for head_dim 128 and group 1.

    Raises:
        PlanTypeError: if it is neither.
        PlanError: if there is no architecture of that name.
    """
    made = target(given) if isinstance(given, str) else given
    check_target(made, where)
    assert isinstance(made, Target)
    return made
