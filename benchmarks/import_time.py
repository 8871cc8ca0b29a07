"""What `import maskplan` costs over `import torch`: best of some new processes."""

import subprocess
import sys

RUNS = 5
SOURCE = """
import time
start = time.perf_counter()
import torch
middle = time.perf_counter()
import maskplan
print(middle - start, time.perf_counter() - middle)
"""


def main() -> None:
    measured = []
    for _ in range(RUNS):
        done = subprocess.run(
            [sys.executable, "-c", SOURCE], capture_output=True, text=True, check=True
        )
        measured.append([float(number) for number in done.stdout.split()])
    torch_time, maskplan_time = (min(column) for column in zip(*measured, strict=True))
    print(f"import torch {torch_time:.3f} s, import maskplan after it {maskplan_time:.3f} s")


if __name__ == "__main__":
    main()
