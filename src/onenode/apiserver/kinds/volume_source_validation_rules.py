"""Where the bytes of a volume come from: one source, and what each kind of source must say.

Pods and PersistentVolumes have their own orders of sources: of two that are given, the later one is the one too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import Cause, forbidden, invalid, required
from onenode.apiserver.schema.field_rules import driver_name, given, named, named_well, no_backsteps, one_of, quantity
from onenode.apiserver.schema.name_rules import in_range

Object = Mapping[str, Any]
TypeRule = Callable[[Object, str], Iterator[Cause]]

POD_SOURCES: Final = (
    *("emptyDir", "hostPath", "gitRepo", "gcePersistentDisk", "awsElasticBlockStore", "secret", "nfs", "iscsi"),
    *("glusterfs", "flocker", "persistentVolumeClaim", "rbd", "cinder", "cephfs", "quobyte", "downwardAPI", "fc"),
    *("flexVolume", "configMap", "azureFile", "vsphereVolume", "photonPersistentDisk", "portworxVolume", "azureDisk"),
    *("storageos", "projected", "scaleIO", "csi", "ephemeral", "image"),
)
PERSISTENT_SOURCES: Final = (
    *("hostPath", "gcePersistentDisk", "awsElasticBlockStore", "glusterfs", "flocker", "nfs", "rbd", "quobyte"),
    *("cephfs", "iscsi", "cinder", "fc", "azureFile", "vsphereVolume", "photonPersistentDisk", "portworxVolume"),
    *("azureDisk", "scaleIO", "local", "storageos", "csi"),
)
HOST_PATH_TYPES: Final = (
    *("", "BlockDevice", "CharDevice", "Directory", "DirectoryOrCreate", "File", "FileOrCreate", "Socket"),
)
PROJECTIONS: Final = (
    *("secret", "configMap", "downwardAPI", "serviceAccountToken", "clusterTrustBundle", "podCertificate"),
)
MOST_FILE_MODE: Final = 0o777
MOST_FOLDER_MODE: Final = 0o1777
FILE_MODE: Final = "must be a number between 0 and 0777 (octal), both inclusive"
FOLDER_MODE: Final = "must be a number between 0 and 01777 (octal), both inclusive"
TEN_MINUTES: Final = 600
LONGEST_TOKEN_LIFE: Final = 1 << 32


def exactly_one_source(owner: Object, sources: Sequence[str], path: str) -> Iterator[Cause]:
    found = [source for source in sources if source in owner]
    if not found:
        yield required(path, "must specify a volume type")
    yield from (forbidden(f"{path}.{source}", "may not specify more than 1 volume type") for source in found[1:])


def empty_dir(source: Object, path: str) -> Iterator[Cause]:
    if quantity(source.get("sizeLimit")).nanos < 0:
        yield forbidden(f"{path}.sizeLimit", "SizeLimit field must be a valid resource quantity")
    if not 0 <= source.get("mode", 0) <= MOST_FOLDER_MODE:
        yield invalid(f"{path}.mode", source["mode"], FOLDER_MODE)


def host_path(source: Object, path: str) -> Iterator[Cause]:
    if not source.get("path"):
        yield required(f"{path}.path")
        return
    yield from no_backsteps(source["path"], f"{path}.path")
    yield from one_of(source.get("type"), HOST_PATH_TYPES, f"{path}.type")


def local(source: Object, path: str) -> Iterator[Cause]:
    yield from given(source, path, "path")
    yield from no_backsteps(source.get("path", ""), f"{path}.path")


def nfs(source: Object, path: str) -> Iterator[Cause]:
    yield from given(source, path, "server", "path")
    if not source.get("path", "").startswith("/"):
        yield invalid(f"{path}.path", source.get("path", ""), "must be an absolute path")


def persistent_csi(source: Object, path: str) -> Iterator[Cause]:
    yield from driver_name(source.get("driver"), f"{path}.driver")
    yield from given(source, path, "volumeHandle")
    for field in ("controllerPublish", "controllerExpand", "nodePublish", "nodeExpand"):
        secret = source.get(f"{field}SecretRef")
        if secret is not None:
            yield from _secret_reference(secret, f"{path}.{field}SecretRef")


def _secret_reference(secret: Object, path: str) -> Iterator[Cause]:
    yield from named(name_rules.dns_subdomain, secret.get("name"), f"{path}.name")
    yield from named(name_rules.dns_label, secret.get("namespace"), f"{path}.namespace")


def inline_csi(source: Object, path: str) -> Iterator[Cause]:
    yield from driver_name(source.get("driver"), f"{path}.driver")
    secret = source.get("nodePublishSecretRef")
    if secret is not None and not secret.get("name"):
        yield required(f"{path}.nodePublishSecretRef.name")
    elif secret is not None:
        # Kubernetes names the field one level too high.
        yield from named_well(name_rules.dns_subdomain, secret["name"], f"{path}.name")


def secret_volume(source: Object, path: str) -> Iterator[Cause]:
    yield from given(source, path, "secretName")
    yield from _mode(source, path)


def config_map_volume(source: Object, path: str) -> Iterator[Cause]:
    yield from given(source, path, "name")
    yield from _mode(source, path)


def _mode(source: Object, path: str, field: str = "defaultMode") -> Iterator[Cause]:
    if not 0 <= source.get(field, 0) <= MOST_FILE_MODE:
        yield invalid(f"{path}.{field}", source[field], FILE_MODE)


def key_to_path(item: Object, path: str) -> Iterator[Cause]:
    yield from given(item, path, "key", "path")
    yield from _local_path(item.get("path", ""), f"{path}.path")
    yield from _mode(item, path, "mode")


def _local_path(target: str, path: str) -> Iterator[Cause]:
    if target.startswith("/"):
        yield invalid(path, target, "must be a relative path")
    yield from no_backsteps(target, path)
    if target.startswith("..") and not target.startswith("../"):
        yield invalid(path, target, "must not start with '..'")


def projected(source: Object, path: str) -> Iterator[Cause]:
    yield from _mode(source, path)
    for place, projection in enumerate(source.get("sources", [])):
        inner = f"{path}.sources[{place}]"
        if sum(kind in projection for kind in PROJECTIONS) > 1:
            yield forbidden(inner, "may not specify more than 1 volume type per source")
        for kind in ("secret", "configMap"):
            if kind in projection:
                yield from given(projection[kind], f"{inner}.{kind}", "name")
        if "serviceAccountToken" in projection:
            yield from _token(projection["serviceAccountToken"], f"{inner}.serviceAccountToken", path)


def _token(token: Object, path: str, volume: str) -> Iterator[Cause]:
    yield from token_life(token.get("expirationSeconds", TEN_MINUTES), f"{path}.expirationSeconds")
    # Kubernetes names the field of the volume, not of the projection.
    yield from given(token, volume, "path")
    yield from _local_path(token.get("path", ""), f"{volume}.path")


def token_life(seconds: int, path: str) -> Iterator[Cause]:
    if seconds < TEN_MINUTES:
        yield invalid(path, seconds, "may not specify a duration less than 10 minutes")
    if seconds > LONGEST_TOKEN_LIFE:
        yield invalid(path, seconds, "may not specify a duration larger than 2^32 seconds")


def fibre_channel(source: Object, path: str) -> Iterator[Cause]:
    if not source.get("targetWWNs") and not source.get("wwids"):
        yield required(f"{path}.targetWWNs", "must specify either targetWWNs or wwids, but not both")
    elif source.get("targetWWNs") and "lun" not in source:
        yield required(f"{path}.lun", "lun is required if targetWWNs is specified")


def image(source: Object, path: str) -> Iterator[Cause]:
    yield from given(source, path, "reference")
    yield from one_of(source.get("pullPolicy"), ("Always", "IfNotPresent", "Never"), f"{path}.pullPolicy")


def ephemeral(source: Object, path: str) -> Iterator[Cause]:
    template = source.get("volumeClaimTemplate")
    if template is None:
        yield required(f"{path}.volumeClaimTemplate")
        return
    for field in sorted(template.get("metadata", {}).keys() - {"labels", "annotations"}):
        yield forbidden(f"{path}.volumeClaimTemplate.metadata.{field}", "cannot be set")


def iscsi(source: Object, path: str) -> Iterator[Cause]:
    yield from given(source, path, "targetPortal", "iqn")
    for sentence in in_range(source.get("lun", 0), 0, 255):
        yield invalid(f"{path}.lun", source["lun"], sentence)


SOURCE_RULES: Final[Mapping[str, TypeRule]] = {
    "core.v1.CSIPersistentVolumeSource": persistent_csi,
    "core.v1.CSIVolumeSource": inline_csi,
    "core.v1.ConfigMapVolumeSource": config_map_volume,
    "core.v1.DownwardAPIVolumeSource": _mode,
    "core.v1.EmptyDirVolumeSource": empty_dir,
    "core.v1.EphemeralVolumeSource": ephemeral,
    "core.v1.FCVolumeSource": fibre_channel,
    "core.v1.HostPathVolumeSource": host_path,
    "core.v1.ISCSIPersistentVolumeSource": iscsi,
    "core.v1.ISCSIVolumeSource": iscsi,
    "core.v1.ImageVolumeSource": image,
    "core.v1.KeyToPath": key_to_path,
    "core.v1.LocalVolumeSource": local,
    "core.v1.NFSVolumeSource": nfs,
    "core.v1.ProjectedVolumeSource": projected,
    "core.v1.SecretVolumeSource": secret_volume,
}

# Of these, what the schema calls required must be there and not be empty, and Kubernetes asks no more.
REQUIRED_BY_SCHEMA: Final = frozenset(
    f"core.v1.{name}"
    for name in (
        *("AWSElasticBlockStoreVolumeSource", "AzureDiskVolumeSource", "AzureFilePersistentVolumeSource"),
        *("AzureFileVolumeSource", "CephFSPersistentVolumeSource", "CephFSVolumeSource", "DownwardAPIVolumeFile"),
        *("CinderPersistentVolumeSource", "CinderVolumeSource", "FlexPersistentVolumeSource", "FlexVolumeSource"),
        *("GCEPersistentDiskVolumeSource", "GitRepoVolumeSource", "GlusterfsPersistentVolumeSource"),
        *("GlusterfsVolumeSource", "PersistentVolumeClaimVolumeSource", "PhotonPersistentDiskVolumeSource"),
        *("PortworxVolumeSource", "QuobyteVolumeSource", "RBDPersistentVolumeSource", "RBDVolumeSource"),
        *("ScaleIOPersistentVolumeSource", "ScaleIOVolumeSource", "VsphereVirtualDiskVolumeSource"),
    )
)
