"""Proves what a scrape shows, by parsing it with Prometheus' own parsers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_open_metrics
from prometheus_client.parser import text_string_to_metric_families as parse_plain

from orlop.foundation.metrics import Metrics

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def metrics() -> Metrics:
    return Metrics("1.2.3", of_process=False)


def scraped(metrics: Metrics) -> Samples:
    body, _ = metrics.render()
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parse_plain(body.decode())
        for sample in family.samples
    }


def value(metrics: Metrics, name: str, /, **labels: str) -> float | None:
    return scraped(metrics).get((name, frozenset(labels.items())))


def test_a_counter_counts_for_each_combination_of_labels():
    registry = metrics()
    calls = registry.counter("orlop_calls_total", "Calls.", ("method", "code"))
    calls.inc("Publish", "OK")
    calls.inc("Publish", "OK", by=2)
    calls.inc("Publish", "Internal")
    assert value(registry, "orlop_calls_total", method="Publish", code="OK") == 3
    assert value(registry, "orlop_calls_total", method="Publish", code="Internal") == 1


def test_a_metric_without_labels_is_shown_before_its_first_use():
    registry = metrics()
    registry.counter("orlop_erased_total", "Erased.")
    assert value(registry, "orlop_erased_total") == 0


def test_a_gauge_shows_what_was_set_last():
    registry = metrics()
    leader = registry.gauge("orlop_leader", "Leads.", ("name",))
    leader.set(1, "provisioner")
    leader.set(0, "provisioner")
    assert value(registry, "orlop_leader", name="provisioner") == 0


def test_a_histogram_counts_each_observation_in_every_bucket_it_fits():
    registry = metrics()
    took = registry.histogram("orlop_call_seconds", "Took.", ("method",), (0.1, 1.0))
    for seconds in (0.05, 0.5, 5.0):
        took.observe(seconds, "Stage")
    buckets = {
        bound: value(registry, "orlop_call_seconds_bucket", method="Stage", le=bound)
        for bound in ("0.1", "1.0", "+Inf")
    }
    assert buckets == {"0.1": 1, "1.0": 2, "+Inf": 3}
    assert value(registry, "orlop_call_seconds_sum", method="Stage") == pytest.approx(5.55)


def test_a_listed_gauge_shows_the_state_at_the_time_of_the_scrape():
    registry = metrics()
    volumes: dict[tuple[str, ...], float] = {("d1",): 2, ("d2",): 1}
    registry.gauge_from("orlop_volumes", "Volumes.", lambda: volumes, ("drive",))
    assert value(registry, "orlop_volumes", drive="d1") == 2
    del volumes["d1",]
    assert value(registry, "orlop_volumes", drive="d1") is None
    assert value(registry, "orlop_volumes", drive="d2") == 1


def test_a_listed_gauge_without_labels_is_one_number():
    registry = metrics()
    registry.gauge_from("orlop_queue_length", "Waiting.", lambda: 7)
    assert value(registry, "orlop_queue_length") == 7


def fail() -> float:
    raise RuntimeError("the disk does not answer")


def wrong_labels() -> dict[tuple[str, ...], float]:
    return {("a", "b"): 1}


@pytest.mark.parametrize("callback", [fail, wrong_labels])
def test_a_gauge_that_cannot_be_listed_is_left_out_and_counted_and_the_others_stay(callback: Any):
    registry = metrics()
    registry.gauge_from("orlop_broken", "Broken.", callback)
    registry.gauge_from("orlop_whole", "Whole.", lambda: 1)
    registry.render()
    shown = scraped(registry)
    assert shown["orlop_metric_failures_total", frozenset({("metric", "orlop_broken")})] == 1
    assert ("orlop_whole", frozenset()) in shown
    assert ("orlop_broken", frozenset()) not in shown


def test_the_build_is_shown():
    assert any(name == "orlop_build_info" and ("version", "1.2.3") in labels for name, labels in scraped(metrics()))


def test_figures_of_the_process_are_shown_unless_told_otherwise():
    with_process, without = scraped(Metrics("1")), scraped(metrics())
    names = {"process_resident_memory_bytes", "process_cpu_seconds_total", "process_open_fds"}
    assert names <= {name for name, _ in with_process}
    assert not any(name.startswith("process_") for name, _ in without)


def test_the_same_name_and_shape_give_the_same_metric():
    registry = metrics()
    for _ in range(2):
        registry.counter("orlop_calls_total", "Calls.", ["method"]).inc("a")
        registry.histogram("orlop_seconds", "Took.", [], [1.0]).observe(0.5)
        registry.gauge_from("orlop_listed", "Listed.", zero)
    assert value(registry, "orlop_calls_total", method="a") == 2
    assert value(registry, "orlop_seconds_count") == 2


def zero() -> float:
    return 0


def test_the_same_name_in_another_shape_is_refused():
    registry = metrics()
    registry.gauge("orlop_a", "A.", ("x",))
    registry.histogram("orlop_b", "B.", (), (1.0,))
    registry.gauge_from("orlop_c", "C.", zero)
    with pytest.raises(ValueError, match=r"orlop_a is already a gauge with the labels x; it .* a gauge with no labels"):
        registry.gauge("orlop_a", "A.")
    with pytest.raises(ValueError, match="orlop_a is already"):
        registry.histogram("orlop_a", "A.", ("x",), (1.0,))
    with pytest.raises(ValueError, match=r"with no labels, the buckets \(1.0,\); it cannot also be .*\(2.0,\)"):
        registry.histogram("orlop_b", "B.", (), (2.0,))
    with pytest.raises(ValueError, match="orlop_c is already a gauge with no labels, listed by"):
        registry.gauge_from("orlop_c", "C.", lambda: 1)


@pytest.mark.parametrize("name", ["", "Orlop", "orlop-x", "1orlop", "orlop x", "orlop:x"])
def test_a_name_that_would_need_quoting_is_refused(name: str):
    with pytest.raises(ValueError, match="cannot name a metric or a label: allowed are a-z, 0-9 and _"):
        metrics().gauge(name, "X.")
    with pytest.raises(ValueError, match="cannot name a metric or a label"):
        metrics().gauge("orlop_x", "X.", (name,))


def test_counters_and_only_they_end_with_total():
    with pytest.raises(ValueError, match="orlop_calls cannot name a counter"):
        metrics().counter("orlop_calls", "Calls.")
    with pytest.raises(ValueError, match="orlop_calls_total cannot name a gauge"):
        metrics().gauge("orlop_calls_total", "Calls.")


def test_a_wrong_number_of_label_values_is_refused():
    calls = metrics().counter("orlop_calls_total", "Calls.", ("method",))
    with pytest.raises(ValueError, match=r"has the labels \('method',\) and cannot have the values \(\)"):
        calls.inc()


def test_a_name_that_another_metric_shows_is_refused():
    registry = metrics()
    registry.histogram("orlop_a", "A.", (), (1.0,))
    registry.counter("orlop_b_total", "B.")
    with pytest.raises(ValueError, match=r"orlop_a_count cannot be a gauge .*: orlop_a shows orlop_a_count already"):
        registry.gauge("orlop_a_count", "A.")
    with pytest.raises(ValueError, match="orlop_b_total shows orlop_b already"):
        registry.gauge_from("orlop_b", "B.", zero)


@pytest.mark.parametrize("buckets", [(), (2.0, 1.0)])
def test_buckets_that_are_none_or_do_not_rise_are_refused(buckets: tuple[float, ...]):
    with pytest.raises(ValueError, match=r"orlop_a cannot have the buckets .*: one or more, in rising order"):
        metrics().histogram("orlop_a", "A.", (), buckets)


def test_the_label_of_buckets_is_refused():
    with pytest.raises(ValueError, match="orlop_a cannot have the label le"):
        metrics().histogram("orlop_a", "A.", ("le",), (1.0,))


def test_a_counter_never_falls():
    registry = metrics()
    calls = registry.counter("orlop_calls_total", "Calls.")
    with pytest.raises(ValueError, match="only grows; it cannot be changed by -1"):
        calls.inc(by=-1)
    assert value(registry, "orlop_calls_total") == 0


def test_labels_that_are_shown_alike_are_one_series():
    registry = metrics()
    calls = registry.counter("orlop_calls_total", "Calls.", ("path",))
    calls.inc("/mnt/\udcff")
    calls.inc("/mnt/\\udcff")
    assert value(registry, "orlop_calls_total", path="/mnt/\\udcff") == 2
    assert registry.render()[0].count(b"orlop_calls_total{") == 1


@pytest.mark.parametrize("accept", ["", "*/*", "text/html;version=x", "text/plain;version=0.0.4"])
def test_the_text_format_is_given_unless_asked_otherwise(accept: str):
    body, content_type = metrics().render(accept)
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    assert b"# TYPE orlop_build_info gauge\n" in body


def test_open_metrics_is_given_when_asked_for():
    registry = metrics()
    registry.counter("orlop_calls_total", "Calls.").inc()
    body, content_type = registry.render("application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.3")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert body.endswith(b"# EOF\n")
    assert {family.name for family in parse_open_metrics(body.decode())} >= {"orlop_calls", "orlop_build_info"}


@pytest.mark.parametrize("accept", ["", "application/openmetrics-text"])
def test_no_creation_times_are_shown(accept: str):
    registry = metrics()
    registry.counter("orlop_calls_total", "Calls.").inc()
    registry.histogram("orlop_seconds", "Took.", (), (1.0,)).observe(2)
    assert b"_created" not in registry.render(accept)[0]


def test_two_registries_share_nothing():
    one, other = metrics(), metrics()
    one.counter("orlop_calls_total", "Calls.").inc()
    assert value(other, "orlop_calls_total") is None


def test_a_label_that_utf8_cannot_hold_is_escaped_instead_of_spoiling_the_scrape():
    registry = metrics()
    registry.counter("orlop_calls_total", "Calls.", ("path",)).inc("/mnt/\udcff")
    registry.gauge_from("orlop_listed", "Listed.", lambda: {("/mnt/\udcff",): 1}, ("path",))
    assert value(registry, "orlop_calls_total", path="/mnt/\\udcff") == 1
    assert value(registry, "orlop_listed", path="/mnt/\\udcff") == 1


@given(st.dictionaries(st.text(st.characters(codec="utf-8")), st.floats(allow_nan=False), max_size=5))
def test_any_label_value_survives_a_scrape(series: dict[str, float]):
    registry = metrics()
    registry.gauge_from("orlop_listed", "Listed.", lambda: {(x,): number for x, number in series.items()}, ("x",))
    shown = scraped(registry)
    assert {x: shown["orlop_listed", frozenset({("x", x)})] for x in series} == series
