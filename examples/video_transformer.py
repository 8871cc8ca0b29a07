"""What do plans change in a video transformer: how much faster, how far off?

A Wan transformer of diffusers, two layers deep and with random weights, denoises a small latent in
four steps: by its own attention, and with a book of plans. The book is dense at the first step, as
published methods are; then heads 0 and 1 look around in their own frames, 2 and 3 through time.
Random weights attend evenly, so the error says how plans are checked and not what they cost a
trained model.
"""

import time

import torch

import maskplan as mp
from maskplan.diffusers import attach

GRID = mp.video.Grid(8, 16, 32)
HEADS, LAYERS, STEPS, DENSE_STEPS = 4, 2, 4, 1
WINDOWS = [(1, 2, 2), (1, 2, 2), (2, 1, 1), (2, 1, 1)]  # in tiles, one for each head


def transformer() -> torch.nn.Module:
    """A `WanTransformer3DModel` that fits a laptop."""
    try:
        from diffusers import WanTransformer3DModel
    except ImportError:
        raise SystemExit("this needs diffusers: pip install 'maskplan[diffusers]'") from None
    torch.manual_seed(0)
    model = WanTransformer3DModel(
        num_attention_heads=HEADS,
        attention_head_dim=64,
        in_channels=16,
        text_dim=64,
        ffn_dim=512,
        num_layers=LAYERS,
    )
    return model.eval()


def book_of_windows() -> mp.PlanBook:
    """Sliding tiles for every step that is not dense."""
    plans = {
        (step, layer, head): mp.video.sliding_tile(GRID, tile=(4, 8, 8), window=window)
        for head, window in enumerate(WINDOWS)
        for step in range(DENSE_STEPS, STEPS)
        for layer in range(LAYERS)
    }
    return mp.PlanBook.from_plans(plans)


def denoise(model: torch.nn.Module) -> tuple[list[torch.Tensor], list[float]]:
    """(what the model predicts, seconds) of each step."""
    noise = torch.Generator().manual_seed(1)
    latent = torch.randn(1, 16, GRID.t, 2 * GRID.h, 2 * GRID.w, generator=noise)
    text = torch.randn(1, 16, 64, generator=noise)
    predictions, seconds = [], []
    for step in range(STEPS):
        timestep = torch.tensor([1000.0 * (1 - step / STEPS)])
        started = time.perf_counter()
        predicted = model(latent, timestep, text, return_dict=False)[0]
        seconds.append(time.perf_counter() - started)
        latent = latent - predicted / STEPS
        predictions.append(predicted)
    return predictions, seconds


@torch.inference_mode()
def main() -> None:
    model, book = transformer(), book_of_windows()
    print(book.plan(DENSE_STEPS, 0))
    print()
    own, own_seconds = denoise(model)
    with attach(model, book, dense_steps=DENSE_STEPS):
        denoise(model)  # plans are made ready, and code compiled, once
        planned, seconds = denoise(model)
    densities = [1.0] * DENSE_STEPS + book.stats().density_by_step.tolist()
    print("step  density  own attention  planned  faster  error")
    for step in range(STEPS):
        error = float((planned[step] - own[step]).norm() / own[step].norm())
        print(
            f"{step:4d} {densities[step]:8.1%} {own_seconds[step]:12.2f} s {seconds[step]:6.2f} s "
            f"{own_seconds[step] / seconds[step]:6.1f}x {error:6.3f}"
        )


if __name__ == "__main__":
    main()
