"""What do set operations and the transpose do to a plan?

Documents that attend causally inside themselves, within a window, and to a few first tokens that
everybody sees.
"""

import maskplan as mp

BLOCK = (32, 32)


def main() -> None:
    documents = mp.documents([100, 28, 192], causal=True, block_size=BLOCK)
    window = mp.sliding_window(320, 320, left=79, right=0, block_size=BLOCK)
    sink = mp.from_ranges([(0, 320)], [(0, 32)], ["full"], 320, 320, block_size=BLOCK)
    plan = (documents & window) | sink
    print(plan)
    print("\nwhat the window took away\n")
    print(documents - plan)
    print("\nper KV block, the Q blocks that visit it: what a backward walks\n")
    print(plan.transpose())


if __name__ == "__main__":
    main()
