"""Write the commands that explanations recommend. Pure.

Names come from objects that other users wrote, and people paste commands into shells: every name is quoted.
"""

from __future__ import annotations

import json
import shlex

from orlop.kube.kinds import Kind


def explain_command(kind: str, name: object) -> str:
    return _command("orlop", "explain", kind, str(name))


def delete_command(kind: Kind, namespace: str | None, *names: str) -> str:
    return _command("kubectl", "delete", kind.singular, *names, *_in_namespace(namespace))


def clean_command(name: str) -> str:
    """Return the command that deletes a volume on a drive with its data, if no claim needs it."""
    return _command("orlop", "volumes", "clean", name)


def describe_command(kind: Kind, namespace: str | None, name: str) -> str:
    """Return the command that shows an object with its events."""
    return _command("kubectl", "describe", kind.singular, name, *_in_namespace(namespace))


def remove_command(kind: Kind, name: str, path: str) -> str:
    """Return the command that removes one field of an object."""
    return _patch(kind, name, "json", [{"op": "remove", "path": path}])


def policy_command(kind: Kind, name: str, policy: str) -> str:
    """Return the command that sets the reclaim policy of a PersistentVolume."""
    return _patch(kind, name, "merge", {"spec": {"persistentVolumeReclaimPolicy": policy}})


def bare_command(command: str) -> str:
    """Return a command without the backticks that set it off in a sentence: for programs."""
    return command.removeprefix("`").removesuffix("`")


def _patch(kind: Kind, name: str, form: str, body: object) -> str:
    return _command(
        "kubectl", "patch", kind.singular, name, "--type", form, "-p", json.dumps(body, separators=(",", ":"))
    )


def _in_namespace(namespace: str | None) -> tuple[str, ...]:
    return ("-n", namespace) if namespace else ()


def _command(*words: str) -> str:
    return f"`{shlex.join(words)}`"
