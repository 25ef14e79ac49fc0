"""`orlop explain …`: what an object waits for, since when, what was tried, and what comes next.

It only reads. Control characters in quoted texts are escaped.
Exit codes: 0 explained, 1 failed, 2 wrong use, 3 no such object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Final

import click

from orlop.admin.explain_attachment import explain
from orlop.admin.explain_claim import explain_claim
from orlop.admin.explain_drives import explain_left_volume
from orlop.admin.explain_reading import ExplainReader
from orlop.admin.explain_volume import explain_volume
from orlop.admin.explanation import Explanation
from orlop.admin.journal_orders import explain_gone
from orlop.admin.refusals import UnknownObject
from orlop.cli.in_cluster import ConnectedCluster, in_cluster, server_options
from orlop.cli.options import CONTEXT_SETTINGS, VerbGroup, program_name
from orlop.cli.output import harmless, show
from orlop.kube.api_errors import NotFound
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, VOLUME_ATTACHMENT, Kind
from orlop.kube.objects import ObjectName

COMMAND_OF: Final = {
    **dict.fromkeys(("volumeattachment", "volumeattachments", "va", "vas"), "volumeattachment"),
    **dict.fromkeys(("volumeattachment.storage.k8s.io", "volumeattachments.storage.k8s.io"), "volumeattachment"),
    **dict.fromkeys(("pvc", "pvcs", "persistentvolumeclaim", "persistentvolumeclaims"), "pvc"),
    **dict.fromkeys(("pv", "pvs", "persistentvolume", "persistentvolumes"), "pv"),
}
"""The command for each spelling of a kind, in lower case."""
WITH_VALUE: Final = frozenset({"-n", "--namespace", "--kubeconfig", "--context", "--state", "-o", "--output"})
"""The options whose value may be the next word."""
HELP_ON_CODES: Final = "Exit codes: 0 explained, 1 failed, 2 wrong use, 3 no such object."


@dataclass(frozen=True, slots=True)
class ExplainedObject:
    """The object that is to be explained; `namespace` is None if the user names none."""

    kind: Kind
    namespace: str | None
    bare_name: str

    @property
    def name(self) -> ObjectName:
        return ObjectName(self.namespace, self.bare_name)

    def within(self, namespace: str) -> ExplainedObject:
        """Return the same in this namespace, if it needs one and has none."""
        return replace(self, namespace=namespace) if self.kind.namespaced and self.namespace is None else self


class ExplainedObjectMissing(UnknownObject):
    def __init__(self, target: ExplainedObject) -> None:
        of_all = " --all-namespaces" if target.kind.namespaced else ""
        where = f" in the namespace {target.namespace}" if target.kind.namespaced else ""
        super().__init__(
            f"There is no {target.kind.kind} {target.bare_name}{where}. "
            f"`kubectl get {target.kind.plural}{of_all}` lists those that exist."
        )


def kind_first(arguments: Sequence[str]) -> list[str]:
    """Return the arguments as our commands expect them: the kind first, and then its options and the name.

    kubectl accepts options before the kind, `KIND/NAME` as one word, and capital letters. Accept the same.
    """
    remaining = list(arguments)
    options: list[str] = []
    while remaining and remaining[0].startswith("-") and remaining[0] != "--":
        length = 2 if remaining[0] in WITH_VALUE else 1
        options, remaining = options + remaining[:length], remaining[length:]
    if not remaining:
        return options
    kind, slash, name = remaining[0].partition("/")
    command_name = COMMAND_OF.get(kind.lower())
    if command_name is None:
        return list(arguments)
    return [command_name, *options, *([name] if slash else []), *remaining[1:]]


class _Kinds(VerbGroup):
    """A group whose commands are kinds, which can be written as kubectl accepts them."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, kind_first(args))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and self.get_command(ctx, args[0]) is None:
            ctx.fail(f"{args[0]!r} cannot be explained. Write pvc, pv or volumeattachment, and a name.")
        return super().resolve_command(ctx, args)


@click.group(
    "orlop explain",
    cls=_Kinds,
    epilog=HELP_ON_CODES,
    context_settings=CONTEXT_SETTINGS,
)
def command() -> None:
    """Explain what an object waits for, since when, what was tried, and what comes next."""


Options = Callable[..., None]


def _with_options(function: Options) -> Options:
    """Add the options that all kinds have."""
    output = click.option(
        "-o", "--output", type=click.Choice(["text", "json", "yaml"]), default="text", help="Output format."
    )
    return server_options(output(function))


def _without_namespace(function: Options) -> Options:
    return click.option(
        "-n", "--namespace", expose_value=False, help="Ignored, as by kubectl: the object is in no namespace."
    )(function)


@command.command(
    "volumeattachment",
    short_help="Explain a VolumeAttachment; also `volumeattachments` and `va`.",
    epilog=HELP_ON_CODES,
)
@click.argument("name")
@_without_namespace
@_with_options
def volume_attachment(name: str, output: str) -> None:
    """Explain the VolumeAttachment NAME, as `kubectl get volumeattachments` shows it, with or without `-o name`."""
    _explain(_of_cluster(VOLUME_ATTACHMENT, name), output)


@command.command(
    "pvc",
    short_help="Explain a PersistentVolumeClaim; also `persistentvolumeclaim`.",
    epilog=HELP_ON_CODES,
)
@click.argument("name", metavar="[NAMESPACE/]NAME")
@click.option("-n", "--namespace", default="", help="Namespace of the claim; default: that of the kubeconfig.")
@_with_options
def persistent_volume_claim(name: str, namespace: str, output: str) -> None:
    """Explain the PersistentVolumeClaim NAMESPACE/NAME, or NAME as `kubectl get pvc` shows it.

    Also as `kubectl get pvc -o name` prints it.
    """
    bare = _bare(name, PERSISTENT_VOLUME_CLAIM)
    before, slash, after = bare.partition("/")
    if slash and namespace and before != namespace:
        raise click.UsageError(f"{bare} is in the namespace {before}, and --namespace names {namespace}: use one.")
    target = ExplainedObject(PERSISTENT_VOLUME_CLAIM, before if slash else namespace or None, after if slash else bare)
    _explain(target, output)


@command.command("pv", short_help="Explain a PersistentVolume; also `persistentvolume`.", epilog=HELP_ON_CODES)
@click.argument("name")
@_without_namespace
@_with_options
def persistent_volume(name: str, output: str) -> None:
    """Explain the PersistentVolume NAME, as `kubectl get pv` shows it, with or without `-o name`."""
    _explain(_of_cluster(PERSISTENT_VOLUME, name), output)


def _of_cluster(kind: Kind, name: str) -> ExplainedObject:
    bare = _bare(name, kind)
    namespace, slash, own_name = bare.partition("/")
    if slash and namespace and own_name:
        raise click.UsageError(f"{bare}: a {kind.kind} is in no namespace. Write its name alone: {own_name}.")
    return ExplainedObject(kind, None, bare)


def _bare(name: str, kind: Kind) -> str:
    """Return the name without what `kubectl get -o name` puts before it."""
    suffix = f".{kind.group}" if kind.group else ""
    return name.removeprefix(f"{kind.singular}{suffix}/")


def _explain(target: ExplainedObject, output: str) -> None:
    explanation = in_cluster(lambda cluster: _explanation(target, cluster))
    if output == "text":
        click.echo("\n".join(map(harmless, _lines(explanation))))
    else:
        show(asdict(explanation), output)


def _lines(explanation: Explanation) -> list[str]:
    lines = [explanation.what, explanation.state, *explanation.tried]
    return [*lines, *_table(explanation.table), f"Next: {explanation.next}"]


def _table(rows: Sequence[Mapping[str, str]]) -> list[str]:
    """Return rows below their names, in columns as kubectl prints them."""
    if not rows:
        return []
    titles = {name: "".join(f" {each}" if each.isupper() else each for each in name).upper() for name in rows[0]}
    # Escape before measuring the columns: an escaped text is longer.
    cells = [titles, *({name: harmless(text) for name, text in row.items()} for row in rows)]
    widths = {name: max(len(row[name]) for row in cells) for name in titles}
    return ["  " + "   ".join(row[name].ljust(widths[name]) for name in titles).rstrip() for row in cells]


async def _explanation(target: ExplainedObject, cluster: ConnectedCluster) -> Explanation:
    target = target.within(cluster.namespace)
    try:
        return await _explained(target, ExplainReader(cluster.client), cluster.now)
    except NotFound:
        return await _gone(target, ExplainReader(cluster.client), cluster.now)


async def _explained(target: ExplainedObject, reader: ExplainReader, now: datetime) -> Explanation:
    if target.kind == PERSISTENT_VOLUME_CLAIM:
        return explain_claim(await reader.claim(target.name), now)
    if target.kind == PERSISTENT_VOLUME:
        return explain_volume(await reader.volume(target.name), now)
    return explain(await reader.attachment(target.name), now)


async def _gone(target: ExplainedObject, reader: ExplainReader, now: datetime) -> Explanation:
    """Explain a claim or PersistentVolume that is gone, if its volume may be left."""
    if target.kind == PERSISTENT_VOLUME_CLAIM and (requests := await reader.open_requests_of(target.name)):
        return explain_gone(target.name, requests, now)
    if target.kind == PERSISTENT_VOLUME:
        left = explain_left_volume(await reader.left_volume(target.bare_name), target.bare_name, now)
        if left is not None:
            return left
    raise ExplainedObjectMissing(target)


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name=program_name("explain"))  # ends the process with its exit code
