"""Linear attention by Triton against float64: on a GPU where there is one, else in the interpreter.

Collected by `test_interpreter.py` and `test_cuda.py`, each in a process of its own, since Triton
decides between the two when a kernel is defined.
"""

import math

import pytest
import torch

import mechplateau_kernels as mk
from mechplateau_kernels.attention import launch, reference

DEVICE = "cpu" if launch.INTERPRETED else "cuda"
# Relative to the Frobenius norm of the float64 result; 8 times that relative to its largest element.
# The interpreter truncates to bfloat16 where a card rounds to nearest, hence its wider gate.
OUTPUT = {torch.float32: 5e-6, torch.float16: 1e-3, torch.bfloat16: 6e-3 if DEVICE == "cuda" else 8e-3}
MASS = {torch.float32: 3e-6, torch.float16: 1e-6, torch.bfloat16: 1e-6}


def near(got, want, gate, what=""):
    got, want = got.detach().cpu().double(), want.detach().cpu().double()
    assert got.shape == want.shape
    if want.numel() == 0:
        return
    assert got.isfinite().all(), what
    scale = want.norm().item()
    assert (got - want).norm().item() <= gate * scale + 1e-12, f"{what}: {(got - want).norm() / scale}"
    assert (got - want).abs().max().item() <= 8 * gate * want.abs().max().item() + 1e-12, what


def tensors(seed, batch, pos, heads, d_head, d_v, dtype=torch.float32):
    generator = torch.Generator().manual_seed(seed)
    shapes = [(batch, pos, heads, width) for width in (d_head, d_head, d_v, d_v)]
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in shapes]


def masks(seed, count, *shape):
    generator = torch.Generator().manual_seed(seed)
    return [torch.rand(*shape, generator=generator) < 0.4 for _ in range(count)]


def on_device(x):
    return None if x is None else x.to(DEVICE)


def run_both(q, k, v, g, causal=True, intervene=None, c=1.0, sets=(), scale=None, mass_gradients=True):
    """Results and gradients by Triton, and the same in float64 by the reference."""
    mine = [x.to(DEVICE).requires_grad_() for x in (q, k, v)]
    out = mk.linear_attention(
        *mine, scale=scale, causal=causal, intervene=on_device(intervene), c=c,
        metric_sets=[on_device(s) for s in sets], backend="triton",
    )  # fmt: skip
    exact = [x.double().requires_grad_() for x in (q, k, v)]
    batched = [s if s.dim() == 3 else s.unsqueeze(0) for s in sets]
    chosen = intervene if intervene is None or intervene.dim() == 3 else intervene.unsqueeze(0)
    factor = c.double().cpu() if isinstance(c, torch.Tensor) else c
    want = reference.linear_attention(
        *exact, 1 / math.sqrt(q.shape[3]) if scale is None else scale, causal, chosen, factor, batched
    )
    generator = torch.Generator().manual_seed(99)
    g_row = torch.randn(want[1].shape, generator=generator)
    g_set = torch.randn(want[2].shape, generator=generator)
    n = 1 if not mass_gradients else 3 if sets else 2
    grads = torch.autograd.grad(tuple(out)[:n], mine, [g.to(DEVICE), g_row.to(DEVICE), g_set.to(DEVICE)][:n])
    exact_grads = torch.autograd.grad(want[:n], exact, [g.double(), g_row.double(), g_set.double()][:n])
    return (*out, *grads), (*want, *exact_grads)


def compare(results, dtype):
    got, want = results
    names = ("output", "row_mass", "set_mass", "dq", "dk", "dv")
    for name, x, y in zip(names, got, want, strict=True):
        assert x.dtype == (torch.float32 if "mass" in name else dtype)
        near(x, y, (MASS if "mass" in name else OUTPUT)[dtype], name)


SHAPES = [  # batch, pos, heads, d_head, d_v
    (1, 1, 1, 16, 16),
    (1, 2, 3, 1, 1),
    (2, 15, 1, 3, 8),
    (2, 16, 1, 80, 80),
    (1, 17, 1, 40, 24),
    (1, 32, 1, 256, 256),
    (1, 33, 2, 48, 48),
    (1, 64, 1, 64, 128),
]
MORE_SHAPES = [
    (3, 33, 2, 48, 48),
    (2, 64, 2, 64, 128),
    (2, 33, 1, 20, 1),
    (1, 64, 1, 256, 3),
    (4, 16, 3, 80, 80),
]


@pytest.mark.parametrize(
    "shape", [*SHAPES, *(pytest.param(shape, marks=pytest.mark.slow) for shape in MORE_SHAPES)], ids=str
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_shapes_and_dtypes(shape, dtype):
    batch, pos, *_ = shape
    q, k, v, g = tensors(1, *shape, dtype=dtype)
    own, shared = masks(2, 1, batch, pos, pos)[0], masks(3, 1, pos, pos)[0]
    # Low precision rounds A before A V, and sign(A) at 0 is a matter of luck: no mass gradients there.
    exact_signs = dtype == torch.float32
    results = run_both(
        q, k, v, g, intervene=own, c=0.5, sets=[shared], mass_gradients=exact_signs
    )  # fmt: skip
    compare(results, dtype)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("intervention", ["none", "shared", "own"])
@pytest.mark.parametrize("c", [0.0, 10.0, -2.0, "tensor"])
@pytest.mark.parametrize("n_sets", [0, 1, 3])
def test_masks_factors_and_sets(causal, intervention, c, n_sets):
    q, k, v, g = tensors(4, 2, 5, 1, 8, 12)
    intervene = {"none": None, "shared": masks(5, 1, 5, 5)[0], "own": masks(5, 1, 2, 5, 5)[0]}[intervention]
    sets = [*masks(6, 2, 5, 5), *masks(7, 1, 2, 5, 5)][3 - n_sets :]
    factor = torch.tensor(-0.5, device=DEVICE) if c == "tensor" else c
    compare(run_both(q, k, v, g, causal, intervene, factor, sets), torch.float32)


@pytest.mark.parametrize("pos", [33, pytest.param(64, marks=pytest.mark.slow)])
@pytest.mark.parametrize("causal", [True, False])
def test_split_backward_with_everything(pos, causal):
    q, k, v, g = tensors(8, 1, pos, 1, 24, 40)
    own = masks(9, 1, 1, pos, pos)[0]
    compare(run_both(q, k, v, g, causal, own, 2.5, masks(10, 2, pos, pos)), torch.float32)


def test_scale():
    q, k, v, g = tensors(11, 1, 9, 1, 16, 16)
    compare(run_both(q, k, v, g, scale=1.0), torch.float32)
    compare(run_both(q, k, v, g, scale=-0.3), torch.float32)


def layouts(x):
    """The same values in other memory layouts."""
    batch, pos, heads, d = x.shape
    by_head = x.transpose(1, 2).contiguous().transpose(1, 2)
    padded = torch.full((batch, 2 * pos, heads + 1, d + 3), math.nan, dtype=x.dtype)
    padded[:, ::2, 1:, :d] = x
    columns = x.transpose(1, 3).contiguous().transpose(1, 3)
    return {"by head": by_head, "sliced": padded[:, ::2, 1:, :d], "last stride not 1": columns}


@pytest.mark.parametrize("which", ["by head", "sliced", "last stride not 1"])
@pytest.mark.parametrize("pos", [9, 40])
def test_any_layout_gives_the_same_bits(which, pos):
    q, k, v, g = (x.to(DEVICE) for x in tensors(12, 1 if pos > 32 else 2, pos, 2, 8, 12))

    def run(*inputs):
        leaves = [x.detach().requires_grad_() for x in inputs[:3]]
        out = mk.linear_attention(*leaves, backend="triton")
        return (*out, *torch.autograd.grad(out.output, leaves, inputs[3]))

    plain = run(q, k, v, g)
    other = run(
        *(layouts(x.cpu())[which].to(DEVICE) if which != "sliced" else sliced(x) for x in (q, k, v, g))
    )
    for x, y in zip(plain, other, strict=True):
        assert torch.equal(x, y)


def sliced(x):
    batch, pos, heads, d = x.shape
    padded = torch.full((batch, 2 * pos, heads + 1, d + 3), math.nan, dtype=x.dtype, device=x.device)
    padded[:, ::2, 1:, :d] = x
    return padded[:, ::2, 1:, :d]


def test_an_expanded_batch_and_expanded_gradients():
    q, k, v, _ = (x.to(DEVICE) for x in tensors(13, 1, 9, 2, 8, 12))
    leaves = [x.expand(3, -1, -1, -1).detach().requires_grad_() for x in (q, k, v)]
    out = mk.linear_attention(
        *leaves, metric_sets=[torch.eye(9, dtype=torch.bool, device=DEVICE)], backend="triton"
    )
    # .sum() hands back gradients of stride 0, in all three outputs.
    grads = torch.autograd.grad(out.output.sum() + out.row_mass.sum() + 2 * out.set_mass.sum(), leaves)
    exact = [x.detach().double().cpu().requires_grad_() for x in leaves]
    want = mk.linear_attention(*exact, metric_sets=[torch.eye(9, dtype=torch.bool)], backend="torch")
    exact_grads = torch.autograd.grad(
        want.output.sum() + want.row_mass.sum() + 2 * want.set_mass.sum(), exact
    )
    near(out.output, want.output, 5e-6)
    for x, y in zip(grads, exact_grads, strict=True):
        near(x, y, 5e-6)


def test_a_gradient_of_the_masses_alone():
    q, k, v, _ = (x.to(DEVICE) for x in tensors(14, 2, 9, 2, 8, 12))
    chosen = torch.eye(9, dtype=torch.bool)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = mk.linear_attention(*leaves, metric_sets=[chosen.to(DEVICE)], backend="triton")
    grads = torch.autograd.grad(mk.apm(out.row_mass, out.set_mass, rows=slice(2, None)), leaves[:2])
    exact = [x.detach().double().cpu().requires_grad_() for x in (q, k, v)]
    want = mk.linear_attention(*exact, metric_sets=[chosen], backend="torch")
    exact_grads = torch.autograd.grad(mk.apm(want.row_mass, want.set_mass, rows=slice(2, None)), exact[:2])
    for x, y in zip(grads, exact_grads, strict=True):
        near(x, y, 2e-5)


@pytest.mark.parametrize("pos", [7, 40])
def test_factor_one_is_bitwise_the_baseline(pos):
    q, k, v, _ = (x.to(DEVICE) for x in tensors(15, 2, pos, 1, 16, 16))
    chosen = masks(16, 1, pos, pos)[0].to(DEVICE)
    plain = mk.linear_attention(q, k, v, backend="triton")
    for one in (1.0, torch.tensor(1.0, device=DEVICE), torch.tensor(1.0)):
        scaled = mk.linear_attention(q, k, v, intervene=chosen, c=one, backend="triton")
        assert torch.equal(plain.output, scaled.output)
        assert torch.equal(plain.row_mass, scaled.row_mass)


def test_factor_zero_equals_masking():
    q, k, v, _ = (x.to(DEVICE) for x in tensors(17, 2, 9, 1, 16, 16))
    lower = torch.ones(9, 9, dtype=torch.bool, device=DEVICE).tril()
    out = mk.linear_attention(q, k, v, causal=False, intervene=~lower, c=0.0, backend="triton")
    causal = mk.linear_attention(q, k, v, backend="triton")
    assert torch.equal(out.output, causal.output)
    assert torch.equal(out.row_mass, causal.row_mass)


def test_a_factor_on_the_device_is_read_at_every_run():
    q, k, v, _ = (x.to(DEVICE) for x in tensors(18, 1, 9, 1, 16, 16))
    chosen = torch.ones(9, 9, dtype=torch.bool, device=DEVICE)
    c = torch.tensor(2.0, device=DEVICE)
    twice = mk.linear_attention(q, k, v, intervene=chosen, c=c, backend="triton").row_mass
    c.fill_(4.0)
    four = mk.linear_attention(q, k, v, intervene=chosen, c=c, backend="triton").row_mass
    assert torch.equal(2 * twice, four)


@pytest.mark.parametrize("wanted", ["", "q", "k", "v", "kv"])
@pytest.mark.parametrize("n_sets", [0, 1])
def test_what_depends_on_nothing_asks_for_no_gradient(wanted, n_sets):
    inputs = dict(zip("qkv", tensors(26, 2, 4, 1, 3, 3), strict=False))
    asking = {}
    for backend, device in (("triton", DEVICE), ("torch", "cpu")):
        given = {name: x.to(device).requires_grad_(name in wanted) for name, x in inputs.items()}
        sets = [torch.eye(4, dtype=torch.bool, device=device)] * n_sets
        out = mk.linear_attention(**given, metric_sets=sets, backend=backend)
        asking[backend] = [x.requires_grad for x in out]
    scored = "q" in wanted or "k" in wanted
    assert asking["torch"] == [wanted != "", scored, scored and n_sets > 0]
    assert asking["triton"] == asking["torch"]


@pytest.mark.parametrize("backend", ["triton", "torch"])
@pytest.mark.parametrize("pos", [4, 33])
def test_an_empty_batch_gives_empty_results(backend, pos):
    q, k, v, _ = (x.to(DEVICE).requires_grad_() for x in tensors(27, 0, pos, 2, 3, 5))
    chosen = torch.eye(pos, dtype=torch.bool, device=DEVICE)
    out = mk.linear_attention(q, k, v, intervene=chosen, c=2.0, metric_sets=[chosen], backend=backend)
    assert [list(x.shape) for x in out] == [[0, pos, 2, 5], [0, 2, pos], [0, 2, 1, pos]]
    grads = torch.autograd.grad(sum(x.sum() for x in out), (q, k, v))
    assert [g.shape for g in grads] == [q.shape, k.shape, v.shape]
    h = q.detach().flatten(2)
    for measure in (mk.pairwise_cosine, mk.mean_pairwise_cosine):  # a mean over no sample has no value
        with pytest.raises(ValueError, match="empty"):
            measure(h, backend=backend)


def test_masses_are_sums_of_magnitudes():
    q, k, v, _ = (x.to(DEVICE) for x in tensors(19, 2, 33, 1, 16, 16))
    everything, nothing = torch.ones(33, 33).bool().to(DEVICE), torch.zeros(33, 33).bool().to(DEVICE)
    some = masks(20, 1, 33, 33)[0].to(DEVICE)
    out = mk.linear_attention(q, k, v, metric_sets=[everything, nothing, some], backend="triton")
    assert (out.row_mass >= 0).all()
    assert torch.equal(out.set_mass[:, :, 0], out.row_mass)
    assert out.set_mass[:, :, 1].abs().max() == 0
    assert (out.set_mass[:, :, 2] <= out.row_mass * (1 + 1e-6)).all()


def test_samples_do_not_mix():
    q, k, v, _ = (x.to(DEVICE) for x in tensors(21, 3, 20, 1, 16, 16))
    own = masks(22, 1, 3, 20, 20)[0].to(DEVICE)
    whole = mk.linear_attention(q, k, v, metric_sets=[own], backend="triton")
    order = torch.tensor([2, 0, 1], device=DEVICE)
    permuted = mk.linear_attention(q[order], k[order], v[order], metric_sets=[own[order]], backend="triton")
    one = mk.linear_attention(q[2:3], k[2:3], v[2:3], metric_sets=[own[2:3]], backend="triton")
    for x, y, z in zip(whole, permuted, one, strict=True):
        assert torch.equal(x[order], y)
        assert torch.equal(x[2:3], z)


def test_runs_are_bitwise_equal():
    q, k, v, g = (x.to(DEVICE) for x in tensors(23, 2, 33, 1, 16, 16))
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def run():
        out = mk.linear_attention(*leaves, backend="triton")
        return (*out, *torch.autograd.grad(out.output, leaves, g))

    first = run()
    for _ in range(1 if DEVICE == "cpu" else 20):
        assert all(torch.equal(x, y) for x, y in zip(first, run(), strict=True))


def test_rows_without_attention():
    q, k, v, _ = (x.to(DEVICE) for x in tensors(24, 2, 6, 1, 8, 8))
    q[0] = 0.0
    everything = torch.ones(6, 6, dtype=torch.bool, device=DEVICE)
    q.requires_grad_()
    out = mk.linear_attention(q, k, v, metric_sets=[everything], backend="triton")
    assert mk.apm_per_sample(out.row_mass, out.set_mass).tolist() == [0.0, 1.0]
    assert mk.zero_attention(out.row_mass).tolist() == [True, False]
    (grad,) = torch.autograd.grad(mk.apm(out.row_mass, out.set_mass) + out.output.sum(), q)
    assert grad.isfinite().all()


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # the interpreter's, of inf · 0
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("pos", [12, 40])
def test_where_a_bad_number_goes(bad, pos):
    clean = [x.to(DEVICE) for x in tensors(25, 1, pos, 1, 16, 16)]
    before = mk.linear_attention(*clean[:3], backend="triton")
    for which, expected in (("q", [5]), ("k", range(5, pos))):
        q, k, v = (x.clone() for x in clean[:3])
        {"q": q, "k": k}[which][0, 5, 0, 3] = bad
        out = mk.linear_attention(q, k, v, backend="triton")
        wrong = ~out.output[0, :, 0].isfinite().all(-1)
        assert wrong.nonzero().flatten().tolist() == list(expected), which
        assert torch.equal(out.output[0, ~wrong], before.output[0, ~wrong])
        assert torch.equal(out.row_mass[0, 0, ~wrong], before.row_mass[0, 0, ~wrong])
    v = clean[2].clone()
    v[0, 5, 0, 3] = bad
    out = mk.linear_attention(clean[0], clean[1], v, backend="triton")
    assert not out.output[0, 5:, 0, 3].isfinite().any()
    assert torch.equal(out.row_mass, before.row_mass)


def test_half_precision_scores_beyond_its_range():
    # mws with n=4, k=2 (see test_progress.py): raw scores 115200, beyond float16; uniform attention
    # puts 7 of 26 on the optimal positions.
    q = torch.full((1, 8, 1, 128), 30.0, dtype=torch.float16, device=DEVICE)
    chosen = torch.zeros(8, 8, dtype=torch.bool, device=DEVICE)
    for r, sources in enumerate([[0], [0, 1], [1, 2], [2, 3]]):
        chosen[4 + r, sources] = True
    out = mk.linear_attention(q, q, q / 1000, metric_sets=[chosen], backend="triton")
    assert mk.apm(out.row_mass, out.set_mass, rows=slice(4, 8)).item() == pytest.approx(7 / 26, abs=1e-6)
    # Even scaled scores beyond 65504 meet small values without becoming infinite on the way.
    q.requires_grad_()
    out = mk.linear_attention(q, q, q.detach() / 1e6, scale=1.0, backend="triton")
    assert out.output.isfinite().all()
    near(out.row_mass.flatten(), torch.arange(1, 9) * 115200.0, 1e-6)
    want = mk.linear_attention(
        *(x.detach().double().cpu() for x in (q, q, (q / 1e6).half())), scale=1.0, backend="torch"
    )
    near(out.output, want.output, 1e-3)
