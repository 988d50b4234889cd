"""Files, each thing once: paths as people write them, writing a file whole or not at all, holding a folder alone, and
reading tensors and nothing else."""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import pickle
import re
import secrets
import shutil
import stat
import sys
import tempfile
import time
import warnings
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from mechplateau.errors import CheckpointError, ConfigError, RunError, UserError

try:
    import fcntl
except ImportError:  # Windows: nothing there is guarded against a second writer
    fcntl = None  # type: ignore[assignment]

if TYPE_CHECKING:
    from torch import Tensor

logger = logging.getLogger("mechplateau")

_TEMPORARY = ".tmp-"
_LEFT_BEHIND = re.compile(r"\.tmp(-.*|[A-Za-z0-9]{6})")
"""Names of our temporary files, and of those that safetensors writes first and then renames to ours."""
_DESCRIPTOR = re.compile(r"/dev/(?:(stdout)|(stderr)|fd/(\d+))|/proc/self/fd/(\d+)")
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS)
"""What the system says where a file system has no locks (some network file systems)."""


# Paths.


def local_path(path: str | os.PathLike[str]) -> Path:
    """The path, in which a leading `~` is the home folder (and `~name` that of a user of this name, if there is one).

    Raises:
        UserError: the path is empty: a variable that was not set, say.
    """
    text = os.fspath(path)
    if not text:
        raise UserError("expected a path, got ''")
    return Path(os.path.expanduser(text))


def file_path(path: str | os.PathLike[str]) -> Path:
    """`local_path` of a file that is to be written.

    Raises:
        UserError: the path is empty, or ends as a folder's does.
    """
    text = os.fspath(path)
    if text.endswith((os.sep, os.altsep or os.sep)):
        raise UserError(f"{text}: is a folder; expected the name of a file")
    return local_path(text)


def folder_name(name: str, what: str) -> str:
    """The name, which can be a folder's, or the beginning of one, on Linux and macOS.

    Raises:
        ConfigError: it cannot; `what` says whose name it is.
    """
    if not re.fullmatch(r"\w[\w.-]*", name) or len(name.encode()) > 100:
        shown = name if len(name) <= 100 else name[:20] + "…"
        raise ConfigError(
            f"{what}: expected letters, digits, '.', '-' and '_', at most 100 bytes, got {shown!r}"
        )
    return name


# Writing.


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Have `write` fill a temporary file, then put it where `path` leads; missing folders are made.

    A plain file is filled beside its place, synced, given the permissions that the old one had (or that a new file
    gets), and renamed: it is there whole or not at all. A link stays a link, and the file it leads to is written. A
    pipe or a device is written to, and so is an open descriptor (`/dev/stdout`), at its current position.

    Raises:
        OSError: it cannot be written, or is a folder; a plain file that was there is unchanged.
    """
    number = _descriptor(path)
    mode = None if number is not None else _mode(path)
    if number is None and (mode is None or stat.S_ISREG(mode)):
        _replace(Path(os.path.realpath(path)), write, mode)
        return
    if mode is not None and stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "is a folder; expected the name of a file", str(path))
    with tempfile.TemporaryDirectory() as folder:
        temporary = Path(folder, path.name)
        write(temporary)
        _write_through(path if number is None else os.dup(number), temporary)


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """`write_whole` for a file of a run.

    Raises:
        RunError: the file cannot be written (a full disk, say); what was at `path` before is unchanged.
    """
    with explained(path):
        write_whole(path, write)


def write_text(path: Path, text: str) -> None:
    """`write_atomic` for text, UTF-8."""
    write_atomic(path, lambda temporary: temporary.write_bytes(text.encode()))


def leftovers(folder: Path) -> list[Path]:
    """What killed writes left in `folder` and below, and writes of another process that are under way."""
    return [path for path in folder.rglob(".tmp*") if _LEFT_BEHIND.fullmatch(path.name)]


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn the system's errors about `path` into a RunError that says what to do."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise RunError(
            f"{path}: cannot be written ({reason}); free space or choose another --runs-dir, "
            "then rerun the same command: a run resumes from its last save"
        ) from None


def sync_to_disk(path: Path) -> None:
    """Sync a file, or a folder's entries, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def put_in_place(written: Path, target: Path) -> None:
    """Rename a file that was written whole, on the same disk, with both on the disk before and after."""
    sync_to_disk(written)
    os.replace(written, target)
    sync_to_disk(target.parent)


def is_stdout(path: Path) -> bool:
    """Whether writing to `path` writes to standard output."""
    return _descriptor(path) == 1


def _replace(path: Path, write: Callable[[Path], object], mode: int | None) -> None:
    # The end of a long name: what is put in front must leave a name that the system takes.
    temporary = path.with_name(f"{_TEMPORARY}{os.getpid()}-{secrets.token_hex(3)}-{path.name[-40:]}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Made here, with the permissions that a new file gets: safetensors gives its own to the owner alone.
        temporary.touch()
        wanted = stat.S_IMODE(temporary.stat().st_mode if mode is None else mode)
        write(temporary)
        if stat.S_IMODE(temporary.stat().st_mode) != wanted:  # not every file system can change them
            temporary.chmod(wanted)
        sync_to_disk(temporary)
        os.replace(temporary, path)
        sync_to_disk(path.parent)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def _descriptor(path: Path) -> int | None:
    """The number of the open descriptor that a path such as `/dev/stdout` or `/dev/fd/3` represents; else None."""
    found = _DESCRIPTOR.fullmatch(str(path))
    if found is None:
        return None
    stdout, stderr, *numbers = found.groups()
    return 1 if stdout else 2 if stderr else int(next(filter(None, numbers)))


def _mode(path: Path) -> int | None:
    """The file at the end of all links, and its permissions; None if there is none yet."""
    try:
        return path.stat().st_mode
    except FileNotFoundError:
        return None


def _write_through(target: Path | int, source: Path) -> None:
    # What was printed before comes before.
    print(end="", flush=True)
    print(end="", flush=True, file=sys.stderr)
    number = target if isinstance(target, int) else os.open(target, os.O_WRONLY)
    with open(number, "wb") as file, source.open("rb") as content:
        shutil.copyfileobj(content, file)


# Holding a folder alone.


def take_lock(path: Path, patience: float = 0.0) -> BinaryIO | None:
    """Hold a lock file, until the file that is returned is closed or the process ends.

    Args:
        path: the lock file; its folder must be there.
        patience: seconds to wait for another holder.

    Returns:
        the open file; None on systems without such locks. Where a file system has none, a warning says so.

    Raises:
        BlockingIOError: another process holds it.
        OSError: the file cannot be opened.
    """
    if fcntl is None:
        return None
    file = path.open("wb")
    deadline = time.monotonic() + patience
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return file
        except OSError as error:
            if error.errno in _NO_LOCKS:
                logger.warning(
                    "%s: this file system has no locks; make sure that no other process works on the run",
                    path.parent,
                )
                return file
            if time.monotonic() < deadline:
                time.sleep(0.2)
                continue
            file.close()
            raise BlockingIOError(errno.EWOULDBLOCK, "another process holds it", str(path)) from None


def is_held(path: Path) -> bool | None:
    """Whether a process on this machine holds a lock file; None where that cannot be known."""
    if fcntl is None:
        return None
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # let go as the file is closed
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    except OSError:
        return None
    return False


# Reading tensors, never a pickle that could run code.


class TensorFileError(CheckpointError):
    """A file of tensors cannot be read as one. `reason` is why, without the file's name."""

    def __init__(self, path: Path, text: str, reason: str = ""):
        super().__init__(f"{path}: {text.replace('{reason}', reason)}")
        self.reason = reason or text


@contextmanager
def open_safetensors(path: Path) -> Iterator[tuple[Any, dict[str, str]]]:
    """An open safetensors file (`keys()`, `get_tensor(name)`, on the CPU) and the texts in its header.

    Raises:
        TensorFileError: it is missing, damaged, or not a safetensors file.
    """
    from safetensors import SafetensorError, safe_open

    _check_readable(path)
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            yield file, dict(file.metadata() or {})
    except (SafetensorError, OSError) as error:
        raise TensorFileError(
            path, "damaged, or not a safetensors file ({reason})", first_line(error)
        ) from None


def read_tensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a safetensors file, one after the other, on the CPU. Errors as `open_safetensors`."""
    with open_safetensors(path) as (file, _):
        for name in file.keys():  # noqa: SIM118 (the handle is no mapping)
            yield name, file.get_tensor(name)


def read_torch(path: Path, *, mmap: bool = False) -> Any:
    """What a file of `torch.save` holds, if that is tensors, plain values and their containers alone.

    Args:
        path: the file.
        mmap: leave the tensors in the file until they are looked at, where its format allows it.

    Raises:
        TensorFileError: it is missing or damaged, or a pickle that needs anything else; such a file is never read
            another way.
    """
    import torch

    _check_readable(path)
    try:
        # Its warnings are about formats it may not know: those end in a refusal here.
        with warnings.catch_warnings(), torch.serialization.safe_globals(_numpy_scalars()):
            warnings.simplefilter("ignore")
            mapped = mmap and zipfile.is_zipfile(path)
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped)
    except pickle.UnpicklingError as error:
        text = (
            "refused, since loading it could run code: it holds more than tensors and plain values ({reason}); "
            "get a safetensors file, or convert it on a machine that trusts it"
        )
        raise TensorFileError(path, text, _what_was_refused(error)) from None
    except Exception as error:  # torch raises many kinds for a damaged file
        if "weights_only" in str(error):  # formats that torch reads by running code: legacy tar, TorchScript
            text = (
                "refused, since reading this format (legacy tar or TorchScript) could run code; "
                "get a safetensors file"
            )
            raise TensorFileError(path, text) from None
        raise TensorFileError(path, "damaged, or not a torch file ({reason})", first_line(error)) from None


def check_plain(path: Path, tensors: Mapping[Any, Any]) -> None:
    """Refuse what is no plain tensor by name.

    Raises:
        TensorFileError: a value is no tensor, or a tensor is sparse, quantized, or without data.
    """
    import torch

    for name, tensor in tensors.items():
        if not isinstance(name, str) or not isinstance(tensor, torch.Tensor):
            raise TensorFileError(
                path, f"expected tensors by name, got {type(tensor).__name__} under {name!r}"
            )
        if tensor.layout is not torch.strided or tensor.is_quantized or tensor.device.type != "cpu":
            kind = "quantized" if tensor.is_quantized else f"{tensor.layout} on {tensor.device}"
            raise TensorFileError(
                path, f"expected plain tensors, got {kind.removeprefix('torch.')} under {name!r}"
            )


def first_line(error: Exception) -> str:
    """The first line of an error's message; its type where it has none."""
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _check_readable(path: Path) -> None:
    # safetensors says of a file without access that there is none.
    if not path.is_file():
        raise TensorFileError(path, "no such file; expected a checkpoint saved by torch or safetensors")
    try:
        path.open("rb").close()
    except OSError as error:
        raise TensorFileError(path, "cannot be read ({reason})", error.strerror or str(error)) from None


def _numpy_scalars() -> list[Any]:
    """Losses and accuracies are often saved as NumPy scalars; rebuilding one runs no foreign code."""
    import numpy as np

    scalar = np.float64(0).__reduce__()[0]
    kinds = (type(np.dtype(kind)) for kind in ("float64", "float32", "int64", "int32", "bool"))
    return [
        np.dtype,
        *kinds,
        (scalar, "numpy.core.multiarray.scalar"),
        (scalar, "numpy._core.multiarray.scalar"),
    ]


def _what_was_refused(error: Exception) -> str:
    """The part of torch's long message that names what the file requested."""
    for line in str(error).splitlines():
        if "Unsupported" in line or "GLOBAL" in line or "tar" in line:
            return " ".join(line.split())[:160]
    return first_line(error)[:160]
