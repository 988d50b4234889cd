"""Where a series of checkpoints comes from: a local folder of folders, or a repository of the hub.

Both list what is there under the names it has, and hand out one checkpoint folder at a time. The hub is asked
when a listing or a checkpoint is wanted, never at import, and not at all under HF_HUB_OFFLINE: then (and when
it cannot be reached) the local cache of an earlier download is the series.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from mechplateau.errors import CheckpointError, ConfigError
from mechplateau.llm.loading import has_tokenizer
from mechplateau.llm.revisions import STEP_NAMES, Listing, StepChoice, arrange, found, parse_revision
from mechplateau.llm.weights import LAYOUTS, readable, stamp


@dataclass(frozen=True)
class Preset:
    """A published series and the steps the paper looks at."""

    repository: str
    steps: str


_PYTHIA_STEPS = "0,1,2,4,8,16,32,64,128,256,512,1000,2000,4000,8000,10000"
PRESETS = {
    **{
        f"pythia-{size}": Preset(f"EleutherAI/pythia-{size}", _PYTHIA_STEPS)
        for size in ("14m", "31m", "70m", "160m", "410m", "1b", "1.4b", "2.8b")
    },
    "olmo2-7b": Preset("allenai/OLMo-2-1124-7B", "150,600"),
}
"""Short names of published series."""

_SMALL_FILES = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer*",
    "vocab*",
    "merges.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "*.safetensors.index.json",
)
_SHARDS = {
    "model.safetensors.index.json": "*.safetensors",
    "pytorch_model.bin.index.json": "pytorch_model*.bin",
}


class Source(Protocol):
    """Where a series is kept: a folder, or a repository of the hub."""

    @property
    def name(self) -> str:
        """What to call the series: a folder's path or a repository's name."""

    @property
    def notice(self) -> str | None:
        """A notice about the listing, if any (that it comes from the cache, say)."""

    def listing(self, stage: int | None = None) -> Listing:
        """The revisions there are."""

    def version(self, label: str) -> str:
        """A string that changes when the content under a name changes."""

    def fetch(self, label: str) -> Path:
        """A local checkpoint folder of one revision, downloaded if need be."""

    def tokenizer_folder(self, label: str) -> Path | None:
        """A folder with the tokenizer, given a label that can be fetched; None if there is none."""


def open_source(text: str) -> tuple[Source, StepChoice | None]:
    """The source that a command-line argument names, and the steps looked at by default (None: no
    preference).

    Args:
        text: a preset (`pythia-14m`), a folder, or a repository of the hub (`owner/name`).

    Raises:
        ConfigError: none of these.
    """
    if (path := local_folder(text)) is not None:
        return FolderSource(path), StepChoice(everything=True)
    if text in PRESETS:
        return HubSource(PRESETS[text].repository), StepChoice.parse(PRESETS[text].steps)
    parts = text.split("/")
    if (
        len(parts) == 2
        and all(part and not part.startswith((".", "~")) for part in parts)
        and _hub_name(text)
    ):
        return HubSource(text), None
    raise ConfigError(
        f"{text!r}: expected a folder of checkpoint folders, a repository of the hub (owner/name), or one of "
        f"{', '.join(PRESETS)}"
    )


def _names_a_step(name: str) -> bool:
    revision = parse_revision(name)
    return revision is not None and revision.step is not None


def local_folder(text: str) -> Path | None:
    """The folder that a text names, in full; None if it names none."""
    try:
        path = Path(text).expanduser()
        return path.resolve() if text and path.is_dir() else None
    # RuntimeError: a home folder of nobody, or links in a circle.
    except (OSError, RuntimeError, ValueError):
        return None


def _hub_name(text: str) -> bool:
    """Whether the hub could have a repository of this name."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(text)
    except HFValidationError:
        return False
    return True


@dataclass(frozen=True)
class FolderSource:
    """A local folder with one Hugging Face checkpoint folder a step."""

    path: Path
    notice: None = None

    @property
    def name(self) -> str:
        """The folder's path."""
        return str(self.path)

    def listing(self, stage: int | None = None) -> Listing:
        """The subfolders whose names describe steps, whatever they hold, and links and files of such names.

        Raises:
            CheckpointError: there is none, or the folder cannot be read.
        """
        try:
            entries = [path for path in self.path.iterdir() if not path.name.startswith(".")]
            names = [
                path.name
                for path in entries
                if path.is_symlink() or path.is_dir() or _names_a_step(path.name)
            ]
        except OSError as error:
            raise CheckpointError(f"{self.path}: cannot be read ({error.strerror})") from None
        listing = arrange(names, stage=stage, source=str(self.path))
        if not listing.revisions:
            hint = " (this is a single checkpoint: give the folder above it)" if self._is_checkpoint() else ""
            raise CheckpointError(
                f"{self.path}: expected folders named by their steps, such as {STEP_NAMES}; "
                f"{found(sorted(path.name for path in entries))}{hint}"
            )
        return listing

    def version(self, label: str) -> str:
        """Names, sizes and times of the checkpoint's files.

        Raises:
            CheckpointError: the checkpoint has no weights.
        """
        return json.dumps(stamp(self.path / label))

    def fetch(self, label: str) -> Path:
        """The checkpoint's folder."""
        return self.path / label

    def tokenizer_folder(self, label: str) -> Path | None:
        """The checkpoint's own tokenizer, or one that lies beside the checkpoints."""
        with readable(self.path / label):
            return next((folder for folder in (self.path / label, self.path) if has_tokenizer(folder)), None)

    def _is_checkpoint(self) -> bool:
        return (self.path / "config.json").is_file()


class HubSource:
    """A repository of the Hugging Face hub with one branch or tag a step."""

    def __init__(self, repository: str) -> None:
        self.name = repository
        self.notice: str | None = None
        self._commits: dict[str, str] = {}

    def listing(self, stage: int | None = None) -> Listing:
        """The branches and tags of the repository, or of its cached copy where the hub cannot be reached.

        Raises:
            CheckpointError: no network (or HF_HUB_OFFLINE) and nothing in the cache, no such repository, or
                no revision named by a step.
        """
        from huggingface_hub import HfApi, constants

        if constants.is_offline_mode():
            self._list_cache("HF_HUB_OFFLINE is set")
        else:
            try:
                refs = HfApi().list_repo_refs(self.name)
            except _unreachable() as error:
                if (status := _status(error)) in (401, 403, 404):
                    raise CheckpointError(
                        f"{self.name}: the hub has no such repository, or not for you (HTTP {status}), nor is "
                        "there a folder of this name; check it or log in with `hf auth login`"
                    ) from None
                self._list_cache(f"the hub cannot be reached ({_reason(error)})")
            else:
                self._commits = {ref.name: ref.target_commit for ref in [*refs.tags, *refs.branches]}
        listing = arrange(self._commits, stage=stage, source=self.name)
        if not listing.revisions:
            raise CheckpointError(
                f"{self.name}: expected revisions named by their steps, such as {STEP_NAMES}; "
                f"{found(sorted(self._commits))}"
            )
        return listing

    def version(self, label: str) -> str:
        """The commit the name points to."""
        return self._commits[label]

    def fetch(self, label: str) -> Path:
        """Download one revision into the hub's cache (or find it there).

        Only the weights that transformers would load are taken, so pickled ones only where there are no others.

        Raises:
            CheckpointError: the revision cannot be had whole.
        """
        from huggingface_hub import HfApi

        # With a pattern for weights, the cache misses those that were left out on purpose; whether the ones that
        # count are whole is seen when they are read.
        if self._offline():
            return self._download(label, [])
        try:
            names = HfApi().list_repo_files(self.name, revision=self._commits[label])
        except _unreachable() as error:
            raise CheckpointError(f"{self.name}, {label}: cannot be downloaded ({_reason(error)})") from None
        layout = next((layout for layout in LAYOUTS if layout in names), None)
        if layout is None:
            return self._download(label, [])
        return self._download(label, [layout, *([_SHARDS[layout]] if layout in _SHARDS else [])])

    def _offline(self) -> bool:
        from huggingface_hub import constants

        return constants.is_offline_mode() or self.notice is not None

    def _download(self, label: str, weights: Sequence[str]) -> Path:
        """The folder of one revision with its small files and these weights."""
        from huggingface_hub import snapshot_download

        commit = self._commits[label]
        wanted = [*_SMALL_FILES, *weights]
        try:
            if self._offline():
                return Path(
                    snapshot_download(
                        self.name, revision=commit, allow_patterns=wanted, local_files_only=True
                    )
                )
            # By name, so that the cache knows the name too and can be listed without a network. What lies in
            # folders of a repository is for other programs.
            folder = Path(
                snapshot_download(self.name, revision=label, allow_patterns=wanted, ignore_patterns=["*/*"])
            )
        except _unreachable() as error:
            raise CheckpointError(f"{self.name}, {label}: cannot be downloaded ({_reason(error)})") from None
        if folder.name != commit:
            raise CheckpointError(
                f"{self.name}, {label}: changed on the hub from commit {commit[:12]} to {folder.name[:12]} since "
                "it was listed; run again"
            )
        return folder

    def tokenizer_folder(self, label: str) -> Path | None:
        """The revision's own tokenizer, else that of the published weights; their weights are left alone."""
        for name in (label, "main"):
            if name in self._commits and has_tokenizer(folder := self._download(name, [])):
                return folder
        return None

    def _list_cache(self, why: str) -> None:
        from huggingface_hub import CacheNotFound, scan_cache_dir

        try:
            repositories = scan_cache_dir().repos
        except CacheNotFound:
            repositories = frozenset()
        self._commits = {
            ref: revision.commit_hash
            for repository in repositories
            if repository.repo_type == "model" and repository.repo_id == self.name
            for revision in repository.revisions
            for ref in revision.refs
        }
        if not self._commits:
            raise CheckpointError(
                f"{self.name}: no folder of this name, {why} and no copy is in the cache; "
                "where there is a network, download config.json, "
                f"tokenizer and *.safetensors of each revision (`hf download {self.name} --revision REVISION "
                "--local-dir SERIES/REVISION`, REVISION being step512 or stage1-step150-tokens1B, say), then give "
                "SERIES, the folder of these folders, in place of the name"
            )
        self.notice = f"{self.name}: {why}; only the local cache's are listed ({len(self._commits)})"


def _unreachable() -> tuple[type[BaseException], ...]:
    """What huggingface_hub raises when something cannot be had: its own errors and its transport's."""
    from huggingface_hub.errors import HfHubHTTPError

    # Its HTTP error derives from that of its transport, whose module changed its name between releases.
    return (
        OSError,
        *(base for base in HfHubHTTPError.__mro__ if base.__module__.partition(".")[0].startswith("httpx")),
    )


def _status(error: BaseException) -> int | None:
    return getattr(getattr(error, "response", None), "status_code", None)


def _reason(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
