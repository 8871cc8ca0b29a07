"""Books: what they hold, what a layer's plan is, what is refused and in which words."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskplan as mp
from tests.handmade import causal_mask, plan_of
from tests.oracle import assert_plan
from tests.strategies import geometries, plans


@st.composite
def keyed_plans(draw):
    """{(step, layer, head): plan} over whole ranges, plans repeated as objects and as equals."""
    geometry = draw(geometries(high=40))
    pool = [draw(plans(geometry=geometry, heads=(1, 1), canonical=False)) for _ in range(3)]
    pool.append(replace(pool[0], provenance=mp.Provenance(builder="again")))
    first = [draw(st.integers(0, 3)) for _ in range(3)]
    sizes = [draw(st.integers(1, 3)) for _ in range(3)]
    return {
        (s, layer, h): pool[draw(st.integers(0, 3))]
        for s in range(first[0], first[0] + sizes[0])
        for layer in range(first[1], first[1] + sizes[1])
        for h in range(first[2], first[2] + sizes[2])
    }


@given(keyed_plans())
def test_a_book_gives_back_what_went_in(entries):
    book = mp.PlanBook.from_plans(entries)

    assert dict(book) == entries
    assert list(book) == sorted(entries)
    assert len(book) == len(entries)
    distinct = {plan.digest for plan in entries.values()}
    assert book.num_patterns == len(distinct)
    assert {book.pattern(number).digest for number in range(book.num_patterns)} == distinct


@given(keyed_plans(), st.data())
def test_a_layer_is_the_stack_of_its_heads(entries, data):
    book = mp.PlanBook.from_plans(entries)
    step, layer = data.draw(st.sampled_from([key[:2] for key in entries]))
    stacked = torch.cat([entries[step, layer, head].to_dense() for head in book.heads], dim=1)

    assert_plan(book.plan(step, layer), stacked)


@given(keyed_plans(), st.data())
def test_a_selection_keeps_its_numbers(entries, data):
    book = mp.PlanBook.from_plans(entries)
    parts = {}
    for name in ("steps", "layers", "heads"):
        numbers = getattr(book, name)
        first = data.draw(st.sampled_from(numbers))
        parts[name] = range(first, data.draw(st.integers(first + 1, numbers.stop)))
    part = book.select(**parts)
    inside = {key: plan for key, plan in entries.items() if key in part}

    assert dict(part) == inside
    assert part == mp.PlanBook.from_plans(inside)
    assert part.digest == mp.PlanBook.from_plans(inside).digest


@given(keyed_plans())
def test_densities_are_those_of_the_dense_masks(entries):
    book = mp.PlanBook.from_plans(entries)
    stats = book.stats(head_dim=64)
    kept = {key: int(plan.to_dense().sum()) for key, plan in entries.items()}
    each = book.geometry.seqlen_q * book.geometry.seqlen_k

    assert stats.pairs == sum(kept.values())
    assert stats.all_pairs == len(entries) * each
    assert stats.forward_flops == 4 * 64 * stats.pairs
    assert stats.dense_forward_flops == 4 * 64 * stats.all_pairs
    for i, step in enumerate(book.steps):
        for j, layer in enumerate(book.layers):
            mean = sum(kept[step, layer, head] for head in book.heads) / len(book.heads)
            expected = mean / each if each else 0.0
            assert float(stats.density_map[i, j]) == pytest.approx(expected)
    assert book.density == pytest.approx(float(stats.density_map.mean()))
    assert float(stats.density_by_step.mean()) == pytest.approx(book.density)
    assert float(stats.density_by_layer.mean()) == pytest.approx(book.density)


@given(st.data())
def test_layers_of_many_heads(data):
    geometry = data.draw(geometries(high=40))
    heads = data.draw(st.integers(1, 3))
    shapes = [(1, data.draw(st.sampled_from([1, heads]))) for _ in range(2)]
    first, second = (data.draw(plans(geometry=geometry, heads=shape)) for shape in shapes)
    book = mp.PlanBook.from_layers({(0, 4): first, (1, 5): second}, heads=heads, default=second)

    assert book.shape == (2, 2, heads)
    assert book.plan(0, 4) == first.with_heads(heads)
    assert book.plan(0, 5) == second.with_heads(heads)
    assert book.plan(1, 5) == second.with_heads(heads)


def two_plans() -> tuple[mp.Plan, mp.Plan]:
    grid = {"t": 1, "h": 2, "w": 5}
    causal = plan_of(
        causal_mask(10, 10), (4, 4), provenance=mp.Provenance(builder="causal", grid=grid)
    )
    whole = mp.full(10, 10, block_size=(4, 4))
    return causal, replace(whole, provenance=mp.Provenance(builder="full", grid=grid))


def small_book() -> mp.PlanBook:
    causal, whole = two_plans()
    return mp.PlanBook.from_plans(
        {(3, 0, 0): causal}, steps=range(2, 4), layers=range(2), heads=range(2), default=whole
    )


def test_provenance_is_kept_for_each_pattern():
    book = small_book()

    assert book[3, 0, 0].provenance.builder == "causal"
    assert book[2, 1, 1].provenance.builder == "full"
    layer = book.plan(3, 0).provenance
    assert (layer.builder, dict(layer.parameters)) == ("PlanBook.plan", {"step": 3, "layer": 0})
    assert layer.grid == {"t": 1, "h": 2, "w": 5}


def test_a_book_is_a_mapping():
    book = small_book()

    assert (3, 0, 0) in book
    assert (1, 0, 0) not in book
    assert (3, 0) not in book
    assert (3.0, 0, 0) not in book
    assert book[np.int64(3), 0, 0] == book[3, 0, 0]
    assert book.plan(np.int64(3), 0).provenance.parameters["step"] == 3
    assert book.get((9, 0, 0)) is None
    assert book == pickle.loads(pickle.dumps(book))
    assert hash(book) == hash(small_book())
    assert book != book.select(heads=range(1))
    assert repr(book).startswith("PlanBook(10 x 10 tokens in blocks of 4 x 4, steps=range(2, 4)")


def test_the_printed_book_names_its_densities():
    text = str(small_book())

    assert "2 steps x 2 layers x 2 heads" in text
    assert "distinct patterns            2  of 8 entries" in text
    assert "2 to    2  100.0000%" in text
    assert "3 to    3   88.7500%" in text


def index_of(values):
    return torch.tensor(values)


@pytest.mark.parametrize(
    ("call", "error", "parts"),
    [
        (
            lambda: small_book()[9, 0, 0],
            mp.PlanKeyError,
            ["no such step in the book", "got 9", "2 <= step < 4"],
        ),
        (lambda: small_book()[2, 0, 0.0], mp.PlanKeyError, ["no such head", "got 0.0"]),
        (lambda: small_book()[2, 0], mp.PlanKeyError, ["wanted (step, layer, head)", "book.plan"]),
        (lambda: small_book().plan(2, 5), mp.PlanKeyError, ["no such layer", "0 <= layer < 2"]),
        (
            lambda: small_book().select(steps=range(3, 9)),
            mp.PlanKeyError,
            ["no such step", "got 8"],
        ),
        (
            lambda: small_book().select(steps=range(2, 4, 2)),
            mp.PlanError,
            ["range cannot number a book in steps", "without gaps"],
        ),
        (
            lambda: replace(small_book(), heads=range(3)),
            mp.PlanError,
            ["plans do not fit the book in PlanBook, heads", "got 8, wanted 12, for 2 * 2 * 3"],
        ),
        (
            lambda: small_book().select(steps=3),
            mp.PlanTypeError,
            ["not a range in steps", "steps=range(50)"],
        ),
        (
            lambda: mp.PlanBook.from_plans({(0, 0, 0): two_plans()[0]}, heads=range(3)),
            mp.PlanError,
            ["entries are missing", "no plan for 2 of 3", "(0, 0, 1)", "default="],
        ),
        (
            lambda: mp.PlanBook.from_plans({(0, 0, 5): two_plans()[0]}, heads=range(3)),
            mp.PlanError,
            ["key is outside the ranges", "got (0, 0, 5)", "heads in [0, 3)"],
        ),
        (lambda: mp.PlanBook.from_plans({}), mp.PlanError, ["no plans", "not empty"]),
        (
            lambda: mp.PlanBook.from_plans({(0, 0): two_plans()[0]}),
            mp.PlanTypeError,
            ["key is not a place in a book", "got (0, 0)", "3 whole numbers"],
        ),
        (
            lambda: mp.PlanBook.from_plans({(0, 0, 0): "plan"}),
            mp.PlanTypeError,
            ["value is not a plan in plans[0, 0, 0]", "got str"],
        ),
        (
            lambda: mp.PlanBook.from_plans({(0, 0, 0): two_plans()[0].with_heads(2)}),
            mp.PlanError,
            ["wrong number of heads", "got 2 heads", "from_layers"],
        ),
        (
            lambda: mp.PlanBook.from_layers({(0, 0): two_plans()[0].with_heads(2)}, heads=3),
            mp.PlanError,
            ["wrong number of heads", "wanted 1 or 3"],
        ),
        (
            lambda: mp.PlanBook.from_plans(
                {(0, 0, 0): plan_of(causal_mask(4, 4), (4, 4), [[0], [0]])}
            ),
            mp.PlanError,
            ["plan has a batch", "got batch 2", "one book for each sample"],
        ),
        (
            lambda: mp.PlanBook.from_plans(
                {(0, 0, 0): two_plans()[0], (0, 0, 1): mp.full(10, 10, block_size=(2, 2))}
            ),
            mp.PlanError,
            ["plans differ in geometry", "blocks of 2 x 2", "blocks of 4 x 4"],
        ),
        (
            lambda: mp.PlanBook.from_choices(two_plans(), index_of([[[0, 2]]])),
            mp.PlanError,
            ["unknown choice in index[0, 0, 1]", "got 2", "0 <= choice < 2"],
        ),
        (
            lambda: mp.PlanBook.from_choices(two_plans(), index_of([0, 1])),
            mp.PlanTypeError,
            ["index is not a tensor of choices", "shape [2]"],
        ),
        (
            lambda: mp.PlanBook.from_choices(two_plans(), index_of([[[0.5]]])),
            mp.PlanTypeError,
            ["index is not a tensor of choices", "got torch.float32"],
        ),
        (
            lambda: mp.PlanBook.from_plans(
                {(0, 0, 0): two_plans()[0]}, steps=range(2**13), layers=range(2**12)
            ),
            mp.PlanError,
            ["book is too large", "8192 * 4096 * 1", "at most 16777216"],
        ),
    ],
)
def test_what_is_refused(call, error, parts):
    with pytest.raises(error) as caught:
        call()

    assert all(part in str(caught.value) for part in parts), str(caught.value)
