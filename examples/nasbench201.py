"""NAS-Bench-201 in one minute: compare methods on a table of 15,625 trained networks.

The table is a file with a column `arch` and columns of accuracies, including `val_200` and `test_200`. Pass it, or set
NATPP_DATA to a folder that contains nasbench201_cifar10.parquet.
"""

import argparse
import os
import sys
from pathlib import Path

from natpp.cli import main

arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
arguments.add_argument("table", nargs="?", type=Path)
arguments.add_argument("--small", action="store_true", help="takes seconds: random methods only, on 100 inputs")
given = arguments.parse_args()
table = given.table or Path(os.environ.get("NATPP_DATA", ".")) / "nasbench201_cifar10.parquet"
if not table.is_file():
    sys.exit(f"there is no table {str(table)!r}: pass one, or set NATPP_DATA to its folder")

less = ["--method", "random,random-best-of-10", "--holdout", "100"] if given.small else ["--method", "nat++,constant"]
sys.exit(main(["benchmark", "nasbench201", "--table", str(table), "--budget", "strict", "--seeds", "1", *less]))
