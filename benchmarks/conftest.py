"""Benchmarks import their baseline by its file name: `import paper_baseline`."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent))
