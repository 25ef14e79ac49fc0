"""The command line of `orlop attacher` is that of the attacher it takes the place of, flag by flag."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from orlop.csi.endpoint import UnixEndpoint
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import UsageError, describe, help_text, parse_flags
from orlop.processes.attacher import DAEMON, AttacherFlags
from orlop.sidecars.attacher.attachment_controller import SHARE_OF_A_NODE
from orlop.sidecars.attacher.handler import AttacherSettings
from support.places import REPOSITORY

DOCUMENTS = REPOSITORY / "docs"
UPSTREAMS: list[tuple[str, str]] = [
    ("automaxprocs", "false"),
    ("csi-address", "/run/csi/socket"),
    ("default-fstype", ""),
    ("feature-gates", ""),
    ("http-endpoint", ""),
    ("kube-api-burst", "10"),
    ("kubeconfig", ""),
    ("leader-election", "false"),
    ("leader-election-labels", ""),
    ("leader-election-lease-duration", "15s"),
    ("leader-election-namespace", ""),
    ("leader-election-renew-deadline", "10s"),
    ("leader-election-retry-period", "5s"),
    ("max-entries", "0"),
    ("max-grpc-log-length", "-1"),
    ("metrics-address", ""),
    ("metrics-path", "/metrics"),
    ("reconcile-sync", "1m"),
    ("resync", "10m"),
    ("retry-interval-max", "5m"),
    ("retry-interval-start", "1s"),
    ("timeout", "15s"),
    ("version", "false"),
    # its logger's
    ("log-flush-frequency", "5s"),
    ("log-json-info-buffer-size", "0"),
    ("log-json-split-stream", "false"),
    ("log-text-info-buffer-size", "0"),
    ("log-text-split-stream", "false"),
    ("logging-format", "text"),
    ("v", "0"),
    ("vmodule", ""),
]
OTHER_DEFAULTS = {"kube-api-qps", "worker-threads"}
OLD_KLOGS = [
    *("add_dir_header", "alsologtostderr", "log_backtrace_at", "log_dir", "log_file", "log_file_max_size"),
    *("logtostderr", "one_output", "skip_headers", "skip_log_headers", "stderrthreshold"),
]


class NoJitter(Random):
    def random(self) -> float:
        return 0.0


def flags(*arguments: str, **environment: str) -> AttacherFlags:
    found: AttacherFlags = parse_flags(
        AttacherFlags,
        arguments,
        program=DAEMON.program,
        summary=DAEMON.summary,
        environment=environment,
        warn=lambda _: None,
    )
    return found


def rows() -> dict[str, Any]:
    return {name: row for row in describe(AttacherFlags).rows for name in row.names}


@pytest.mark.parametrize(("name", "default"), UPSTREAMS, ids=[name for name, _ in UPSTREAMS])
def test_each_of_upstreams_flags_is_there_with_its_default(name: str, default: str):
    assert (rows()[name].default or "") == default


@pytest.mark.parametrize("name", OLD_KLOGS)
def test_each_flag_of_klogs_that_stands_in_old_manifests_is_taken(name: str):
    assert rows()[name].deprecated


def test_only_the_rate_of_requests_and_the_number_of_workers_have_other_defaults():
    assert rows()["kube-api-qps"].default == "0", "upstream's 5 makes attaching slow"
    assert flags().rate is None
    assert rows()["worker-threads"].default == "100", "upstream's 10 makes attaching slow"


def test_no_flag_is_shown_that_upstreams_has_not_but_for_the_log():
    shown = {name for row in describe(AttacherFlags).shown for name in row.names}
    assert shown - {name for name, _ in UPSTREAMS} - set(OLD_KLOGS) == OTHER_DEFAULTS | {"log-format", "log-level"}


def test_the_trivial_handler_can_be_forced_by_a_flag_that_is_not_shown():
    assert flags("--trivial-handler").trivial_handler
    assert not flags().trivial_handler
    assert "trivial-handler" not in help_text(describe(AttacherFlags), program=DAEMON.program)


@pytest.mark.parametrize(
    ("written", "rate"),
    [
        (["--kube-api-qps=100", "--kube-api-burst=200"], (100.0, 200)),
        (["--kube-api-qps=2.5"], (2.5, 10)),
        (["--kube-api-qps=5", "--kube-api-burst=0"], (5.0, 10)),
        (["--kube-api-qps=-1"], None),
        (["--kube-api-qps=0", "--kube-api-burst=5"], None),
    ],
)
def test_the_rate_is_limited_only_where_it_is_asked_for(written: list[str], rate: tuple[float, int] | None):
    found = flags(*written).rate
    assert (found and (found.per_second, found.burst)) == rate


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        (["-timeout", "1m30s"], "timeout", Duration.parse("90s")),
        (["--timeout=1h2m3.5s"], "timeout", Duration.parse("3723.5s")),
        (["-worker-threads=0x10"], "worker_threads", 16),
        (["-leader-election=T"], "leader", True),
        (["--leader-election"], "leader", True),
        (["--leader-election=false"], "leader", False),
        (["-csi-address", "/csi/csi.sock"], "csi_address", UnixEndpoint("/csi/csi.sock")),
        (["--csi-address=unix:///csi/csi.sock"], "csi_address", UnixEndpoint("/csi/csi.sock")),
    ],
)
def test_values_are_written_as_go_reads_them(written: list[str], field: str, value: object):
    found = flags(*written)
    assert (found.leader.leader_election if field == "leader" else getattr(found, field)) == value


@pytest.mark.parametrize(
    "gates",
    [
        "MutableCSINodeAllocatableCount=true",
        "MutableCSINodeAllocatableCount=false,ReleaseLeaderElectionOnExit=true",
        "AllAlpha=true",
        "",
    ],
)
def test_feature_gates_are_taken(gates: str):
    flags(f"--feature-gates={gates}")


def test_the_leases_labels_are_pairs_with_a_colon_as_upstreams():
    found = flags("--leader-election-labels=team:storage,example.com/tier:1")
    assert found.leader.leader_election_labels == {"team": "storage", "example.com/tier": "1"}
    twice = flags("--leader-election-labels=a:b", "-leader-election-labels", "c:d")
    assert twice.leader.leader_election_labels == {"a": "b", "c": "d"}


@pytest.mark.parametrize("written", ["team=storage", "a", ":b", "a b:c", "a:-", "a:b:c"])
def test_labels_that_no_lease_can_have_are_refused(written: str):
    with pytest.raises(UsageError, match="leader-election-labels"):
        flags(f"--leader-election-labels={written}")


@pytest.mark.parametrize(
    ("start", "most", "delays"),
    [
        ("1s", "5m", [1.0, 2.0, 4.0, 300.0]),
        ("10s", "1s", [1.0, 1.0, 1.0, 1.0]),
        ("0s", "5m", [0.001, 0.002, 0.004, 300.0]),
        ("-1s", "0s", [0.001, 0.001, 0.001, 0.001]),
    ],
    ids=["as usual", "the most is less than the first", "at once", "never later than at once"],
)
def test_a_failure_is_tried_again_after_the_first_interval_and_twice_as_long_each_time_up_to_the_most(
    start: str, most: str, delays: list[float]
):
    found = flags(f"--retry-interval-start={start}", f"--retry-interval-max={most}")
    first, last = found.retry_interval_start.seconds, found.retry_interval_max.seconds
    backoff = AttacherSettings("d", "f", retry_start=first, retry_most=last).backoff
    assert [backoff.delay(failures, NoJitter()) for failures in (1, 2, 3, 100)] == delays


@pytest.mark.parametrize("number", [0, 1, 2**31 - 1])
def test_a_page_has_as_many_entries_as_a_driver_can_be_asked_for(number: int):
    assert flags(f"--max-entries={number}").max_entries == number
    with pytest.raises(UsageError, match="allowed is 0 to 2147483647"):
        flags(f"--max-entries={2**31 + number}")


def test_the_times_of_a_lease_must_fit_together_only_where_there_is_one():
    out_of_order = ("--leader-election-lease-duration=5s", "--leader-election-retry-period=1m")
    assert not flags(*out_of_order).leader.leader_election
    with pytest.raises(UsageError, match="the lease duration"):
        flags(*out_of_order, "--leader-election")


@pytest.mark.parametrize("never", ["0s", "-1s"])
def test_a_driver_that_is_away_is_waited_for_some_time_also_without_a_lease(never: str):
    with pytest.raises(UsageError, match="--leader-election-renew-deadline"):
        flags(f"--leader-election-renew-deadline={never}")


def test_the_share_of_the_workers_that_one_node_may_have_is_documented():
    share = f"at most {SHARE_OF_A_NODE * 100:g} % of the workers that other nodes leave"
    assert share in " ".join((DOCUMENTS / "attacher.md").read_text().split())


def test_the_lease_is_in_the_pods_namespace_unless_told_otherwise():
    assert flags(POD_NAMESPACE="storage").leader.leader_election_namespace == "storage"
    told = flags("--leader-election-namespace=other", POD_NAMESPACE="storage")
    assert told.leader.leader_election_namespace == "other"


def test_the_command_line_of_the_seed_works_as_typed():
    found = flags("-kubeconfig", "/etc/attacher/kubeconfig", "-v", "5", "-csi-address", "/run/csi/socket")
    assert (found.kubeconfig, found.log.verbosity) == ("/etc/attacher/kubeconfig", 5)
    assert found.csi_address == UnixEndpoint("/run/csi/socket")


def test_the_command_line_of_the_seeds_manifest_works_as_typed():
    found = flags(
        "--v=5", "--csi-address=$(ADDRESS)".replace("$(ADDRESS)", "/var/lib/csi/sockets/pluginproxy/csi.sock")
    )
    assert found.csi_address == UnixEndpoint("/var/lib/csi/sockets/pluginproxy/csi.sock")
