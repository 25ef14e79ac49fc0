"""The command line of `orlop provisioner` is that of the provisioner it takes the place of, flag by flag."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from orlop.csi.endpoint import UnixEndpoint
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import UsageError, describe, parse_flags
from orlop.processes.provisioner import DAEMON, ProvisionerFlags, only_labels
from orlop.processes.sidecar import NO_EFFECT
from orlop.sidecars.provisioner.provisioner_settings import ProvisionerSettings

UPSTREAMS: list[tuple[str, str]] = [
    ("automaxprocs", "false"),
    ("capacity-for-immediate-binding", "false"),
    ("capacity-ownerref-level", "1"),
    ("capacity-poll-interval", "1m"),
    ("capacity-threads", "1"),
    ("cloning-protection-threads", "1"),
    ("controller-publish-readonly", "false"),
    ("csi-address", "/run/csi/socket"),
    ("default-fstype", ""),
    ("enable-capacity", "false"),
    ("enable-pprof", "false"),
    ("extra-create-metadata", "false"),
    ("feature-gates", ""),
    ("http-endpoint", ""),
    ("immediate-topology", "true"),
    ("kube-api-burst", "10"),
    ("kube-api-capacity-burst", "5"),
    ("kube-api-capacity-qps", "1"),
    ("kubeconfig", ""),
    ("leader-election", "false"),
    ("leader-election-labels", ""),
    ("leader-election-lease-duration", "15s"),
    ("leader-election-namespace", ""),
    ("leader-election-renew-deadline", "10s"),
    ("leader-election-retry-period", "5s"),
    ("master", ""),
    ("max-grpc-log-length", "-1"),
    ("metrics-address", ""),
    ("metrics-path", "/metrics"),
    ("node-deployment", "false"),
    ("node-deployment-base-delay", "20s"),
    ("node-deployment-immediate-binding", "true"),
    ("node-deployment-max-delay", "60s"),
    ("prevent-volume-mode-conversion", "true"),
    ("retry-interval-max", "5m"),
    ("retry-interval-start", "1s"),
    ("snapshot-orphan-sweep-interval", "5m"),
    ("strict-topology", "false"),
    ("timeout", "10s"),
    ("version", "false"),
    ("volume-name-prefix", "pvc"),
    ("volume-name-uuid-length", "-1"),
    ("worker-threads", "100"),
    ("v", "0"),
    ("vmodule", ""),
    ("logging-format", "text"),
]


class NoJitter(Random):
    def random(self) -> float:
        return 0.0


def flags(*arguments: str, **environment: str) -> ProvisionerFlags:
    found: ProvisionerFlags = parse_flags(
        ProvisionerFlags,
        arguments,
        program=DAEMON.program,
        summary=DAEMON.summary,
        environment=environment,
        warn=lambda _: None,
    )
    return found


def rows() -> dict[str, Any]:
    return {name: row for row in describe(ProvisionerFlags).rows for name in row.names}


@pytest.mark.parametrize(("name", "default"), UPSTREAMS, ids=[name for name, _ in UPSTREAMS])
def test_each_of_upstreams_flags_is_there_with_its_default(name: str, default: str):
    assert (rows()[name].default or "") == default


def test_no_flag_is_shown_that_upstreams_has_not_but_for_the_log_and_the_rate():
    klogs = ("log-flush-frequency", "log-json", "log-text", "log_", "skip_", "stderr", "logtostderr", "alsologtostderr")
    shown = {name for row in describe(ProvisionerFlags).shown for name in row.names}
    own = {name for name in shown - {name for name, _ in UPSTREAMS} if not name.startswith(klogs)}
    assert own - {"add_dir_header", "one_output"} == {"kube-api-qps", "log-format", "log-level"}


@pytest.mark.parametrize(
    ("written", "field", "value"),
    [
        (["-timeout", "1m30s"], "timeout", Duration.parse("90s")),
        (["--worker-threads=0x10"], "worker_threads", 16),
        (["--csi-address=unix:///csi/csi.sock"], "csi_address", UnixEndpoint("/csi/csi.sock")),
        (["--volume-name-prefix=kubernetes-dynamic-pv"], "volume_name_prefix", "kubernetes-dynamic-pv"),
        ([f"--volume-name-prefix={'p' * 216}"], "volume_name_prefix", "p" * 216),
        (["--volume-name-prefix=v1.pvc-"], "volume_name_prefix", "v1.pvc-"),
        (["--volume-name-uuid-length=32"], "volume_name_uuid_length", 32),
        (["--volume-name-uuid-length", "1"], "volume_name_uuid_length", 1),
        (["--default-fstype=ext4"], "default_fstype", "ext4"),
        (["-extra-create-metadata"], "extra_create_metadata", True),
        (["--controller-publish-readonly=true"], "controller_publish_readonly", True),
        (["--strict-topology"], "strict_topology", True),
        (["--immediate-topology=false"], "immediate_topology", False),
        (["--retry-interval-start=500ms"], "retry_interval_start", Duration.parse("0.5s")),
    ],
)
def test_values_are_written_as_go_reads_them(written: list[str], field: str, value: object):
    assert getattr(flags(*written), field) == value


@pytest.mark.parametrize(
    "gates",
    ["Topology=true", "VolumeAttributesClass=false,CrossNamespaceVolumeDataSource=true", "AllAlpha=true", ""],
)
def test_feature_gates_are_taken(gates: str):
    flags(f"--feature-gates={gates}")


@pytest.mark.parametrize(
    ("written", "part"),
    [
        (["--enable-capacity"], "--enable-capacity is not supported yet"),
        (["--enable-capacity=true"], "storageCapacity: false"),
        (["--node-deployment"], "--node-deployment is not supported"),
        (["--volume-name-prefix="], "Volume name prefix cannot be empty"),
        (["--volume-name-prefix=PVC"], "must begin a valid object name"),
        (["--volume-name-prefix=-pvc"], "must begin a valid object name"),
        (["--volume-name-prefix=a/b"], "must begin a valid object name"),
        ([f"--volume-name-prefix={'p' * 217}"], "at most 216 characters"),
        (["--volume-name-uuid-length=0"], "must be -1 or between 1 and 32"),
        (["--volume-name-uuid-length=33"], "must be -1 or between 1 and 32"),
        (["--volume-name-uuid-length=-2"], "must be -1 or between 1 and 32"),
        (["--worker-threads=0"], "worker-threads"),
        (["--timeout=0s"], "timeout"),
        (["--timeout=-1s"], "timeout"),
        (["--metrics-path=metrics"], "it must begin with a slash"),
        (["--http-endpoint=:80", "--metrics-address=:81"], "Only one of"),
        (["--unknown-flag"], "unknown-flag"),
    ],
)
def test_what_cannot_work_is_refused_with_a_sentence(written: list[str], part: str):
    with pytest.raises(UsageError, match=part):
        flags(*written)


@pytest.mark.parametrize("written", ["--enable-capacity=false", "--node-deployment=false"])
def test_what_is_not_supported_may_be_switched_off(written: str):
    flags(written)


@pytest.mark.parametrize(
    "name",
    [
        *("prevent-volume-mode-conversion", "cloning-protection-threads", "snapshot-orphan-sweep-interval"),
        *("enable-pprof", "master", "capacity-threads", "capacity-poll-interval", "kube-api-capacity-qps"),
        *("node-deployment-base-delay", "node-deployment-immediate-binding"),
    ],
)
def test_what_is_taken_and_has_no_effect_says_so(name: str):
    assert rows()[name].help == NO_EFFECT


def test_the_deployment_of_the_hostpath_example_works_as_typed():
    found = flags(
        "-v=5",
        "--csi-address=/csi/csi.sock",
        "--feature-gates=Topology=true",
        "--extra-create-metadata",
        "--leader-election",
        "--http-endpoint=:8080",
        POD_NAMESPACE="storage",
    )
    assert found.leader.leader_election_namespace == "storage"
    assert found.extra_create_metadata


@pytest.mark.parametrize(
    ("start", "most", "delays"),
    [
        ("1s", "5m", [1.0, 2.0, 4.0, 300.0]),
        ("10s", "1s", [1.0, 1.0, 1.0, 1.0]),
        ("0s", "5m", [0.001, 0.002, 0.004, 300.0]),
    ],
)
def test_a_failure_is_retried_after_the_first_interval_and_twice_as_long_each_time(
    start: str, most: str, delays: list[float]
):
    found = flags(f"--retry-interval-start={start}", f"--retry-interval-max={most}")
    first, last = found.retry_interval_start.seconds, found.retry_interval_max.seconds
    backoff = ProvisionerSettings(driver="d", identity="i", retry_start=first, retry_most=last).backoff
    assert [backoff.delay(failures, NoJitter()) for failures in (1, 2, 3, 100)] == delays


def test_of_a_node_only_what_topology_needs_is_kept():
    node = {
        "metadata": {
            "name": "n",
            "uid": "u",
            "resourceVersion": "1",
            "labels": {"zone": "a"},
            "annotations": {"a": "b"},
        },
        "status": {"images": ["x"] * 50},
    }
    assert only_labels(node) == {"metadata": {"name": "n", "uid": "u", "resourceVersion": "1", "labels": {"zone": "a"}}}
