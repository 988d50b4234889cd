"""`benchmarks/` is not an installed package; its modules are imported by their file names."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
