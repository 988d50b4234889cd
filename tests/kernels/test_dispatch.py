"""Which path runs, what is said about it, and that importing stays cheap."""

import json
import os
import subprocess
import sys

import pytest
import torch

import mechplateau_kernels as mk
from mechplateau_kernels import _dispatch

needs_no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="says what happens without a GPU")
H = torch.ones(2, 3, 4)


def run_python(code, **environment):
    clean = {k: v for k, v in os.environ.items() if k not in ("TRITON_INTERPRET", "MECHPLATEAU_KERNELS")}
    return subprocess.run(
        [sys.executable, "-c", code], env=clean | environment, capture_output=True, text=True, timeout=120
    )


def test_import_brings_no_heavy_package():
    done = run_python(
        "import sys, mechplateau_kernels\n"
        "print([m for m in ('triton', 'transformer_lens', 'jaxtyping', 'einops') if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stderr


@needs_no_gpu
def test_without_a_gpu_torch_runs_with_one_notice():
    done = run_python(
        "import torch, mechplateau_kernels as mk; h = torch.ones(2, 3, 4)\n"
        "for _ in range(3): mk.pairwise_cosine(h); mk.mean_pairwise_cosine(h)\n"
        "import json; print(json.dumps(mk.backend_report()))"
    )
    assert done.stderr.count("the torch reference runs") == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["default"] == "torch"
    assert report["used"] == {"mean_pairwise_cosine": ["torch"], "pairwise_cosine": ["torch"]}


@needs_no_gpu
@pytest.mark.parametrize("how", ["argument", "variable"])
def test_forcing_triton_without_a_gpu_is_one_clear_error(how, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    if how == "variable":
        monkeypatch.setenv("MECHPLATEAU_KERNELS", "triton")
    with pytest.raises(mk.BackendUnavailable, match="MECHPLATEAU_KERNELS") as caught:
        mk.pairwise_cosine(H, backend="triton" if how == "argument" else "auto")
    assert "\n" not in str(caught.value)


def test_the_argument_wins_over_the_variable(monkeypatch):
    monkeypatch.setenv("MECHPLATEAU_KERNELS", "triton")
    assert mk.pairwise_cosine(H, backend="torch").shape == (3, 3)
    assert mk.backend_report()["requested"] == "triton"


def test_a_misspelled_variable_is_an_error(monkeypatch):
    monkeypatch.setenv("MECHPLATEAU_KERNELS", "tirton")
    with pytest.raises(ValueError, match="tirton"):
        mk.pairwise_cosine(H)


def test_without_triton_the_report_says_so(monkeypatch):
    monkeypatch.setattr(_dispatch, "triton_installed", lambda: False)
    assert mk.backend_report()["why_not_triton"] == "triton is not installed"
    with pytest.raises(mk.BackendUnavailable, match="triton is not installed"):
        mk.pairwise_cosine(H, backend="triton")
