"""Where plans live: the CPU, a GPU, or meta, which has shapes and no values."""

import pytest
import torch

import maskplan as mp

PLAN = mp.documents([70, 30])
NO_VALUES = (
    "got device meta, wanted the CPU or a GPU; keep the plan that was moved to meta, which serves "
    "for shapes alone."
)


@pytest.mark.parametrize("device", ["mps", "xpu:0", "gpu7", torch.device("hpu")])
@pytest.mark.parametrize(
    "move",
    [
        PLAN.to,
        PLAN.lower("cpu").to,
        PLAN.token_tiles("cpu", policy="union", max_coverage=1.0).to,
        lambda device: mp.causal(9, 9, device=device),
        lambda device: mp.verify(PLAN, device=device),
        lambda device: mp.PlanCache().lower(PLAN, "cpu", device=device),
    ],
)
def test_other_devices_are_refused(move, device):
    with pytest.raises(mp.PlanError, match="no such device here in device: got '"):
        move(device)


@pytest.mark.parametrize(
    "act",
    [
        lambda: PLAN.to("meta").cpu(),
        lambda: PLAN.to("meta").validate(),
        lambda: PLAN.to("meta").transpose(),
        lambda: PLAN.to("meta").reblock((64, 64)),
        lambda: PLAN.to("meta").lower("cpu"),
        lambda: PLAN.to("meta").block_sparse_tensors(width="dense"),
        lambda: PLAN.lower("cpu").to("meta").to("cpu"),
        lambda: PLAN.lower("cpu").to("meta").form,
        lambda: mp.verify(PLAN, device="meta"),
        lambda: mp.sliding_window(9, 9, left=1, right=1, device="meta"),
    ],
)
def test_values_are_not_read_off_meta(act):
    with pytest.raises(mp.PlanError) as caught:
        act()

    assert str(caught.value).startswith("a plan without values in ")
    assert str(caught.value).endswith(NO_VALUES)


def test_plans_on_meta_print_and_give_shapes():
    there, lowered = PLAN.to("meta"), PLAN.lower("cpu").to("meta")
    q, k, v = (torch.empty(2, 100, 4, size, device="meta") for size in (8, 8, 6))

    assert str(there) == repr(there)
    assert "on meta" in repr(there)
    assert repr(lowered).endswith("23 tensors on meta)")
    assert mp.attention(q, k, v, there).shape == (2, 100, 4, 6)
    assert mp.attention(q, k, v, lowered).shape == (2, 100, 4, 6)
