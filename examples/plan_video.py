"""What does sliding tile attention look like on a video's tokens?

A small latent of 4 x 10 x 16 tokens in tiles of 2 x 4 x 4, each query seeing its own and the next
tiles in its two frames. Tokens lie in tile order, so a tile is a run of neighbours: 32 of them, and
16 in the last tiles of a frame, where 10 rows end.
"""

import maskplan as mp


def main() -> None:
    grid = mp.video.Grid(4, 10, 16)
    plan = mp.video.sliding_tile(grid, tile=(2, 4, 4), window=(1, 3, 3), block_size=(32, 32))
    print(plan)
    print()
    print(plan.stats(head_dim=128))


if __name__ == "__main__":
    main()
