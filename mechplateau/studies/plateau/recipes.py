"""What the plateau paper trains: every run of it by name, at the paper's size and at the tasks' small one.

Each says whether its set-up is the authors' (arXiv 2506.13688 and its code), or ours and why. What holds for all of
them is `SETUP`. The steps at which c = 10 is switched on are the paper's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from mechplateau.schema import laid_over
from mechplateau.studies.recipes import AS_THE_AUTHORS, OURS_BECAUSE, Recipe, Settings, Source
from mechplateau.tasks import task_class

SETUP = (
    "All of them are measured on 64 fresh sequences. The authors measure loss, accuracy of each output, attention, "
    "hidden states and α₁ on the 256 training sequences, the rest on 64 fresh ones (256 in figures 32 to 35; in figure "
    "20 attention and hidden states, too, on 2,048 fresh ones). Seeds are ours: theirs are not set."
)
_FIFTH = 0.2
_ENDS_EARLY: Settings = {"stop_past_solved": _FIFTH}


def _scale_at(c: float, start: int = 0) -> list[dict[str, Any]]:
    return [{"kind": "attention_scale", "c": c, "start": start}]


def _long(steps: int) -> Settings:
    """A long run: measured less often, ended once solved."""
    return {
        "training": {"steps": steps, **_ENDS_EARLY},
        "evaluation": {"every": 5 if steps <= 2000 else 10},
    }


def _long_task(task: str, **fields: Any) -> Settings:
    """A run of a task that takes long, with these fields of it: as many steps as the task says."""
    return {"task": fields, **_long(task_class(task).default_training["steps"])}


def _recipe(
    name: str,
    task: str,
    what: str,
    settings: Settings | None = None,
    small: Settings | None = None,
    start: Source | None = None,
    ours: str = "",
    same_as: str | None = None,
) -> Recipe:
    """A recipe that keeps its first and last checkpoint, unless it says otherwise.

    `ours` says why its set-up is not the authors'; that a long run is measured less often and ends early is added.
    """
    kept = laid_over({"checkpoints": {"every": 10**6}}, settings or {})
    reasons = [reason for reason in (ours, _measured_less(kept)) if reason]
    setup = OURS_BECAUSE + "; ".join(reasons) if reasons else AS_THE_AUTHORS
    return Recipe(name, task, what, kept, {"small": small} if small else {}, start, setup, same_as)


def _measured_less(settings: Settings) -> str:
    """Why a run is measured less often than the authors', and ends before theirs; "" where neither is so."""
    every = settings.get("evaluation", {}).get("every", 1)
    measuring = f"measuring every {every} steps" if every > 1 else ""
    ending = "ending a fifth past being solved" if "stop_past_solved" in settings.get("training", {}) else ""
    what = " and ".join(filter(None, (measuring, ending)))
    return f"{what} saves time" if what else ""


def _mws(
    name: str,
    what: str,
    small: Settings | None = None,
    ours: str = "",
    same_as: str | None = None,
    **settings: Any,
) -> Recipe:
    return _recipe(f"mws-{name}", "mws", what, settings, small, ours=ours, same_as=same_as)


def _taken(parts: str, seed_offset: int) -> Source:
    """A finished mws run, of which these parts are taken and frozen."""
    return Source("mws", {"kind": "optimal_init", "parts": [parts]}, seed_offset)


_NO_SIZES = "the paper gives no sizes here"
_NO_VALUES = "the paper gives no values here"
_SMALL_LONG: Settings = {"training": {"steps": 1500, **_ENDS_EARLY}}


def _all_recipes() -> Iterable[Recipe]:
    yield _recipe("mws", "mws", "moving window sum", {"checkpoints": {"every": None}})

    # Attention scale (figures 3, 4, 43).
    for c in (0.2, 0.5):
        yield _mws(f"c{c}", f"c = {c}", _SMALL_LONG, interventions=_scale_at(c), **_long(2000))
    for c in (2.5, 10.0):
        yield _mws(f"c{c:g}", f"c = {c:g}", interventions=_scale_at(c))
    for start in (25, 50, 75, 100):
        yield _mws(f"c10-from{start}", f"c = 10 from step {start}", interventions=_scale_at(10.0, start))

    # Optimal initialization (figure 5), and parts frozen at random. The authors put the parts into a new model.
    for parts in ("KQ", "KQOV", "MLP", "embeddings"):
        yield _recipe(f"mws-init-{parts}", "mws", f"{parts} optimal, frozen", start=_taken(parts, 1))
    for parts in ("KQ", "KQOV", "MLP", "embeddings"):
        yield _recipe(
            f"mws-init-{parts}-own",
            "mws",
            f"{parts} optimal, in its own initialization",
            start=_taken(parts, 0),
            ours="the parts go back into the initialization that they grew from, where the authors take a new one",
        )
    for parts in ("attention", "mlp_weights", "unembedding", "ln1", "ln2", "ln_final"):
        frozen = [{"kind": "freeze", "parts": [parts]}]
        what = f"{parts.removesuffix('_weights')} frozen at random"
        yield _mws(f"frozen-{parts}", what, _SMALL_LONG, interventions=frozen)
    frozen = [{"kind": "freeze", "parts": ["tokens", "positions"]}]
    yield _mws("frozen-embeddings", "embeddings frozen at random", _SMALL_LONG, interventions=frozen)

    # Other tasks (figures 6, 7, 9 to 19, 21, 22).
    for blocks in (1, 2, 4):
        yield _recipe(
            f"repeat-{blocks}",
            "repeat",
            f"repeat {blocks}",
            {"task": {"blocks": blocks}},
            # Four blocks of at least four outputs, since the first of each does not count.
            {"task": {"n": 16 if blocks == 4 else 8}},
        )
    yield _recipe("prefix", "prefix", "prefix sum", _long_task("prefix"))
    yield _recipe(
        "prefix-no-repeat",
        "prefix",
        "prefix sum of permutations",
        _long_task("prefix", no_repeat=True),
        {"task": {"n": 10}},
        ours="the collapse leaves out the first output's row, where the authors' script leaves out the last two",
    )
    yield _recipe("copy", "copy", "copy")
    yield _recipe("reverse", "reverse", "reverse")
    yield _recipe("permutation", "permutation", "permutation", _long_task("permutation"))
    for compose in (2, 3, 4):
        yield _recipe(
            f"permutation-{compose}",
            "permutation",
            f"permutation, applied {compose} times",
            _long_task("permutation", compose=compose),
            ours="Ω is of the permutation applied so often, where the authors' script keeps that of one application",
        )
    yield _recipe("histogram", "histogram", "histogram", _long_task("histogram"))
    for mix in ("123_disjoint_454", "124_disjoint_444", "124_disjoint_453", "124_stair_653"):
        yield _recipe(f"concat-{mix}", "concat_mws", mix, _long_task("concat_mws", mix=mix))
    yield _recipe("addition", "addition", "addition", _long_task("addition"))
    yield _recipe(
        "addition-plain",
        "addition",
        "addition, most significant digit first",
        _long_task("addition", reverse=False),
        ours="Ω and the output left out of the collapse are turned round with the digits, where the authors' script "
        "keeps those of the other order",
    )

    # The attention-output probe (figure 20) needs a checkpoint every 10 steps.
    yield _mws(
        "probe",
        "moving window sum, probed",
        same_as="mws",
        checkpoints={"every": 10},
        # With eight inputs a probe finds most of the answer in the middle of the plateau.
        small={
            "task": {"n": 16, "p": 17, "max_num": 16},
            "training": {"steps": 800, **_ENDS_EARLY},
            "checkpoints": {"every": 180},
        },
    )

    # Other sizes (figures 26 to 29): values of our own.
    for n in (8, 24):
        yield _mws(
            f"n{n}",
            f"n = {n}",
            {"task": {"n": {8: 6, 24: 12}[n]}, **_SMALL_LONG},
            ours=_NO_SIZES,
            task={"n": n},
            **_long(2000),
        )
    for k in (3, 4):
        yield _mws(
            f"k{k}",
            f"k = {k}",
            {"task": {"p": 5, "max_num": 4}, **_SMALL_LONG},
            ours=f"{_NO_SIZES}; Ω has {k} inputs and the collapse leaves out {k - 1} copies, where the authors' script "
            "has two and one for every k",
            task={"k": k},
            # So many that "not solved" is about the task.
            **_long(10_000),
        )
    for p in (19, 23):
        yield _mws(
            f"p{p}",
            f"p = {p}",
            {"task": {19: {"p": 13, "max_num": 12}, 23: {"p": 19, "max_num": 18}}[p], **_SMALL_LONG},
            ours=f"{_NO_SIZES}; the separator is the token {p}, where the authors leave it at 17, also a value",
            task={"p": p},
            **_long(2000),
        )
        yield _mws(
            f"p{p}-sep17",
            f"p = {p}, 17|SEP",
            {"task": {"p": {19: 12, 23: 15}[p], "max_num": 10, "sep": 11}, **_SMALL_LONG},
            ours=f"{_NO_SIZES}; the separator stays 17, as in the authors' code",
            task={"p": p, "sep": 17},
            **_long(2000),
        )
    for width in (64, 128):
        yield _mws(
            f"width{width}",
            f"width {width}",
            {"model": {"d_model": {64: 32, 128: 48}[width]}, **_SMALL_LONG},
            ours=_NO_SIZES,
            model={"d_model": width},
            **_long(2000),
        )
    for heads in (2, 4):
        yield _mws(
            f"heads{heads}",
            f"{heads} heads",
            _SMALL_LONG,
            ours=_NO_SIZES,
            model={"n_heads": heads},
            **_long(2000),
        )
    for layers in (2, 3):
        yield _mws(
            f"layers{layers}",
            f"{layers} layers",
            # Three layers hardly rest on eight inputs.
            {"task": {"n": {2: 8, 3: 12}[layers]}, **_SMALL_LONG},
            ours=f"{_NO_SIZES}; attention progress is of the layer where it rises most, where the authors' script "
            "takes the last",
            model={"n_layers": layers},
            **_long(2000),
        )

    # Other attention and training (figures 30 to 40); batches, rates and decay are ours.
    yield _mws(
        "softmax",
        "softmax attention",
        # With the others' eight inputs it needs many thousand steps.
        {
            "task": {"n": 6, "p": 7, "max_num": 6},
            "training": {"batch_size": 256, "lr": 1.5e-3, "steps": 2000, **_ENDS_EARLY},
        },
        model={"attention": "softmax"},
        **_long(2000),
    )
    for lr in (0.03, 0.1, 0.3, 1.0):
        sgd = {"steps": 2000, "optimizer": "sgd", "lr": lr, **_ENDS_EARLY}
        yield _mws(
            f"sgd-lr{lr:g}",
            f"SGD, lr {lr:g}",
            {"training": {"lr": lr, "steps": 2000}},
            ours="rates are of a sweep, since nothing moves at the authors' 1e-4",
            training=sgd,
            evaluation={"every": 10},
        )
    yield _mws(
        "sgd-authors",
        "SGD, lr 1e-4, the authors' command",
        {"training": {"lr": 1e-4}},
        training={"optimizer": "sgd", "lr": 1e-4},
    )
    yield from _muon()
    for schedule in ("warmup", "warmup_cosine"):
        yield _mws(
            schedule.replace("_", "-"),
            "warm-up" if schedule == "warmup" else "warm-up, then cosine",
            {"training": {"steps": 800, "warmup_steps": 20}},
            training={"steps": 400, "schedule": schedule, "warmup_steps": 200},
        )
    for batch in (64, 512):
        yield _mws(
            f"batch{batch}",
            f"batch {batch}",
            {"training": {"batch_size": batch // 4, "steps": 1000}},
            ours=_NO_VALUES,
            training={"batch_size": batch, "steps": 1000, **_ENDS_EARLY},
            evaluation={"every": 5},
        )
    for lr, small_lr in ((3e-5, 3e-4), (3e-4, 3e-3)):
        yield _mws(
            f"lr{lr:g}",
            f"Adam, lr {lr:g}",
            {"training": {"lr": small_lr, "steps": 1500}},
            ours=_NO_VALUES,
            training={"lr": lr, "steps": 1500, **_ENDS_EARLY},
            evaluation={"every": 5},
        )
    yield _mws(
        "adamw", "AdamW, decay 0.1", ours=_NO_VALUES, training={"optimizer": "adamw", "weight_decay": 0.1}
    )

    # Hidden states at every place (figures 41, 42).
    yield _mws("locations", "1 layer", same_as="mws", evaluation={"locations": "all"})
    yield _mws(
        "locations-2",
        "2 layers",
        ours="both layers are measured, where the authors' script has attention's output of the last alone",
        model={"n_layers": 2},
        evaluation={"locations": "all"},
    )

    # Ours: attention progress rewarded. On eight inputs at width 64 a small reward may as well delay the drop.
    larger = {
        "task": {"n": 16, "p": 17, "max_num": 16},
        "model": {"d_model": 128},
        "training": {"lr": 5e-4, "steps": 500},
    }
    none = "the paper has no such runs"
    yield _mws("reward0", "without a reward", larger, ours=none, same_as="mws", checkpoints={"every": None})
    for weight in (0.1, 1.0):
        reward = [{"kind": "progress_reward", "weight": weight}]
        yield _mws(
            f"reward{weight:g}", f"rewarded with {weight:g} · APM", larger, ours=none, interventions=reward
        )


def _muon() -> Iterable[Recipe]:
    """Muon (figures 32, 33); and each of the two things by which it differs from mws by itself."""
    # Of AdamW what the authors' Muon package has; the final LayerNorm is in none of their groups.
    muon = {
        "optimizer": "muon",
        "betas": (0.9, 0.95),
        "eps": 1e-10,
        "muon_ln_final": False,
        **_ENDS_EARLY,
    }
    yield _mws(
        "muon",
        "Muon",
        {"training": {"lr": 1e-4, "steps": 1000}},
        ours="how init_scale enters is not in the authors' repository (here it multiplies all initial weights), and at "
        "most 5,000 of their 100,000 steps are taken",
        training={"steps": 5000, **muon},
        model={"init_scale": 10.0},
        evaluation={"every": 5},
    )
    cause = "the paper does not take the two apart"
    yield _mws(
        "muon-scale1",
        "Muon, initial weights as Adam's",
        {"training": {"lr": 1e-4, "steps": 1000}},
        ours=cause,
        training={"steps": 2000, **muon},
        evaluation={"every": 5},
    )
    yield _mws(
        "adam-scale10",
        "Adam, initial weights as Muon's",
        {"training": {"steps": 1500}},
        ours=cause,
        model={"init_scale": 10.0},
        **_long(2000),
    )


RECIPES = tuple(_all_recipes())
