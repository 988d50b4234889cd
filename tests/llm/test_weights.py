from __future__ import annotations

import io
import json
import os
import pickle
import tarfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from mechplateau.errors import CheckpointError
from mechplateau.llm.weights import read_checkpoint, read_weights, stamp, weight_files

STATE = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(4, dtype=torch.bfloat16)}


class Sentinel:
    """Unpickling this by the full unpickler leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (os.mkdir, (str(self.path),))


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and torch.equal(one[name], other[name]) for name in one
    )


def test_safetensors_and_plain_pickles_are_read(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    assert same(read_weights(tmp_path), STATE)
    (tmp_path / "model.safetensors").unlink()
    torch.save(STATE, tmp_path / "pytorch_model.bin")
    assert same(read_weights(tmp_path), STATE)
    torch.save(STATE, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    assert same(read_weights(tmp_path), STATE)


def test_shards_are_joined(tmp_path: Path) -> None:
    save_file({"a": STATE["a"]}, tmp_path / "model-00001-of-00002.safetensors")
    save_file({"b": STATE["b"]}, tmp_path / "model-00002-of-00002.safetensors")
    weight_map = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert same(read_weights(tmp_path), STATE)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"names model-00002-of-00002.safetensors, which is not there"):
        read_weights(tmp_path)
    # A copy with the same values is no question.
    save_file(STATE, tmp_path / "model-00002-of-00002.safetensors")
    assert same(read_weights(tmp_path), STATE)
    assert read_checkpoint(tmp_path).notes == ()


@pytest.mark.parametrize(
    "name", ["../model.safetensors", "/etc/passwd", "model.bin", "sub/model.safetensors"]
)
def test_an_index_may_not_point_elsewhere(tmp_path: Path, name: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": name}}))
    with pytest.raises(CheckpointError, match="not the name of a shard"):
        weight_files(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"weight_map": 3}', "{"])
def test_a_damaged_index_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"index\.json: not an index"):
        weight_files(tmp_path)


def malicious_zip(path: Path, sentinel: Path) -> None:
    torch.save({"a": STATE["a"], "extra": Sentinel(sentinel)}, path)


def malicious_legacy(path: Path, sentinel: Path) -> None:
    torch.save({"extra": Sentinel(sentinel)}, path, _use_new_zipfile_serialization=False)


def malicious_bare(path: Path, sentinel: Path) -> None:
    path.write_bytes(pickle.dumps(Sentinel(sentinel)))


def malicious_tar(path: Path, sentinel: Path) -> None:
    payload = pickle.dumps(Sentinel(sentinel))
    with tarfile.open(path, "w") as tar:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            info = tarfile.TarInfo(name)
            info.size = len(payload)
            tar.addfile(info, io.BytesIO(payload))


@pytest.mark.parametrize("write", [malicious_zip, malicious_legacy, malicious_bare, malicious_tar])
def test_pickles_that_run_code_are_refused(tmp_path: Path, write) -> None:
    folder, sentinel = tmp_path / "step8", tmp_path / "sentinel"
    folder.mkdir()
    write(folder / "pytorch_model.bin", sentinel)
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin: refused, .+"):
        read_weights(folder)
    assert not sentinel.exists()
    # The trap works: the full unpickler would have run it.
    if write is malicious_bare:
        pickle.loads((folder / "pytorch_model.bin").read_bytes())
        assert sentinel.exists()
        sentinel.rmdir()
    save_file(STATE, folder / "model.safetensors")
    assert same(read_weights(folder), STATE)
    assert not sentinel.exists()


def test_damaged_or_absent_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no weights; expected model\.safetensors"):
        read_weights(tmp_path)
    save_file(STATE, tmp_path / "model.safetensors")
    data = (tmp_path / "model.safetensors").read_bytes()
    (tmp_path / "model.safetensors").write_bytes(data[:-3])
    with pytest.raises(CheckpointError, match="not a safetensors file"):
        read_weights(tmp_path)


@pytest.mark.parametrize("content", [[1, 2], {"a": 1}, {1: torch.ones(1)}])
def test_pickles_of_something_else_are_named(tmp_path: Path, content) -> None:
    torch.save(content, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="expected"):
        read_weights(tmp_path)


def test_stamp_changes_with_the_files(tmp_path: Path) -> None:
    save_file(STATE, tmp_path / "model.safetensors")
    before = stamp(tmp_path)
    assert stamp(tmp_path) == before
    os.utime(tmp_path / "model.safetensors", ns=(1, 1))
    assert stamp(tmp_path) != before


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[" * 100_000, "not an index of shards"),
        ('{"weight_map": {}}', "names no shard"),
        ('{"weight_map": {"a": 1}}', "'1' is not the name of a shard"),
        ('{"weight_map": {"a": "a\\u0000.safetensors"}}', "is not the name of a shard"),
        ('{"weight_map": {"a": "' + "x" * 300 + '.safetensors"}}', "is not the name of a shard"),
    ],
)
def test_an_odd_index_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(CheckpointError, match=message) as caught:
        weight_files(tmp_path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("convert", "kind"),
    [
        (torch.Tensor.to_sparse, "sparse_coo on cpu"),
        (lambda tensor: tensor.to("meta"), "strided on meta"),
    ],
)
def test_tensors_that_are_no_plain_ones_are_refused(tmp_path: Path, convert, kind: str) -> None:
    torch.save({"w": convert(torch.ones(2, 2))}, tmp_path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=f"expected plain tensors, got {kind} under 'w'"):
        read_weights(tmp_path)


def test_parameters_are_read_as_tensors(tmp_path: Path) -> None:
    torch.save({"w": torch.nn.Parameter(torch.ones(2))}, tmp_path / "pytorch_model.bin")
    assert not read_weights(tmp_path)["w"].requires_grad


def test_links_that_lead_nowhere_are_no_files(tmp_path: Path) -> None:
    save_file({"w": torch.ones(2)}, tmp_path / "model.safetensors")
    (tmp_path / "generation_config.json").symlink_to(tmp_path / "gone")
    assert [name for name, *_ in stamp(tmp_path)] == ["model.safetensors"]
