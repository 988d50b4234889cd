"""Hook points: a hook fires, or it is refused in one line; nothing looks at a point unseen."""

from __future__ import annotations

import jaxtyping
import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook

from mechplateau.errors import UserError
from mechplateau.models.transformer import load_weights, parameters_of

SWITCHED = {
    "blocks.0.attn.hook_result": "use_attn_result",
    "blocks.1.hook_attn_in": "use_attn_in",
    "blocks.0.hook_q_input": "use_split_qkv_input",
    "blocks.0.hook_k_input": "use_split_qkv_input",
    "blocks.1.hook_v_input": "use_split_qkv_input",
    "blocks.1.hook_mlp_in": "use_hook_mlp_in",
}


@pytest.fixture
def unchecked(monkeypatch):
    """Without the tests' checks of shapes, which `torch.compile` cannot trace, and without gradients."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with torch.no_grad():
        yield


def no_op(activation, hook):
    return activation


def ways_to_hook(model, tokens, name):
    """All the ways to put a hook on one point."""
    point = model.hook_dict[name]
    return {
        "hooks": lambda: model.hooks(fwd_hooks=[(name, no_op)]).__enter__(),
        "hooks, by pattern": lambda: model.hooks(fwd_hooks=[(name.__eq__, no_op)]).__enter__(),
        "hooks, backward": lambda: model.hooks(bwd_hooks=[(name, no_op)]).__enter__(),
        "run_with_hooks": lambda: model.run_with_hooks(tokens, fwd_hooks=[(name, no_op)]),
        "add_hook": lambda: model.add_hook(name, no_op),
        "add_hook, by pattern": lambda: model.add_hook(name.__eq__, no_op),
        "add_hook of the point": lambda: point.add_hook(no_op),
        "add_perma_hook": lambda: model.add_perma_hook(name, no_op),
        "PyTorch's": lambda: point.register_forward_hook(lambda module, given, out: None),
        "PyTorch's, before": lambda: point.register_forward_pre_hook(lambda module, given: None),
        "run_with_cache": lambda: model.run_with_cache(tokens, names_filter=name),
        "run_with_cache, a list": lambda: model.run_with_cache(tokens, names_filter=["hook_embed", name]),
        "run_with_cache, by pattern": lambda: model.run_with_cache(tokens, names_filter=name.__eq__),
        "add_caching_hooks": lambda: model.add_caching_hooks(names_filter=[name]),
    }


@pytest.mark.parametrize("name", SWITCHED)
def test_a_switched_off_point_refuses_every_hook_in_one_line(linear_model, tokens, name):
    refused = {}
    for way, hook in ways_to_hook(linear_model, tokens, name).items():
        try:
            hook()
        except UserError as error:
            refused[way] = str(error)
    assert set(refused) == set(ways_to_hook(linear_model, tokens, name))
    for message in refused.values():
        assert message.startswith(f"{name}: ")
        assert message.endswith(f"model.set_{SWITCHED[name]}(True)")
    assert not linear_model.list_hooks()


@pytest.mark.parametrize("name", SWITCHED)
def test_switched_on_it_takes_them_and_they_act(model, tokens, name):
    getattr(model, f"set_{SWITCHED[name]}")(True)
    before = model(tokens)
    edited = model.run_with_hooks(tokens, fwd_hooks=[(name, lambda activation, hook: activation.flip(-1))])
    assert (edited - before).abs().max() > 1e-3
    _, cache = model.run_with_cache(tokens, names_filter=name)
    assert name in cache


def test_every_point_that_takes_hooks_fires(model, tokens):
    fired = []
    for name, point in model.hook_dict.items():
        if not point.off:
            model.add_hook(name, lambda activation, hook: fired.append(hook.name))
    model(tokens)
    assert sorted(fired) == sorted(set(model.hook_dict) - {n for n, p in model.hook_dict.items() if p.off})
    assert len(fired) == 40


def test_patterns_take_what_is_switched_on(model, tokens):
    everything = {name for name, point in model.hook_dict.items() if not point.off}
    for names_filter in (None, lambda name: True):
        _, cache = model.run_with_cache(tokens, names_filter=names_filter)
        assert set(cache.keys()) == everything
    fired = set()
    model.run_with_hooks(tokens, fwd_hooks=[(lambda name: True, lambda a, hook: fired.add(hook.name))])
    assert fired == everything
    _, cache = model.run_with_cache(tokens, names_filter=lambda name: False)
    assert not cache.keys()


def test_an_unknown_name_is_not_an_empty_cache(model, tokens):
    with pytest.raises(UserError, match=r"names_filter: this model has no hook point 'blocks\.0\.hook_mlp'"):
        model.run_with_cache(tokens, names_filter=["hook_embed", "blocks.0.hook_mlp"])


def test_a_compiled_model_honors_hooks_that_come_later(unchecked, model, tokens):
    compiled = torch.compile(model, backend="eager")
    plain = compiled(tokens)
    names = [name for name, point in model.hook_dict.items() if not point.off]
    for scale in (2, 3):  # a second hook takes the place of the first
        fired = []

        def edit(activation, hook, scale=scale, fired=fired):
            fired.append(hook.name)
            return activation * scale if hook.name == "blocks.1.hook_mlp_out" else None

        for name in names:
            compiled.add_hook(name, edit)
        hooked = compiled(tokens)
        assert sorted(fired) == sorted(names)
        assert torch.equal(hooked, model(tokens))
        assert (hooked - plain).abs().max() > 1e-3
        compiled.reset_hooks()
    with compiled.hooks(fwd_hooks=[("blocks.0.attn.hook_pattern", lambda a, hook: a * 0)]):
        assert (compiled(tokens) - plain).abs().max() > 1e-3
    torch.testing.assert_close(compiled(tokens), plain, rtol=0, atol=1e-6)


def test_a_compiled_model_runs_compiled_again_without_hooks(unchecked, linear_model, tokens):
    runs: list[int] = []

    def backend(graph, example):
        def run(*given):
            runs.append(1)
            return graph.forward(*given)

        return run

    def graphs_of_a_call():
        before = len(runs)
        compiled(tokens)
        return len(runs) - before

    compiled = torch.compile(linear_model, backend=backend)
    every = graphs_of_a_call()
    assert every > 0
    assert graphs_of_a_call() == every
    handle = linear_model.blocks[0].attn.hook_pattern.register_forward_hook(lambda module, given, out: None)
    assert graphs_of_a_call() == 0
    handle.remove()
    assert graphs_of_a_call() == 0  # in this call it is seen that the hook is gone
    assert graphs_of_a_call() == every


def test_a_compiled_models_parameters_have_plain_names(linear_model):
    plain = parameters_of(linear_model)
    for wrapped in (
        torch.compile(linear_model, backend="eager"),
        torch.nn.DataParallel(linear_model),
        torch.compile(torch.nn.DataParallel(linear_model), backend="eager"),
    ):
        assert list(parameters_of(wrapped)) == list(plain)
    load_weights(
        torch.compile(linear_model, backend="eager"), {n: t + 1 for n, t in plain.items()}, "the weights"
    )
    assert torch.equal(linear_model.ln_final.w, plain["ln_final.w"])


class Reached:
    """Put in the place of `forward`, as nnsight does: no hook of PyTorch's is set."""

    def __init__(self, point):
        self.forward, self.calls, self.scale = point.forward, 0, 1
        point.__dict__["forward"] = self

    def __call__(self, x):
        self.calls += 1
        return self.forward(x) * self.scale


def test_a_forward_put_in_a_points_place_is_reached_and_its_edit_acts(model, tokens):
    before = model(tokens)
    points = {name: point for name, point in model.hook_dict.items() if not point.off}
    reached = {name: Reached(point) for name, point in points.items()}
    torch.testing.assert_close(model(tokens), before, rtol=0, atol=1e-6)
    assert {name: one.calls for name, one in reached.items()} == dict.fromkeys(points, 1)
    for name in ("blocks.0.attn.hook_pattern", "blocks.1.attn.hook_attn_scores", "ln_final.hook_scale"):
        reached[name].scale = 2
        assert (model(tokens) - before).abs().max() > 1e-3
        reached[name].scale = 1
    for point in points.values():
        del point.__dict__["forward"]
    assert torch.equal(model(tokens), before)


def test_a_hook_on_all_modules_reaches_the_fused_points(linear_model, tokens):
    seen = []
    handle = register_module_forward_hook(lambda module, given, out: seen.append(module))
    try:
        linear_model(tokens)
    finally:
        handle.remove()
    assert linear_model.blocks[0].attn.hook_pattern in seen
    assert linear_model.ln_final.hook_normalized in seen


def test_nnsight_reaches_every_point(model, tokens):
    nnsight = pytest.importorskip("nnsight")
    before = model(tokens).detach()
    _, cache = model.run_with_cache(tokens)
    wrapped = nnsight.NNsight(model)
    for name in cache.keys():  # noqa: SIM118 (a cache of activations, not a dict)
        envoy = wrapped.get(name)
        with wrapped.trace(tokens):
            seen = envoy.output.save()
        torch.testing.assert_close(seen, cache[name], rtol=0, atol=2e-6)
    for name in ("blocks.0.attn.hook_pattern", "ln_final.hook_scale"):
        envoy = wrapped.get(name)
        with wrapped.trace(tokens):
            envoy.output = envoy.output * 2
            edited = wrapped.output.save()
        assert (edited - before).abs().max() > 1e-3


@pytest.mark.parametrize("part", ["blocks.1", "blocks.1.attn", "blocks.1.mlp", "blocks.1.ln1"])
@pytest.mark.parametrize("in_place", [True, False])
def test_a_compiled_part_of_a_model_honors_hooks_that_come_later(unchecked, model, tokens, part, in_place):
    module = model.get_submodule(part)
    names = [name for name, point in model.hook_dict.items() if name.startswith(part) and not point.off]
    if in_place:
        module.compile(backend="eager")
    else:
        parent, _, leaf = part.rpartition(".")
        setattr(model.get_submodule(parent), leaf, torch.compile(module, backend="eager"))
    plain = model(tokens)
    for name in names:
        fired = []

        def edit(activation, hook, fired=fired):
            fired.append(hook.name)
            return activation.flip(0)

        hooked = model.run_with_hooks(tokens, fwd_hooks=[(name, edit)])
        assert fired == [name]
        assert (hooked - plain).abs().max() > 1e-4
    assert torch.equal(model(tokens), plain)


def test_a_hook_on_a_point_that_is_switched_off_later_is_not_passed_by(model, tokens):
    many = tokens.repeat(11, 1)  # enough for the first layer's table
    model.set_use_attn_result(True)
    model.add_hook("blocks.1.attn.hook_result", no_op)
    model(tokens)
    model.cfg.use_attn_result = False
    for given in (tokens, many):
        with pytest.raises(UserError, match=r"blocks\.1\.attn\.hook_result: a hook here would never fire"):
            model(given)
    model.reset_hooks()
    model(many)
    assert model.blocks[0].attn.looked_up
    assert not model.watch.on  # parts compiled by themselves run compiled again


def test_hooks_on_layer_norms_stay_when_weights_are_processed(model, tokens):
    fired = []
    names = ["blocks.0.ln1.hook_scale", "blocks.1.ln2.hook_normalized", "ln_final.hook_normalized"]
    for name in names:
        model.add_perma_hook(name, lambda activation, hook: fired.append(hook.name))
    model.process_weights_()
    model(tokens)
    assert fired == names
