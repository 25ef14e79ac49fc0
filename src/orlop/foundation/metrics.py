"""Metrics of one process, in a registry that is passed in: nothing is global.

Get a metric once, in a constructor, and use it with its label values: `calls.observe(0.2, "NodePublish", "OK")`.
Numbers that can be counted by listing (volumes, bytes, queues) come from a callback, so that they cannot drift.

A scrape is byte for byte what prometheus_client writes, which tests compare. The library itself is not imported: it
brings servers and clients of HTTP, 3 to 5 MB in every process.

Metrics are for one thread, that of the event loop: nothing is locked. This module must not measure time or serve HTTP.
Label values must never hold secrets or grow without limit.
"""

from __future__ import annotations

import math
import os
import re
import sys
from bisect import bisect_left
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

OPEN_METRICS: Final = "application/openmetrics-text"
CONTENT_TYPE_OPEN_METRICS: Final = f"{OPEN_METRICS}; version=1.0.0; charset=utf-8"
CONTENT_TYPE_TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
NAME = re.compile(r"[a-z][a-z0-9_]*")
BUCKET_LABEL: Final = "le"
DIGITS_WITHOUT_EXPONENT: Final = 6
PROCESS: Final = Path("/proc/self")

Series = TypeVar("Series")
Made = TypeVar("Made")
LabelValues: TypeAlias = tuple[str, ...]
Reading: TypeAlias = float | Mapping[LabelValues, float]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The properties that must be equal when a name is registered again."""

    kind: str
    name: str
    labels: LabelValues = ()
    buckets: tuple[float, ...] = ()
    callback: Callable[[], Reading] | None = None

    def __str__(self) -> str:
        labels = f"the labels {', '.join(self.labels)}" if self.labels else "no labels"
        buckets = f", the buckets {self.buckets}" if self.buckets else ""
        return f"a {self.kind} with {labels}{buckets}" + (f", listed by {self.callback}" if self.callback else "")

    def check_names(self) -> None:
        for name in (self.name, *self.labels):
            if not NAME.fullmatch(name):
                raise ValueError(f"{name!r} cannot name a metric or a label: allowed are a-z, 0-9 and _.")
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"{self.name} cannot name a {self.kind}: counters, and only they, end with _total.")
        if self.kind == "histogram" and BUCKET_LABEL in self.labels:
            raise ValueError(f"{self.name} cannot have the label {BUCKET_LABEL}: buckets have it.")
        if self.kind == "histogram" and (not self.buckets or list(self.buckets) != sorted(self.buckets)):
            raise ValueError(f"{self.name} cannot have the buckets {self.buckets}: one or more, in rising order.")

    def check_values(self, values: LabelValues) -> None:
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels} and cannot have the values {values}.")

    def shown_names(self) -> set[str]:
        """Return the names that a scrape shows for this metric, with that of its family in OpenMetrics."""
        if self.kind == "histogram":
            return {self.name, *(f"{self.name}_{part}" for part in ("bucket", "count", "sum"))}
        return {self.name, self.name.removesuffix("_total")}


# ---- the text of a scrape --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Family:
    """A metric as a scrape shows it: what describes it, and the lines of its time series."""

    kind: str
    name: str
    description: str
    lines: Iterable[str]

    def text(self, *, is_open: bool) -> str:
        name, description = self.name, self.description.replace("\\", r"\\").replace("\n", r"\n")
        if is_open:  # Only OpenMetrics escapes quotes here, and names a counter without the suffix of its series.
            name, description = name.removesuffix("_total"), description.replace('"', r"\"")
        return f"# HELP {name} {description}\n# TYPE {name} {self.kind}\n{''.join(self.lines)}"


def _number_text(number: float) -> str:
    """Return a number as prometheus_client writes it: for most, as Go would."""
    if not math.isfinite(number):
        return "NaN" if math.isnan(number) else "+Inf" if number > 0 else "-Inf"
    text = repr(float(number))
    point = text.find(".")
    if point > DIGITS_WITHOUT_EXPONENT and number > 0:  # Go writes an exponent sooner than Python.
        digits = f"{text[0]}.{text[1:point]}{text[point + 1 :]}".rstrip("0.")
        return f"{digits}e+{point - 1:02d}"
    return text


def _pair(name: str, value: str) -> str:
    value = value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'{name}="{value}"'


def _labels_text(names: LabelValues, values: LabelValues) -> str:
    """Return labels in their brackets, in the order of their names; nothing if there are none."""
    return f"{{{','.join([_pair(*each) for each in sorted(zip(names, values, strict=True))])}}}" if names else ""


def _encodable(value: str) -> str:
    """Replace what UTF-8 cannot encode, such as in file names: one such label would fail the whole scrape."""
    return value.encode("utf-8", "backslashreplace").decode()


# ---- metrics ---------------------------------------------------------------------------------------------------------


class _NumberSeries:
    """A time series of a counter or a gauge."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0


class _HistogramSeries:
    """A time series of a histogram: how many observations are in each bucket and in none before it, and their sum."""

    __slots__ = ("counts", "sum")

    def __init__(self, buckets: int) -> None:
        self.counts = [0] * buckets
        self.sum = 0.0


class _Children(dict[LabelValues, Series], Generic[Series]):
    """The time series of a metric by label values, created on first use."""

    __slots__ = ("_make", "_shape")

    def __init__(self, shape: _Shape, make: Callable[[], Series]) -> None:
        super().__init__()
        self._shape = shape
        self._make = make
        if not shape.labels:  # Shown as 0 before its first use: rates need a first value.
            self[()] = make()

    def __missing__(self, values: LabelValues) -> Series:
        self._shape.check_values(values)
        # Stored by what is shown alone: values that differ only in what UTF-8 cannot encode must be one series, as a
        # scrape that shows a series twice is refused.
        shown = tuple(map(_encodable, values))
        if shown not in self:
            self[shown] = self._make()
        return self[shown]


class _Numbers(_Children[_NumberSeries]):
    __slots__ = ()

    def __init__(self, shape: _Shape) -> None:
        super().__init__(shape, _NumberSeries)

    def lines(self) -> Iterator[str]:
        name, labels = self._shape.name, self._shape.labels
        for values, series in self.items():
            yield f"{name}{_labels_text(labels, values)} {_number_text(series.value)}\n"


class Counter:
    """A value that only grows."""

    __slots__ = ("_children",)

    def __init__(self, children: _Numbers) -> None:
        self._children = children

    def inc(self, *labels: str, by: float = 1) -> None:
        if by < 0:
            raise ValueError(f"A counter only grows; it cannot be changed by {by}.")
        self._children[labels].value += by


class Gauge:
    """A value that goes up and down. Prefer `Metrics.gauge_from` if it can be computed at each scrape."""

    __slots__ = ("_children",)

    def __init__(self, children: _Numbers) -> None:
        self._children = children

    def set(self, value: float, *labels: str) -> None:
        self._children[labels].value = float(value)


class Histogram:
    """Durations, counted in buckets."""

    __slots__ = ("_bounds", "_children", "_shape")

    def __init__(self, shape: _Shape) -> None:
        bounds = list(map(float, shape.buckets))
        self._bounds = bounds if bounds[-1] == math.inf else [*bounds, math.inf]
        self._shape = shape
        self._children = _Children(shape, lambda: _HistogramSeries(len(self._bounds)))

    def observe(self, seconds: float, *labels: str) -> None:
        series = self._children[labels]
        series.sum += seconds
        if seconds == seconds:  # noqa: PLR0124 - NaN is in no bucket; this is cheaper than math.isnan
            series.counts[bisect_left(self._bounds, seconds)] += 1

    def lines(self) -> Iterator[str]:
        name, labels, bounds = self._shape.name, self._shape.labels, list(map(_number_text, self._bounds))
        for values, series in self._children.items():
            pairs = sorted(zip(labels, values, strict=True))
            before = "".join([f"{_pair(*each)}," for each in pairs if each[0] < BUCKET_LABEL])
            after = "".join([f",{_pair(*each)}" for each in pairs if each[0] > BUCKET_LABEL])
            total = 0
            for bound, count in zip(bounds, series.counts, strict=True):
                total += count
                yield f'{name}_bucket{{{before}{BUCKET_LABEL}="{bound}"{after}}} {_number_text(total)}\n'
            text = _labels_text(labels, values)
            yield f"{name}_count{text} {_number_text(total)}\n"
            if self._bounds[0] >= 0:  # The sum of what may be negative can fall, which a reader takes for a restart.
                yield f"{name}_sum{text} {_number_text(series.sum)}\n"


# ---- the process -----------------------------------------------------------------------------------------------------


class _Process:
    """CPU, memory and open files of this process, read from /proc at each scrape. What cannot be read is left out."""

    def __init__(self) -> None:
        try:
            lines = Path("/proc/stat").read_bytes().splitlines()
        except OSError:
            lines = []
        self._booted = next((float(line.split()[1]) for line in lines if line.startswith(b"btime ")), 0.0)

    def families(self) -> Iterator[_Family]:
        if not self._booted:
            return
        with suppress(OSError):
            yield from self._use(PROCESS.joinpath("stat").read_bytes().rpartition(b")")[2].split())
        with suppress(OSError):
            yield from self._files(
                PROCESS.joinpath("limits").read_bytes(), sum(1 for _ in PROCESS.joinpath("fd").iterdir())
            )

    def _files(self, limits: bytes, opened: int) -> Iterator[_Family]:
        most = next(line.split()[3] for line in limits.splitlines() if line.startswith(b"Max open file"))
        yield _number("process_open_fds", "Number of open file descriptors.", opened)
        limit = math.inf if most == b"unlimited" else float(most)
        yield _number("process_max_fds", "Maximum number of open file descriptors.", limit)

    def _use(self, fields: Sequence[bytes]) -> Iterator[_Family]:
        ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
        user, system, began = (float(fields[place]) / ticks for place in (11, 12, 19))
        memory, resident = float(fields[20]), float(fields[21]) * page
        yield _number("process_virtual_memory_bytes", "Virtual memory size in bytes.", memory)
        yield _number("process_resident_memory_bytes", "Resident memory size in bytes.", resident)
        since = "Start time of the process since unix epoch in seconds."
        yield _number("process_start_time_seconds", since, began + self._booted)
        spent = "Total user and system CPU time spent in seconds."
        yield _number("process_cpu_seconds_total", spent, user + system, kind="counter")


def _number(name: str, description: str, number: float, kind: str = "gauge") -> _Family:
    return _Family(kind, name, description, [f"{name} {_number_text(number)}\n"])


# ---- the registry ----------------------------------------------------------------------------------------------------


class Metrics:
    """All metrics of one process, or of one node of a simulation (then without figures of the process)."""

    def __init__(self, build_version: str, *, of_process: bool = True) -> None:
        self._sources: list[Callable[[], Iterable[_Family]]] = [_Process().families] if of_process else []
        self._known: dict[str, tuple[_Shape, Any]] = {}
        self._shown: dict[str, str] = {}
        build = self.gauge("orlop_build_info", "The version of Orlop that runs.", ("version", "python"))
        build.set(1, build_version, sys.version.partition(" ")[0])
        self._failures = self.counter("orlop_metric_failures_total", "Failed attempts to list a metric.", ("metric",))

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        shape = _Shape("counter", name, tuple(labels))
        return self._once(shape, lambda: Counter(self._numbers(shape, description)))

    def gauge(self, name: str, description: str, labels: Sequence[str] = ()) -> Gauge:
        shape = _Shape("gauge", name, tuple(labels))
        return self._once(shape, lambda: Gauge(self._numbers(shape, description)))

    def histogram(self, name: str, description: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        """Register a histogram. `buckets` are rising upper bounds in seconds; the unbounded one is added."""
        shape = _Shape("histogram", name, tuple(labels), tuple(buckets))

        def make() -> Histogram:
            made = Histogram(shape)
            self._sources.append(lambda: [_Family(shape.kind, shape.name, description, made.lines())])
            return made

        return self._once(shape, make)

    def gauge_from(
        self, name: str, description: str, callback: Callable[[], Reading], labels: Sequence[str] = ()
    ) -> None:
        """Register a gauge that a callback computes at each scrape: a number, or one for each tuple of label values.

        A callback that fails leaves its gauge out of the scrape and is counted in orlop_metric_failures_total.
        """
        shape = _Shape("gauge", name, tuple(labels), callback=callback)

        def listed() -> list[_Family]:
            try:
                return [_Family(shape.kind, shape.name, description, _listed_lines(shape, callback()))]
            except Exception:  # noqa: BLE001 - one gauge that fails must not fail the whole scrape
                self._failures.inc(shape.name)
                return []

        self._once(shape, lambda: self._sources.append(listed))

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics and their content type: OpenMetrics if the Accept header names it, else text."""
        is_open = OPEN_METRICS in accept
        # A callback may register a metric.
        families = [family.text(is_open=is_open) for source in list(self._sources) for family in source()]
        if is_open:
            return "".join([*families, "# EOF\n"]).encode(), CONTENT_TYPE_OPEN_METRICS
        return "".join(families).encode(), CONTENT_TYPE_TEXT

    def _once(self, shape: _Shape, make: Callable[[], Made]) -> Made:
        """Return the metric of this name, created at the first call; raise if it was registered differently."""
        if shape.name not in self._known:
            shape.check_names()
            self._reserve(shape)
            self._known[shape.name] = shape, make()
        known_shape, known = self._known[shape.name]
        if known_shape != shape:
            raise ValueError(f"{shape.name} is already {known_shape}; it cannot also be {shape}.")
        made: Made = known
        return made

    def _reserve(self, shape: _Shape) -> None:
        """Reserve the names that a scrape shows; raise if another metric shows one of them."""
        for name in shape.shown_names():
            if name in self._shown:
                raise ValueError(f"{shape.name} cannot be {shape}: {self._shown[name]} shows {name} already.")
        self._shown.update(dict.fromkeys(shape.shown_names(), shape.name))

    def _numbers(self, shape: _Shape, description: str) -> _Numbers:
        made = _Numbers(shape)
        self._sources.append(lambda: [_Family(shape.kind, shape.name, description, made.lines())])
        return made


def _listed_lines(shape: _Shape, reading: Reading) -> list[str]:
    lines: list[str] = []
    for values, number in reading.items() if isinstance(reading, Mapping) else [((), reading)]:
        shape.check_values(values)
        lines.append(
            f"{shape.name}{_labels_text(shape.labels, tuple(map(_encodable, values)))} {_number_text(number)}\n"
        )
    return lines
