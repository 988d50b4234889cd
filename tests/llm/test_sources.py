"""The hub, played by a server on this machine: huggingface_hub's own client talks to it."""

from __future__ import annotations

import hashlib
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from mechplateau.errors import CheckpointError, ConfigError
from mechplateau.llm import analyze_series
from mechplateau.llm.sources import PRESETS, FolderSource, HubSource, open_source
from mechplateau.llm.weights import read_checkpoint, weight_files

REPOSITORY = "someone/tiny-series"
PROMPTS = ["Why ice?", "What do plants need"]


class FakeHub:
    """Branches of one repository, each served from a folder."""

    def __init__(self, branches: dict[str, Path]) -> None:
        self.branches = branches
        self.requests: list[str] = []
        self.broken: set[str] = set()
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.requests.append(self.path)
                status, headers, body = hub.answer(self.path.split("?")[0])
                self.send_response(status)
                for name, value in {**headers, "Content-Length": str(len(body))}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(body)

            do_HEAD = do_GET

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def commit(self, branch: str) -> str:
        return hashlib.sha1(branch.encode()).hexdigest()

    def answer(self, path: str) -> tuple[int, dict[str, str], bytes]:
        by_revision = {name: name for name in self.branches} | {
            self.commit(name): name for name in self.branches
        }
        api = f"/api/models/{REPOSITORY}"
        if path == f"{api}/refs":
            branches = [
                {"name": name, "ref": f"refs/heads/{name}", "targetCommit": self.commit(name)}
                for name in self.branches
            ]
            return self.json({"branches": branches, "converts": [], "tags": []})
        for kind in ("revision", "tree"):
            revision = path.removeprefix(f"{api}/{kind}/")
            if revision in by_revision:
                branch = by_revision[revision]
                if branch in self.broken:
                    return 404, {"X-Error-Code": "RevisionNotFound"}, b""
                if kind == "revision":
                    return self.json({"id": REPOSITORY, "sha": self.commit(branch), "siblings": []})
                files = sorted(self.branches[branch].iterdir())
                return self.json(
                    [
                        {"type": "file", "path": f.name, "size": f.stat().st_size, "oid": self.etag(f)}
                        for f in files
                    ]
                )
        parts = path.removeprefix(f"/{REPOSITORY}/resolve/").split("/")
        if len(parts) == 2 and parts[0] in by_revision:
            file = self.branches[by_revision[parts[0]]] / parts[1]
            if file.is_file():
                commit = self.commit(by_revision[parts[0]])
                return 200, {"ETag": f'"{self.etag(file)}"', "X-Repo-Commit": commit}, file.read_bytes()
        return 404, {"X-Error-Code": "EntryNotFound" if len(parts) == 2 else "RepoNotFound"}, b""

    def etag(self, file: Path) -> str:
        return hashlib.sha1(file.read_bytes()).hexdigest()

    def json(self, data: object) -> tuple[int, dict[str, str], bytes]:
        return 200, {"Content-Type": "application/json"}, json.dumps(data).encode()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of the hub's client."""
    from huggingface_hub import constants
    from huggingface_hub.utils import _cache_manager

    folder = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(_cache_manager, "HF_HUB_CACHE", str(folder))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 2)
    return folder


@pytest.fixture
def hub(make_series, copy_weights, cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    from huggingface_hub import constants

    series = make_series([0, 1, 2, 4, 8], name="served")
    shutil.copytree(series / "step8", series / "main")
    copy_weights(series / "step0", series / "step1")
    # What repositories also hold and nobody should download beside safetensors.
    (series / "step2" / "pytorch_model.bin").write_bytes(b"x" * 1000)
    # An old revision that was never converted.
    torch.save(load_file(series / "step4" / "model.safetensors"), series / "step4" / "pytorch_model.bin")
    (series / "step4" / "model.safetensors").unlink()
    # Another program's weights are not transformers'.
    (series / "step4" / "consolidated.safetensors").write_bytes(b"x")
    hub = FakeHub({folder.name: folder for folder in series.iterdir()} | {"readme-fix": series / "step2"})
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    yield hub
    hub.close()


def test_a_series_of_the_hub(
    hub: FakeHub, cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from huggingface_hub import constants

    hub.broken.add("step2")
    analysis = analyze_series(REPOSITORY, prompts=PROMPTS, steps="0,1,2,4,8,16")
    labels = analysis.table["label"].fillna("(none)").tolist()
    assert labels == ["step0", "step1", "step2", "step4", "step8", "(none)", "main"]
    expected = ["duplicate", "duplicate", "broken", "ok", "ok", "missing", "final"]
    assert analysis.table["verdict"].tolist() == expected
    assert "cannot be downloaded" in analysis.table["note"][2]
    assert analysis.table["hash"][4] == analysis.table["hash"][6]
    downloaded = {Path(path.split("?")[0]).name for path in hub.requests if "/resolve/" in path}
    assert {"config.json", "tokenizer.json", "model.safetensors", "pytorch_model.bin"} <= downloaded
    pickles = [path for path in hub.requests if path.split("?")[0].endswith("pytorch_model.bin")]
    assert all(hub.commit("step4") in path for path in pickles)

    # Without a network, the cache is the series, and it is said.
    hub.close()
    offline = analyze_series(REPOSITORY, prompts=PROMPTS)
    assert offline.table["label"].tolist() == ["step0", "step1", "step4", "step8", "main"]
    assert offline.table["hash"].tolist() == [analysis.table["hash"][i] for i in (0, 1, 3, 4, 6)]
    notice = [sentence for sentence in offline.summary if "the hub cannot be reached" in sentence]
    assert "only the local cache's are listed (5)" in notice[0]

    # Under HF_HUB_OFFLINE nothing is even tried.
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(socket.socket, "connect", _no_network)
    silent = analyze_series(REPOSITORY, prompts=PROMPTS)
    assert silent.table["hash"].tolist() == offline.table["hash"].tolist()
    said = "HF_HUB_OFFLINE is set; only the local cache's are listed (5)"
    assert any(said in sentence for sentence in silent.summary)


def test_pickled_weights_are_not_downloaded_beside_safetensors(hub: FakeHub) -> None:
    source = HubSource(REPOSITORY)
    assert [revision.step for revision in source.listing().revisions] == [0, 1, 2, 4, 8]
    folder = source.fetch("step2")
    assert (folder / "model.safetensors").is_file()
    assert not (folder / "pytorch_model.bin").exists()
    assert source.version("step2") == hub.commit("step2") == folder.name


def test_finished_steps_are_not_downloaded_again(hub: FakeHub, cache: Path, tmp_path: Path) -> None:
    first = analyze_series(REPOSITORY, prompts=PROMPTS, steps="0,8", folder=tmp_path / "kept")
    shutil.rmtree(cache)
    hub.requests.clear()
    again = analyze_series(REPOSITORY, prompts=PROMPTS, steps="0,8", folder=tmp_path / "kept")
    assert again.table["hash"].tolist() == first.table["hash"].tolist()
    assert not [path for path in hub.requests if "model" in Path(path).name]


def test_shards_beside_a_file_are_not_downloaded(hub: FakeHub) -> None:
    folder = hub.branches["step2"]
    shutil.copyfile(folder / "model.safetensors", folder / "model-00001-of-00001.safetensors")
    weight_map = {"w": "model-00001-of-00001.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    source = HubSource(REPOSITORY)
    source.listing()
    fetched = source.fetch("step2")
    assert not (fetched / "model-00001-of-00001.safetensors").exists()
    assert read_checkpoint(fetched).notes == (
        "read from model.safetensors, as transformers does; not looked at: model.safetensors.index.json",
    )
    (folder / "model.safetensors").unlink()
    hub.branches["step3"] = folder
    source.listing()
    assert weight_files(source.fetch("step3"))[0].name == "model-00001-of-00001.safetensors"


def test_a_branch_that_moved_since_it_was_listed_is_named(hub: FakeHub) -> None:
    source = HubSource(REPOSITORY)
    source.listing()
    source._commits["step2"] = "0" * 40
    hub.branches["0" * 40] = hub.branches["step2"]
    with pytest.raises(CheckpointError, match="changed on the hub from commit 000000000000"):
        source.fetch("step2")


def test_an_unknown_repository_is_one_line(hub: FakeHub) -> None:
    with pytest.raises(
        CheckpointError,
        match=r"someone/else: the hub has no such repository, .*HTTP 404.*nor is there a folder",
    ):
        analyze_series("someone/else")


def test_many_checkpoints_are_not_downloaded_unasked(hub: FakeHub) -> None:
    hub.branches |= {f"step{step}": hub.branches["step2"] for step in range(100, 140)}
    with pytest.raises(ConfigError, match="has 45 checkpoints; choose some of them"):
        analyze_series(REPOSITORY, prompts=PROMPTS)


def _no_network(*args: object) -> None:
    raise AssertionError("a connection was attempted")


@pytest.mark.parametrize("offline", [True, False])
def test_no_network_and_no_copy_is_one_clear_line(
    offline: bool, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    if offline:
        monkeypatch.setattr(socket.socket, "connect", _no_network)
    else:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError) as caught:
        analyze_series("pythia-14m")
    message = str(caught.value)
    assert "\n" not in message
    assert message.startswith("EleutherAI/pythia-14m: ")
    assert "no folder of this name" in message
    assert ("HF_HUB_OFFLINE is set" in message) == offline
    assert "hf download EleutherAI/pythia-14m --revision REVISION --local-dir SERIES/REVISION" in message
    assert "then give SERIES, the folder of these folders, in place of the name" in message


def test_import_loads_no_client_and_tries_nothing() -> None:
    code = (
        "import socket, sys\n"
        "def no(*a, **k): raise SystemExit('a connection was attempted')\n"
        "socket.socket.connect = socket.getaddrinfo = no\n"
        "import mechplateau.llm, mechplateau.cli.llm\n"
        "heavy = {'torch', 'transformers', 'huggingface_hub', 'datasets', 'transformer_lens', 'pandas'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_arguments_are_told_apart(tmp_path: Path) -> None:
    source, steps = open_source("pythia-1.4b")
    assert (source.name, steps.exact[-1]) == ("EleutherAI/pythia-1.4b", 10000)
    source, steps = open_source("olmo2-7b")
    assert (source.name, steps.exact) == ("allenai/OLMo-2-1124-7B", (150, 600))
    source, steps = open_source(str(tmp_path))
    assert isinstance(source, FolderSource)
    assert steps.everything
    assert open_source("owner/name")[1] is None
    odd = (
        "~nobody-of-this-name/x",
        "x" * 300,
        "a\0b",
        "My Models/pythia",
        "a--b/c",
        "a/b.git",
        "unicode/é",
        "-x/y",
    )
    for text in ("pythia-3b", "a/b/c", "./gone", "/gone/away", "", *odd):
        with pytest.raises(ConfigError, match="expected a folder of checkpoint folders, a repository"):
            open_source(text)
    assert len([name for name in PRESETS if name.startswith("pythia")]) == 8
