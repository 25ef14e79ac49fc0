"""Proves that a scrape is byte for byte what prometheus_client writes for the same metrics and the same operations."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import prometheus_client
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from prometheus_client.exposition import generate_latest as plain_text
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import CONTENT_TYPE_LATEST as CONTENT_TYPE_OPEN_METRICS
from prometheus_client.openmetrics.exposition import generate_latest as open_metrics_text
from prometheus_client.registry import Collector, CollectorRegistry

from orlop.foundation.metrics import Metrics

OPEN_METRICS = "application/openmetrics-text"
LIBRARY = {
    "counter": prometheus_client.Counter,
    "gauge": prometheus_client.Gauge,
    "histogram": prometheus_client.Histogram,
}

# `le` is the label of a bucket: labels are sorted by name, so that some stand before it and some after.
LABELS = ("a", "code", "lf", "method", "z_9")
ODD_TEXTS = ["", "\\", '"', "\n", "\\n", 'a"b\\c\nd', "é", "\udcff", "\\udcff", "日本", "\x00", "{}", ","]
ODD_NUMBERS = [
    *(0.0, -0.0, 1, True, 1e6, 999999.5, 1234567.0, 1e16, 1.5e22, -1e9, 5e-324, 10**20),
    *(float("nan"), float("inf"), float("-inf")),
]
TEXT = st.sampled_from(ODD_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=6)
NUMBERS = st.sampled_from(ODD_NUMBERS) | st.floats() | st.integers(-(10**20), 10**20)


@dataclass(frozen=True)
class Described:
    """A metric and what happens to it."""

    kind: str
    description: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...]
    operations: list[tuple[tuple[str, ...], float]]


@st.composite
def described(draw: st.DrawFn) -> Described:
    kind = draw(st.sampled_from(["counter", "gauge", "histogram", "listed"]))
    labels = tuple(draw(st.lists(st.sampled_from(LABELS), unique=True, max_size=3)))
    bounds = st.lists(st.floats(allow_nan=False) | st.sampled_from([0.1, 1.0, 1e7]), min_size=1, max_size=4)
    buckets = tuple(sorted(draw(bounds.filter(lambda some: some != [float("inf")]))))
    numbers = NUMBERS.filter(lambda number: not number < 0) if kind == "counter" else NUMBERS
    operations = draw(st.lists(st.tuples(st.tuples(*(TEXT for _ in labels)), numbers), max_size=5))
    return Described(kind, draw(TEXT.filter(is_utf8)), labels, buckets, operations)


def is_utf8(text: str) -> bool:
    return "\udcff" not in text


def ours(metrics: list[Described]) -> Metrics:
    registry = Metrics("1.2.3", of_process=False)
    for number, metric in enumerate(metrics):
        name = f"orlop_{number}_total" if metric.kind == "counter" else f"orlop_{number}"
        if metric.kind == "counter":
            counter = registry.counter(name, metric.description, metric.labels)
            for values, by in metric.operations:
                counter.inc(*values, by=by)
        elif metric.kind == "gauge":
            gauge = registry.gauge(name, metric.description, metric.labels)
            for values, value in metric.operations:
                gauge.set(value, *values)
        elif metric.kind == "histogram":
            histogram = registry.histogram(name, metric.description, metric.labels, metric.buckets)
            for values, seconds in metric.operations:
                histogram.observe(seconds, *values)
        else:
            listed = dict(metric.operations)
            registry.gauge_from(name, metric.description, lambda listed=listed: listed, metric.labels)
    return registry


def of_library(metrics: list[Described], build: Iterable[str]) -> CollectorRegistry:
    registry = CollectorRegistry()
    version = ("version", "python")
    made = prometheus_client.Gauge("orlop_build_info", "The version of Orlop that runs.", version, registry=registry)
    made.labels(*build).set(1)
    failures = "orlop_metric_failures_total"
    prometheus_client.Counter(failures, "Failed attempts to list a metric.", ["metric"], registry=registry)
    for number, metric in enumerate(metrics):
        if metric.kind == "listed":
            registry.register(Listed(f"orlop_{number}", metric))
            continue
        more: dict[str, Any] = {"buckets": metric.buckets} if metric.kind == "histogram" else {}
        kind: Any = LIBRARY[metric.kind]
        parent = kind(f"orlop_{number}", metric.description, metric.labels, registry=registry, **more)
        for values, value in metric.operations:
            child = parent.labels(*map(encodable, values)) if values else parent
            getattr(child, {"counter": "inc", "gauge": "set", "histogram": "observe"}[metric.kind])(value)
    return registry


def encodable(value: str) -> str:
    return value.encode("utf-8", "backslashreplace").decode()


class Listed(Collector):
    def __init__(self, name: str, metric: Described) -> None:
        self._name, self._metric = name, metric

    def collect(self) -> Iterable[Metric]:
        family = GaugeMetricFamily(self._name, self._metric.description, labels=self._metric.labels)
        for values, value in dict(self._metric.operations).items():
            family.add_metric([encodable(label) for label in values], value)
        return [family]


class WithoutCreationTimes(Collector):
    def __init__(self, registry: Collector) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for family in self._registry.collect():
            family.samples = [sample for sample in family.samples if sample.name != f"{family.name}_created"]
            yield family


def assert_same_scrape(metrics: list[Described]) -> None:
    registry = ours(metrics)
    build = re.search(rb'orlop_build_info{python="(.*)",version="(.*)"} 1.0\n', registry.render()[0])
    assert build is not None
    expected = WithoutCreationTimes(of_library(metrics, (build[2].decode(), build[1].decode())))

    for _ in range(2):  # a scrape changes nothing
        assert registry.render() == (plain_text(expected), CONTENT_TYPE_PLAIN_0_0_4)
        open_metrics = open_metrics_text(expected)  # type: ignore[no-untyped-call]
        assert registry.render(OPEN_METRICS) == (open_metrics, CONTENT_TYPE_OPEN_METRICS)


@given(st.lists(described(), max_size=4))
def test_a_scrape_is_what_prometheus_client_writes_for_the_same_operations(metrics: list[Described]):
    assert_same_scrape(metrics)


@pytest.mark.parametrize("kind", ["counter", "gauge", "histogram", "listed"])
def test_odd_numbers_and_labels_are_written_as_prometheus_client_writes_them(kind: str):
    numbers = [number for number in ODD_NUMBERS if not (kind == "counter" and number < 0)]
    of_numbers = [((str(place),), number) for place, number in enumerate(numbers)]
    of_texts = [((text,), 1.0) for text in ODD_TEXTS]
    metrics = [
        Described(kind, text, ("method",), buckets, operations)
        for text in filter(is_utf8, ODD_TEXTS)
        for buckets in ((0.0, 1.0, 1e7), (-1.0, 1.0, float("inf")))
        for operations in (of_numbers, of_texts)
    ]
    assert_same_scrape(metrics)


# Everything but these moves between two readings.
FIXED = ("process_start_time_seconds", "process_max_fds")


@pytest.mark.parametrize("accept", ["", OPEN_METRICS])
def test_the_figures_of_the_process_are_those_of_prometheus_client(accept: str):
    registry = CollectorRegistry()
    prometheus_client.ProcessCollector(registry=registry)
    expected: bytes = open_metrics_text(registry) if accept else plain_text(registry)  # type: ignore[no-untyped-call]
    shown = Metrics("1").render(accept)[0]

    process = [line for line in shown.decode().splitlines() if "process_" in line]
    theirs = [line for line in expected.decode().splitlines() if "process_" in line]

    assert [without_value(line) for line in process] == [without_value(line) for line in theirs]
    assert [line for line in process if line.startswith(FIXED)] == [line for line in theirs if line.startswith(FIXED)]
    values = {line.split()[0]: float(line.split()[1]) for line in process if not line.startswith("#")}
    assert all(value > 0 for value in values.values()), values


def without_value(line: str) -> str:
    return line if line.startswith("#") else line.split(maxsplit=1)[0]
