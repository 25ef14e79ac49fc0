"""Read the configuration of static volumes: local-static-provisioner's own files, with a few keys more. Pure.

The configuration is a folder (the volume of a ConfigMap) in which each file is a key and holds its value as YAML. Both
the worker and the master read it. What today's product accepts is accepted: a key that has no meaning here, or that
nobody knows, becomes a remark. An error is raised for what cannot be carried out, as one sentence.

Keys of our own, in a class: `directories` makes folders without a mount of their own into volumes of a stated size.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import yaml

from orlop.foundation.duration import Duration
from orlop.foundation.quantity import Quantity
from orlop.static_pv.naming_rules import check_patterns, matches

CLASSES: Final = "storageClassMap"
WITHOUT_MEANING: Final = {
    "useAlphaAPI": "PersistentVolumes have had node affinity since Kubernetes 1.10",
    "useJobForCleaning": "disks are wiped by the worker itself, and it can be restarted meanwhile",
    "jobTolerations": "no Jobs are used",
    "removeNodeNotReadyTaint": "workers have no right to change Nodes, and the taint stays",
    "provisionerNotReadyNodeTaintKey": "workers have no right to change Nodes, and the taint stays",
}
KNOWN_KEYS: Final = frozenset(
    {
        *(CLASSES, "nodeLabelsForPV", "labelsForPV", "minResyncPeriod", "useNodeNameOnly", "setPVOwnerRef"),
        *WITHOUT_MEANING,
    }
)
KEYS_OF_CLASS: Final = frozenset(
    {
        *("hostDir", "mountDir", "blockCleanerCommand", "volumeMode", "accessMode", "fsType", "namePattern"),
        *("selector", "directories"),
    }
)
LONGEST_NAME: Final = 253
LARGEST_NUMBER: Final = 1 << 64
SHORTENED: Final = reprlib.Repr()
SHORTENED.maxstring = 200
LOST_AND_FOUND: Final = "lost+found"
VOLUME_MODES: Final = ("Filesystem", "Block")
ACCESS_MODES: Final = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")
DEFAULT_RESYNC: Final = Duration.of(minutes=5)


class ConfigurationFault(ValueError):
    """The configuration cannot be used. The text is a sentence for people, and names file and key."""


@dataclass(frozen=True, slots=True)
class SizedDirectories:
    """Folders that are volumes without a mount of their own, and the size that is stated for each."""

    pattern: str
    size: int


@dataclass(frozen=True, slots=True)
class StaticClass:
    """One StorageClass and the folder in which its disks are mounted or linked."""

    name: str
    host_dir: str
    """The folder as kubelet sees it: the PersistentVolume has it."""
    mount_dir: str
    """The folder as the worker sees it."""
    cleaner_command: tuple[str, ...] = ()
    """Wipes block devices. Without one they are zeroed; local-static-provisioner resets their first blocks instead."""
    volume_mode: str = "Filesystem"
    access_mode: str = "ReadWriteOnce"
    fs_type: str = ""
    name_pattern: str = "*"
    selector: tuple[Mapping[str, Any], ...] = ()
    """Node selector terms that apply beside the term of the node."""
    directories: tuple[SizedDirectories, ...] = ()

    def stated_size(self, entry: str) -> int:
        """Return the size stated for a folder without a mount of its own; 0 if it is to be a mount."""
        # If the folder of the class is the root of a file system, this entry belongs to fsck, whatever the pattern.
        if entry == LOST_AND_FOUND:
            return 0
        return next((each.size for each in self.directories if matches(each.pattern, entry)), 0)


@dataclass(frozen=True, slots=True)
class StaticConfiguration:
    """Everything that the files contain."""

    classes: tuple[StaticClass, ...] = ()
    node_labels: tuple[str, ...] = ()
    """Labels of the Node that its PersistentVolumes get too."""
    labels: tuple[tuple[str, str], ...] = ()
    min_resync_seconds: float = DEFAULT_RESYNC.seconds
    use_node_name_only: bool = False
    set_owner_reference: bool = False
    remarks: tuple[str, ...] = ()
    """What was accepted and has no effect, as sentences for the log."""

    def of_class(self, name: str) -> StaticClass | None:
        return next((each for each in self.classes if each.name == name), None)


def parse_configuration(files: Mapping[str, str]) -> StaticConfiguration:
    """Parse the files, by name. What cannot be used raises `ConfigurationFault`."""
    values = {name: _loaded(name, text) for name, text in sorted(files.items())}
    # A folder without this file is no configuration with no classes: its ConfigMap is missing or another one, and
    # acting on it would withdraw every volume.
    if CLASSES not in values:
        raise ConfigurationFault(f"the file {CLASSES} is missing: it maps each StorageClass to its folder")
    keys = _KeysOfFile("", values)
    classes = tuple(_class(name, keys.of(f"{CLASSES}[{name}]", value)) for name, value in keys.mapping(CLASSES).items())
    return StaticConfiguration(
        classes=classes,
        node_labels=keys.texts("nodeLabelsForPV"),
        labels=tuple(sorted(_KeysOfFile("labelsForPV.", keys.mapping("labelsForPV")).all_texts())),
        min_resync_seconds=keys.duration("minResyncPeriod", DEFAULT_RESYNC).seconds,
        use_node_name_only=keys.flag("useNodeNameOnly"),
        set_owner_reference=keys.flag("setPVOwnerRef"),
        remarks=(*_remarks(values), *_remarks_of_classes(keys.mapping(CLASSES))),
    )


def _loaded(name: str, text: str) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        place = getattr(error, "problem_mark", None)
        line = f" (line {place.line + 1})" if place is not None else ""
        raise ConfigurationFault(f"the file {name} is not YAML{line}: {getattr(error, 'problem', error)}") from error
    except (ValueError, AttributeError, RecursionError) as error:
        # PyYAML passes on errors of the conversion, for example of a date with a thirteenth month. Unhandled, such an
        # error would end the process.
        raise ConfigurationFault(f"the file {name} has a value that cannot be read: {error}") from error


def _class(name: str, keys: _KeysOfFile) -> StaticClass:
    if not name or len(name) > LONGEST_NAME or "/" in name:
        raise ConfigurationFault(f"{CLASSES}: {name!r} is not the name of a StorageClass")
    host_dir = keys.folder("hostDir")
    command = keys.texts("blockCleanerCommand")
    if "blockCleanerCommand" in keys.values and not command and keys.values["blockCleanerCommand"] is not None:
        raise ConfigurationFault(f"{keys.prefix}blockCleanerCommand is empty: name a command, or leave the key out")
    pattern = keys.text("namePattern", "*")
    _check_patterns(keys.named("namePattern"), pattern)
    return StaticClass(
        name=name,
        host_dir=host_dir,
        mount_dir=keys.folder("mountDir", host_dir),
        cleaner_command=command,
        volume_mode=keys.choice("volumeMode", VOLUME_MODES),
        access_mode=keys.choice("accessMode", ACCESS_MODES),
        fs_type=keys.text("fsType"),
        name_pattern=pattern,
        selector=keys.mappings("selector"),
        directories=_directories(keys.of("directories", keys.mapping("directories"))),
    )


def _directories(keys: _KeysOfFile) -> tuple[SizedDirectories, ...]:
    found = []
    for pattern, text in keys.all_texts():
        _check_patterns(f"{keys.prefix}{pattern}", pattern)
        try:
            size = Quantity.parse(text).value()
        except ValueError as error:
            raise ConfigurationFault(f"{keys.prefix}{pattern}: {error}") from error
        if size <= 0:
            raise ConfigurationFault(f"{keys.prefix}{pattern}: the size of a folder must be more than nothing")
        found.append(SizedDirectories(pattern, size))
    return tuple(found)


def _check_patterns(key: str, patterns: str) -> None:
    try:
        check_patterns(patterns)
    except ValueError as error:
        raise ConfigurationFault(f"{key}: {error}") from error


def _remarks(values: Mapping[str, Any]) -> list[str]:
    without = [f"{key} has no effect: {why}" for key, why in WITHOUT_MEANING.items() if values.get(key)]
    return [*without, *(f"{key} is no known key, and has no effect" for key in values if key not in KNOWN_KEYS)]


def _remarks_of_classes(classes: Mapping[str, Any]) -> list[str]:
    return [
        f"{CLASSES}[{name}].{key} is no known key, and has no effect"
        for name, value in classes.items()
        for key in value or ()
        if key not in KEYS_OF_CLASS
    ]


@dataclass(frozen=True, slots=True)
class _KeysOfFile:
    """A mapping of the files, with the prefix that its keys have in errors. An absent key and null are the same."""

    prefix: str
    values: Mapping[str, Any]

    def named(self, key: str) -> str:
        return f"{self.prefix}{key}"

    def of(self, key: str, value: Any) -> _KeysOfFile:
        if not isinstance(value, Mapping):
            raise self._fault(key, "a mapping", value)
        return _KeysOfFile(f"{self.prefix}{key}.", value)

    def text(self, key: str, default: str = "") -> str:
        value = self.values.get(key)
        if value is None or value == "":
            return default
        if not isinstance(value, str):
            raise self._fault(key, "a text", value)
        return value

    def folder(self, key: str, default: str = "") -> str:
        path = self.text(key, default)
        if not path:
            raise ConfigurationFault(f"{self.named(key)} is missing: name the folder of the disks")
        if not path.startswith("/") or ".." in path.split("/") or not path.isprintable():
            raise ConfigurationFault(f"{self.named(key)} is {path!r}: an absolute path without .. is needed")
        return path.rstrip("/") or "/"

    def flag(self, key: str) -> bool:
        value = self.values.get(key)
        if value is None or isinstance(value, bool):
            return bool(value)
        raise self._fault(key, "true or false", value)

    def choice(self, key: str, allowed: tuple[str, ...]) -> str:
        """Return one of the allowed texts. The first is the default."""
        value = self.text(key, allowed[0])
        if value not in allowed:
            raise self._fault(key, f"one of {', '.join(allowed)}", value)
        return value

    def duration(self, key: str, default: Duration) -> Duration:
        text = self.text(key)
        try:
            parsed = Duration.parse(text) if text else default
        except ValueError as error:
            raise ConfigurationFault(f"{self.named(key)}: {error}") from error
        return parsed if parsed.nanoseconds > 0 else default

    def texts(self, key: str) -> tuple[str, ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise self._fault(key, "a list of texts", value)
        return tuple(value)

    def mappings(self, key: str) -> tuple[Mapping[str, Any], ...]:
        value = self.values.get(key)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(isinstance(each, Mapping) for each in value):
            raise self._fault(key, "a list of mappings", value)
        return tuple(value)

    def mapping(self, key: str) -> Mapping[str, Any]:
        value = self.values.get(key)
        if value is None:
            return {}
        if not isinstance(value, Mapping) or not all(isinstance(each, str) for each in value):
            raise self._fault(key, "a mapping by name", value)
        return value

    def all_texts(self) -> list[tuple[str, str]]:
        """Return every key with its text. A number is taken as the text that it was written as."""
        for key, value in self.values.items():
            is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST_NUMBER
            if not is_number and not isinstance(value, str):
                raise self._fault(key, "a text", value)
        return [(key, str(value)) for key, value in self.values.items()]

    def _fault(self, key: str, wanted: str, value: Any) -> ConfigurationFault:
        # A number of thousands of digits has no text, and aliases of YAML may make a text endless.
        is_long = isinstance(value, int) and abs(value) >= LARGEST_NUMBER
        value_text = "a number of too many digits" if is_long else SHORTENED.repr(value)
        return ConfigurationFault(f"{self.named(key)} is {value_text}: {wanted} is needed")
