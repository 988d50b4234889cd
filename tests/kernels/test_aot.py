"""Every shipped kernel configuration, compiled ahead of time for sm_80 and sm_90; needs no GPU.

Held: no spills, shared memory within the cards' limits, no `wgmma` (miscompiled for Hopper by several ptxas
versions; see attention/tile.py), and where rows are aligned 16-byte loads, as far as a block has 16 bytes for
every thread: one of 16 x 16 half-precision numbers has not.
"""

import re
import subprocess
import tempfile
from pathlib import Path

import pytest
import torch

triton = pytest.importorskip("triton", reason="compiles with triton")

from mechplateau_kernels._launch import LAUNCH_OPTIONS  # noqa: E402
from mechplateau_kernels.attention import configs, launch, tile, tiled  # noqa: E402
from mechplateau_kernels.attention import ops as attention_ops  # noqa: E402
from mechplateau_kernels.cosine import configs as cosine_configs  # noqa: E402
from mechplateau_kernels.cosine import gram, mean  # noqa: E402
from mechplateau_kernels.cosine import launch as cosine_launch  # noqa: E402
from mechplateau_kernels.cosine import ops as cosine_ops  # noqa: E402
from mechplateau_kernels.cosine.reference import FLOOR  # noqa: E402

pytestmark = pytest.mark.skipif(
    not isinstance(tile.forward_kernel, triton.JITFunction), reason="compiles nothing under the interpreter"
)

SHARED_MEMORY = {80: 163 * 1024, 90: 227 * 1024}
MODES = [("fp32", "tf32x3"), ("fp32", "ieee"), ("fp32", "tf32"), ("fp16", "tf32"), ("bf16", "tf32")]
BYTES = {"fp32": 4, "fp16": 2, "bf16": 2}
DATA = ("p_q", "p_k", "p_v", "p_o", "p_do", "p_dq", "p_dk", "p_dv", "p_h")
SMALL_TYPES = {
    **dict.fromkeys(("scale", "c", "factor", "cap", "bias"), "fp32"),
    **dict.fromkeys(("p_groups", "p_bounds", "p_codes", "p_lists"), "*i32"),
    "p_bits": "*u8",
    "p_at": "*i64",
}


def compiled(kernel, element, constants, options, arch, aligned=True):
    """The kernel as a launch with contiguous, 16-byte aligned tensors would compile it."""
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    signature, attributes = {}, {}
    for i, name in enumerate(kernel.arg_names):
        if name in constants:
            signature[name] = "constexpr"
            continue
        pointer = name.startswith("p_")
        default = "*fp32" if pointer else "i32"
        signature[name] = f"*{element}" if name in DATA else SMALL_TYPES.get(name, default)
        if pointer or (aligned and name.startswith("s_")):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constants, attributes)
    target = GPUTarget("cuda", arch, 32)
    return triton.compile(source, target=target, options={**LAUNCH_OPTIONS, **options})


def stack_bytes(kernel):
    """Bytes of local memory a thread needs, which is where spilled registers go."""
    tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = subprocess.check_output([tool, "-res-usage", file.name], text=True, stderr=subprocess.STDOUT)
    found = re.search(r"STACK:(\d+).*LOCAL:(\d+)", usage)
    assert found, usage
    return int(found[1]) + int(found[2])


def check(kernel, arch, smallest_block=None):
    """`smallest_block`: bytes of the smallest block of data loaded; None: its loads are not looked at."""
    ptx = kernel.asm["ptx"]
    assert stack_bytes(kernel) == 0
    assert kernel.metadata.shared <= SHARED_MEMORY[arch]
    assert "wgmma" not in ptx
    if smallest_block is not None:
        widest = min(16, smallest_block // (32 * kernel.metadata.num_warps))
        copies = re.findall(r"cp\.async\.c[ag]\.shared\.global\s.*?,\s*(0x\w+|\d+)", ptx)
        assert all(int(size, 0) >= widest for size in copies), (set(copies), widest)
        # Where none is asynchronous: plain loads of four registers.
        assert widest < 16 or copies or "ld.global.v4" in ptx


def tile_constants(config, d_head, d_v, precision, gradient):
    masses = {"GRAD_ROW": True, "GRAD_SET": True} if gradient else {}
    return {
        "D": d_head,
        "DV": d_v,
        "BM": config.BM,
        "BT": config.BT,
        "BD": config.BD,
        "BV": config.BV,
        "CAUSAL": True,
        "N_SETS": 2,
        "INTERVENE": True,
        "C_POINTER": False,
        "PRECISION": precision,
        "WIDEN": False,
        **masses,
    }


def compile_tile(element, precision, pos, d_head, d_v, arch):
    if element == "fp32":
        precision = configs.effective_precision(precision, d_head, d_v)
    mode = {"fp32": precision, "fp16": "float16", "bf16": "bfloat16"}[element]
    forward = configs.forward_config(mode, pos, d_head, d_v)
    backward = configs.backward_config(mode, pos, d_head, d_v)
    kernels = [(tile.forward_kernel, forward, False)]
    if pos <= 32:
        kernels.append((tile.backward_kernel, backward, True))
    else:
        kernels += [
            (tile.backward_rows_kernel, backward, True),
            (tile.backward_columns_kernel, backward, True),
        ]
    for kernel, config, gradient in kernels:
        constants = tile_constants(config, d_head, d_v, precision, gradient)
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        smallest_block = config.BM * min(config.BD, config.BV) * BYTES[element]
        check(compiled(kernel, element, constants, options, arch), arch, smallest_block)


PAPER = [("fp32", "tf32x3", 32, 256, 256), ("bf16", "tf32", 64, 64, 64)]
WIDTHS = [(16, 16), (32, 32), (64, 64), (80, 80), (256, 256), (16, 80), (80, 16)]
ALL = [
    (*mode, pos, *widths)
    for mode in MODES
    for pos in (16, 32, 64)
    for widths in WIDTHS
    if mode[0] != "fp32" or configs.effective_precision(mode[1], *widths) == mode[1]
]


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(
    "configuration",
    [*PAPER, *(pytest.param(c, marks=pytest.mark.slow) for c in ALL if c not in PAPER)],
    ids=lambda c: "-".join(map(str, c)),
)
def test_linear_attention(configuration, arch):
    compile_tile(*configuration, arch)


def tiled_constants(config, d_head, d_v, precision, softmax):
    """With everything that takes registers."""
    return {
        "D": d_head,
        "DV": d_v,
        "BM": config.BM,
        "BN": config.BN,
        "BD": config.BD,
        "SOFTMAX": softmax,
        "CAUSAL": True,
        "CAP": softmax,
        "BIAS": softmax,
        "N_SETS": 4,
        "ALLOWED": True,
        "INTERVENE": True,
        "C_POINTER": False,
        "CODED": 6,
        "LISTED": 8,
        "K": 2,
        "PRECISION": precision,
        "WIDEN": False,
    }


def compile_tiled(element, precision, d_head, d_v, softmax, arch):
    mode = {"fp32": precision, "fp16": "float16", "bf16": "bfloat16"}[element]
    gradients = {"GRAD_ROW": True, "GRAD_SET": True, "GRAD_ENTROPY": True}
    forward = configs.tiled_forward_config(mode, d_head, d_v)
    rows = configs.tiled_rows_config(mode, d_head, d_v)
    columns = configs.tiled_columns_config(mode, d_head, d_v)
    wide = {"BV": columns.BV, "BDALL": columns.BDALL, "BVALL": columns.BVALL}
    for kernel, config, more in (
        (tiled.forward_kernel, forward, {"BV": forward.BVALL, "BS": 4, "STATISTICS": True}),
        (tiled.rows_kernel, rows, {"BV": rows.BV, "BDALL": rows.BDALL, **gradients}),
        (tiled.columns_kernel, columns, {**wide, **gradients}),
    ):
        constants = tiled_constants(config, d_head, d_v, precision, softmax) | more
        options = {"num_warps": config.num_warps, "num_stages": config.num_stages}
        check(compiled(kernel, element, constants, options, arch), arch)


SOME_TILED = [("fp32", "tf32x3", 64, 64, True, 90), ("bf16", "tf32", 64, 64, True, 80)]
ALL_TILED = [
    (*mode, *widths, softmax, arch)
    for mode in MODES
    for widths in [(16, 16), (64, 64), (128, 128), (48, 80), (17, 24)]
    for softmax in (True, False)
    for arch in (80, 90)
    if mode[0] != "fp32" or configs.effective_precision(mode[1], *widths) == mode[1]
]


@pytest.mark.parametrize(
    "configuration",
    [*SOME_TILED, *(pytest.param(c, marks=pytest.mark.slow) for c in ALL_TILED if c not in SOME_TILED)],
    ids=lambda c: "-".join(map(str, c)),
)
def test_attention_of_any_length(configuration):
    compile_tiled(*configuration)


@pytest.mark.parametrize("arch", [80, 90])
@pytest.mark.parametrize(
    ("element", "pos", "d"),
    [
        ("fp32", 16, 256),
        *(
            pytest.param(element, pos, d, marks=pytest.mark.slow)
            for element in BYTES
            for pos in (16, 32, 64)
            for d in (16, 80, 256, 2048)
            if (element, pos, d) != ("fp32", 16, 256)
        ),
    ],
)
def test_cosine(element, pos, d, arch):
    blocks = cosine_configs.gram_blocks(BYTES[element], pos, d)
    constants = {
        "D": d,
        "BM": blocks.BM,
        "BT": blocks.BT,
        "BD": blocks.BD,
        "FLOOR_SQUARED": FLOOR**2,
        "PRECISION": "tf32x3",
        "WIDEN": False,
    }
    options = {"num_warps": cosine_configs.GRAM_WARPS, "num_stages": cosine_configs.GRAM_STAGES}
    smallest_block = blocks.BM * blocks.BD * BYTES[element]
    check(compiled(gram.gram_kernel, element, constants, options, arch), arch, smallest_block)
    rows = cosine_configs.mean_blocks(pos, d)
    constants = {"D": d, "BD": rows.BD, "BT": rows.BT, "FLOOR_SQUARED": FLOOR**2}
    options = {"num_warps": cosine_configs.MEAN_WARPS}
    smallest_block = rows.BT * rows.BD * BYTES[element]
    check(compiled(mean.mean_kernel, element, constants, options, arch), arch, smallest_block)


@pytest.mark.parametrize("arch", [80, 90])
def test_sum_of_shares(arch):
    kernel = compiled(gram.sum_shares_kernel, "fp32", {"BS": 64, "BN": 64}, {"num_warps": 4}, arch)
    check(kernel, arch)


class NoCard:
    """A driver for a card that is not there: enough to compile for it, nothing to launch on."""

    def get_current_target(self):
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self):
        return 0

    def get_current_stream(self, device=None):
        return 0


@pytest.fixture
def launches(monkeypatch):
    """Real calls on CPU tensors, compiled as Triton would specialize them, and not launched."""
    from triton.runtime.driver import driver

    kernels = []

    def compile_only(kernel, *arguments, grid, warmup, **keywords):
        kernels.append(run(kernel, *arguments, grid=grid, warmup=True, **keywords))

    run = triton.JITFunction.run
    monkeypatch.setattr(triton.JITFunction, "run", compile_only)
    monkeypatch.setattr(driver, "_active", NoCard())
    return kernels


@pytest.mark.parametrize(
    ("batch", "pos", "heads", "d_head", "d_v"),
    [
        (1, 1, 1, 1, 1),
        *(pytest.param(*s, marks=pytest.mark.slow) for s in [(2, 17, 3, 20, 24), (1, 40, 1, 16, 64)]),
    ],
)
def test_calls_compile_as_they_are_specialized(launches, batch, pos, heads, d_head, d_v):
    # Triton makes a constant of every argument that is 1: one sample, head, position, stride.
    q, k = torch.randn(2, batch, pos, heads, d_head)
    v = torch.randn(batch, pos, heads, d_v)
    options = configs.Options(2.0, 0.5, True, True, 1, "ieee")
    bits, c = torch.ones(1, pos, pos, dtype=torch.uint8), torch.tensor(2.0)
    _, row_mass, set_mass = launch.forward(q, k, v, bits, c, options)
    launch.backward(v, row_mass, set_mass, q, k, v, bits, None, options)
    plain = options._replace(intervene=False, n_sets=0, precision="tf32")
    launch.forward(q.half(), k.half(), v.half(), None, None, plain)
    launch.backward(v.half(), None, None, q.half(), k.half(), v.half(), None, None, plain)
    h = q.transpose(1, 2)
    cosine_launch.pairwise_cosine(h, False)
    cosine_launch.pairwise_cosine(h, True)
    cosine_launch.mean_cosine(h.bfloat16(), torch.zeros(pos, dtype=torch.int32), 1, 1)
    assert len(launches) == 4 + 5 + (2 if pos > 32 else 0)
    assert all("wgmma" not in kernel.asm["ptx"] for kernel in launches)


@pytest.fixture
def variants(monkeypatch):
    """Of each launch the kernel's name and what Triton would compile it for; nothing is compiled or launched."""
    from triton.runtime.driver import driver

    seen = set()

    def note(kernel, *arguments, grid, warmup, **keywords):
        binder = kernel.device_caches[0][-1]
        given = {name: value for name, value in keywords.items() if name in kernel.arg_names}
        _, specialization, _ = binder(*arguments, **given)
        seen.add((kernel.fn.__name__, str(specialization)))

    monkeypatch.setattr(triton.JITFunction, "run", note)
    monkeypatch.setattr(driver, "_active", NoCard())
    return seen


def moved(x):
    """The same, one element further in memory."""
    return torch.cat([torch.zeros(1, dtype=x.dtype), x.flatten()])[1:].view(x.shape)


def transposed(x):
    return x.transpose(1, 2).contiguous().transpose(1, 2)


CALLS = {
    "one head": (2, 5, 1, 8, 8, {}),
    "odd sizes": (3, 5, 3, 7, 9, {}),
    "multiples of 16": (2, 16, 16, 32, 16, {}),
    "one of everything": (1, 1, 1, 1, 1, {}),
    "width one": (2, 5, 1, 1, 1, {"sets": "own"}),
    "unaligned": (2, 5, 2, 8, 8, {"change": moved}),
    "by head": (2, 5, 3, 8, 8, {"change": transposed}),
    "expanded batch": (1, 5, 1, 8, 8, {"change": lambda x: x.expand(3, -1, -1, -1), "sets": "own"}),
    "overlapping": (1, 5, 1, 4, 4, {"change": lambda x: x.flatten().unfold(0, 4, 1)[:10].view(1, 10, 1, 4)}),
    "factor as a tensor": (2, 5, 2, 8, 8, {"c": torch.tensor(2.0)}),
    "unaligned factor": (2, 5, 2, 8, 8, {"c": torch.arange(3.0)[1]}),
    "half precision": (2, 5, 1, 8, 8, {"dtype": torch.float16, "sets": None}),
    "gradients alone": (2, 33, 2, 8, 8, {"masses": False, "sets": "own"}),
}


@pytest.mark.parametrize("name", CALLS)
def test_the_self_check_runs_what_is_launched(name, variants, monkeypatch):
    batch, pos, heads, d_head, d_v, more = CALLS[name]
    asked = []
    for module in (attention_ops, cosine_ops):
        monkeypatch.setattr(module, "trusted", lambda *question: asked.append(question) or True)
    change, dtype = more.get("change", lambda x: x), more.get("dtype", torch.float32)
    q, k = (change(x.to(dtype)) for x in torch.randn(2, batch, pos, heads, d_head))
    v = change(torch.randn(batch, pos, heads, d_v).to(dtype))
    batch, pos, heads, _ = q.shape
    sets = more.get("sets", "shared")
    bits = None if sets is None else torch.ones(batch if sets == "own" else 1, pos, pos, dtype=torch.uint8)
    flags = configs.Options(2.0, 0.5, True, sets is not None, 0 if sets is None else 1, "tf32x3")
    masses = (
        [torch.ones(batch, heads, pos), torch.ones(batch, heads, 1, pos)]
        if more.get("masses", sets)
        else [None] * 2
    )
    attention_ops._forward(q, k, v, bits, more.get("c"), *flags)
    attention_ops._backward(v, *masses, q, k, v, bits, more.get("c"), *flags)
    h = q.transpose(1, 2)
    for per_sample in (False, True):
        cosine_ops._pairwise(h, per_sample)
    cosine_ops._mean(h, torch.zeros(h.shape[2], dtype=torch.int32), 1, 1)
    launched = set(variants)
    assert len(launched) > 4
    variants.clear()
    for _, _, configuration, is_exact in asked:
        is_exact(torch.device("cpu"), *configuration)
    assert variants == launched


def test_the_tested_types_are_all_there_are():
    q = {torch.float32: "fp32", torch.float16: "fp16", torch.bfloat16: "bf16"}
    assert {element for element, _ in MODES} == set(q.values())


def test_the_check_sees_a_spill_and_wgmma():
    # 64 rows and wide chunks: what the configurations avoid.
    config = configs.TileConfig(BM=64, BT=64, BD=64, BV=64, num_warps=4, num_stages=2)
    constants = tile_constants(config, 256, 256, "tf32x3", gradient=True)
    kernel = compiled(tile.backward_kernel, "fp32", constants, {"num_warps": 4, "num_stages": 2}, 90)
    assert "wgmma" in kernel.asm["ptx"]
    assert stack_bytes(kernel) > 0
