"""A run's name is for good: configurations as released keep their names, whatever fields are added later."""

from __future__ import annotations

import inspect
import json
import shutil
from pathlib import Path
from typing import ClassVar, Literal

import pytest
from pydantic import SerializeAsAny

import mechplateau.llm.config
import mechplateau.llm.demo  # noqa: F401 (its configuration class is looked at)
from mechplateau import RunConfig, load_run, train
from mechplateau.schema import Config
from mechplateau.studies import study_named
from mechplateau.studies.results import OLD, on_record

DATA = Path(__file__).parent / "data"
PINNED = json.loads((DATA / "names.json").read_text(encoding="utf-8"))
INTERRUPTED = "copy-62e708e1119f"


def test_configurations_as_released_keep_their_names():
    changed = {name: RunConfig.parse(config).run_name for name, config in PINNED["names"].items()}
    assert {name: now for name, now in changed.items() if now != name} == {}
    assert len(changed) > 140


def test_every_run_on_record_at_the_first_release_is_pinned():
    names = {*PINNED["names"], *(line["name"] for line in PINNED["text"])}
    hashes = {name.rpartition("-")[2] for name in names}
    record = on_record(study_named("plateau"))
    # Those that were not trained again since; parts of a run trained again have other bits, and so another hash.
    assert record[record["definition"] == OLD]["config_hash"].isin(hashes).all()
    assert len(hashes) > 140


class First(Config):
    """A class as it was released."""

    name: Literal["first"] = "first"
    size: int = 3
    inner: tuple[SerializeAsAny[Config], ...] = ()


class Later(First):
    """The same with two fields added after the release."""

    later: ClassVar[frozenset[str]] = frozenset({"width", "part"})

    width: int = 8
    part: First = First()


class Again(Later):
    """A subclass that got a field of its own."""

    later: ClassVar[frozenset[str]] = frozenset({"depth"})

    depth: int | None = None


def test_a_field_of_the_release_always_counts():
    assert First().content_hash() != First(size=4).content_hash()
    assert Later().content_hash() != Later(size=4).content_hash()
    at_default = json.loads(First(size=3).model_dump_json())
    assert "size" in at_default
    assert First.parse(at_default).content_hash() == First().content_hash()


def test_a_later_field_counts_unless_it_is_at_its_default():
    assert Later().content_hash() == First().content_hash() == Again().content_hash()
    assert Later(width=8, part=First()).content_hash() == First().content_hash()
    hashes = [
        First().content_hash(),
        Later(width=9).content_hash(),
        Later(part=First(size=4)).content_hash(),
        Again(depth=1).content_hash(),
        Again(width=9, depth=1).content_hash(),
    ]
    assert len(set(hashes)) == len(hashes)


def test_the_rule_holds_inside_other_configurations():
    def around(config: Config) -> str:
        return First(inner=(config,)).content_hash()

    assert around(Later()) == around(First()) != around(Later(width=9))


def _classes(base: type[Config]) -> list[type[Config]]:
    below = [cls for sub in base.__subclasses__() for cls in _classes(sub)]
    return [*base.__subclasses__(), *below]


def test_released_fields_and_defaults_stay_and_new_ones_are_marked():
    """A new field with a default: put it into its class's `later`, and its default into `names.json`."""
    for cls in {cls for cls in _classes(Config) if cls.__module__.startswith("mechplateau.")}:
        released = PINNED["fields"].get(cls.__name__, {})
        own = [name for name in inspect.get_annotations(cls) if name in cls.model_fields]
        assert sorted(own) == sorted(released), f"{cls.__name__}: fields differ from tests/data/names.json"
        for name, as_released in released.items():
            field = cls.model_fields[name]
            assert field.is_required() == ("required" in as_released), f"{cls.__name__}.{name}"
            if not field.is_required():
                default = field.get_default(call_default_factory=True)
                plain = default.data() if isinstance(default, Config) else json.loads(json.dumps(default))
                assert _without_later(default, plain) == as_released["default"], f"{cls.__name__}.{name}"
            assert (name in cls.later) == as_released.get("later", False), f"{cls.__name__}.{name}"


def _without_later(default: object, plain: object) -> object:
    if not isinstance(default, Config):
        return plain
    return {name: value for name, value in default.data().items() if name not in type(default).later}


def test_a_run_interrupted_at_the_first_release_resumes(tmp_path):
    shutil.copytree(DATA / INTERRUPTED, tmp_path / INTERRUPTED)
    before = load_run(tmp_path / INTERRUPTED)
    assert before.status == "interrupted"
    assert before.config.run_name == INTERRUPTED
    reached = before.metrics["step"].iloc[-1]
    run = train(before.config, runs_dir=tmp_path)
    assert run.path == before.path
    assert run.status == "finished"
    assert run.metrics["step"].tolist() == list(range(before.config.training.steps + 1))
    assert run.metrics["loss"].tolist()[: reached + 1] == before.metrics["loss"].tolist()


@pytest.mark.parametrize("name", sorted(PINNED["names"])[::20])
def test_a_name_survives_the_file(name):
    config = RunConfig.parse(PINNED["names"][name])
    assert RunConfig.parse(config.data()).run_name == name
