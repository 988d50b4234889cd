"""Series of language-model checkpoints: their identity, and repetition and collapse along them.

`analyze_series` does everything; `generate`, `measure`, `identify` and `judge` are its parts, for data
you already hold. `series_heads` and `births` say what heads attend to, and since when; `series_llc` estimates learning
coefficients. `load_hooked` gives one checkpoint as a HookedTransformer. Importing this package imports neither
transformers nor huggingface_hub, and asks for nothing over the network.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mechplateau._lazy import lazy_names

if TYPE_CHECKING:
    from mechplateau.llm.analysis import SeriesAnalysis, analysis_folder, analyze_series
    from mechplateau.llm.coefficients import SeriesCoefficients, series_llc
    from mechplateau.llm.config import SeriesConfig
    from mechplateau.llm.demo import DemoConfig, train_demo
    from mechplateau.llm.generation import Generation, generate
    from mechplateau.llm.heads import births, series_heads
    from mechplateau.llm.hooked import load_hooked
    from mechplateau.llm.identity import Identity, identify
    from mechplateau.llm.measures import measure
    from mechplateau.llm.prompts import load_prompts
    from mechplateau.llm.verdicts import Verdict, judge

_HOMES = {
    "DemoConfig": "demo",
    "Generation": "generation",
    "Identity": "identity",
    "SeriesAnalysis": "analysis",
    "SeriesCoefficients": "coefficients",
    "SeriesConfig": "config",
    "Verdict": "verdicts",
    "analysis_folder": "analysis",
    "analyze_series": "analysis",
    "births": "heads",
    "generate": "generation",
    "identify": "identity",
    "judge": "verdicts",
    "load_hooked": "hooked",
    "load_prompts": "prompts",
    "measure": "measures",
    "series_heads": "heads",
    "series_llc": "coefficients",
    "train_demo": "demo",
}

__all__ = [
    "DemoConfig",
    "Generation",
    "Identity",
    "SeriesAnalysis",
    "SeriesCoefficients",
    "SeriesConfig",
    "Verdict",
    "analysis_folder",
    "analyze_series",
    "births",
    "generate",
    "identify",
    "judge",
    "load_hooked",
    "load_prompts",
    "measure",
    "series_heads",
    "series_llc",
    "train_demo",
]

__getattr__, __dir__ = lazy_names(__name__, _HOMES)
