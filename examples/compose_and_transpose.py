"""What do set operations and the transpose do to a plan?

Documents that attend causally inside themselves, and a few first tokens that everybody sees.
"""

import maskplan as mp

BLOCK = (32, 32)


def main() -> None:
    documents = mp.documents([100, 28, 192], causal=True, block_size=BLOCK)
    sink = mp.full(320, 320, block_size=BLOCK) - mp.causal(320, 320, block_size=BLOCK)
    print("documents\n")
    print(documents)
    print("\nwithout the window of the last 40 keys\n")
    print(documents - mp.sliding_window(320, 320, left=39, right=0, block_size=BLOCK))
    print("\nwith every later key besides, a plan of (nearly) everything\n")
    print(documents | sink)
    print("\nper KV block, the Q blocks that visit it: what a backward walks\n")
    print(documents.transpose())


if __name__ == "__main__":
    main()
