"""The base of every configuration: frozen, strict about keys, with YAML, overrides and a content hash.

A configuration is a value: it is validated once, never changes, and two equal ones have equal hashes.
Errors name the field, the value that came and what is allowed, on one line.
"""

from __future__ import annotations

import copy
import difflib
import hashlib
import json
import operator
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from mechplateau.errors import ConfigError

_DEEPEST = 50


def whole_number(value: object, name: str) -> int:
    """A whole number of Python's, numpy's or torch's types, as an int.

    Raises:
        ConfigError: it is not a whole number; `name` is the argument's name.
    """
    if isinstance(value, bool):
        raise ConfigError(f"{name}: expected a whole number, got {value!r}")
    try:
        return operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        raise ConfigError(f"{name}: expected a whole number, got {value!r}") from None


class Config(BaseModel):
    """Base class of all configurations: immutable, and an unknown key is an error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", validate_default=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    unhashed: ClassVar[frozenset[str]] = frozenset()
    """Fields that do not decide what comes out (where a file lies that another field knows by content)."""
    later: ClassVar[frozenset[str]] = frozenset()
    """Fields that this class got after its release, which count for the hash unless they are at the class's default: a
    configuration written before there was such a field keeps its hash. A subclass adds to its bases' sets."""

    @model_validator(mode="before")
    @classmethod
    def _reject_bool(cls, data: Any) -> Any:
        """A number is not true or false, though Python counts them as 1 and 0."""
        if isinstance(data, Mapping):
            for name, value in data.items():
                field = cls.model_fields.get(name) if isinstance(name, str) else None
                if isinstance(value, bool) and field is not None and not _may_be_bool(field.annotation):
                    raise ValueError(f"{name}: expected a number or text, got {str(value).lower()}")
        return data

    @classmethod
    def parse(cls, data: Mapping[str, Any]) -> Self:
        """Validate plain data (a YAML document, say).

        Raises:
            ConfigError: one line naming each wrong field, what came and what is allowed.
        """
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            raise ConfigError(_one_line(cls, error)) from None

    def data(self) -> dict[str, Any]:
        """The configuration as plain, JSON-ready data, every field written out."""
        return self.model_dump(mode="json")

    def with_(self, **changes: Any) -> Self:
        """This configuration with some fields changed, validated anew: `config.with_(seed=5, training={"steps": 100})`.

        A mapping changes fields of a section and leaves its others; where it names another `name` or `kind` (another
        task, say), it replaces the whole section.

        Raises:
            ConfigError: as `parse`.
        """
        return self.parse(laid_over(self.data(), changes))

    def yaml(self) -> str:
        """The configuration as a YAML document, every field written out."""
        return yaml.safe_dump(self.data(), sort_keys=False, allow_unicode=True)

    def content_hash(self, length: int = 12) -> str:
        """Hexadecimal SHA-256 of the canonical JSON of the fields that decide, first `length` digits.

        All fields decide but `unhashed` ones, and `later` ones at their class's default. A released default never
        changes: a configuration that leaves the field out would mean another run under the same hash.

        Numbers are hashed by value (`1` and `1.0` in a float field are the same), and the order of keys in
        a file does not matter.
        """
        canonical = json.dumps(
            _deciding(self, self.data()), sort_keys=True, separators=(",", ":"), ensure_ascii=True
        )
        return hashlib.sha256(canonical.encode()).hexdigest()[:length]


def read_yaml(text: str, source: str) -> dict[str, Any]:
    """Parse a YAML mapping; `source` names it in errors.

    Raises:
        ConfigError: the text is not YAML, is not a mapping, or repeats a key.
    """
    try:
        data = _loaded(text)
        _check_plain(data, depth=0)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        problem = " ".join(str(error).split())
        raise ConfigError(f"{source}: not valid YAML ({problem})") from None
    if not isinstance(data, dict):
        raise ConfigError(f"{source}: expected a mapping of fields, got {type(data).__name__}")
    return data


def override(data: Mapping[str, Any], assignments: Sequence[str]) -> dict[str, Any]:
    """Return `data` with `"a.b=value"` assignments applied; values are read as YAML.

    Raises:
        ConfigError: an assignment has no `=`, an empty name, or goes through something that has no fields.
    """
    result = copy.deepcopy(dict(data))
    for assignment in assignments:
        path, separator, text = assignment.partition("=")
        keys = path.strip().split(".")
        if not separator or not all(keys):
            raise ConfigError(f"--set {assignment}: expected field=value, such as training.steps=100")
        try:
            value = _loaded(text)
            _check_plain(value, depth=0)
        except (yaml.YAMLError, RecursionError, ValueError):
            raise ConfigError(f"--set {assignment}: {text!r} is not a YAML value") from None
        node = result
        for depth, key in enumerate(keys[:-1]):
            node = node.setdefault(key, {})
            if not isinstance(node, dict):
                raise ConfigError(
                    f"--set {assignment}: {'.'.join(keys[: depth + 1])} has no fields of its own"
                )
        node[keys[-1]] = value
    return result


def laid_over(data: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`data` with `changes` to it, section by section; a section of another `name` or `kind` is replaced as a whole."""
    result = dict(data)
    for name, value in changes.items():
        present = result.get(name)
        if isinstance(value, Config):
            value = value.data()
        elif isinstance(value, Mapping) and isinstance(present, Mapping):
            same = all(value.get(key, present.get(key)) == present.get(key) for key in ("name", "kind"))
            value = laid_over(present, value) if same else value
        result[name] = value
    return result


class _UniqueKeys(yaml.constructor.SafeConstructor):
    """For loaders: a key written twice is refused, of which YAML would silently keep the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=deep)
            if not isinstance(key, str):
                raise yaml.constructor.ConstructorError(
                    None, None, f"expected a name as key, got {key!r}", key_node.start_mark
                )
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"duplicate key {key!r}", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Loader(_UniqueKeys, yaml.SafeLoader):
    """YAML in Python, whose errors show the place."""


class _FastLoader(_UniqueKeys, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML in C, if PyYAML was built with it: several times faster, and the same data."""


def _loaded(text: str) -> Any:
    try:
        return yaml.load(text, Loader=_FastLoader)
    except (yaml.YAMLError, RecursionError, ValueError):
        return yaml.load(text, Loader=_Loader)  # for its error


def _check_plain(data: Any, depth: int) -> None:
    """Raise ValueError unless the data are mappings, lists, text, numbers, true, false and null, not too deep."""
    if depth > _DEEPEST:
        raise ValueError("nested too deeply")
    if isinstance(data, dict):
        for value in data.values():
            _check_plain(value, depth + 1)
    elif isinstance(data, list):
        for value in data:
            _check_plain(value, depth + 1)
    elif data is not None and not isinstance(data, str | int | float):
        raise ValueError(f"expected text, numbers, lists and mappings, got {type(data).__name__} {data!r}")


def _deciding(config: Config, data: dict[str, Any]) -> dict[str, Any]:
    """`config.data()` without the fields that do not count for the hash, at any depth."""
    later = frozenset().union(*(getattr(base, "later", ()) for base in type(config).__mro__))
    result = {}
    for name, plain in data.items():
        value = getattr(config, name)
        if name in config.unhashed or (name in later and _is_default(config, name)):
            continue
        if isinstance(value, Config):
            plain = _deciding(value, plain)
        elif isinstance(value, tuple):
            plain = [
                _deciding(item, inner) if isinstance(item, Config) else inner
                for item, inner in zip(value, plain, strict=True)
            ]
        result[name] = plain
    return result


def _is_default(config: Config, name: str) -> bool:
    """Whether a later field is at the default of the class that got it: a subclass's own default counts."""
    owner = next(base for base in type(config).__mro__ if name in vars(base).get("later", ()))
    return getattr(config, name) == owner.model_fields[name].get_default(call_default_factory=True)  # type: ignore[attr-defined]


def _may_be_bool(annotation: Any) -> bool:
    if annotation in (bool, Any):
        return True
    return any(_may_be_bool(argument) for argument in typing.get_args(annotation) if argument is not Ellipsis)


_ALTERNATIVE = re.compile(r"int|float|str|bool|(literal|tuple|list|function-\w+)\[.*")


_Nested = TypeVar("_Nested", bound=Config)


class NestedError(ValueError):
    """What is wrong with a configuration inside another one; raised by `nested`."""

    def __init__(self, problems: Sequence[str]):
        super().__init__("; ".join(problems))
        self.problems = problems


def nested(cls: type[_Nested], value: Mapping[str, Any]) -> _Nested:
    """Validate plain data for a field of another configuration, whose message then names each wrong field in full.

    Raises:
        NestedError: it is not valid.
    """
    try:
        return cls.model_validate(value)
    except ValidationError as error:
        raise NestedError(_problems(cls, error)) from None


def _one_line(cls: type[Config], error: ValidationError) -> str:
    return "; ".join(_problems(cls, error))


def _problems(cls: type[Config], error: ValidationError) -> list[str]:
    problems = []
    for item in error.errors(include_url=False):
        parts = [str(part) for part in item["loc"]]
        # Pydantic's own name for an alternative of the field comes last.
        if len(parts) > 1 and item["type"] != "extra_forbidden" and _ALTERNATIVE.fullmatch(parts[-1]):
            parts.pop()
        location = ".".join(parts)
        message = item["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        if item["type"] == "extra_forbidden":
            problems.append(unknown_field(location, _fields_at(cls, item["loc"][:-1])))
        elif item["type"] == "missing":
            problems.append(f"{location}: missing")
        elif isinstance(inner := item.get("ctx", {}).get("error"), NestedError):
            problems += [_located(location, problem) for problem in inner.problems]
        elif item["type"] == "value_error":
            problems.append(_located(location, message))
        else:
            message = message[0].lower() + message[1:]
            problems.append(f"{location}: {message}, got {item['input']!r}")
    return problems


def _located(location: str, message: str) -> str:
    """A message with its place; a check over several fields names the field to change, relative to its own section."""
    separator = "." if re.match(r"\w[\w.]*: ", message) else ": "
    return f"{location}{separator}{message}" if location else message


def unknown_field(location: str, allowed: Sequence[str], hint: str | None = None) -> str:
    """What to say of a field that is not allowed at its place; the default hint is the nearest one."""
    near = difflib.get_close_matches(location.rpartition(".")[2], allowed, n=1)
    if hint is None and near:
        hint = f"did you mean {near[0]}?"
    return f"{location}: unknown field; allowed here: {', '.join(allowed)}{f'; {hint}' if hint else ''}"


def _fields_at(cls: type[BaseModel], location: Sequence[int | str]) -> list[str]:
    """Names of the fields of the configuration found by following `location` down from `cls`."""
    for part in location:
        if isinstance(part, int) or part not in cls.model_fields:
            continue
        inner = _config_in(cls.model_fields[part].annotation)
        if inner is not None:
            cls = inner
    return list(cls.model_fields)


def _config_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if typing.get_origin(annotation) in (typing.Union, types.UnionType, tuple, list, typing.Annotated):
        for argument in typing.get_args(annotation):
            if (found := _config_in(argument)) is not None:
                return found
    return None
