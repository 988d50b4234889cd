"""Tools to look inside a model. Each works on any HookedTransformer and returns a labeled table.

| question | tool | cost |
|---|---|---|
| which activation of P makes the difference to Q? | `patch_sweep` | part of a forward per hook and position |
| … one patch, with the logits | `run_patched`, `activations`, `Patch` | two forwards |
| which component's weights do? | `patch_parameters`, `components` | two forwards a component |
| which head does it need? | `ablate_heads` | a forward a head |
| does it need attention on Ω, or off it? | `ablate_attention`, `target_entries` | two forwards |
| does it need positions? | `ablate_positions` | some forwards |
| what adds to the right token's logit? | `attribute_logits` | one forward |
| what can be read at a place? | `probe` | one forward and a fit |
| which head could read which? | `composition_scores` | milliseconds |
| … and does it matter? | `composition_scores(model, tokens)`, `edge_effects` | a forward an edge |
| what does each head attend to? | `attention_scores`, `attention_sets`, `repeated_tokens` | one forward, no map |
| which tokens attend to which, and what does it do? | `qk_circuit`, `ov_circuit` | milliseconds |
| does learned attention remove the plateau? | `transferred`, `plateau_left`; `studies.transfer` | training runs |
| is attention fixed by position, and how does it weigh a window? | `fixed_map`, `window_weights` | a forward a head |
| what does attention add on average; what cancels? | `mean_contributions`, `balance_over_rows`, | |
| | `token_contributions` | one forward |
| has an MLP neuron one frequency over a sum modulo p? | `neuron_tuning`, `phase_lock` | one forward |
| … and is it needed, and enough? | `ablate_frequencies` | some forwards |
| does a tool find what is there? | `model_by_hand`: a solution with known parts | milliseconds |
| … and over training? | `over_run(run, tool, …)` | the tool's, times the checkpoints |
| anything else: edit activations; an edit without effect is an error | `run_edited`, `score` | one forward |

`tokens` are whole sequences; the model sees all but the last token. `rows` are positions of what it sees; a task's
outputs are predicted at `task.output_rows`. Names are imported when first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechplateau._lazy import lazy_names

if TYPE_CHECKING:
    from mechplateau.circuits.ablation import ablate_attention, ablate_heads, target_entries
    from mechplateau.circuits.attending import attention_scores
    from mechplateau.circuits.attribution import Attribution, attribute_logits
    from mechplateau.circuits.by_hand import model_by_hand
    from mechplateau.circuits.composition import composition_scores
    from mechplateau.circuits.contributions import (
        balance_over_rows,
        mean_contributions,
        place_symmetry,
        token_contributions,
        token_entries,
    )
    from mechplateau.circuits.edges import edge_effects
    from mechplateau.circuits.editing import run_edited
    from mechplateau.circuits.frequency_ablation import ablate_frequencies
    from mechplateau.circuits.over_training import over_run
    from mechplateau.circuits.parameter_patching import components, patch_parameters
    from mechplateau.circuits.patch_results import PatchResult
    from mechplateau.circuits.patching import Patch, activations, run_patched
    from mechplateau.circuits.positional_map import evenness, fixed_map, same_sign, window_weights
    from mechplateau.circuits.positions import ablate_positions
    from mechplateau.circuits.probing import probe
    from mechplateau.circuits.scoring import Scores, score
    from mechplateau.circuits.sum_terms import Summands, summands
    from mechplateau.circuits.sweep import patch_sweep
    from mechplateau.circuits.token_sets import attention_sets, repeated_tokens
    from mechplateau.circuits.transfer import PlateauLeft, plateau_left, transferred
    from mechplateau.circuits.tuning import logits_of_the_sum, neuron_tuning, phase_lock, token_spectrum
    from mechplateau.circuits.vocabulary import ov_circuit, qk_circuit

_HOMES = {
    "Attribution": "attribution",
    "Patch": "patching",
    "PatchResult": "patch_results",
    "PlateauLeft": "transfer",
    "Scores": "scoring",
    "Summands": "sum_terms",
    "ablate_attention": "ablation",
    "ablate_frequencies": "frequency_ablation",
    "ablate_heads": "ablation",
    "ablate_positions": "positions",
    "activations": "patching",
    "attention_scores": "attending",
    "attention_sets": "token_sets",
    "attribute_logits": "attribution",
    "balance_over_rows": "contributions",
    "components": "parameter_patching",
    "composition_scores": "composition",
    "edge_effects": "edges",
    "evenness": "positional_map",
    "fixed_map": "positional_map",
    "logits_of_the_sum": "tuning",
    "mean_contributions": "contributions",
    "model_by_hand": "by_hand",
    "neuron_tuning": "tuning",
    "ov_circuit": "vocabulary",
    "over_run": "over_training",
    "patch_parameters": "parameter_patching",
    "patch_sweep": "sweep",
    "phase_lock": "tuning",
    "place_symmetry": "contributions",
    "plateau_left": "transfer",
    "probe": "probing",
    "qk_circuit": "vocabulary",
    "repeated_tokens": "token_sets",
    "run_edited": "editing",
    "run_patched": "patching",
    "same_sign": "positional_map",
    "score": "scoring",
    "summands": "sum_terms",
    "target_entries": "ablation",
    "token_contributions": "contributions",
    "token_entries": "contributions",
    "token_spectrum": "tuning",
    "transferred": "transfer",
    "window_weights": "positional_map",
}

__all__ = [
    "Attribution",
    "Patch",
    "PatchResult",
    "PlateauLeft",
    "Scores",
    "Summands",
    "ablate_attention",
    "ablate_frequencies",
    "ablate_heads",
    "ablate_positions",
    "activations",
    "attention_scores",
    "attention_sets",
    "attribute_logits",
    "balance_over_rows",
    "components",
    "composition_scores",
    "edge_effects",
    "evenness",
    "fixed_map",
    "logits_of_the_sum",
    "mean_contributions",
    "model_by_hand",
    "neuron_tuning",
    "ov_circuit",
    "over_run",
    "patch_parameters",
    "patch_sweep",
    "phase_lock",
    "place_symmetry",
    "plateau_left",
    "probe",
    "qk_circuit",
    "repeated_tokens",
    "run_edited",
    "run_patched",
    "same_sign",
    "score",
    "summands",
    "target_entries",
    "token_contributions",
    "token_entries",
    "token_spectrum",
    "transferred",
    "window_weights",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
