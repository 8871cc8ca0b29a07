"""What does sliding tile attention look like on a video's tokens?

A small latent of 6 x 16 x 24 tokens in tiles of 2 x 4 x 4, each query seeing 3 x 3 x 3 tiles.
Tokens lie in tile order: a tile is a run of neighbours, and most blocks of the plan are whole.
"""

import maskplan as mp


def main() -> None:
    grid = mp.video.Grid(6, 16, 24)
    plan = mp.video.sliding_tile(grid, tile=(2, 4, 4), window=(3, 3, 3), block_size=(32, 32))
    print(plan)
    print()
    print(plan.stats(head_dim=128))


if __name__ == "__main__":
    main()
