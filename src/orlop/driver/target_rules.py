"""Where kubelet may ask for a volume, and what it adds to the context of one. Pure."""

from __future__ import annotations

from typing import Final

from orlop.csi.error_codes import InvalidArgument, NotFound

KUBERNETES_PREFIX: Final = "csi.storage.k8s.io/"
EPHEMERAL: Final = KUBERNETES_PREFIX + "ephemeral"
POD_NAME: Final = KUBERNETES_PREFIX + "pod.name"
POD_NAMESPACE: Final = KUBERNETES_PREFIX + "pod.namespace"
POD_UID: Final = KUBERNETES_PREFIX + "pod.uid"
SERVICE_ACCOUNT: Final = KUBERNETES_PREFIX + "serviceAccount.name"
LONGEST_TARGET: Final = 4095
LONGEST_NAME: Final = 255


def target_below(target_path: str, *kubelet_dirs: str, field: str = "target_path") -> str:
    """Return the target path below kubelet's folder, which may be named by any of `kubelet_dirs`.

    Compares text only. Symbolic links are refused later, when the path is opened.
    """
    if not target_path:
        raise InvalidArgument(f"the request names no target: {field} is empty")
    if "\0" in target_path or len(target_path.encode(errors="surrogatepass")) > LONGEST_TARGET:
        raise InvalidArgument(f"the target path is no path of this machine: {target_path[:100]!r}")
    if not target_path.startswith("/"):
        raise InvalidArgument(f"the target path {target_path!r} has to begin with '/'")
    names = _names_in(target_path)
    root = next((root for root in map(_names_in, kubelet_dirs) if names[: len(root)] == root), names)
    below = names[len(root) :]
    if not below:
        raise InvalidArgument(f"the target path {target_path!r} is not below kubelet's folder {kubelet_dirs[0]}")
    if ".." in below:
        raise InvalidArgument(f"the target path {target_path!r} must not hold '..'")
    if any(len(name.encode(errors="surrogatepass")) > LONGEST_NAME for name in below):
        raise InvalidArgument(f"the target path {target_path[:100]!r}… holds a name of more than {LONGEST_NAME} bytes")
    return "/".join(below)


def used_path_below(volume_path: str, *kubelet_dirs: str) -> str:
    """Return the path of a volume that is in use, below kubelet's folder. Raises `NotFound` for any other path.

    CSI demands NOT_FOUND for a path where the volume is not, and no volume of ours is outside of kubelet's folder.
    """
    try:
        return target_below(volume_path, *kubelet_dirs, field="volume_path")
    except InvalidArgument as error:
        if not volume_path:
            raise
        raise NotFound(f"no volume is there: {error}") from None


def _names_in(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in {"", "."}]
