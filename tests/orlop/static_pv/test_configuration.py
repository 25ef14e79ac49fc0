"""The configuration files of local-static-provisioner are read as they are; what cannot be used is a sentence."""

from __future__ import annotations

import pytest

from orlop.static_pv.configuration import (
    ConfigurationFault,
    SizedDirectories,
    StaticClass,
    StaticConfiguration,
    parse_configuration,
)

GIB = 1 << 30
# As the chart of local-static-provisioner renders it with most of its values set.
TODAY = {
    "storageClassMap": """
fast-disks:
   hostDir: /mnt/fast-disks/
   mountDir: /mnt/worker/fast
   blockCleanerCommand:
     - "/scripts/shred.sh"
     - "2"
   volumeMode: Block
   fsType: ext4
   namePattern: "nvme*,sd[a-c]"
   accessMode: ReadWriteOncePod
   selector:
     - matchExpressions:
         - {key: kubernetes.io/hostname, operator: In, values: [other]}
slow-disks:
   hostDir: /mnt/slow-disks
   mountDir: /mnt/slow-disks
""",
    "nodeLabelsForPV": "- topology.kubernetes.io/zone\n- rack\n",
    "labelsForPV": "team: storage\nnumber: 7\n",
    "useAlphaAPI": "true",
    "useJobForCleaning": "yes",
    "jobTolerations": "- key: a\n  operator: Exists\n",
    "minResyncPeriod": "7m30s",
    "useNodeNameOnly": "true",
    "setPVOwnerRef": "true",
    "removeNodeNotReadyTaint": "true",
    "provisionerNotReadyNodeTaintKey": "example.com/not-ready",
}


def test_every_key_of_today_is_read():
    selector = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["other"]}]}

    read = parse_configuration(TODAY)

    assert read == StaticConfiguration(
        classes=(
            StaticClass(
                name="fast-disks",
                host_dir="/mnt/fast-disks",
                mount_dir="/mnt/worker/fast",
                cleaner_command=("/scripts/shred.sh", "2"),
                volume_mode="Block",
                access_mode="ReadWriteOncePod",
                fs_type="ext4",
                name_pattern="nvme*,sd[a-c]",
                selector=(selector,),
            ),
            StaticClass(name="slow-disks", host_dir="/mnt/slow-disks", mount_dir="/mnt/slow-disks"),
        ),
        node_labels=("topology.kubernetes.io/zone", "rack"),
        labels=(("number", "7"), ("team", "storage")),
        min_resync_seconds=450.0,
        use_node_name_only=True,
        set_owner_reference=True,
        remarks=read.remarks,
    )
    assert [remark.partition(" ")[0] for remark in read.remarks] == [
        "useAlphaAPI",
        "useJobForCleaning",
        "jobTolerations",
        "removeNodeNotReadyTaint",
        "provisionerNotReadyNodeTaintKey",
    ]
    assert read.of_class("slow-disks") is read.classes[1]
    assert read.of_class("other") is None


def of_class(text: str) -> StaticClass:
    (read,) = parse_configuration({"storageClassMap": f"fast: {{hostDir: /disks, {text}}}"}).classes
    return read


def test_what_is_left_out_has_the_defaults_of_today():
    assert parse_configuration({"storageClassMap": "fast: {hostDir: /disks}"}) == StaticConfiguration(
        classes=(StaticClass("fast", "/disks", "/disks"),)
    )
    assert of_class("volumeMode: '', accessMode: '', namePattern: '', mountDir: null") == of_class("")
    assert StaticConfiguration().min_resync_seconds == 300


def test_no_class_at_all_is_a_configuration():
    assert parse_configuration({"storageClassMap": ""}).classes == ()


def test_folders_get_the_size_that_is_stated_for_them():
    read = of_class("directories: {'dir*': 10Gi, 'small,tiny': 1M, '*': 512}")

    assert read.directories[0] == SizedDirectories("dir*", 10 * GIB)
    assert [read.stated_size(name) for name in ("dir1", "tiny", "other")] == [10 * GIB, 1_000_000, 512]
    assert of_class("").stated_size("dir1") == 0


def test_a_key_that_nobody_knows_is_remarked():
    read = parse_configuration({"storageClassMap": "fast: {hostDir: /d, hostdir: /e}", "more": "1"})

    assert read.remarks == (
        "more is no known key, and has no effect",
        "storageClassMap[fast].hostdir is no known key, and has no effect",
    )


def test_that_a_taint_stays_on_its_node_is_remarked_by_both_keys():
    keys = {"removeNodeNotReadyTaint": "true", "provisionerNotReadyNodeTaintKey": "example.com/not-ready"}

    remarks = parse_configuration({"storageClassMap": "fast: {hostDir: /d}", **keys}).remarks

    assert [each.partition(":")[0] for each in remarks] == [f"{key} has no effect" for key in keys]


FAULTS = [
    ({}, "the file storageClassMap is missing"),
    ({"storageClassMap": "fast: ["}, "the file storageClassMap is not YAML (line 1)"),
    ({"storageClassMap": "!!python/object:os.system {}"}, "the file storageClassMap is not YAML"),
    ({"storageClassMap": "- fast"}, "storageClassMap is ['fast']: a mapping by name is needed"),
    ({"storageClassMap": "fast: /disks"}, "storageClassMap[fast] is '/disks': a mapping is needed"),
    ({"storageClassMap": "a/b: {hostDir: /disks}"}, "'a/b' is not the name of a StorageClass"),
    ({"storageClassMap": "fast: {mountDir: /disks}"}, "storageClassMap[fast].hostDir is missing"),
    ({"storageClassMap": "fast: {hostDir: disks}"}, "storageClassMap[fast].hostDir is 'disks': an absolute path"),
    ({"storageClassMap": "fast: {hostDir: /a/../b}"}, "an absolute path without .. is needed"),
    ({"storageClassMap": "fast: {hostDir: /a, mountDir: /a/..}"}, "storageClassMap[fast].mountDir is '/a/..'"),
    ({"storageClassMap": "fast: {hostDir: /a, volumeMode: block}"}, "volumeMode is 'block': one of Filesystem, Block"),
    ({"storageClassMap": "fast: {hostDir: /a, accessMode: RWO}"}, "accessMode is 'RWO': one of ReadWriteOnce,"),
    ({"storageClassMap": "fast: {hostDir: /a, blockCleanerCommand: []}"}, "blockCleanerCommand is empty"),
    ({"storageClassMap": "fast: {hostDir: /a, blockCleanerCommand: rm -rf}"}, "a list of texts is needed"),
    ({"storageClassMap": "fast: {hostDir: /a, blockCleanerCommand: [rm, 1]}"}, "a list of texts is needed"),
    ({"storageClassMap": "fast: {hostDir: /a, namePattern: '['}"}, "storageClassMap[fast].namePattern: '[' is not"),
    (
        {"storageClassMap": "fast: {hostDir: /a, directories: {d: x}}"},
        "storageClassMap[fast].directories.d: 'x' is not",
    ),
    ({"storageClassMap": "fast: {hostDir: /a, directories: {d: 0}}"}, "must be more than nothing"),
    ({"storageClassMap": "fast: {hostDir: /a, directories: [d]}"}, "a mapping by name is needed"),
    ({"storageClassMap": "fast: {hostDir: /a, directories: {d: true}}"}, "a text is needed"),
    ({"storageClassMap": "fast: {hostDir: /a, selector: {}}"}, "a list of mappings is needed"),
    ({"storageClassMap": "", "minResyncPeriod": "5 minutes"}, "minResyncPeriod: '5 minutes' is not a duration"),
    ({"storageClassMap": "", "useNodeNameOnly": "'true'"}, "useNodeNameOnly is 'true': true or false is needed"),
    ({"storageClassMap": "", "nodeLabelsForPV": "a: b"}, "nodeLabelsForPV is {'a': 'b'}: a list of texts"),
    ({"storageClassMap": "", "labelsForPV": "a: [b]"}, "labelsForPV.a is ['b']: a text is needed"),
    # Values for which PyYAML raises errors that are not its own.
    ({"storageClassMap": "", "labelsForPV": "at: 2026-13-01"}, "the file labelsForPV has a value that cannot be read"),
    ({"storageClassMap": "fast: {hostDir: !!int x}"}, "the file storageClassMap has a value that cannot be read"),
    ({"storageClassMap": "fast: {hostDir: !!timestamp x}"}, "a value that cannot be read: "),
    ({"storageClassMap": "[" * 2000}, "a value that cannot be read: maximum recursion depth"),
    ({"storageClassMap": "", "labelsForPV": f"a: 0x{'f' * 5000}"}, "labelsForPV.a is a number of too many digits"),
    ({"storageClassMap": "a: &a [x]", "nodeLabelsForPV": "&a [*a]"}, "storageClassMap[a] is ['x']: a mapping is"),
    ({"storageClassMap": "", "nodeLabelsForPV": "&a [*a]"}, "nodeLabelsForPV is [[[[[["),
]


@pytest.mark.parametrize(("files", "sentence"), FAULTS, ids=[sentence[:50] for _, sentence in FAULTS])
def test_what_cannot_be_carried_out_is_refused_with_file_and_key(files: dict[str, str], sentence: str):
    with pytest.raises(ConfigurationFault) as fault:
        parse_configuration(files)

    assert sentence in str(fault.value)
