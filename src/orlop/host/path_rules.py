"""What may be a name below a folder of ours, and which names lead from a root to a path given as text.

Nothing is looked up: whether a name is a symbolic link is asked by `confined_paths`, when it is opened.
"""

from __future__ import annotations

LONGEST_NAME = 255
"""Bytes, on every file system of Linux that we know."""


class UnsafePath(ValueError):
    """The text is no name, or no path below its root; the sentence says why."""


def safe_name(name: str, longest: int = LONGEST_NAME) -> str:
    """The name itself if it can only be an entry of the folder it is looked up in, and is not hidden there.

    Names that begin with a dot are kept for ourselves. A line break or another control character is refused since
    names end up in logs, on terminals and in tables.
    """
    size = len(name.encode("utf-8", "surrogateescape"))
    if not name:
        raise UnsafePath("The name is empty.")
    if size > longest:
        raise UnsafePath(f"The name {name[:40]!r}… has {size} bytes: at most {longest} are allowed.")
    if name.startswith("."):
        raise UnsafePath(f"The name {name!r} begins with a dot: choose another.")
    if "/" in name or not name.isprintable():
        raise UnsafePath(f"The name {name!r} holds a slash or a character that cannot be printed: choose another.")
    return name


def names_below(root: str, path: str) -> tuple[str, ...]:
    """The names that lead from the root to the path; both absolute, and the path truly below.

    Compared name by name, never by the beginning of the text: `/mnt/disks-other` is not below `/mnt/disks`.
    """
    above, below = _names(root), _names(path)
    if below[: len(above)] != above:
        raise UnsafePath(f"The path {path!r} is not below {root!r}.")
    if len(below) == len(above):
        raise UnsafePath(f"The path {path!r} is {root!r} itself: something below it is needed.")
    return below[len(above) :]


def _names(path: str) -> tuple[str, ...]:
    if not path.startswith("/"):
        raise UnsafePath(f"The path {path!r} is not absolute.")
    names = tuple(name for name in path.split("/") if name)
    for name in names:
        if name in {".", ".."} or "\0" in name:
            raise UnsafePath(f"The path {path!r} holds {name!r}: give it without.")
        if len(name.encode("utf-8", "surrogateescape")) > LONGEST_NAME:
            raise UnsafePath(f"The path {path[:80]!r}… holds a name of more than {LONGEST_NAME} bytes.")
    return names
