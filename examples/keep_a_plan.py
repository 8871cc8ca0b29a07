"""How do I keep a plan, and know later that it is still the same mask?

Two plans made in different ways: one digest, because they keep the same pairs.
"""

import tempfile
from pathlib import Path

import torch

import maskplan as mp


def main() -> None:
    window = mp.sliding_window(200, 200, left=50, right=0, block_size=(32, 32))
    distance = torch.arange(200)[:, None] - torch.arange(200)
    same = mp.from_token_mask((distance >= 0) & (distance <= 50), block_size=(32, 32))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "window.safetensors"
        window.save(path)
        loaded = mp.load(path)
        size = path.stat().st_size
    print(loaded)
    print(f"\n{size} bytes, made by {loaded.provenance}")
    print(f"digest of the file's plan    {loaded.digest}")
    print(f"digest of the mask's plan    {same.digest}")


if __name__ == "__main__":
    main()
