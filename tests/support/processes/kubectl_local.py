"""kubectl's own strategic merge patch, without any server: `kubectl patch --local`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from support.places import REPOSITORY

KUBECTL = REPOSITORY / ".venv" / "bin" / "kubectl"


def patched_by_kubectl(objects: list[dict[str, Any]], patch: dict[str, Any], home: Path) -> dict[str, Any]:
    """What kubectl makes of each object, by name; the error's text, where it refuses the patch for one of them."""
    file = home / "objects.json"
    file.write_text("\n---\n".join(json.dumps(each) for each in objects))
    command = [KUBECTL, "--kubeconfig", "/dev/null", "patch", "--local", "--type=strategic", "-o", "json"]
    ran = subprocess.run(
        [*command, "-f", file, "-p", json.dumps(patch)],
        capture_output=True,
        text=True,
        env={"HOME": str(home)},
        check=False,
    )
    made = {each["metadata"]["name"]: each for each in _documents(ran.stdout)}
    refusal = ran.stderr.removeprefix("error: ").strip()
    return {each["metadata"]["name"]: made.get(each["metadata"]["name"], refusal) for each in objects}


def _documents(text: str) -> list[dict[str, Any]]:
    decoder = json.JSONDecoder()
    documents, place = [], 0
    while text[place:].strip():
        place += len(text[place:]) - len(text[place:].lstrip())
        document, place = decoder.raw_decode(text, place)
        documents += document["items"] if document["kind"] == "List" else [document]
    return documents
