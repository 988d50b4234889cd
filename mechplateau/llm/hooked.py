"""One checkpoint of a series as a HookedTransformer, checked against transformers' own model.

TransformerLens's own entry point takes names of the hub and does not load strictly. Here the sizes come from
the checkpoint's configuration, the weights go through TransformerLens's converters and are loaded strictly
and unprocessed (nothing folded or centered, so that cosines of hidden states mean the same), and the
log-probabilities of both models are compared on fixed random tokens.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mechplateau.devices import device_named
from mechplateau.errors import CheckpointError, ConfigError
from mechplateau.models.versions import check_hooked_transformer

if TYPE_CHECKING:
    from transformer_lens import HookedTransformer
    from transformers import PreTrainedModel

    from mechplateau.llm.sources import Source

PARITY_LIMIT = 1e-4
"""Largest difference of log-probabilities (nats) that is accepted in float32."""
_PROBE = (4, 24)
"""Sequences and tokens of the comparison."""
_ACTIVATIONS = {
    **{
        name: name for name in ("gelu", "gelu_fast", "gelu_new", "gelu_pytorch_tanh", "relu", "relu2", "silu")
    },
    "gelu_python": "gelu",
    "swish": "silu",
}
"""transformers' names of activation functions, and TransformerLens's of the same functions."""


def load_hooked(
    source: str | Path | Source,
    step: int | str | None = None,
    *,
    stage: int | None = None,
    device: str = "cpu",
) -> HookedTransformer:
    """A checkpoint as a HookedTransformer in float32, with the series' tokenizer if there is one.

    Args:
        source: a series as for `analyze_series`, or one checkpoint folder.
        step: which checkpoint of a series: its step or its label; None where `source` is a checkpoint.
        stage: which stage of a series in stages; None: the first.
        device: where to put it.

    Returns:
        the model in eval mode. Its attribute `parity` is the largest absolute difference of its
        log-probabilities (nats) from those of transformers' model on the comparison's tokens.

    Raises:
        ConfigError: no such step, or no such device here.
        CheckpointError: the checkpoint cannot be had or read, is of another architecture than GPT-NeoX and
            OLMo-2, or the two models differ by more than 1e-4.
    """
    from mechplateau.llm.loading import has_tokenizer, load_model, load_tokenizer
    from mechplateau.llm.weights import read_weights

    device_named(device)
    folder, tokenizer_folder = _find(source, step, stage)
    reference = load_model(folder, read_weights(folder), device=device)
    model = _build(folder, reference, device)
    model.parity = _parity(model, reference)
    if not model.parity <= PARITY_LIMIT:
        raise CheckpointError(
            f"{folder}: as a HookedTransformer its log-probabilities differ from transformers' by {model.parity:.1e} "
            f"(allowed: {PARITY_LIMIT:g}); this configuration is not supported"
        )
    if tokenizer_folder is not None and has_tokenizer(tokenizer_folder):
        model.set_tokenizer(load_tokenizer(tokenizer_folder))
    return model


def _find(source: str | Path | Source, step: int | str | None, stage: int | None) -> tuple[Path, Path | None]:
    """The checkpoint's folder and the folder of its tokenizer."""
    from mechplateau.llm.sources import local_folder, open_source
    from mechplateau.llm.weights import readable

    if isinstance(source, str | Path) and step is None and (folder := local_folder(str(source))) is not None:
        with readable(folder):
            if (folder / "config.json").is_file():
                return folder, folder
    opened = open_source(str(source))[0] if isinstance(source, str | Path) else source
    listing = opened.listing(stage)
    there = [*listing.revisions, *([listing.final] if listing.final is not None else [])]
    found = [
        revision.label
        for revision in there
        if str(step) in (str(revision.step), revision.label) and step is not None
    ]
    if not found:
        steps = ", ".join(str(revision.step) for revision in listing.revisions)
        raise ConfigError(f"step: {opened.name} has no {step!r}; steps there: {steps}")
    return opened.fetch(found[0]), opened.tokenizer_folder(found[0])


def _build(folder: Path, reference: PreTrainedModel, device: str) -> HookedTransformer:
    check_hooked_transformer("a checkpoint of a series as one model to hook")
    import torch
    from transformer_lens import HookedTransformerConfig
    from transformer_lens.pretrained.weight_conversions import convert_neox_weights, convert_olmo2_weights

    from mechplateau.models.hooks import WatchedHooks

    converters = {
        "gpt_neox": (_neox_sizes, convert_neox_weights),
        "olmo2": (_olmo2_sizes, convert_olmo2_weights),
    }
    kind = reference.config.model_type
    if kind not in converters:
        raise CheckpointError(f"{folder}: expected an architecture among {', '.join(converters)}, got {kind}")
    sizes, convert = converters[kind]
    config = HookedTransformerConfig.from_dict(
        {
            **sizes(folder, reference.config),
            "model_name": folder.name,
            "original_architecture": type(reference).__name__,
            "init_weights": False,
            "default_prepend_bos": False,
            "positional_embedding_type": "rotary",
            "dtype": torch.float32,
            "device": device,
        }
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        model = WatchedHooks(config)
    state = {name: tensor.detach().clone() for name, tensor in convert(reference, model.cfg).items()}
    # What remains are the tables of a model without weights (masks, rotary angles), which it has made itself.
    tables = {name: tensor for name, tensor in model.state_dict().items() if name not in state}
    unset = [name for name in tables if name not in dict(model.named_buffers())]
    if unset:
        raise CheckpointError(f"{folder}: no weights for {', '.join(unset[:4])} of the HookedTransformer")
    model.load_state_dict({**state, **tables}, strict=True)
    return model.to(device, print_details=False).eval()


def _neox_sizes(folder: Path, config: Any) -> dict[str, Any]:
    d_head = config.hidden_size // config.num_attention_heads
    rope = _plain_rope(folder, config)
    if not config.attention_bias:
        raise CheckpointError(
            f"{folder}: expected attention_bias true, got false; TransformerLens needs the biases"
        )
    return {
        **_shared_sizes(config, d_head),
        "eps": config.layer_norm_eps,
        "act_fn": _activation(folder, config),
        "normalization_type": "LN",
        "parallel_attn_mlp": config.use_parallel_residual,
        "rotary_adjacent_pairs": False,
        "rotary_dim": int(d_head * rope.get("partial_rotary_factor", 1.0)),
        "rotary_base": rope["rope_theta"],
    }


def _olmo2_sizes(folder: Path, config: Any) -> dict[str, Any]:
    d_head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    rope = _plain_rope(folder, config)
    if config.num_key_value_heads != config.num_attention_heads or config.attention_bias:
        raise CheckpointError(f"{folder}: OLMo-2 with grouped keys or attention biases is not supported")
    return {
        **_shared_sizes(config, d_head),
        "eps": config.rms_norm_eps,
        "act_fn": _activation(folder, config),
        "normalization_type": "RMS",
        "gated_mlp": True,
        "rotary_dim": d_head,
        "rotary_base": rope["rope_theta"],
    }


def _shared_sizes(config: Any, d_head: int) -> dict[str, Any]:
    return {
        "n_layers": config.num_hidden_layers,
        "n_heads": config.num_attention_heads,
        "d_model": config.hidden_size,
        "d_head": d_head,
        "d_mlp": config.intermediate_size,
        "n_ctx": config.max_position_embeddings,
        "d_vocab": config.vocab_size,
    }


def _activation(folder: Path, config: Any) -> str:
    if config.hidden_act not in _ACTIVATIONS:
        raise CheckpointError(
            f"{folder}: config.json: expected hidden_act among {', '.join(_ACTIVATIONS)}, got {config.hidden_act!r}; "
            "TransformerLens has no such function"
        )
    return _ACTIVATIONS[config.hidden_act]


def _plain_rope(folder: Path, config: Any) -> dict[str, Any]:
    rope = dict(config.rope_parameters)
    if rope.get("rope_type", "default") != "default":
        raise CheckpointError(f"{folder}: expected plain rotary positions, got rope_type {rope['rope_type']}")
    return rope


def _parity(model: HookedTransformer, reference: PreTrainedModel) -> float:
    """Largest absolute difference of log-probabilities on random tokens."""
    import torch

    sequences, length = _PROBE
    length = min(length, model.cfg.n_ctx)
    tokens = torch.randint(
        model.cfg.d_vocab, (sequences, length), generator=torch.Generator().manual_seed(0)
    ).to(reference.device)
    with torch.no_grad():
        ours, theirs = model(tokens), reference(tokens).logits
    return float((ours.float().log_softmax(-1) - theirs.float().log_softmax(-1)).abs().max())
