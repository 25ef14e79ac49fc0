"""The product without the one-machine Kubernetes, as images for clusters have it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from orlop.__main__ import ROLES, VERBS
from support.places import REPOSITORY

IMPORT_EVERYTHING = """
import importlib, pkgutil, sys
import orlop
for name in ("onenode", "aiohttp", "cryptography"):
    sys.modules[name] = None  # importing it fails
for module in pkgutil.walk_packages(orlop.__path__, "orlop."):
    if module.name != "orlop.__main__":
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.fixture
def product(tmp_path: Path) -> Path:
    """A folder with `orlop` and no `onenode`, as it lies in the image."""
    shutil.copytree(REPOSITORY / "src" / "orlop", tmp_path / "orlop", ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def python(product: Path, *words: str) -> subprocess.CompletedProcess[str]:
    # -S leaves out the editable install, which would find the repository's onenode.
    libraries = next(path for path in sys.path if path.endswith("site-packages"))
    environment = {"PYTHONPATH": f"{product}:{libraries}", "PATH": "/usr/bin:/bin"}
    command = [sys.executable, "-S", "-B", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=product)


def test_every_module_of_the_product_can_be_imported_without_the_bench(product: Path):
    done = python(product, "-c", IMPORT_EVERYTHING)

    assert done.returncode == 0, done.stderr
    modules = [path for path in (product / "orlop").rglob("*.py") if path.name != "__main__.py"]
    assert len(done.stdout.split()) == len(modules) - 1  # orlop itself is not listed


@pytest.mark.parametrize(
    "name", [name for name, entry in (ROLES | VERBS).items() if entry.module.startswith("onenode")]
)
def test_a_command_of_the_bench_says_what_to_install(product: Path, name: str):
    done = python(product, "-m", "orlop", *name.split())

    assert done.returncode == 2
    assert done.stderr == (
        f"orlop: '{name}' is not part of this installation: install it with pip install 'orlop[onenode]'.\n"
    )


def test_the_image_leaves_the_bench_out():
    dockerfile = (REPOSITORY / "deploy" / "Dockerfile").read_text()
    locked = (REPOSITORY / "requirements" / "run.lock").read_text()

    assert "COPY src/orlop /build/src/orlop\n" in dockerfile
    assert "COPY src /" not in dockerfile
    assert "aiohttp==" not in locked
    assert "cryptography==" not in locked
