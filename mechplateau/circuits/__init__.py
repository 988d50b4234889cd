"""Look inside: small tools for what a model computes, each on any HookedTransformer, each returning labeled tables.

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
| … and over training? | `over_run(run, tool, …)` | the tool's, times the checkpoints |
| anything else: edit activations, and hear when that did nothing | `run_edited`, `score` | one forward |

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
    from mechplateau.circuits.composition import composition_scores
    from mechplateau.circuits.edges import edge_effects
    from mechplateau.circuits.editing import run_edited
    from mechplateau.circuits.over_training import over_run
    from mechplateau.circuits.parameter_patching import components, patch_parameters
    from mechplateau.circuits.patch_results import PatchResult
    from mechplateau.circuits.patching import Patch, activations, run_patched
    from mechplateau.circuits.positions import ablate_positions
    from mechplateau.circuits.probing import probe
    from mechplateau.circuits.scoring import Scores, score
    from mechplateau.circuits.sweep import patch_sweep
    from mechplateau.circuits.token_sets import attention_sets, repeated_tokens
    from mechplateau.circuits.transfer import PlateauLeft, plateau_left, transferred
    from mechplateau.circuits.vocabulary import ov_circuit, qk_circuit

_HOMES = {
    "Attribution": "attribution",
    "Patch": "patching",
    "PatchResult": "patch_results",
    "PlateauLeft": "transfer",
    "Scores": "scoring",
    "ablate_attention": "ablation",
    "ablate_heads": "ablation",
    "ablate_positions": "positions",
    "activations": "patching",
    "attention_scores": "attending",
    "attention_sets": "token_sets",
    "attribute_logits": "attribution",
    "components": "parameter_patching",
    "composition_scores": "composition",
    "edge_effects": "edges",
    "ov_circuit": "vocabulary",
    "over_run": "over_training",
    "patch_parameters": "parameter_patching",
    "patch_sweep": "sweep",
    "plateau_left": "transfer",
    "probe": "probing",
    "qk_circuit": "vocabulary",
    "repeated_tokens": "token_sets",
    "run_edited": "editing",
    "run_patched": "patching",
    "score": "scoring",
    "target_entries": "ablation",
    "transferred": "transfer",
}

__all__ = [
    "Attribution",
    "Patch",
    "PatchResult",
    "PlateauLeft",
    "Scores",
    "ablate_attention",
    "ablate_heads",
    "ablate_positions",
    "activations",
    "attention_scores",
    "attention_sets",
    "attribute_logits",
    "components",
    "composition_scores",
    "edge_effects",
    "ov_circuit",
    "over_run",
    "patch_parameters",
    "patch_sweep",
    "plateau_left",
    "probe",
    "qk_circuit",
    "repeated_tokens",
    "run_edited",
    "run_patched",
    "score",
    "target_entries",
    "transferred",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
