"""The kernels as torch operations: opcheck, torch.compile, vmap, autocast, gradients, training.

See attention_cases.py for where and how these run.
"""

import pytest
import torch
from torch.nn import functional as F

import mechplateau_kernels as mk
from mechplateau_kernels.attention import launch
from mechplateau_kernels.attention.planes import pack

DEVICE = "cpu" if launch.INTERPRETED else "cuda"
MASK = torch.ones(5, 5, dtype=torch.bool).tril().triu(-1)


def tensors(*shape, n=3, seed=0, requires_grad=False):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(*shape, generator=generator).to(DEVICE).requires_grad_(requires_grad) for _ in range(n)
    ]


def attend(q, k, v, backend="triton", **keywords):
    mask = MASK.to(q.device)
    out = mk.linear_attention(q, k, v, intervene=mask, c=0.5, metric_sets=[mask], backend=backend, **keywords)
    return tuple(out)


def test_opcheck():
    q, k, v = tensors(2, 5, 1, 8, requires_grad=True)
    bits = pack(MASK[None], [MASK[None]]).to(DEVICE)
    flags = (0.5, 0.3, True, True, 1, "tf32x3")
    arguments = (q, k, v, bits, None, *flags)
    tests = ("test_schema", "test_faketensor", "test_aot_dispatch_static", "test_aot_dispatch_dynamic")
    no_grad = tuple(x.detach() if isinstance(x, torch.Tensor) else x for x in arguments)
    torch.library.opcheck(torch.ops.mechplateau.linear_attention.default, no_grad, test_utils=tests)
    grads = (torch.ones_like(v), torch.ones(2, 1, 5, device=DEVICE), torch.ones(2, 1, 1, 5, device=DEVICE))
    torch.library.opcheck(
        torch.ops.mechplateau.linear_attention_backward.default, (*grads, *no_grad), test_utils=tests
    )
    torch.library.opcheck(
        torch.ops.mechplateau.linear_attention_backward.default,
        (grads[0], None, None, *no_grad),
        test_utils=tests,
    )
    (h,) = tensors(2, 3, 5, 8, n=1)
    for per_sample in (True, False):
        torch.library.opcheck(
            torch.ops.mechplateau.pairwise_cosine.default, (h, per_sample), test_utils=tests
        )
    groups = torch.zeros(5, dtype=torch.int32, device=DEVICE)
    torch.library.opcheck(torch.ops.mechplateau.mean_cosine.default, (h, groups, 1, 10), test_utils=tests)
    (grad,) = tensors(2, 5, 5, n=1)
    torch.library.opcheck(
        torch.ops.mechplateau.pairwise_cosine_backward.default, (grad, h, False), test_utils=tests
    )
    torch.library.opcheck(
        torch.ops.mechplateau.mean_cosine_backward.default,
        (grad[:, 0, 0], h, groups, 1, 10),
        test_utils=tests,
    )


def everything(q, k, v):
    output, row_mass, set_mass = attend(q, k, v)
    h = output.flatten(2)
    return (
        output.square().sum()
        + mk.apm(row_mass, set_mass, rows=slice(1, None))
        + mk.pairwise_cosine(h, backend="triton").sum()
        + mk.mean_pairwise_cosine(h, exclude=(0,), backend="triton")
    )


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")  # Dynamo's own doing
@pytest.mark.parametrize("dynamic", [False, True])
def test_compile_without_a_graph_break(dynamic):
    torch._dynamo.reset()
    compiled = torch.compile(everything, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    for batch in (2, 3):
        q, k, v = tensors(batch, 5, 1, 8, requires_grad=True)
        want, got = everything(q, k, v), compiled(q, k, v)
        torch.testing.assert_close(got, want)
        for x, y in zip(
            torch.autograd.grad(got, (q, k, v)), torch.autograd.grad(want, (q, k, v)), strict=True
        ):
            torch.testing.assert_close(x, y)
    # torch compiles no second derivative: an error, beside another path to the input as well.
    with pytest.raises(RuntimeError, match=r"double backward|create_graph=False"):
        product_beside_another_path(compiled, (q.detach(), k.detach(), v.detach()))


def test_vmap():
    q, k, v = tensors(3, 2, 5, 1, 8)
    got = torch.func.vmap(attend)(q, k, v)
    want = [torch.stack(part) for part in zip(*(attend(*x) for x in zip(q, k, v, strict=True)), strict=True)]
    for x, y in zip(got, want, strict=True):
        assert torch.equal(x, y)
    other = torch.func.vmap(attend, in_dims=(1, None, 0))(q.movedim(0, 1), k[0], v)
    for i in range(3):
        for x, y in zip(other, attend(q[i], k[0], v[i]), strict=True):
            assert torch.equal(x[i], y)

    own = torch.rand(3, 2, 5, 5, generator=torch.Generator().manual_seed(1)).to(DEVICE) < 0.5
    got = torch.func.vmap(lambda q, m: mk.linear_attention(q, q, q, metric_sets=[m], backend="triton"))(
        q, own
    )
    for i in range(3):
        one = mk.linear_attention(q[i], q[i], q[i], metric_sets=[own[i]], backend="triton")
        assert torch.equal(got.set_mass[i], one.set_mass)

    def cosines(h):
        return mk.pairwise_cosine(h, backend="triton"), mk.mean_pairwise_cosine(h, backend="triton")

    matrix, mean = torch.func.vmap(cosines, in_dims=1)(q.squeeze(3))
    for i in range(2):
        assert torch.equal(matrix[i], cosines(q.squeeze(3)[:, i])[0])
        assert torch.equal(mean[i], cosines(q.squeeze(3)[:, i])[1])


def test_gradient_inside_vmap():
    q, k, v = tensors(3, 2, 5, 1, 8)
    per_sample = torch.func.vmap(torch.func.grad(lambda q, k, v: attend(q, k, v)[0].square().sum()))
    got = per_sample(q, k, v)
    for i in range(3):
        leaf = q[i].clone().requires_grad_()
        (want,) = torch.autograd.grad(attend(leaf, k[i], v[i])[0].square().sum(), leaf)
        torch.testing.assert_close(got[i], want)

    def measures(h):
        return mk.pairwise_cosine(h, backend="triton")[0, 1] + mk.mean_pairwise_cosine(h, backend="triton")

    h = q.squeeze(3)
    got = torch.func.vmap(torch.func.grad(measures))(h)
    for i in range(3):
        leaf = h[i].clone().requires_grad_()
        torch.testing.assert_close(got[i], torch.autograd.grad(measures(leaf), leaf)[0])


@pytest.mark.parametrize("backend", ["triton", "torch"])
def test_autocast(backend):
    q, k, v = tensors(2, 5, 1, 8, requires_grad=True)
    with torch.autocast(DEVICE, dtype=torch.bfloat16):
        output, row_mass, set_mass = attend(q, k, v, backend)
        h = output.flatten(2).float()
        cosine = mk.pairwise_cosine(h, backend=backend)
        mean = mk.mean_pairwise_cosine(h, backend=backend)
    assert output.dtype == torch.bfloat16
    assert {row_mass.dtype, set_mass.dtype, cosine.dtype, mean.dtype} == {torch.float32}
    low = attend(*(x.bfloat16() for x in (q, k, v)), backend)
    assert torch.equal(output, low[0])
    assert torch.equal(row_mass, low[1])
    exact = attend(*(x.detach().bfloat16().double().cpu() for x in (q, k, v)), "torch")
    torch.testing.assert_close(row_mass.cpu().double(), exact[1], rtol=1e-6, atol=1e-6)
    want = mk.pairwise_cosine(h.detach().double().cpu(), backend="torch")
    torch.testing.assert_close(cosine.cpu().double(), want, rtol=0, atol=4e-6)
    for grad in torch.autograd.grad(output.sum() + mean, (q, k, v)):
        assert grad.dtype == torch.float32
        assert grad.isfinite().all()


SMALL = torch.ones(3, 3, dtype=torch.bool).tril().triu(-1)
EVERY_OTHER = torch.tensor([[False, False, True], [False, False, False], [True, False, False]])


def attention_scalar(backend, q, k, v):
    mask = SMALL.to(q.device)
    out = mk.linear_attention(q, k, v, intervene=mask, c=0.5, metric_sets=[mask], backend=backend)
    return out.output.pow(3).sum() + out.row_mass.square().sum() + mk.apm(out.row_mass, out.set_mass)


def cosine_scalar(backend, q, k, v):
    h, both = q.squeeze(2), (k * v).squeeze(2)
    each = mk.pairwise_cosine(both, reduce="none", backend=backend)
    return (
        mk.pairwise_cosine(h, backend=backend).pow(3).sum()
        + (each * q[:, :, 0, :1]).sum()
        + mk.mean_pairwise_cosine(both, exclude=[1], backend=backend).square()
        + mk.mean_pairwise_cosine(both, pairs=EVERY_OTHER, backend=backend)
    )


def gradients_that_go_on(f, inputs):
    leaves = [x.clone().requires_grad_() for x in inputs]
    return leaves, torch.autograd.grad(f(*leaves), leaves, create_graph=True)


def product_by_grad(f, inputs):
    """Σ g·v differentiated, v constant: g leads back to the inputs through the kernels alone."""
    leaves, grads = gradients_that_go_on(f, inputs)
    return torch.autograd.grad(
        sum((g * x.detach().cos()).sum() for g, x in zip(grads, leaves, strict=True)), leaves
    )


def product_beside_another_path(f, inputs):
    return product_by_grad(lambda q, k, v: f(q, k, v) + (q * k * v).sum() + q.pow(3).sum(), inputs)


def product_by_backward(f, inputs):
    leaves, grads = gradients_that_go_on(f, inputs)
    sum(g.square().sum() for g in grads).backward()
    return [x.grad for x in leaves]


def third_derivative(f, inputs):
    leaves, grads = gradients_that_go_on(f, inputs)
    products = torch.autograd.grad(sum(g.square().sum() for g in grads), leaves, create_graph=True)
    return torch.autograd.grad(sum(g.sum() for g in products), leaves)


def mapped_products(f, inputs):
    """vmap of grad, and its derivative."""

    def product(*one):
        return torch.func.vjp(torch.func.grad(lambda q: f(q, *(x[None] for x in one[1:]))), one[0][None])[1](
            one[0][None].cos()
        )

    return torch.func.vmap(product)(*inputs)


SECOND_DERIVATIVES = {
    "functional.hessian": lambda f, x: sum(torch.autograd.functional.hessian(f, tuple(y[:1] for y in x)), ()),
    "functional.hvp": lambda f, x: torch.autograd.functional.hvp(f, tuple(x), tuple(y.cos() for y in x))[1],
    "autograd.grad": product_by_grad,
    "autograd.grad beside another path": product_beside_another_path,
    "backward": product_by_backward,
    "jacrev of grad": lambda f, x: torch.func.jacrev(torch.func.grad(f))(*(y[:1] for y in x))[None],
    "vmap of grad": mapped_products,
    "third": third_derivative,
}


@pytest.mark.parametrize("route", SECOND_DERIVATIVES)
@pytest.mark.parametrize("scalar", [attention_scalar, cosine_scalar], ids=["attention", "cosines"])
def test_second_derivatives(scalar, route):
    inputs = tensors(2, 3, 1, 2)
    derive = SECOND_DERIVATIVES[route]
    got = derive(lambda *x: scalar("triton", *x), inputs)
    want = derive(lambda *x: scalar("torch", *x), [x.double().cpu() for x in inputs])
    for x, y in zip(got, want, strict=True):
        assert (x.cpu() - y).norm() <= 1e-5 * y.norm()
    assert max(y.norm() for y in want) > 0.1


@pytest.mark.parametrize("autocast", [False, True])
def test_second_derivatives_in_low_precision(autocast):
    """bfloat16 in and out, float32 between: also where the second derivative is taken inside autocast."""
    inputs = [x.bfloat16() for x in tensors(2, 3, 1, 2)]
    given = [x.float() for x in inputs] if autocast else inputs
    for scalar in (attention_scalar, cosine_scalar):
        with torch.autocast(DEVICE, dtype=torch.bfloat16, enabled=autocast):
            got = product_by_grad(lambda *x, f=scalar: f("triton", *x), given)
        want = product_by_grad(lambda *x, f=scalar: f("torch", *x), [x.double().cpu() for x in inputs])
        for x, y in zip(got, want, strict=True):
            assert (x.double().cpu() - y).norm() <= 2e-2 * y.norm()


def test_the_second_derivative_at_a_vector_that_counts_as_zero():
    (h,) = tensors(2, 3, 4, n=1)
    h[0, 1] = 0.0

    def measure(h):
        return mk.pairwise_cosine(h, backend="triton").pow(3).sum() + mk.mean_pairwise_cosine(
            h, backend="triton"
        )

    hessian = torch.autograd.functional.hessian(measure, h)
    assert hessian.isfinite().all()
    assert hessian[0, 1].abs().max() == 0
    assert hessian[1, 1].abs().max() > 0.1


def test_a_call_without_gradients_saves_nothing():
    q, k, v = tensors(1, 5, 1, 8)
    assert attend(q, k, v)[0].grad_fn is None
    with torch.inference_mode():
        assert attend(q, k, v)[0].is_inference()
        mk.mean_pairwise_cosine(q.squeeze(2), pairs=MASK, backend="triton")
        mk.mean_pairwise_cosine(q.squeeze(2), backend="triton")
    h = q.squeeze(2).requires_grad_()
    mk.mean_pairwise_cosine(h, backend="triton").backward()


class Tiny(torch.nn.Module):
    """One layer of linear attention and an MLP, with the attention's path chosen by name."""

    def __init__(self, backend):
        super().__init__()
        torch.manual_seed(0)
        self.backend = backend
        self.embed = torch.nn.Embedding(7, 16)
        self.place = torch.nn.Parameter(torch.randn(6, 16) / 4)
        self.qkv = torch.nn.Linear(16, 48)
        self.mlp = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.Linear(32, 16))
        self.unembed = torch.nn.Linear(16, 7)

    def forward(self, tokens):
        x = self.embed(tokens) + self.place
        q, k, v = self.qkv(x).unflatten(-1, (3, 1, 16)).unbind(2)
        out = mk.linear_attention(q, k, v, metric_sets=[torch.eye(6, dtype=torch.bool, device=x.device)],
                                  backend=self.backend)  # fmt: skip
        x = x + out.output.flatten(2)
        x = x + self.mlp(x)
        return self.unembed(x), mk.apm(out.row_mass, out.set_mass)


def train(backend):
    model = Tiny(backend).to(DEVICE)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    generator = torch.Generator().manual_seed(1)
    losses = []
    for _ in range(50):
        tokens = torch.randint(0, 7, (2, 6), generator=generator).to(DEVICE)
        logits, progress = model(tokens)
        # The pull towards the diagonal brings in the gradients of the masses.
        loss = F.cross_entropy(logits.flatten(0, 1), tokens.flatten()) - 0.1 * progress
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_fifty_steps_of_training_agree_with_the_torch_path():
    fused, plain = train("triton"), train("torch")
    assert plain[-1] < plain[0] - 0.3
    assert fused == pytest.approx(plain, abs=1e-5)
