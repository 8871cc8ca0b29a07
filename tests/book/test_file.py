"""Book files: what comes back, what is refused and in which words."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from safetensors import safe_open
from safetensors.torch import save_file

import maskplan as mp
from maskplan.book.runs import expanded, runs_of
from maskplan.container import checksum
from tests.book.test_book import keyed_plans, small_book
from tests.strategies import plans

GOLDEN = Path(__file__).parents[1] / "data" / "book-v1.safetensors"
GOLDEN_DIGEST = "091af846f575af3e3f0c43bf91a2058aa3b1356c95c188131fc4ebb94123c9a8"
SHARED_FOLDER = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture
def saved(tmp_path) -> Path:
    path = tmp_path / "run.book"
    small_book().save(path)
    return path


def parts_of(path: Path):
    """(tensors, header) of a book file."""
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["maskplan"])
        return {name: file.get_tensor(name) for name in file.keys()}, header  # noqa: SIM118


def write(path: Path, tensors, header, *, signed=True) -> None:
    """A file of these parts, its checksum made to fit unless `signed` is False."""
    if signed:
        header["checksum"] = checksum(header)
    save_file(tensors, path, metadata={"maskplan": json.dumps(header)})


@SHARED_FOLDER
@given(keyed_plans())
def test_a_saved_book_comes_back(tmp_path, entries):
    book = mp.PlanBook.from_plans(entries)
    book.save(tmp_path / "a.book")
    again = mp.PlanBook.load(tmp_path / "a.book")

    assert again == book
    assert again.digest == book.digest
    assert again.pattern_provenance == book.pattern_provenance
    again.save(tmp_path / "b.book")
    assert (tmp_path / "a.book").read_bytes() == (tmp_path / "b.book").read_bytes()


@given(plans(canonical=False))
def test_runs_expand_to_the_lists_they_were_made_of(plan):
    content = None if plan.tile_id is None else plan.tile_id.numpy()
    row_ptr, col, tile_id = expanded(runs_of(plan.row_ptr.numpy(), plan.col.numpy(), content))

    assert np.array_equal(row_ptr, plan.row_ptr.numpy())
    assert np.array_equal(col, plan.col.numpy())
    assert tile_id is None or np.array_equal(tile_id, content)


def test_a_row_that_sees_everything_is_one_run():
    runs = runs_of(np.array([0, 4, 4, 6]), np.array([0, 1, 2, 3, 0, 2], dtype=np.int32), None)

    assert runs.row_runs.tolist() == [1, 0, 2]
    assert runs.start.tolist() == [0, 0, 2]
    assert runs.length.tolist() == [4, 1, 1]


def test_the_golden_file_is_still_read():
    book = mp.PlanBook.load(GOLDEN)

    assert book == small_book()
    assert book.digest == GOLDEN_DIGEST
    assert book.pattern_provenance == small_book().pattern_provenance


def test_provenance_of_the_book_is_kept(tmp_path):
    whole = mp.full(4, 4)
    made = mp.Provenance(builder="by hand", parameters={"why": "a test"})
    mp.PlanBook.from_plans({(0, 0, 0): whole}, provenance=made).save(tmp_path / "a")

    assert mp.PlanBook.load(tmp_path / "a").provenance == made


def test_plans_and_books_are_told_apart(tmp_path, saved):
    mp.full(4, 4).save(tmp_path / "plan")

    with pytest.raises(mp.PlanFileError, match=r"holds a book of plans.*maskplan\.PlanBook\.load"):
        mp.load(saved)
    with pytest.raises(mp.PlanFileError, match=r"not a book.*got 'Plan'.*maskplan\.load"):
        mp.PlanBook.load(tmp_path / "plan")


def test_an_interrupted_save_leaves_the_old_file_whole(saved, monkeypatch):
    before = saved.read_bytes()

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "replace", stop)
    with pytest.raises(KeyboardInterrupt):
        mp.PlanBook.from_plans({(0, 0, 0): mp.full(4, 4)}).save(saved)

    assert saved.read_bytes() == before
    assert [path.name for path in saved.parent.iterdir()] == [saved.name]


def test_any_flipped_byte_is_found(saved):
    content = saved.read_bytes()
    rng = np.random.default_rng(0)
    for place in rng.choice(len(content), size=150, replace=False):
        harmed = bytearray(content)
        harmed[place] ^= 1 << int(rng.integers(8))
        saved.write_bytes(harmed)
        with pytest.raises(mp.PlanFileError):
            mp.PlanBook.load(saved)


@pytest.mark.parametrize("length", [0, 7, 100, 900])
def test_a_cut_file_is_found(saved, length):
    saved.write_bytes(saved.read_bytes()[:length])

    with pytest.raises(mp.PlanFileError):
        mp.PlanBook.load(saved)


def changed(path, *, header=None, tensors=None):
    held, fields = parts_of(path)
    write(path, held | (tensors or {}), fields | (header or {}))


def ints(*values):
    return torch.tensor(values, dtype=torch.int32)


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"header": {"colour": "red"}}, ["unknown field 'colour'"]),
        ({"header": {"version": 2}}, ["unknown version", "got 2"]),
        ({"header": {"steps": [0, 5]}}, ["index of", "range(0, 5)"]),
        ({"header": {"layers": [1, 1]}}, ["layers of", "[1, 1]"]),
        ({"header": {"heads": [0, 2**62]}}, ["heads of", "from 0 to"]),
        ({"header": {"heads": [0, 2.0]}}, ["heads of", "[0, 2.0]"]),
        ({"header": {"digest": "0" * 64}}, ["digest of", "as its header says"]),
        ({"header": {"pattern_provenance": [None]}}, ["provenances do not fit the book"]),
        ({"header": {"pattern_provenance": [3, None]}}, ["pattern_provenance[0]", "got int"]),
        ({"header": {"provenance": {"maker": "x"}}}, ["unknown field 'maker'"]),
        ({"header": {"seqlen_q": 11}}, ["damaged"]),
        ({"tensors": {"extra": ints(1)}}, ["unknown field 'extra'"]),
        ({"tensors": {"run_start": ints(0).long()}}, ["run_start of", "dtype I32"]),
        ({"tensors": {"run_start": ints(0)[None]}}, ["run_start of", "2 axes"]),
        ({"tensors": {"run_start": ints(0)}}, ["run_length of"]),
        ({"tensors": {"row_runs": ints(1, 1, 1, -1, 5, 4)}}, ["row_runs of", "got -1"]),
        ({"tensors": {"row_runs": ints(1, 1, 1, 1, 1, 1)}}, ["row_runs of", "in all"]),
    ],
)
def test_what_a_reader_refuses(saved, change, parts):
    changed(saved, **change)

    with pytest.raises(mp.PlanFileError) as caught:
        mp.PlanBook.load(saved)
    assert all(part in str(caught.value) for part in parts), str(caught.value)


def test_runs_that_leave_the_keys_are_refused(saved):
    tensors, _ = parts_of(saved)
    for name, value, part in [
        ("run_start", 3, "a block of 3"),
        ("run_length", 4, "end by block 3"),
    ]:
        changed(saved, tensors={name: tensors[name].index_fill(0, torch.tensor([0]), value)})
        with pytest.raises(mp.PlanFileError, match=part):
            mp.PlanBook.load(saved)
        changed(saved, tensors=tensors)


def test_a_file_that_claims_more_blocks_than_allowed_is_refused(tmp_path):
    book = mp.PlanBook.from_plans({(0, 0, 0): mp.full(64, 64, block_size=(1, 1))})
    book.save(tmp_path / "a")

    with pytest.raises(mp.PlanFileError, match=r"too large.*4096 blocks.*at most 4095"):
        mp.PlanBook.load(tmp_path / "a", max_blocks=4095)
    assert mp.PlanBook.load(tmp_path / "a", max_blocks=4096) == book


def test_a_small_file_cannot_claim_terabytes(saved):
    """Two runs of 2**31 - 1 blocks each are refused before anything is expanded."""
    tensors, header = parts_of(saved)
    size = 2**31 - 1
    tensors |= {
        "row_runs": torch.ones(2, dtype=torch.int32),
        "run_start": ints(0, 0),
        "run_length": ints(size, size),
        "index": torch.zeros_like(tensors["index"]),
        "tiles": torch.zeros((0, 1, 1), dtype=torch.int32),
    }
    tensors.pop("run_tile", None)
    header |= {"seqlen_q": 2, "seqlen_k": size, "block_size": [1, 1], "pattern_provenance": [None]}
    write(saved, tensors, header)

    with pytest.raises(mp.PlanFileError, match="4294967294 blocks, wanted at most 268435456"):
        mp.PlanBook.load(saved)
