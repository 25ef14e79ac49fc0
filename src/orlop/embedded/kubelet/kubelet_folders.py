"""The folders that every kubelet has below its own, made with kubelet's mode where they are missing."""

from __future__ import annotations

from typing import Final

from orlop.host.confined_paths import make_folder, opened_root

PLUGINS: Final = "plugins"
PLUGINS_REGISTRY: Final = "plugins_registry"
PODS: Final = "pods"
FOLDER_MODE: Final = 0o750


def make_kubelet_folders(folder: str) -> None:
    """`folder` is there; HostError where something else is in the way."""
    with opened_root(folder) as root:
        for name in (PLUGINS, PLUGINS_REGISTRY, PODS):
            make_folder(root, name, FOLDER_MODE)
