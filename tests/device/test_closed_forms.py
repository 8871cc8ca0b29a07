"""Plans given by a few numbers, made on a device, judged by the CPU's."""

import pytest
import torch

import maskplan as mp
from maskplan.video import Grid
from tests.device.planning import same_plan

WINDOWS = [
    {"left": 5, "right": 0},
    {"left": 0, "right": 7},
    {"left": None, "right": 3},
    {"left": 40, "right": None},
    {"left": 0, "right": 0},
]
SHAPES = [(30, 30, (8, 8)), (21, 37, (4, 16)), (37, 21, (16, 4)), (9, 70, (3, 33)), (1, 1, (2, 2))]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("shape", SHAPES)
def test_sliding_windows(place, window, shape):
    sq, sk, size = shape
    options = {**window, "align": "bottom_right", "block_size": size}
    made = mp.sliding_window(sq, sk, **options, device=place)

    assert len(made.col) == int(made.row_ptr[-1])  # a band has just the room it needs
    same_plan(made, mp.sliding_window(sq, sk, **options))


@pytest.mark.parametrize("shape", [*SHAPES, (0, 5, (2, 2)), (5, 0, (2, 2))])
def test_full_and_causal(place, shape):
    sq, sk, size = shape
    made = mp.full(sq, sk, block_size=size, device=place)
    assert made.cpu() == mp.full(sq, sk, block_size=size)
    for align in ("top_left", "bottom_right"):
        made = mp.causal(sq, sk, align=align, block_size=size, device=place)
        assert made.cpu() == mp.causal(sq, sk, align=align, block_size=size)


GRIDS = [
    (Grid(4, 4, 8), {"tile": (2, 2, 4), "window": (1, 2, 1)}),  # tiles of one block
    (Grid(5, 3, 7, text=6), {"tile": (2, 2, 3), "window": (2, 1, 3)}),
    (Grid(5, 3, 7, text=6, text_first=True), {"tile": (2, 2, 3), "window": (3, 2, 2)}),
    (Grid(3, 5, 5, text=3), {"tile": (2, 2, 2), "window": (1, 3, 2), "pad": True}),
    (Grid(3, 5, 5, text=9), {"tile": (2, 4, 4), "window": (2, 1, 1), "queries": "video"}),
    (
        Grid(3, 5, 5, text=9, text_first=True),
        {"tile": (2, 4, 4), "window": (2, 2, 1), "queries": "video", "pad": True},
    ),
    (Grid(1, 1, 9), {"tile": (1, 1, 1), "window": (1, 1, 4)}),
]


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("size", [(16, 16), (8, 32), (48, 40)])
def test_sliding_tiles(place, grid, size):
    shape, options = grid
    made = mp.video.sliding_tile(shape, **options, block_size=size, device=place)

    same_plan(made, mp.video.sliding_tile(shape, **options, block_size=size))


def test_tiles_that_fill_blocks_take_no_bits(place):
    options = {"tile": (2, 2, 4), "window": (1, 1, 2), "block_size": (16, 8)}
    made = mp.video.sliding_tile(Grid(4, 4, 8, text=20), **options, device=place)

    assert made.tile_id is None
    assert made.num_tiles == 0
    same_plan(made, mp.video.sliding_tile(Grid(4, 4, 8, text=20), **options))


@pytest.mark.gpu
@pytest.mark.parametrize("grid", [(30, 48, 80), (21, 45, 80)])
@pytest.mark.parametrize("pad", [False, True])
def test_large_sliding_tiles(place, grid, pad):
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    options = {"tile": (6, 8, 8), "window": (3, 3, 3), "pad": pad}
    made = mp.video.sliding_tile(Grid(*grid, text=256), **options, device=place)

    assert made.cpu() == mp.video.sliding_tile(Grid(*grid, text=256), **options)
    assert made.transpose().cpu() == made.cpu().transpose()


@pytest.mark.gpu
@pytest.mark.parametrize("size", [(128, 128), (64, 128), (256, 96)])
def test_large_windows(place, size):
    if place.type != "cuda":
        pytest.skip("no CUDA device")
    options = {"left": 5000, "right": 700, "block_size": size}
    made = mp.sliding_window(115_200, 115_200, **options, device=place)

    same_plan(made, mp.sliding_window(115_200, 115_200, **options))


@pytest.mark.gpu
def test_a_graph_of_closed_forms(place):
    if place.type != "cuda":
        pytest.skip("no CUDA device")

    def work() -> list[mp.Plan]:
        window = mp.sliding_window(1000, 1000, left=100, right=0, device=place)
        return [window, window.reblock((256, 256)),
                mp.video.sliding_tile(Grid(6, 16, 20), window=(1, 1, 2), device=place)]  # fmt: skip

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        wanted = [plan.cpu() for plan in work()]
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        made = work()
    graph.replay()
    torch.cuda.synchronize()

    for one, other in zip(made, wanted, strict=True):
        assert one.cpu() == other
