"""The metrics of a worker have the names and labels of local-static-provisioner."""

from __future__ import annotations

from orlop.foundation.metrics import Metrics
from orlop.host.static_disks.disk_entries import DiskEntry, EntryKind
from orlop.records.provisioner_status import LocalVolume
from orlop.static_pv.discovery_rules import DiscoveredDisk, Discovery
from orlop.static_pv.worker_metrics import WorkerMetrics

GIB = 1 << 30


def disk(name: str, size: int, *, device: bool) -> DiscoveredDisk:
    volume = LocalVolume(
        name=name,
        storage_class="fast",
        entry="a",
        capacity_bytes=size,
        capacity="1",
        volume_mode="Filesystem",
        device=device,
    )
    return DiscoveredDisk(volume, DiskEntry(name="a", kind=EntryKind.DEVICE))


def test_disks_and_wipes_are_counted_by_mode_under_the_names_that_dashboards_know():
    metrics = Metrics("test", of_process=False)
    worker = WorkerMetrics(metrics)
    worker.register_runs(lambda: {"running": 2, "succeeded": 0, "failed": 1})
    both = Discovery((disk("local-pv-1", 100 * GIB, device=True), disk("local-pv-2", 600 * GIB, device=False)))
    worker.discovered(both, 0.02)
    worker.discovered(both, 0.02)
    worker.wiped("local-pv-1", "/scripts/shred.sh", 3.0)
    worker.wiped("local-pv-2", "", 3.0)
    worker.failed("local-pv-2")
    worker.failed("local-pv-gone")

    lines = metrics.render()[0].decode().splitlines()

    prefix = "local_volume_provisioner_"
    for line in (
        'persistentvolume_capacity_bytes{mode="Block"} 1.073741824e+11',
        'persistentvolume_discovery_total{mode="Block"} 1.0',
        'persistentvolume_discovery_total{mode="Filesystem"} 1.0',
        'persistentvolume_discovery_duration_seconds_count{mode="Block"} 1.0',
        'persistentvolume_delete_total{mode="Block",type="process"} 1.0',
        'persistentvolume_delete_failed_total{mode="Filesystem",type="process"} 1.0',
        'persistentvolume_delete_failed_total{mode="unknown",type="process"} 1.0',
        "proctable_running 2.0",
        "proctable_succeeded 0.0",
        "proctable_failed 1.0",
    ):
        assert prefix + line in lines
    labels = 'capacity="500G",cleanup_command="/scripts/shred.sh",mode="Block",type="process"'
    assert f"{prefix}persistentvolume_delete_duration_seconds_count{{{labels}}} 1.0" in lines
    assert any('capacity="1000G",cleanup_command=""' in line for line in lines)
