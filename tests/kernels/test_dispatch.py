"""Which path runs, what is said about it, and that importing stays cheap."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import mechplateau_kernels as mk
from mechplateau_kernels import _dispatch
from mechplateau_kernels.attention.choose import TABLE

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
def test_in_a_notebook_there_is_no_notice():
    done = run_python(
        "import ipykernel, torch, mechplateau_kernels as mk; mk.pairwise_cosine(torch.ones(2, 3, 4))"
    )
    assert (done.returncode, done.stderr) == (0, "")


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


def test_the_report_is_about_the_device_it_is_asked_for():
    report = mk.backend_report(torch.device("cpu"))
    assert report["device"] == "cpu"
    assert report["default"] == ("triton" if _dispatch.INTERPRETED else "torch")
    assert report["toolchain"] is None


def test_without_triton_and_numpy_everything_but_triton_works():
    done = run_python(
        "import sys; sys.modules['triton'] = sys.modules['numpy'] = None\n"
        "import importlib.util as u; find = u.find_spec\n"
        "u.find_spec = lambda name, *a: None if name == 'triton' else find(name, *a)\n"
        "import torch, mechplateau_kernels as mk; q = torch.ones(1, 3, 1, 2, requires_grad=True)\n"
        "out = mk.linear_attention(q, q, q, metric_sets=[torch.eye(3).bool()])\n"
        "total = mk.apm(*out[1:]) + mk.pairwise_cosine(out.output[:, :, 0]).sum()\n"
        "(total + mk.mean_pairwise_cosine(out.output[:, :, 0])).backward()\n"
        "print(mk.backend_report()['why_not_triton'])"
    )
    assert done.stdout.strip() == "triton is not installed", done.stderr


def test_without_triton_the_report_says_so(monkeypatch):
    monkeypatch.setattr(_dispatch, "TRITON_INSTALLED", False)
    assert mk.backend_report()["why_not_triton"] == "triton is not installed"
    with pytest.raises(mk.BackendUnavailable, match="triton is not installed"):
        mk.pairwise_cosine(H, backend="triton")


def test_the_table_of_algorithms_is_explained():
    done = run_python(
        "import torch, mechplateau_kernels as mk; q = torch.ones(1, 70, 1, 4)\n"
        "mk.softmax_attention(q, q, q); mk.linear_attention(q[:, :9], q[:, :9], q[:, :9]); print(mk.report())"
    )
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines[1:7]] == ["tile", "tiled", "map", "blocked", "lse", "chunk"]
    if not torch.cuda.is_available():
        assert lines[7].startswith("on cpu: torch (the tensors are on the CPU")
        assert lines[8:] == ["linear_attention has run: map", "softmax_attention has run: lse"]
    readme = (Path(__file__).parents[2] / "kernels" / "README.md").read_text()
    for name, (backend, positions, _) in TABLE.items():
        assert f"| `{name}` | {backend} | {positions} | " in readme


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"width": 129}, "up to 128 wide"),
        ({"metric_sets": [mk.First(1)] * 9}, "8 metric sets"),
        ({"metric_sets": [torch.ones(70, 70).bool()]}, "sets by their structure"),
        ({"metric_sets": [mk.Listed(torch.arange(40).expand(70, 40))]}, "up to 32 keys"),
        ({"dtype": torch.float64}, "float64"),
        ({"c": torch.tensor(1.0, requires_grad=True), "intervene": mk.First(1)}, "no gradient of c"),
    ],
)
def test_what_the_tiled_kernels_cannot_take(change, reason, monkeypatch, caplog):
    monkeypatch.setattr(_dispatch, "device_obstacle", lambda device: None)
    monkeypatch.setattr(_dispatch, "_said", set())
    change = dict(change)
    q = torch.ones(1, 70, 1, change.pop("width", 4), dtype=change.pop("dtype", torch.float32))
    for forced in ({"backend": "triton"}, {"algorithm": "tiled"}):
        with pytest.raises(mk.BackendUnavailable, match=reason):
            mk.softmax_attention(q, q, q, **change, **forced)
    assert mk.softmax_attention(q, q, q, **change).output.shape == q.shape
    assert caplog.text.count(reason) == 1


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"pos": 65}, "sets by their structure"),
        ({"width": 257}, "up to 256 wide"),
        ({"dtype": torch.float64}, "float64"),
        ({"sets": 9}, "8 sets"),
        ({"c": torch.tensor(1.0, requires_grad=True)}, "no gradient of c"),
    ],
)
def test_what_the_attention_kernel_cannot_take(change, reason, monkeypatch, caplog):
    monkeypatch.setattr(_dispatch, "device_obstacle", lambda device: None)
    monkeypatch.setattr(_dispatch, "_said", set())
    pos = change.get("pos", 3)
    q = torch.ones(1, pos, 1, change.get("width", 4), dtype=change.get("dtype", torch.float32))
    mask = torch.ones(pos, pos, dtype=torch.bool)
    keywords = {"intervene": mask, "c": change.get("c", 2.0), "metric_sets": [mask] * change.get("sets", 0)}
    with pytest.raises(mk.BackendUnavailable, match=reason):
        mk.linear_attention(q, q, q, backend="triton", **keywords)
    for _ in range(2):
        assert mk.linear_attention(q, q, q, **keywords).output.shape == q.shape
    assert caplog.text.count(reason) == 1


def test_what_the_cosine_kernels_cannot_take(monkeypatch):
    monkeypatch.setattr(_dispatch, "device_obstacle", lambda device: None)
    long = torch.ones(1, 65, 4)
    for measure in (mk.pairwise_cosine, lambda h, **k: mk.mean_pairwise_cosine(h, per_position=True, **k)):
        with pytest.raises(mk.BackendUnavailable, match="up to 64 positions"):
            measure(long, backend="triton")
    with pytest.raises(mk.BackendUnavailable, match="up to 512 positions"):
        mk.mean_pairwise_cosine(torch.ones(1, 513, 4), backend="triton")
    with pytest.raises(mk.BackendUnavailable, match="float64"):
        mk.mean_pairwise_cosine(H.double(), backend="triton")


def both(q):
    mask = torch.eye(3, dtype=torch.bool)
    out = mk.linear_attention(q, q, q, intervene=mask, c=2.0, metric_sets=[mask])
    h = out.output.flatten(2)
    return (
        mk.apm(out.row_mass, out.set_mass)
        + mk.pairwise_cosine(h).sum()
        + mk.mean_pairwise_cosine(h, exclude=(0,))
    )


@needs_no_gpu
@pytest.mark.parametrize("dynamic", [False, True])
def test_the_torch_path_compiles_without_a_graph_break(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(both, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for batch in (2, 3):
        q = torch.randn(batch, 3, 1, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
        torch.testing.assert_close(compiled(q), both(q))
        torch.testing.assert_close(torch.autograd.grad(compiled(q), q), torch.autograd.grad(both(q), q))


def test_the_torch_path_maps():
    q = torch.randn(4, 2, 3, 1, 4, generator=torch.Generator().manual_seed(0))
    got = torch.func.vmap(both)(q)
    torch.testing.assert_close(got, torch.stack([both(x) for x in q]))
