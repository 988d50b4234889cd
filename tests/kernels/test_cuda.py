"""The same cases as in the interpreter, compiled for the GPU that is there."""

from pathlib import Path

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(
    "file", sorted(path.name for path in (Path(__file__).parent / "cases").glob("*_cases.py"))
)
def test_cases(file, run_cases):
    run_cases([file], "slow or not slow")
