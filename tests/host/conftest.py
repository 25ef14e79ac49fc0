from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.descriptors import opened
from support.file_systems import mounted
from support.quota_kernel import quota_kernel

__all__ = ["quota_kernel"]


class FileSystems:
    """Each kind is made once for the session, when the first test asks for it."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._stack = stack
        self._mounted: dict[str, Path] = {}
        self._folders = 0

    def new_folder(self, kind: str) -> Path:
        if kind not in self._mounted:
            self._mounted[kind] = self._stack.enter_context(mounted(kind, self._folder))
        self._folders += 1
        folder = self._mounted[kind] / f"test-{self._folders}"
        folder.mkdir()
        return folder


@pytest.fixture(scope="session")
def file_systems(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FileSystems]:
    with ExitStack() as stack:
        yield FileSystems(tmp_path_factory.mktemp("file-systems"), stack)


@pytest.fixture(params=["tmpfs", "ext4", "xfs"])
def disk(request: pytest.FixtureRequest, file_systems: FileSystems) -> Path:
    """An empty folder on each kind of file system."""
    return file_systems.new_folder(request.param)


@pytest.fixture
def xfs(file_systems: FileSystems) -> Path:
    return file_systems.new_folder("xfs")


@pytest.fixture
def tmpfs(file_systems: FileSystems) -> Path:
    return file_systems.new_folder("tmpfs")


@pytest.fixture(autouse=True)
def no_leaked_descriptors() -> Iterator[None]:
    before = opened()
    yield
    left = {number: path for number, path in opened().items() if before.get(number) != path}
    assert not {path for path in left.values() if path.startswith("/") and not path.startswith("/dev")}, left
