"""The same cases as in the interpreter, compiled for the GPU that is there."""

import pytest
import torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize(
    "file",
    ["attention_cases.py", "exact_cases.py", "cosine_cases.py", "operation_cases.py", "tiled_cases.py"],
)
def test_cases(file, run_cases):
    run_cases([file], "slow or not slow")
