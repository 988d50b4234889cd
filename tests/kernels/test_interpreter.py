"""The kernels' numbers, in Triton's interpreter on the CPU."""

import pytest

pytest.importorskip("triton", reason="the interpreter comes with triton")

# A process each, which imports torch and triton first.
FILES = {
    "attention": ["attention_cases.py", "exact_cases.py"],
    "cosine_and_tiled": ["cosine_cases.py", "tiled_cases.py"],
    "operations": ["operation_cases.py"],
}
INTERPRETER = {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}


@pytest.mark.parametrize("files", FILES)
def test_cases(files, run_cases):
    run_cases(FILES[files], "not slow", **INTERPRETER)


@pytest.mark.slow
@pytest.mark.parametrize("files", ["attention", "cosine_and_tiled"])
def test_larger_cases(files, run_cases):
    run_cases(FILES[files], "slow", **INTERPRETER)


def test_every_file_of_cases_is_run(cases):
    named = [file for files in FILES.values() for file in files]
    assert sorted(named) == sorted(path.name for path in cases.glob("*_cases.py"))
