"""Plan files: what comes back, what is refused and in which words."""

import json
import os
import pickle
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import maskplan as mp
from maskplan import container
from maskplan.io import load, save
from tests.handmade import causal_mask, plan_of
from tests.strategies import plans

GOLDEN = Path(__file__).parents[1] / "data" / "plan-v1.safetensors"
GOLDEN_DIGEST = "0b19e857c414e16acad37d59d59a16fd5b72559a95f00bdeb2044e0fa45f2a96"
SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


def provenance() -> mp.Provenance:
    return mp.Provenance(
        builder="from_token_mask",
        parameters={"block_size": [4, 8], "share": 0.5, "names": ["é", None, True]},
        grid={"frames": 1, "height": 2, "width": 5},
        token_order={"kind": "tiles", "tile": [1, 2, 2]},
    )


def golden_plan() -> mp.Plan:
    """Full, partial and empty blocks, ragged edges, two patterns, provenance with everything."""
    masks = torch.stack([causal_mask(10, 40)[0], torch.ones(10, 40, dtype=torch.bool)])
    return plan_of(masks, (4, 8), [[0, 1, 0]], provenance())


def rewritten(path: Path, target: Path, *, tensors=None, drop=(), metadata=None, **fields) -> Path:
    """The plan file with some of its header fields or tensors changed, and a right checksum."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(json.loads(content[8 : 8 + length])["__metadata__"]["maskplan"])
    header = {name: value for name, value in (header | fields).items() if name not in drop}
    if "checksum" not in fields and "checksum" not in drop:
        header["checksum"] = container.checksum(header)
    arrays = {k: v for k, v in (load_tensors(content) | (tensors or {})).items() if k not in drop}
    extra = {"maskplan": json.dumps(header, sort_keys=True)} if metadata is None else metadata
    target.write_bytes(save_tensors(arrays, metadata=extra))
    return target


@pytest.fixture
def saved(tmp_path) -> Path:
    save(golden_plan(), tmp_path / "plan.safetensors")
    return tmp_path / "plan.safetensors"


@SHARED_FOLDER
@given(plan=st.one_of(plans(), plans(canonical=False)), turned=st.booleans())
def test_load_of_save_is_the_plan(tmp_path_factory, plan, turned):
    plan = plan.transpose() if turned else plan
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    save(plan, path)
    again = load(path)

    assert type(again) is type(plan)
    assert again == plan
    assert again.digest == plan.digest
    canonical = plan.canonical()
    for name in ("pattern_id", "row_ptr", "col", "tile_id", "tiles"):
        one, other = getattr(canonical, name), getattr(again, name)
        assert (one is None and other is None) or torch.equal(one, other)


def test_provenance_comes_back_with_grid_and_token_order(saved):
    assert load(saved).provenance == provenance()


def test_g1_a_saved_plan_loads_in_another_process(saved):
    """attention-gym#58: a BlockMask is lost with the process, or with the closure it holds."""
    source = "import sys, maskplan; print(maskplan.load(sys.argv[1]).digest)"
    done = subprocess.run(
        [sys.executable, "-c", source, saved],
        capture_output=True,
        text=True,
        check=True,
        cwd=GOLDEN.parents[2],
    )

    assert done.stdout.strip() == golden_plan().digest
    assert pickle.loads(pickle.dumps(load(saved))) == golden_plan()


def test_the_method_saves_too(tmp_path):
    golden_plan().save(tmp_path / "plan")

    assert mp.load(tmp_path / "plan") == golden_plan()


def test_loaded_arrays_are_our_own(saved):
    plan = load(saved)
    saved.write_bytes(b"")
    plan.col.add_(0)

    assert plan == golden_plan()


def test_equal_plans_make_equal_files(tmp_path, saved):
    plan = golden_plan()
    save(replace(plan, tiles=torch.cat([plan.tiles, plan.tiles])), tmp_path / "other")

    assert (tmp_path / "other").read_bytes() == saved.read_bytes()


def test_a_file_of_version_1_stays_readable():
    plan = load(GOLDEN)

    assert plan == golden_plan()
    assert plan.digest == GOLDEN_DIGEST
    assert plan.provenance == provenance()


# Damage


def outcome(path: Path, expected: mp.Plan) -> str:
    """'equal' or 'refused'; anything else fails the test that asks."""
    try:
        plan = load(path)
    except mp.PlanFileError:
        return "refused"
    assert plan == expected
    assert plan.provenance == expected.provenance
    return "equal"


def test_every_truncation_is_refused(saved):
    content = saved.read_bytes()
    for length in range(len(content)):
        saved.write_bytes(content[:length])
        assert outcome(saved, golden_plan()) == "refused", length


def test_every_flipped_bit_is_refused(saved):
    """But one that changes only the case of a JSON escape, which ASCII does not have."""
    plan = replace(golden_plan(), provenance=mp.Provenance(builder="f", parameters={"a": 1.5}))
    save(plan, saved)
    content = bytearray(saved.read_bytes())
    for at in range(len(content)):
        for bit in (0, 3, 5, 7):
            content[at] ^= 1 << bit
            saved.write_bytes(content)
            assert outcome(saved, plan) == "refused", (at, bit)
            content[at] ^= 1 << bit


@SHARED_FOLDER
@given(edits=st.lists(st.tuples(st.integers(0, 2**16), st.binary(max_size=9)), max_size=4))
def test_random_bytes_never_make_another_plan(tmp_path_factory, edits):
    path = tmp_path_factory.getbasetemp() / "edited.safetensors"
    content = bytearray(GOLDEN.read_bytes())
    for at, new in edits:
        start = at % len(content)
        content[start : start + len(new)] = new
    path.write_bytes(content)
    outcome(path, golden_plan())


@SHARED_FOLDER
@given(content=st.binary(max_size=200), header=st.binary(max_size=80))
def test_noise_is_refused(tmp_path_factory, content, header):
    path = tmp_path_factory.getbasetemp() / "noise.safetensors"
    for noise in (content, struct.pack("<Q", len(header)) + header + content):
        path.write_bytes(noise)
        with pytest.raises(mp.PlanFileError):
            load(path)


@pytest.mark.parametrize(
    "text",
    ["[" * 100_000, "9" * 5000, '{"__metadata__": [1]}', "{}", "null", '{"a": 1, "a": 1}', "\xff"],
    ids=["nested", "digits", "metadata", "empty", "null", "twice", "bytes"],
)
def test_a_hostile_header_is_refused(tmp_path, text):
    body = text.encode("latin-1")
    path = tmp_path / "hostile"
    path.write_bytes(struct.pack("<Q", len(body)) + body)
    with pytest.raises(mp.PlanFileError):
        load(path)


@pytest.mark.parametrize("text", ["[" * 100_000, "9" * 5000, '"x"', '{"version": 1, "version": 1}'])
def test_a_hostile_header_of_ours_is_refused(tmp_path, saved, text):
    path = rewritten(saved, tmp_path / "hostile", metadata={"maskplan": text})
    with pytest.raises(mp.PlanFileError, match="not readable in header"):
        load(path)


def test_a_claimed_size_is_not_allocated(tmp_path):
    path = tmp_path / "claim"
    path.write_bytes(struct.pack("<Q", 2**63) + b"{}")
    with pytest.raises(mp.PlanFileError, match="10 bytes with a header of 9223372036854775808"):
        load(path)


# Fields


@pytest.mark.parametrize("version", [0, 2, True, "1", None])
def test_an_unknown_version_is_refused(tmp_path, saved, version):
    path = rewritten(saved, tmp_path / "other", version=version)
    with pytest.raises(mp.PlanFileError) as caught:
        load(path)

    assert str(caught.value) == (
        f"plan file has an unknown version in version of {path}: got {version!r}, wanted 1; "
        "read it with the maskplan that wrote it, or a newer one."
    )


@pytest.mark.parametrize(
    "name",
    ["format", "version", "type", "seqlen_q", "seqlen_k", "block_size", "digest", "provenance"],
)
def test_a_missing_field_is_named(tmp_path, saved, name):
    path = rewritten(saved, tmp_path / "other", drop=[name])
    with pytest.raises(mp.PlanFileError, match=name):
        load(path)


@pytest.mark.parametrize(
    ("fields", "part"),
    [
        ({"colour": 1}, "unknown field 'colour'"),
        ({"format": "other"}, "got 'other', wanted 'maskplan'"),
        ({"type": "Mask"}, "got 'Mask', wanted Plan or TransposedPlan"),
        ({"type": "TransposedPlan"}, "tiles"),
        ({"seqlen_q": "10"}, "'seqlen_q' of type str"),
        ({"seqlen_q": True}, "'seqlen_q' of type bool"),
        ({"seqlen_q": -1}, "0 <= seqlen_q"),
        ({"seqlen_q": 2**40}, "0 <= seqlen_q"),
        ({"seqlen_q": 11}, "got"),
        ({"seqlen_k": 2**31 - 1}, "got"),
        ({"block_size": [4]}, "not a pair"),
        ({"block_size": [4, 0]}, "1 <= block_size"),
        ({"block_size": [4, [8]]}, "not an integer"),
        ({"block_size": [4, 9]}, "got"),
        ({"digest": "0" * 64}, "digest"),
        ({"checksum": "0" * 64}, "checksum"),
        ({"provenance": {"parameters": {}}}, "no field 'builder'"),
        ({"provenance": {"builder": 1, "parameters": {}}}, "'builder' of type int"),
        ({"provenance": {"builder": "f", "parameters": {}, "x": 1}}, "unknown field 'x'"),
    ],
)
def test_a_wrong_field_is_named(tmp_path, saved, fields, part):
    path = rewritten(saved, tmp_path / "other", **fields)
    with pytest.raises(mp.PlanFileError) as caught:
        load(path)

    assert part in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("name", ["pattern_id", "row_ptr", "col", "tile_id", "tiles"])
def test_a_missing_tensor_is_refused(tmp_path, saved, name):
    with pytest.raises(mp.PlanFileError, match="digest" if name == "tile_id" else name):
        load(rewritten(saved, tmp_path / "other", drop=[name]))


@pytest.mark.parametrize(
    ("tensors", "part"),
    [
        ({"extra": torch.zeros(1, dtype=torch.int32)}, "unknown field 'extra'"),
        ({"col": torch.zeros(1)}, "col of"),
        ({"col": torch.full((23,), 7, dtype=torch.int32)}, "invariant 3"),
        ({"pattern_id": torch.zeros(0, 3, dtype=torch.int32)}, "invariant 1"),
        ({"pattern_id": torch.zeros(3, dtype=torch.int32)}, "int32 [batch, heads]"),
        ({"row_ptr": torch.tensor([0, -5, 2, 8, 12, 17, 23])}, "invariant 2"),
        # Differences that overflow to positive ones.
        ({"row_ptr": torch.tensor([0, 2**63 - 1, -(2**63), -1, 12, 17, 23])}, "invariant 2"),
        ({"row_ptr": torch.tensor([0, 3, 2, 8, 12, 17, 23])}, "invariant 2"),
    ],
)
def test_a_wrong_tensor_is_refused(tmp_path, saved, tensors, part):
    count = len(load(saved).col)
    if "row_ptr" in tensors:
        tensors["row_ptr"][-1] = count
    if "col" in tensors and tensors["col"].dtype == torch.int32:
        tensors = {"col": torch.full((count,), 7, dtype=torch.int32)}
    path = rewritten(saved, tmp_path / "other", tensors=tensors)
    with pytest.raises(mp.PlanFileError) as caught:
        load(path)

    assert part in str(caught.value)


def test_another_program_s_tensors_are_refused_by_their_header(tmp_path):
    path = tmp_path / "weights.safetensors"
    path.write_bytes(save_tensors({"w": torch.zeros(4)}, metadata={"format": "pt"}))
    with pytest.raises(mp.PlanFileError, match="plan file is not a plan in metadata of"):
        load(path)


def test_a_pickle_is_not_opened(tmp_path):
    path = tmp_path / "plan.pt"
    torch.save({"col": torch.zeros(1)}, path)
    with pytest.raises(mp.PlanFileError):
        load(path)


# Writing


def test_only_plans_are_saved(tmp_path):
    with pytest.raises(mp.PlanTypeError) as caught:
        save({"col": 1}, tmp_path / "plan")

    assert str(caught.value) == (
        "cannot save in plan: got dict, wanted a Plan or a TransposedPlan; make one with a builder."
    )


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_an_interrupted_save_leaves_the_old_file_whole(tmp_path, saved, monkeypatch, step):
    before = saved.read_bytes()

    def stop(*_):
        raise KeyboardInterrupt

    if step == "fsync":
        monkeypatch.setattr(os, "fsync", stop)
    else:
        monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        save(plan_of(causal_mask(2, 2), (1, 1)), saved)

    assert saved.read_bytes() == before
    assert list(tmp_path.iterdir()) == [saved]


def test_a_save_that_cannot_write_says_so(tmp_path):
    with pytest.raises(FileNotFoundError):
        save(golden_plan(), tmp_path / "missing" / "plan")


def test_saving_through_a_link_keeps_the_link(tmp_path, saved):
    link = tmp_path / "latest"
    link.symlink_to(saved)
    other = plan_of(causal_mask(2, 2), (1, 1))
    save(other, link)

    assert link.is_symlink()
    assert load(saved) == other


def test_a_file_that_is_not_there_is_an_os_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none")


def test_a_block_size_alone_allocates_nothing(tmp_path):
    # A tile of the largest block is 64 MiB, and none is there; tile numbers ask for none either.
    height, width = 2**9, 2**20
    one = torch.zeros(1, dtype=torch.int32)
    plan = mp.Plan(
        geometry=mp.Geometry(seqlen_q=8, seqlen_k=8, block_size=(height, width)),
        pattern_id=one.view(1, 1),
        row_ptr=torch.tensor([0, 1]),
        col=one,
        tile_id=one - 1,
        tiles=torch.empty(0, height, width // 32, dtype=torch.int32),
    )
    path = tmp_path / "plan.safetensors"

    plan.save(path)

    assert load(path) == plan
    assert load(path).tile_id is None


def test_a_block_size_that_no_memory_holds_is_refused(tmp_path, saved):
    path = rewritten(saved, tmp_path / "other", block_size=[2**30, 2**30])

    with pytest.raises(mp.PlanFileError, match="block too large"):
        load(path)
