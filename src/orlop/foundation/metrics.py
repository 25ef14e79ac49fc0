"""Metrics of one process, in a registry that is passed in: nothing is global.

Get a metric once, in a constructor, and use it with its label values: `calls.observe(0.2, "NodePublish", "OK")`.
Numbers that can be counted by listing (volumes, bytes, queues) come from a callback, so that they cannot drift.

prometheus_client needs 14 MiB, so only code that creates a `Metrics` imports this module at run time; other modules
import its types for the type checker alone. This module must not measure time or serve HTTP. Label values must never
hold secrets or grow without limit.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import prometheus_client
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as as_plain_text
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPEN_METRICS
from prometheus_client.openmetrics.exposition import generate_latest as as_open_metrics
from prometheus_client.registry import Collector, CollectorRegistry

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

OPEN_METRICS = "application/openmetrics-text"
MOST_UNCOUNTED = 200
NAME = re.compile(r"[a-z][a-z0-9_]*")

Series = TypeVar("Series")
Made = TypeVar("Made")
LabelValues: TypeAlias = tuple[str, ...]
Reading: TypeAlias = float | Mapping[LabelValues, float]


@dataclass(frozen=True, slots=True)
class _Shape:
    """The properties that must be equal when a name is registered again."""

    kind: str
    name: str
    labels: LabelValues
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

    def check_values(self, values: LabelValues) -> None:
        if len(values) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels} and cannot have the values {values}.")


def _encodable(value: str) -> str:
    """Replace what UTF-8 cannot encode, such as in file names: one such label would fail the whole scrape."""
    return value.encode("utf-8", "backslashreplace").decode()


# ---- metrics ---------------------------------------------------------------------------------------------------------


class _Children(dict[LabelValues, Series], Generic[Series]):
    """The time series of a metric by label values, created on first use. The library's own lookup takes a lock."""

    __slots__ = ("_metric", "_shape")

    def __init__(self, metric: Any, shape: _Shape) -> None:
        super().__init__()
        self._metric = metric
        self._shape = shape

    def __missing__(self, values: LabelValues) -> Series:
        self._shape.check_values(values)
        child: Series = self._metric.labels(*map(_encodable, values)) if values else self._metric
        self[values] = child
        return child


class Counter:
    """A value that only grows."""

    __slots__ = ("_children",)

    def __init__(self, children: _Children[prometheus_client.Counter]) -> None:
        self._children = children

    def inc(self, *labels: str, by: float = 1) -> None:
        self._children[labels].inc(by)


class Gauge:
    """A value that goes up and down. Prefer `Metrics.gauge_from` if it can be computed at each scrape."""

    __slots__ = ("_children",)

    def __init__(self, children: _Children[prometheus_client.Gauge]) -> None:
        self._children = children

    def set(self, value: float, *labels: str) -> None:
        self._children[labels].set(value)


class Histogram:
    """Durations, counted in buckets.

    Durations are counted many at a time, at the latest when somebody reads: counting one takes several times longer
    where other code ran since the last one.
    """

    __slots__ = ("_children", "_uncounted")

    def __init__(self, children: _Children[prometheus_client.Histogram]) -> None:
        self._children = children
        self._uncounted: list[tuple[prometheus_client.Histogram, float]] = []

    def observe(self, seconds: float, *labels: str) -> None:
        self._uncounted.append((self._children[labels], seconds))
        if len(self._uncounted) >= MOST_UNCOUNTED:
            self.count()

    def count(self) -> None:
        uncounted, self._uncounted = self._uncounted, []
        for child, seconds in uncounted:
            child.observe(seconds)


# ---- the registry ----------------------------------------------------------------------------------------------------


class Metrics:
    """All metrics of one process, or of one node of a simulation (then without figures of the process)."""

    def __init__(self, build_version: str, *, of_process: bool = True) -> None:
        self._registry = CollectorRegistry()
        self._known: dict[str, tuple[_Shape, Any]] = {}
        self._histograms: dict[str, Histogram] = {}
        if of_process:  # CPU, memory and open files, read from /proc at each scrape.
            prometheus_client.ProcessCollector(registry=self._registry)
        build = self.gauge("orlop_build_info", "The version of Orlop that runs.", ("version", "python"))
        build.set(1, build_version, platform.python_version())
        self._failures = self.counter("orlop_metric_failures_total", "Failed attempts to list a metric.", ("metric",))

    def counter(self, name: str, description: str, labels: Sequence[str] = ()) -> Counter:
        shape = _Shape("counter", name, tuple(labels))
        return self._once(shape, lambda: Counter(self._children(prometheus_client.Counter, shape, description)))

    def gauge(self, name: str, description: str, labels: Sequence[str] = ()) -> Gauge:
        shape = _Shape("gauge", name, tuple(labels))
        return self._once(shape, lambda: Gauge(self._children(prometheus_client.Gauge, shape, description)))

    def histogram(self, name: str, description: str, labels: Sequence[str], buckets: Sequence[float]) -> Histogram:
        """Register a histogram. `buckets` are rising upper bounds in seconds; the unbounded one is added."""
        shape = _Shape("histogram", name, tuple(labels), tuple(buckets))
        kind = prometheus_client.Histogram
        made = self._once(shape, lambda: Histogram(self._children(kind, shape, description, buckets=shape.buckets)))
        self._histograms[name] = made
        return made

    def gauge_from(
        self, name: str, description: str, callback: Callable[[], Reading], labels: Sequence[str] = ()
    ) -> None:
        """Register a gauge that a callback computes at each scrape: a number, or one for each tuple of label values.

        A callback that fails leaves its gauge out of the scrape and is counted in orlop_metric_failures_total.
        """
        shape = _Shape("gauge", name, tuple(labels), callback=callback)
        gauge = _ListedGauge(shape, description, callback, self._failures)
        self._once(shape, lambda: self._registry.register(gauge))

    def render(self, accept: str = "") -> tuple[bytes, str]:
        """Return all metrics and their content type: OpenMetrics if the Accept header names it, else text."""
        for histogram in self._histograms.values():
            histogram.count()
        series = _WithoutCreationTimes(self._registry)
        if OPEN_METRICS in accept:
            return as_open_metrics(series), CONTENT_TYPE_OPEN_METRICS  # type: ignore[no-untyped-call]
        return as_plain_text(series), CONTENT_TYPE_PLAIN_0_0_4

    def _once(self, shape: _Shape, make: Callable[[], Made]) -> Made:
        """Return the metric of this name, created at the first call; raise if it was registered differently."""
        if shape.name not in self._known:
            shape.check_names()
            self._known[shape.name] = shape, make()
        known_shape, known = self._known[shape.name]
        if known_shape != shape:
            raise ValueError(f"{shape.name} is already {known_shape}; it cannot also be {shape}.")
        made: Made = known
        return made

    def _children(self, kind: Callable[..., Series], shape: _Shape, description: str, **more: Any) -> _Children[Series]:
        return _Children(kind(shape.name, description, shape.labels, registry=self._registry, **more), shape)


class _ListedGauge(Collector):
    def __init__(self, shape: _Shape, description: str, callback: Callable[[], Reading], failures: Counter) -> None:
        self._shape = shape
        self._description = description
        self._callback = callback
        self._failures = failures

    def collect(self) -> Iterable[Metric]:
        try:
            return [self._family()]
        except Exception:  # noqa: BLE001 - one gauge that fails must not fail the whole scrape
            self._failures.inc(self._shape.name)
            return []

    def _family(self) -> Metric:
        family = GaugeMetricFamily(self._shape.name, self._description, labels=self._shape.labels)
        listed = self._callback()
        for values, number in listed.items() if isinstance(listed, Mapping) else [((), listed)]:
            self._shape.check_values(values)
            family.add_metric([_encodable(value) for value in values], number)
        return family


class _WithoutCreationTimes(Collector):
    """Drop the `_created` series that the library adds to every counter and histogram."""

    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if sample.name != f"{family.name}_created"]
            yield family
