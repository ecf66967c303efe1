"""Measure `import verl` with and without the plugin in alternating runs, and print the ratio of the seconds.

python benchmarks/import_time.py [--runs 15]
"""

import argparse
import os
import statistics
import subprocess
import sys
import time


def seconds(plugins: str) -> float:
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-c", "import verl"], env=os.environ | {"VERL_USE_EXTERNAL_PLUGINS": plugins}, check=True
    )
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    seconds("auto"), seconds("none")
    pairs = [(seconds("auto"), seconds("none")) for _ in range(runs)]
    ratio = statistics.median(ours / theirs for ours, theirs in pairs)
    medians = [statistics.median(column) for column in zip(*pairs, strict=True)]
    print(f"import verl: with the plugin {medians[0]:.2f} s, without {medians[1]:.2f} s, median ratio {ratio:.3f}")


if __name__ == "__main__":
    main()
