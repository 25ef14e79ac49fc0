"""Read kubeconfig files and merge them as kubectl does: of entries with the same name, the first one is used whole.

Every value keeps its file and field, so that an error names both. An error never quotes a value, nor the line in the
file: it may be a secret.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class KubeconfigError(Exception):
    """The message names the file and, if there is one, the field."""


class NoKubeconfig(KubeconfigError):
    """None of the files exists."""


@dataclass(frozen=True, slots=True)
class Section:
    """A mapping in a file; missing and null members read as empty."""

    file: Path
    place: str
    values: Mapping[str, Any] = field(repr=False)

    def text(self, name: str) -> str:
        value = self.values.get(name)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.error(name, f"must be a text, not {_kind(value)}; put it in quotes")
        return value

    def flag(self, name: str) -> bool:
        value = self.values.get(name)
        if value is not None and not isinstance(value, bool):
            raise self.error(name, f"must be true or false, not {_kind(value)}")
        return bool(value)

    def texts(self, name: str) -> tuple[str, ...]:
        values = self._list(name)
        if not all(isinstance(value, str) for value in values):
            raise self.error(name, "must be a list of texts; put them in quotes")
        return tuple(values)

    def section(self, name: str) -> Section | None:
        value = self.values.get(name)
        return None if value is None else self._section(value, name)

    def sections(self, name: str) -> tuple[Section, ...]:
        return tuple(self._section(value, f"{name}[{index}]") for index, value in enumerate(self._list(name)))

    def mapping(self, name: str) -> Mapping[str, Any]:
        section = self.section(name)
        return section.values if section else {}

    def path(self, name: str) -> Path | None:
        """Return a path; a relative one is relative to the folder of its file."""
        text = self.text(name)
        return self.file.parent / text if text else None

    def data(self, name: str) -> bytes | None:
        """Decode a base64 field."""
        text = "".join(self.text(name).split())
        try:
            return base64.b64decode(text, validate=True) if text else None
        except (binascii.Error, ValueError):
            raise self.error(name, "is no base64") from None

    def file_or_data(self, name: str) -> bytes | None:
        """Return the content of the file that the field names, or of the inline field with the suffix `-data`."""
        data = self.data(f"{name}-data")
        path = self.path(name)
        return self.read(name, path) if data is None and path is not None else data

    def read(self, name: str, path: Path) -> bytes:
        """Read the file that the field names."""
        try:
            return path.read_bytes()
        except OSError as error:
            raise self.error(name, f"names {path}, which cannot be read: {error.strerror or error}") from None
        except ValueError:  # The path has a NUL character.
            raise self.error(name, "names no file") from None

    def error(self, name: str, sentence: str) -> KubeconfigError:
        where = ".".join(part for part in (self.place, name) if part)
        return KubeconfigError(f"{self.file}: {where} {sentence}")

    def _list(self, name: str) -> Sequence[Any]:
        value = self.values.get(name)
        if value is not None and not isinstance(value, list):
            raise self.error(name, f"must be a list, not {_kind(value)}")
        return value or ()

    def _section(self, value: Any, name: str) -> Section:
        if not isinstance(value, Mapping):
            raise self.error(name, f"must hold fields, not {_kind(value)}")
        return Section(self.file, ".".join(part for part in (self.place, name) if part), value)


def _kind(value: Any) -> str:
    names = {
        bool: "true or false",
        int: "a number",
        float: "a number",
        list: "a list",
        str: "a text",
        type(None): "null",
    }
    return "fields" if isinstance(value, Mapping) else names.get(type(value), "a date")


@dataclass(frozen=True, slots=True)
class MergedConfig:
    """The merged files: contexts, clusters and users by name."""

    files: tuple[Path, ...]
    current_context: str
    contexts: Mapping[str, Section]
    clusters: Mapping[str, Section]
    users: Mapping[str, Section]

    @property
    def origin(self) -> str:
        return ", ".join(map(str, self.files))


def read_configs(paths: Sequence[Path]) -> MergedConfig:
    """Read and merge the files. Missing files are ignored, but at least one must exist."""
    roots = [root for path in dict.fromkeys(paths) if (root := _read(path)) is not None]
    if not roots:
        raise NoKubeconfig(f"there is no kubeconfig file at {', '.join(map(str, paths))}")
    current = next((name for root in roots if (name := root.text("current-context"))), "")
    return MergedConfig(
        tuple(root.file for root in roots),
        current,
        _first_wins([_entries(root, "contexts", "context") for root in roots]),
        _first_wins([_entries(root, "clusters", "cluster") for root in roots]),
        _first_wins([_entries(root, "users", "user") for root in roots]),
    )


def _read(path: Path) -> Section | None:
    import yaml  # noqa: PLC0415 - saves memory in pods, whose access needs no file

    try:
        content = yaml.safe_load(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise KubeconfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise KubeconfigError(f"{path}: is no YAML{_line(error)}") from None
    if not isinstance(content, Mapping | None):
        raise KubeconfigError(f"{path}: must hold fields, not {_kind(content)}")
    root = Section(path, "", content or {})
    for field_name, expected in (("kind", "Config"), ("apiVersion", "v1")):
        if root.text(field_name) not in {"", expected}:
            raise root.error(field_name, f"must be {expected}: this is no kubeconfig file")
    return root


def _line(error: Exception) -> str:
    """Return the position of a YAML error, without the library's message, which quotes the line."""
    mark = getattr(error, "problem_mark", None)
    return f" (line {mark.line + 1}, column {mark.column + 1})" if mark is not None else ""


def _entries(root: Section, plural: str, singular: str) -> dict[str, Section]:
    sections: dict[str, Section] = {}
    for entry in root.sections(plural):
        name = entry.text("name")
        if not name:
            raise entry.error("name", "is missing")
        if name in sections:
            raise root.error(plural, f"has two entries named {name}")
        values = entry.mapping(singular)
        sections[name] = Section(root.file, f"{plural}[{name}].{singular}", values)
    return sections


def _first_wins(each: Sequence[Mapping[str, Section]]) -> Mapping[str, Section]:
    return {name: section for entries in reversed(each) for name, section in entries.items()}
