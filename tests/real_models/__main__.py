"""Does numformer compute with real weights what PyTorch computes? Prints a table.

    python -m tests.real_models [--store]

The weights travel as packages, of which this installs none; it says which are missing. With
--store, the programs for which they were published compute the results anew, too, for which it
needs PyTorch and transformers. Exit code 0: all that was there agrees; 1: not all.
"""

import argparse
import sys
import tempfile
from pathlib import Path

from tests.real_models.kinds import KINDS
from tests.real_models.measuring import BOUND, measure

COLUMNS = ["package", "kind", "parameters", "compared", "largest difference", "seconds"]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real_models", description=__doc__)
    parser.add_argument("--store", action="store_true", help="compute and store their results")
    store, agrees = parser.parse_args(arguments).store, True
    columns = [*COLUMNS, *["their seconds"] * store]
    print(f"| {' | '.join(columns)} |\n|{'---|' * len(columns)}", flush=True)
    for kind in KINDS:
        cells = [kind.packages[0][0], kind.kind]
        if missing := kind.missing():
            cells += ["", f"nothing: {', '.join(missing)} not installed", "", "", *[""] * store]
        else:
            with tempfile.TemporaryDirectory() as folder:
                found = measure(kind, Path(folder), store)
            agrees &= found.difference < BOUND
            cells += [f"{found.parameters:,}", kind.compared, f"{found.difference:.1e}"]
            cells += [f"{n:.1f}" for n in (found.seconds, found.their_seconds) if n is not None]
        print(f"| {' | '.join(cells)} |", flush=True)
    return 0 if agrees else 1


if __name__ == "__main__":
    sys.exit(main())
