"""The baseline that speeds are stated against must itself be right: its pieces against hand-worked values."""

import copy
import importlib
import math
import sys
from pathlib import Path

import numpy as np
import paper_baseline as baseline
import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode


class Dictated:
    """Stands in for numpy's generator: hands out the given rows in order and notes what it was asked for."""

    def __init__(self, rows: list[list[int]]) -> None:
        self.rows = [np.array(row) for row in rows]
        self.asked: list[tuple[int, int, int]] = []

    def integers(self, low: int, high: int, size: int) -> np.ndarray:
        self.asked.append((low, high, size))
        return self.rows.pop(0)


class Successor:
    """A model whose greedy continuation of any token t is t + 1; notes the length of every input."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        self.lengths.append(tokens.shape[1])
        return F.one_hot((tokens + 1) % 9, 9).float()


def small_model(seed: int = 0, **changes: int) -> baseline.PlainGPT:
    """A small model whose every parameter is away from its initial 0 or 1, so that each one shows."""
    torch.manual_seed(seed)
    sizes = {"vocab_size": 18, "n_ctx": 9, "d_model": 32, **changes}
    model = baseline.PlainGPT(**sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.mark.parametrize(
    ("k", "outputs"),
    [
        (1, [[1, 2, 16, 4], [16, 16, 16, 16]]),
        (2, [[1, 3, 1, 3], [16, 15, 15, 15]]),
        (3, [[1, 2, 2, 5], [16, 16, 14, 14]]),
        (4, [[1, 2, 16, 6], [16, 16, 16, 13]]),
    ],
)
def test_rows_are_inputs_separator_and_windowed_sums(k: int, outputs: list[list[int]]) -> None:
    rng = Dictated([[1, 2, 16, 4], [16, 16, 16, 16]])
    tokens = baseline.make_batch_rowwise(rng, 2, n=4, k=k, p=17, max_num=16)
    assert tokens.dtype == torch.int64
    assert tokens.tolist() == [[1, 2, 16, 4, 17, *outputs[0]], [16, 16, 16, 16, 17, *outputs[1]]]
    assert rng.asked == [(1, 17, 4)] * 2


def test_inputs_cover_one_to_max_num_and_nothing_else() -> None:
    tokens = baseline.make_batch_rowwise(np.random.default_rng(0), 100, n=4, k=2, p=7, max_num=5)
    assert set(tokens[:, :4].flatten().tolist()) == {1, 2, 3, 4, 5}


def test_parameters_carry_the_published_names_and_shapes() -> None:
    shapes = {
        name: tuple(value.shape)
        for name, value in baseline.PlainGPT(18, 9, d_model=32, n_heads=2, n_layers=2).state_dict().items()
    }
    block = {
        "ln_1.weight": (32,),
        "ln_1.bias": (32,),
        "attn.bias": (1, 1, 9, 9),
        **{f"attn.{name}.weight": (32, 32) for name in ("Q", "K", "V", "c_proj")},
        **{f"attn.{name}.bias": (32,) for name in ("Q", "K", "V", "c_proj")},
        "ln_2.weight": (32,),
        "ln_2.bias": (32,),
        "mlp.c_fc.weight": (128, 32),
        "mlp.c_fc.bias": (128,),
        "mlp.c_proj.weight": (32, 128),
        "mlp.c_proj.bias": (32,),
    }
    assert shapes == {
        "transformer.wte.weight": (18, 32),
        "transformer.wpe.weight": (9, 32),
        **{f"transformer.h.{i}.{name}": shape for i in (0, 1) for name, shape in block.items()},
        "transformer.ln_f.weight": (32,),
        "transformer.ln_f.bias": (32,),
        "lm_head.weight": (18, 32),
    }


def test_initial_weights_have_the_papers_spreads() -> None:
    torch.manual_seed(0)
    for name, value in baseline.PlainGPT(18, 33, d_model=256, n_layers=2).named_parameters():
        if name.endswith("bias"):
            assert not value.any(), name
        elif ".ln_" in name:
            assert (value == 1).all(), name
        else:
            expected = 0.01 if name.endswith("c_proj.weight") else 0.02  # 0.02 / √(2·2 layers)
            assert value.std().item() == pytest.approx(expected, rel=0.05), name


def test_logits_map_and_hidden_states_follow_the_definition() -> None:
    """Two layers and two heads, against the formulas written position by position in float64."""
    model = small_model(n_heads=2, n_layers=2).double()
    weights = {name: value.numpy() for name, value in model.state_dict().items()}
    tokens = torch.tensor([[3, 1, 17, 5]])
    logits, patterns, hidden = model(tokens, observe=True)

    def linear(name: str, row: np.ndarray) -> np.ndarray:
        return weights[f"{name}.weight"] @ row + weights[f"{name}.bias"]

    def normalized(name: str, row: np.ndarray) -> np.ndarray:
        scaled = (row - row.mean()) / math.sqrt(row.var() + 1e-5)
        return weights[f"{name}.weight"] * scaled + weights[f"{name}.bias"]

    def gelu(value: np.ndarray) -> np.ndarray:
        return 0.5 * value * (1 + np.tanh(math.sqrt(2 / math.pi) * (value + 0.044715 * value**3)))

    x = [
        weights["transformer.wte.weight"][t] + weights["transformer.wpe.weight"][i]
        for i, t in enumerate(tokens[0].tolist())
    ]
    for layer in range(2):
        name = f"transformer.h.{layer}"
        inner = [normalized(f"{name}.ln_1", row) for row in x]
        q, k, v = ([linear(f"{name}.attn.{letter}", row) for row in inner] for letter in "QKV")
        for i in range(4):
            z = np.zeros(32)
            for head in (slice(0, 16), slice(16, 32)):
                for j in range(4):
                    score = q[i][head] @ k[j][head] / 4 if j <= i else 0.0  # √16
                    z[head] += score * v[j][head]
                    assert patterns[layer][0, head.start // 16, i, j].item() == pytest.approx(
                        score, abs=1e-12
                    )
            x[i] = x[i] + linear(f"{name}.attn.c_proj", z)
            widened = gelu(linear(f"{name}.mlp.c_fc", normalized(f"{name}.ln_2", x[i])))
            x[i] = x[i] + linear(f"{name}.mlp.c_proj", widened)
    final = np.stack([normalized("transformer.ln_f", row) for row in x])
    np.testing.assert_allclose(hidden[0].detach().numpy(), final, atol=1e-10)
    np.testing.assert_allclose(logits[0].detach().numpy(), final @ weights["lm_head.weight"].T, atol=1e-10)
    assert torch.equal(logits, model(tokens))


def test_a_width_that_the_heads_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="multiple of n_heads, got 32 and 3"):
        baseline.PlainGPT(18, 9, d_model=32, n_heads=3)


def test_loss_is_the_mean_over_the_whole_sequence() -> None:
    logits = torch.log(torch.tensor([[[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]]]))
    tokens = torch.tensor([[0, 1, 2]])
    expected = -(math.log(0.25) + math.log(0.8)) / 2
    assert baseline.next_token_loss(logits, tokens).item() == pytest.approx(expected, rel=1e-6)


def test_a_training_step_is_adams_first_step_on_the_batch_gradient() -> None:
    model = small_model()
    before = copy.deepcopy(model)
    tokens = baseline.make_batch_rowwise(np.random.default_rng(0), 3, n=4)
    expected_loss = baseline.next_token_loss(before(tokens[:, :-1]), tokens)
    expected_loss.backward()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    # A gradient left over from earlier work must not count.
    model.lm_head.weight.grad = torch.ones_like(model.lm_head.weight)
    assert baseline.train_step(model, optimizer, tokens) == pytest.approx(expected_loss.item(), rel=1e-6)
    assert model.training
    for old, new in zip(before.parameters(), model.parameters(), strict=True):
        # Bias-corrected, the first step's moments are g and g².
        step = 1e-2 * old.grad / (old.grad.abs() + 1e-8)
        torch.testing.assert_close(new, old - step, rtol=1e-4, atol=1e-5)


def test_generation_is_greedy_and_reruns_the_whole_prefix() -> None:
    model = Successor()
    outputs = baseline.generate_reforward(model, torch.tensor([[5, 0], [1, 7]]), 3)
    assert outputs.tolist() == [[1, 2, 3], [8, 0, 1]]
    assert model.lengths == [2, 3, 4]


def test_cosine_is_averaged_over_samples_and_zero_vectors_count_as_zero() -> None:
    hidden = torch.tensor(
        [
            [[1.0, 0.0], [0.0, 2.0], [3.0, 3.0]],
            [[1.0, 1.0], [-2.0, -2.0], [0.0, 0.0]],
        ]
    )
    half = math.sqrt(0.5)
    matrix = baseline.cosine_double_loop(hidden)
    expected = torch.tensor([[0, 0, 0], [-0.5, 0, 0], [half / 2, half / 2, 0]])
    torch.testing.assert_close(matrix, expected)
    assert baseline.mean_cosine(matrix, first=0) == pytest.approx((-0.5 + half) / 3)
    assert baseline.mean_cosine(matrix, first=1) == pytest.approx(half / 2)


def test_attention_progress_is_the_mean_share_on_the_windows() -> None:
    pattern = torch.zeros(3, 2, 4, 4)  # n = 2, k = 2: row 2 needs input 0, row 3 needs inputs 0 and 1
    pattern[0, 0, 2] = torch.tensor([1.0, -3.0, 0.0, 0.0])
    pattern[0, 0, 3] = torch.tensor([-2.0, 1.0, 1.0, 2.0])
    pattern[0, 1, 3] = torch.tensor([0.0, 0.0, 0.0, 6.0])
    pattern[1, 0, 3] = torch.tensor([0.0, -5.0, 0.0, 0.0])
    pattern[1, 0, 1] = torch.tensor([7.0, 7.0, 0.0, 0.0])  # not an output row
    # Sample 0: (1 + 3) / (4 + 6 + 6); sample 1: 5 / 5; sample 2 is all zero and counts as 0.
    assert baseline.attention_progress(pattern, n=2, k=2) == pytest.approx((4 / 16 + 1 + 0) / 3)
    # k = 1: row 3 needs input 1 only.
    assert baseline.attention_progress(pattern, n=2, k=1) == pytest.approx((2 / 16 + 1 + 0) / 3)


def test_repetition_counts_equal_neighbors() -> None:
    assert baseline.repetition_frequency(torch.tensor([[4, 4, 4], [4, 5, 4]])) == 0.5


class Parrot:
    """Stands in for a trained model: n = 2, k = 1; says 1 and then 2 after any prompt."""

    def eval(self) -> None: ...

    def __call__(self, tokens: torch.Tensor, observe: bool = False) -> object:
        batch, length = tokens.shape
        following = torch.tensor([3, 3, 1, 2])[:length].expand(batch, length)
        logits = 20.0 * F.one_hot(following, 4).float()
        if not observe:
            return logits
        pattern = torch.zeros(batch, 1, 4, 4)
        pattern[:, 0, 2] = torch.tensor([-1.0, 0.0, 3.0, 0.0])
        pattern[:, 0, 3, 3] = 4.0
        hidden = torch.tensor([[1.0, 0.0], [1.0, 0.0], [3.0, 4.0], [4.0, 3.0]]).expand(batch, 4, 2)
        return logits, [torch.ones_like(pattern), pattern], hidden


def test_evaluation_puts_each_measurement_under_its_name() -> None:
    sizes = baseline.Sizes(n=2, k=1, p=3, max_num=2)
    train_tokens = torch.tensor([[1, 2, 3, 1, 2], [2, 2, 3, 2, 2]])
    test_tokens = torch.tensor([[1, 1, 3, 1, 1]])
    row = baseline.evaluate(Parrot(), train_tokens, test_tokens, sizes)
    assert row["train_accuracy_out"] == [0.5, 1.0]
    assert row["train_accuracy"] == 0.75
    assert row["test_accuracy_out"] == [1.0, 0.0]
    assert row["test_accuracy"] == 0.5
    assert row["train_repetition"] == row["test_repetition"] == 0.0
    assert row["train_repetition_data"] == 0.5
    assert row["test_repetition_data"] == 1.0
    # Of the last layer's mass on the output rows, 1 + 3 + 4, input 0 in row 2 is all that is needed.
    assert row["apm"] == 1 / 8
    assert row["attention_map"][2].tolist() == [-1.0, 0.0, 3.0, 0.0]
    assert row["cos"] == pytest.approx(24 / 25)
    np.testing.assert_allclose(row["cosine"], [[0, 0], [24 / 25, 0]], rtol=1e-6)
    # Both rows miss the second input, the second row also misses its first output: 3 of 8, at 20 nats each.
    assert row["loss"] == pytest.approx(3 / 8 * 20, rel=1e-6)


def test_without_its_figure_the_baseline_needs_torch_and_numpy_only(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("matplotlib", "transformer_lens", "mechplateau", "mechplateau_kernels"):
        monkeypatch.setitem(sys.modules, name, None)  # importing it now fails
    monkeypatch.delitem(sys.modules, "matplotlib.figure", raising=False)
    monkeypatch.delitem(sys.modules, "paper_baseline")
    bare = importlib.import_module("paper_baseline")
    torch.manual_seed(0)
    sizes = bare.Sizes(n=4, d_model=32, batch=3, test_samples=2)
    model = bare.PlainGPT.of(sizes)
    optimizer = torch.optim.Adam(model.parameters())
    history: list[dict] = []
    bare.whole_step(model, optimizer, np.random.default_rng(0), sizes, history)
    assert len(history) == 1
    with pytest.raises(ImportError):
        bare.draw_dashboard(history, tmp_path / "dashboard.png")


def test_a_whole_step_measures_after_its_update() -> None:
    sizes = baseline.Sizes(n=4, d_model=32, batch=3, test_samples=2)
    model = small_model()
    replayed = copy.deepcopy(model)
    row = baseline.whole_step(
        model, torch.optim.SGD(model.parameters(), lr=0.1), np.random.default_rng(0), sizes, []
    )
    rng = np.random.default_rng(0)
    train_tokens = baseline.make_batch_rowwise(rng, 3, n=4)
    baseline.train_step(replayed, torch.optim.SGD(replayed.parameters(), lr=0.1), train_tokens)
    expected = baseline.evaluate(replayed, train_tokens, baseline.make_batch_rowwise(rng, 2, n=4), sizes)
    assert row.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_array_equal(row[name], value, err_msg=name)


def test_whole_steps_learn_record_and_draw(tmp_path: Path) -> None:
    torch.manual_seed(0)
    sizes = baseline.Sizes(n=4, d_model=32, batch=32, test_samples=8)
    model = baseline.PlainGPT.of(sizes)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    rng = np.random.default_rng(0)
    history: list[dict] = []
    for _ in range(40):
        baseline.whole_step(model, optimizer, rng, sizes, history)
    picture = tmp_path / "dashboard.png"
    last = baseline.whole_step(model, optimizer, rng, sizes, history, figure=picture)
    assert last is history[-1]
    assert len(history) == 41
    # The separator and, soon, the copied output need no guess: ln 18 = 2.89 before the first update.
    assert history[0]["loss"] > 2.7
    assert last["loss"] < 2.5
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_flops_agree_with_pytorchs_own_count() -> None:
    sizes = baseline.Sizes(n=4, d_model=32, n_layers=2, batch=3)
    model = baseline.PlainGPT.of(sizes)
    tokens = baseline.make_batch_rowwise(np.random.default_rng(0), sizes.batch, sizes.n)
    with FlopCounterMode(display=False) as counter:
        baseline.next_token_loss(model(tokens[:, :-1]), tokens).backward()
    assert sum(baseline.step_gflop(sizes).values()) * 1e9 == pytest.approx(counter.get_total_flops())


def test_the_papers_step_is_39_gflop() -> None:
    """38.7 in the blocks' weights: 3 · 2 · 12 · 256² a token, 256 · 32 tokens."""
    gflop = baseline.step_gflop(baseline.Sizes())
    assert gflop["blocks"] == pytest.approx(38.654706, rel=1e-6)
    assert gflop["unembedding"] == pytest.approx(0.226492, rel=1e-5)
    assert gflop["attention"] == pytest.approx(0.805306, rel=1e-5)


def test_with_the_first_layers_table_the_papers_step_is_30_gflop() -> None:
    """Of 9 · 2 · 256² for each of 8,192 rows' queries, keys and values, 18 · 32 rows' are left."""
    assert baseline.gflop_with_table(baseline.Sizes()) == pytest.approx(
        38.654706 - 9 * 2 * 256**2 * (8192 - 576) / 1e9, rel=1e-6
    )
    assert baseline.gflop_with_table(baseline.Sizes()) == pytest.approx(29.670506, rel=1e-6)


def test_matmul_seconds_are_the_blocks_flops_at_the_peak() -> None:
    assert baseline.matmul_seconds(peak=100.0) == pytest.approx(0.38654706)
    small = baseline.Sizes(d_model=32, batch=1)
    seconds = baseline.matmul_seconds(small, peak=baseline.matmul_peak(size=64, repeats=2))
    assert 0 < seconds < 60
