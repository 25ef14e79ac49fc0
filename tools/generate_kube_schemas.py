"""Makes src/onenode/apiserver/schema/schemas.json from the OpenAPI definitions inside PyPI's `kubernetes-validate`.

The file holds what the embedded API server needs to know of Kubernetes' own kinds: the names and types of fields, which
are required, how lists and maps are patched and merged. No descriptions. One line per definition, sorted, so that the
same input gives the same bytes and a newer Kubernetes gives a readable difference.

`--check` compares instead of writing. Nothing is downloaded: the package is a development dependency.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

SCHEMAS: Final = Path(__file__).resolve().parent.parent / "src/onenode/apiserver/schema/schemas.json"
KUBERNETES: Final = "1.37.0"
PACKAGE: Final = "kubernetes_validate"

# What the embedded API server serves, and the kinds of the bodies it reads.
KINDS: Final = {
    "v1": (
        "core.v1",
        (
            "Binding ConfigMap Endpoints Event LimitRange Namespace Node PersistentVolume PersistentVolumeClaim Pod "
            "ReplicationController ResourceQuota Secret Service ServiceAccount"
        ),
    ),
    "admissionregistration.k8s.io/v1": (
        "admissionregistration.v1",
        "ValidatingAdmissionPolicy ValidatingAdmissionPolicyBinding",
    ),
    "apiextensions.k8s.io/v1": ("apiextensions.v1", "CustomResourceDefinition"),
    "apps/v1": ("apps.v1", "ControllerRevision DaemonSet Deployment ReplicaSet StatefulSet"),
    "authentication.k8s.io/v1": ("authentication.v1", "SelfSubjectReview TokenRequest TokenReview"),
    "authorization.k8s.io/v1": (
        "authorization.v1",
        "LocalSubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview SubjectAccessReview",
    ),
    "autoscaling/v2": ("autoscaling.v2", "HorizontalPodAutoscaler"),
    "batch/v1": ("batch.v1", "CronJob Job"),
    "certificates.k8s.io/v1": ("certificates.v1", "CertificateSigningRequest PodCertificateRequest"),
    "coordination.k8s.io/v1": ("coordination.v1", "Lease"),
    "discovery.k8s.io/v1": ("discovery.v1", "EndpointSlice"),
    "events.k8s.io/v1": ("events.v1", "Event"),
    "networking.k8s.io/v1": ("networking.v1", "IPAddress ServiceCIDR"),
    "node.k8s.io/v1": ("node.v1", "RuntimeClass"),
    "policy/v1": ("policy.v1", "Eviction PodDisruptionBudget"),
    "rbac.authorization.k8s.io/v1": ("rbac.v1", "ClusterRole ClusterRoleBinding Role RoleBinding"),
    "resource.k8s.io/v1": (
        "resource.v1",
        "DeviceClass DeviceTaintRule ResourceClaim ResourceClaimTemplate ResourceSlice",
    ),
    "scheduling.k8s.io/v1": ("scheduling.v1", "PriorityClass"),
    "storagemigration.k8s.io/v1": ("storagemigration.v1", "StorageVersionMigration"),
    "storage.k8s.io/v1": (
        "storage.v1",
        "CSIDriver CSINode CSIStorageCapacity StorageClass VolumeAttachment VolumeAttributesClass",
    ),
}
META_KINDS: Final = "DeleteOptions Status"

# Full names lose these prefixes; nothing else in the file is shortened.
APIEXTENSIONS: Final = "io.k8s.apiextensions-apiserver.pkg.apis."
PREFIXES: Final = ("io.k8s.api.", "io.k8s.apimachinery.pkg.apis.", APIEXTENSIONS)

# Definitions that are one JSON value each, not an object with fields.
SCALARS: Final = {
    f"{APIEXTENSIONS}apiextensions.v1.JSON": "any",
    f"{APIEXTENSIONS}apiextensions.v1.JSONSchemaPropsOrStringArray": "any",
    "io.k8s.apimachinery.pkg.api.resource.Quantity": "quantity",
    "io.k8s.apimachinery.pkg.apis.meta.v1.FieldsV1": "any",
    "io.k8s.apimachinery.pkg.apis.meta.v1.MicroTime": "microtime",
    "io.k8s.apimachinery.pkg.apis.meta.v1.Time": "time",
    "io.k8s.apimachinery.pkg.runtime.RawExtension": "any",
    "io.k8s.apimachinery.pkg.util.intstr.IntOrString": "int-or-string",
}
# Schemas that OpenAPI cannot describe: `items` is one schema in all that Kubernetes accepts, and a schema that may also
# be true or false has the fields of a schema, and a name that ends with OrBool.
JSON_SCHEMA: Final = f"{APIEXTENSIONS}apiextensions.v1.JSONSchemaProps"
SAME_AS: Final = {f"{JSON_SCHEMA}OrArray": JSON_SCHEMA}
FIELDS_OF: Final = {f"{JSON_SCHEMA}OrBool": JSON_SCHEMA}
PRIMITIVES: Final = {
    ("boolean", None): "bool",
    ("integer", "int32"): "int32",
    ("integer", "int64"): "int64",
    ("number", "double"): "float64",
    ("string", None): "string",
    ("string", "byte"): "bytes",
}
EXTENSIONS: Final = {
    "x-kubernetes-patch-merge-key": "mergeKey",
    "x-kubernetes-patch-strategy": "patchStrategy",
    "x-kubernetes-list-type": "listType",
    "x-kubernetes-list-map-keys": "listMapKeys",
    "x-kubernetes-map-type": "mapType",
    "x-kubernetes-preserve-unknown-fields": "preserveUnknownFields",
    "default": "default",
    "enum": "enum",
}

Schema = Mapping[str, Any]


def read_definitions() -> Mapping[str, Schema]:
    package = find_spec(PACKAGE)
    if package is None or package.origin is None:
        sys.exit("kubernetes-validate is not installed: run make, which installs requirements/test.lock")
    path = Path(package.origin).parent / f"kubernetes-json-schema/v{KUBERNETES}-local/_definitions.json"
    if not path.exists():
        sys.exit(f"kubernetes-validate holds no definitions of Kubernetes {KUBERNETES}: 1.37.x of it does")
    definitions: Mapping[str, Schema] = json.loads(path.read_text())["$defs"]
    return definitions


def kinds() -> Iterator[tuple[str, str]]:
    """`apiVersion/kind` and the full name of the definition."""
    for api_version, (package, names) in KINDS.items():
        prefix = APIEXTENSIONS if package == "apiextensions.v1" else "io.k8s.api."
        yield from ((f"{api_version}/{name}", f"{prefix}{package}.{name}") for name in names.split())
    yield from ((f"v1/{name}", f"io.k8s.apimachinery.pkg.apis.meta.v1.{name}") for name in META_KINDS.split())


def short(name: str) -> str:
    for prefix in PREFIXES:
        if name.startswith(prefix):
            return name.removeprefix(prefix)
    sys.exit(f"{name} begins with none of {', '.join(PREFIXES)}: add its prefix to tools/{Path(__file__).name}")


def referred(schema: Schema) -> str | None:
    reference: str | None = schema.get("$ref")
    if reference is None:
        return None
    name = reference.removeprefix("#/$defs/")
    return SAME_AS.get(name, name)


def json_type(schema: Schema) -> str | None:
    """The JSON type; every one of them may be null, which says nothing."""
    stated = schema.get("type")
    if isinstance(stated, list):
        return next((name for name in stated if name != "null"), None)
    return stated


def type_text(schema: Schema) -> str:
    """The type of a value, written as Go writes types: `[]string`, `map[string]quantity`, `@core.v1.PodSpec`."""
    name = referred(schema)
    if name is not None:
        return SCALARS.get(name) or f"@{short(name)}"
    match json_type(schema):
        case "array":
            return f"[]{type_text(schema['items'])}"
        case "object" if "additionalProperties" in schema:
            return f"map[string]{type_text(schema['additionalProperties'])}"
        case "object" if "properties" not in schema:
            return "any"
        case primitive:
            return primitive_text(primitive, schema)


def primitive_text(primitive: str | None, schema: Schema) -> str:
    text = PRIMITIVES.get((str(primitive), schema.get("format")))
    if text is None:
        sys.exit(f"a type this generator does not know: {json.dumps(schema)[:200]}")
    return text


def field(name: str, schema: Schema) -> str | dict[str, Any]:
    """A type alone where nothing else is known of the field."""
    known = {ours: schema[theirs] for theirs, ours in EXTENSIONS.items() if theirs in schema}
    if name in {"kind", "apiVersion"}:
        known.pop("enum", None)  # says only which kind the definition is of
    return {"type": type_text(schema), **known} if known else type_text(schema)


def definition(schema: Schema) -> dict[str, Any]:
    made: dict[str, Any] = {
        "fields": {name: field(name, inner) for name, inner in sorted(schema.get("properties", {}).items())}
    }
    if schema.get("required"):
        made["required"] = sorted(schema["required"])
    if "x-kubernetes-map-type" in schema:
        made["mapType"] = schema["x-kubernetes-map-type"]
    return made


def reachable(definitions: Mapping[str, Schema]) -> dict[str, Schema]:
    """The definitions of the kinds and of all they refer to, by short name."""
    found: dict[str, Schema] = {}
    waiting = [name for _, name in kinds()]
    while waiting:
        name = waiting.pop()
        if name in SCALARS or short(name) in found:
            continue
        found[short(name)] = definitions[FIELDS_OF.get(name, name)]
        waiting += references(found[short(name)])
    return found


def references(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from references(item)
    elif isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield str(referred(value))
        for inner in value.values():
            yield from references(inner)


def schemas() -> str:
    found = reachable(read_definitions())
    lines = [f"{_json(name)}:{_json(definition(found[name]))}" for name in sorted(found)]
    served = {kind: short(name) for kind, name in sorted(kinds())}
    head = f'{{"kubernetes":{_json(KUBERNETES)},\n"kinds":{_json(served)},\n"definitions":{{\n'
    return head + ",\n".join(lines) + "\n}}\n"


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), sort_keys=False)


def main() -> int:
    if "--check" not in sys.argv[1:]:
        SCHEMAS.write_text(schemas())
        return 0
    if SCHEMAS.exists() and SCHEMAS.read_text() == schemas():
        return 0
    print(f"{SCHEMAS.name} differs from what the generator gives: run make generate")
    return 1


if __name__ == "__main__":
    sys.exit(main())
