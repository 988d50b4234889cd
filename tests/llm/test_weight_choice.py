"""Where a folder holds more weights than one set, the choice is transformers' own, or it is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import GPTNeoXForCausalLM

from mechplateau.errors import CheckpointError
from mechplateau.llm import analyze_series
from mechplateau.llm.loading import load_model
from mechplateau.llm.weights import read_checkpoint, read_weights, stamp

NAME = "gpt_neox.layers.0.mlp.dense_4h_to_h.weight"


@pytest.fixture
def sharded(tmp_path: Path, neox_config, weights) -> Path:
    """A checkpoint of several shards, as transformers saves it."""
    model = GPTNeoXForCausalLM(neox_config)
    model.load_state_dict(weights(0.0))
    model.save_pretrained(tmp_path / "step1", max_shard_size="12KB")
    assert len(shards(tmp_path / "step1")) > 2
    return tmp_path / "step1"


def shards(folder: Path) -> list[Path]:
    return sorted(folder.glob("model-*.safetensors"))


def single(folder: Path, scale: float, name: str = "model.safetensors") -> None:
    state = {name: scale * tensor for name, tensor in read_weights(folder).items()}
    torch.save(state, folder / name) if name.endswith(".bin") else save_file(
        state, folder / name, {"format": "pt"}
    )


def add_copy(shard: Path, value: float) -> None:
    """Leave a copy of a tensor in a shard that does not keep it."""
    state = load_file(shard)
    assert NAME not in state
    save_file({**state, NAME: torch.full((16, 32), value)}, shard, {"format": "pt"})


def home(folder: Path) -> int:
    return next(i for i, shard in enumerate(shards(folder)) if NAME in load_file(shard))


def other_file(folder: Path) -> None:
    single(folder, 2.0)


def stale_before(folder: Path) -> None:
    add_copy(shards(folder)[home(folder) - 1], 7.0)


def pickled_beside(folder: Path) -> None:
    single(folder, 3.0, "pytorch_model.bin")


def pickled_beside_a_file(folder: Path) -> None:
    single(folder, 2.0)
    single(folder, 3.0, "pytorch_model.bin")


@pytest.mark.parametrize(
    ("change", "note"),
    [
        (
            other_file,
            "read from model.safetensors, as transformers does; not looked at: model.safetensors.index.json",
        ),
        (stale_before, f"{NAME} has other values in model-0000"),
        (
            pickled_beside,
            "read from model.safetensors.index.json, as transformers does; not looked at: pytorch_model.bin",
        ),
        (pickled_beside_a_file, "not looked at: model.safetensors.index.json, pytorch_model.bin"),
    ],
)
def test_the_choice_is_that_of_transformers(sharded: Path, change: Callable[[Path], None], note: str) -> None:
    change(sharded)
    theirs = GPTNeoXForCausalLM.from_pretrained(sharded).state_dict()
    ours = load_model(sharded, read_weights(sharded)).state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    (said,) = read_checkpoint(sharded).notes
    assert note in said
    if change is stale_before:
        assert not (ours[NAME] == 7).any()


def test_a_stale_copy_that_transformers_would_take_is_refused(sharded: Path) -> None:
    place = shards(sharded)[home(sharded)].name
    add_copy(shards(sharded)[-1], 7.0)
    # transformers reads every tensor of every shard, and the last one stays.
    assert (GPTNeoXForCausalLM.from_pretrained(sharded).state_dict()[NAME] == 7).all()
    with pytest.raises(CheckpointError) as caught:
        read_weights(sharded)
    last = shards(sharded)[-1].name
    assert f"the index names {place}, transformers would take {last}; remove the stale one" in str(
        caught.value
    )


def test_what_was_chosen_is_in_the_verdict(make_series, tmp_path: Path) -> None:
    series = make_series([0, 1, 2])
    torch.save({"w": torch.ones(2)}, series / "step1" / "pytorch_model.bin")
    for _ in range(2):  # measured, and kept
        table = analyze_series(series, prompts=[[1, 2]], folder=tmp_path / "out").table
        assert table["verdict"].tolist() == ["ok", "ok", "ok"]
        assert table["note"][1].endswith(
            "read from model.safetensors, as transformers does; not looked at: pytorch_model.bin"
        )
        assert "not looked at" not in table["note"][0] + table["note"][2]
    (series / "step1" / "pytorch_model.bin").unlink()
    table = analyze_series(series, prompts=[[1, 2]], folder=tmp_path / "out").table
    assert "not looked at" not in table["note"][1]


def test_a_link_to_a_file_that_is_gone_is_said(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "gone")
    (note,) = read_checkpoint(tmp_path).notes
    assert note == "read from pytorch_model.bin, as transformers does; not looked at: model.safetensors"
    assert [name for name, *_ in stamp(tmp_path)] == ["pytorch_model.bin"]


def test_weights_that_are_not_the_whole_story_are_refused(sharded: Path) -> None:
    path = sharded / "config.json"
    text = path.read_text()
    path.write_text(json.dumps({**json.loads(text), "transformers_weights": "other.safetensors"}))
    with pytest.raises(CheckpointError, match=r"transformers_weights: 'other\.safetensors'.*not supported"):
        read_weights(sharded)
    path.write_text(text)
    (sharded / "adapter_config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"adapter_config\.json: weights of an adapter"):
        read_weights(sharded)
    (sharded / "adapter_config.json").unlink()
    assert read_weights(sharded)
    shutil.rmtree(sharded)
    with pytest.raises(CheckpointError, match=r"step1: cannot be read \(No such file"):
        read_weights(sharded)
