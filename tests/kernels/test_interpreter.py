"""The kernels' numbers, in Triton's interpreter on the CPU."""

import pytest

pytest.importorskip("triton", reason="the interpreter comes with triton")

FILES = [
    "attention_cases.py",
    "exact_cases.py",
    "cosine_cases.py",
    "operation_cases.py",
    "tiled_cases.py",
    "gpu_check_cases.py",
]
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("file", FILES)
def test_cases(file, run_cases):
    run_cases(file, "not slow", **INTERPRETER)


@pytest.mark.slow
@pytest.mark.parametrize("file", ["attention_cases.py", "tiled_cases.py"])
def test_larger_cases(file, run_cases):
    run_cases(file, "slow", **INTERPRETER)
