"""What the state folder holds beside the database: the admin's token, and the kubeconfig that others connect with.

Order: the folder is made, for its owner alone → the token is made once and kept → when the address is known, the
kubeconfig is written, whole or not at all. A folder that is there keeps its mode: it may be somebody's shared one, and
every file in it is readable for its owner alone anyway.

Must not log the token.
"""

from __future__ import annotations

import base64
import re
from pathlib import Path
from random import Random
from typing import Final

from onenode.apiserver.access.certificates import write_private
from orlop.foundation.structured_log import Secret

KUBECONFIG: Final = "kubeconfig"
ADMIN_TOKEN: Final = "admin.token"  # noqa: S105 - the name of the file
SOCKET: Final = "api.sock"
TOKEN_BITS: Final = 256
SHORTEST_TOKEN: Final = 32
OWNER_ONLY: Final = 0o700
LARGEST_PORT: Final = 65535
PORT_IN_KUBECONFIG: Final = re.compile(r"^    server: https://\S+:([0-9]{1,5})$", re.MULTILINE)

TEMPLATE: Final = """\
# Written anew whenever the API server starts: copy it before you change it.
apiVersion: v1
kind: Config
clusters:
- name: orlop
  cluster:
    server: {server}
    certificate-authority-data: {ca}
users:
- name: {user}
  user:
    {credentials}
contexts:
- name: orlop
  context:
    cluster: orlop
    user: {user}
current-context: orlop
"""


class UnusableFolder(Exception):
    """The state folder, or a file in it, is not what it must be; the sentence says what to do."""


def make_folder(folder: Path) -> None:
    if folder.is_dir():
        return
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir(mode=OWNER_ONLY)
    except OSError as error:
        raise UnusableFolder(f"The state folder {folder} cannot be made: {error.strerror}.") from None


def ensure_admin_token(folder: Path, random: Random) -> Secret[str]:
    path = folder / ADMIN_TOKEN
    try:
        if not path.exists():
            write_private(path, f"{random.getrandbits(TOKEN_BITS):064x}\n".encode())
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnusableFolder(f"{path} cannot be used: {error}. Remove it, and a new token is made.") from None
    if len(token) < SHORTEST_TOKEN or not token.isprintable() or " " in token:
        raise UnusableFolder(
            f"{path} holds no token of at least {SHORTEST_TOKEN} characters. Remove it, and a new one is made."
        )
    return Secret(token)


def last_port(folder: Path) -> int:
    """Where the server listened before, so that copies of its kubeconfig go on working; 0 where nobody knows."""
    try:
        found = PORT_IN_KUBECONFIG.search((folder / KUBECONFIG).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError):
        return 0
    return int(found[1]) if found and int(found[1]) <= LARGEST_PORT else 0


def write_kubeconfig(folder: Path, server: str, ca_certificate: Path, token: Secret[str]) -> Path:
    """For kubectl, and for every client of this project."""
    path = folder / KUBECONFIG
    try:
        text = kubeconfig_text(server, ca_certificate, "admin", f"token: {token.reveal()}")
        write_private(path, text.encode())
    except OSError as error:
        raise UnusableFolder(f"{path} cannot be written: {error.strerror}. Mend that and start again.") from None
    return path


def kubeconfig_text(server: str, ca_certificate: Path, user: str, credentials: str) -> str:
    """Return a kubeconfig; `credentials` is the line of the user, a token or the path of its file. Raises OSError."""
    ca = base64.b64encode(ca_certificate.read_bytes()).decode()
    return TEMPLATE.format(server=server, ca=ca, user=user, credentials=credentials)
