"""`orlop csi METHOD [JSON]`: call any RPC of any CSI driver from the shell.

Request and response are JSON. Exit codes: 0 success, 1 the call failed (code and message on stderr), 2 wrong use.
"""

from __future__ import annotations

import asyncio
import errno
import json
import socket
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from random import Random
from typing import Any, Final

import click
from google.protobuf import json_format
from google.protobuf.message import Message

from orlop.cli.csi_format import alternatives, fault_in, request_template, unknown_places
from orlop.cli.durations import DurationType
from orlop.cli.output import rendered, show
from orlop.csi.client import CsiClient
from orlop.csi.endpoint import Endpoint, InvalidEndpoint, UnixEndpoint, parse_endpoint
from orlop.csi.error_codes import CsiError, DeadlineExceeded, Internal, Unavailable
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.proto import rpc
from orlop.csi.rpc_type import Rpc
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import hide, silent_log

AnyRpc = Rpc[Any, Any]
INTERRUPTED: Final = 130
CONNECT_SECONDS: Final = 5.0
WIDE: Final = 200


class EndpointType(click.ParamType[Endpoint]):
    name = "endpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return parse_endpoint(value)
        except InvalidEndpoint as error:
            self.fail(str(error), param, ctx)


@click.command(
    "orlop csi",
    epilog="Examples: `orlop csi --list`, `orlop csi Node.NodePublishVolume --template`, "
    "`orlop csi GetPluginInfo -e unix:///csi/csi.sock`, `orlop csi CreateVolume @request.json`.",
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.argument("method", required=False)
@click.argument("request_json", metavar="[JSON]", required=False, default="{}")
@click.option(
    "-e", "--endpoint", type=EndpointType(), envvar="CSI_ENDPOINT", help="The driver's socket (or $CSI_ENDPOINT)."
)
@click.option(
    "--timeout", type=DurationType(), default="15s", show_default=True, help="How long to wait for the response."
)
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), default="json", help="Format of the response.")
@click.option("--list", "list_methods", is_flag=True, help="List all methods.")
@click.option("--template", is_flag=True, help="Print the method's request with all of its fields, to fill in.")
def command(  # noqa: PLR0913, PLR0917 - one parameter per option
    method: str | None,
    request_json: str,
    endpoint: Endpoint | None,
    timeout: float,
    output: str,
    list_methods: bool,  # noqa: FBT001 - click passes them by name
    template: bool,  # noqa: FBT001 - as above
) -> None:
    """Call METHOD of a CSI driver with a request in JSON.

    METHOD is `Service.Method`, or `Method` alone. JSON is the request in protobuf's JSON format; `@FILE` reads it from
    a file and `-` from standard input.

    Exit codes: 0 success, 1 the call failed (code and message on stderr), 2 wrong use, 130 interrupted.
    """
    if list_methods:
        print_methods(output)
        return
    if method is None:
        raise click.UsageError("METHOD is missing; --list shows all methods.")
    rpc_type = find_method(method)
    if template:
        show(request_template(rpc_type.request.DESCRIPTOR), output)
        for line in alternatives(rpc_type.request.DESCRIPTOR):
            click.echo(line, err=True)
        return
    if endpoint is None:
        raise click.UsageError(
            "--endpoint (or $CSI_ENDPOINT) is missing: the address of the driver, such as unix:///csi/csi.sock."
        )
    request = parse_request(rpc_type, read_json(request_json))
    try:
        asyncio.run(print_answers(rpc_type, request, endpoint, timeout, output))
    except CsiError as error:
        click.echo(f"{error.code.name}: {error.message}", err=True)
        sys.exit(1)
    except KeyboardInterrupt:
        click.echo("interrupted; the driver may still be at work", err=True)
        sys.exit(INTERRUPTED)


def find_method(text: str) -> AnyRpc:
    name = text.strip("/").replace("csi.v1.", "").replace("/", ".").lower()
    matches = [method for method in rpc.ALL if name in {method.name.lower(), f"{method.service}.{method.name}".lower()}]
    if len(matches) != 1:
        near = get_close_matches(name.rpartition(".")[2], [method.name.lower() for method in rpc.ALL], n=1)
        hint = next((f" did you mean {m.service}.{m.name}?" for m in rpc.ALL if [m.name.lower()] == near), "")
        raise click.UsageError(f"there is no method {text!r};{hint} --list shows all methods.")
    return matches[0]


def read_json(text: str) -> str:
    try:
        if text == "-":
            return sys.stdin.read()
        return Path(text[1:]).read_text() if text.startswith("@") else text
    except (OSError, UnicodeDecodeError) as error:
        source = "standard input" if text == "-" else text[1:]
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise click.UsageError(f"cannot read the request from {source!r}: {why}") from None


def parse_request(method: AnyRpc, text: str) -> Message:
    name = method.request.DESCRIPTOR.name
    if not text.lstrip().startswith("{"):
        raise click.UsageError(f"the JSON is no {name}: it must be an object, such as {{}}")
    try:
        return json_format.Parse(text, method.request())  # type: ignore[no-any-return]  # the stubs leave it open
    except json_format.ParseError as error:
        reason = plain_reason(method, text) or hide(str(error), secrets_in(text))
        raise click.UsageError(f"the JSON is no {name}: {reason}") from None


def plain_reason(method: AnyRpc, text: str) -> str | None:
    """Return what is wrong with a request, for usual mistakes; protobuf's own texts are written for programmers."""
    with suppress(ValueError, RecursionError, OverflowError):
        return fault_in(method.request.DESCRIPTOR, json.loads(text))
    return None


def secrets_in(text: str) -> set[str]:
    """Return the secrets that protobuf's error may quote: all values below keys that contain `secret`."""
    secrets: set[str] = set()

    def collect(value: Any, *, secret: bool) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                collect(inner, secret=secret or "secret" in key.lower())
        elif isinstance(value, list):
            for inner in value:
                collect(inner, secret=secret)
        elif secret:
            secrets.add(str(value))

    with suppress(ValueError, RecursionError):
        collect(json.loads(text), secret=False)
    return secrets


async def print_answers(method: AnyRpc, request: Message, endpoint: Endpoint, within: float, output: str) -> None:
    if isinstance(endpoint, UnixEndpoint) and (objection := objection_to(endpoint.path)):
        raise Unavailable(objection)
    clock = SystemClock()
    client = CsiClient(
        GrpcConnection(endpoint),
        log=silent_log(),
        metrics=Metrics("cli"),
        clock=clock,
        random=Random(),  # noqa: S311 - spreads retries, guards nothing
        timeout=within,
    )
    try:
        await print_each(answers(client, method, request), output)
    except DeadlineExceeded as error:
        late = f"no response within {within:g} seconds; the driver may still be at work; --timeout waits longer"
        raise DeadlineExceeded(f"{late} ({error.message})") from None
    finally:
        await client.close()


async def print_each(answers: AsyncIterator[Message], output: str) -> None:
    printed = 0
    async for answer in answers:
        if printed and output == "yaml":
            click.echo("---")
        show(as_dict(answer), output)
        printed += 1
        for place in unknown_places(answer):
            click.echo(f"left out, because CSI 1.13.0 does not define it: {place}", err=True)


def objection_to(path: str) -> str | None:
    """Return why a socket cannot be used, in a sentence; gRPC has one text for all reasons. None if it can be used."""
    with socket.socket(socket.AF_UNIX) as attempt:
        attempt.settimeout(CONNECT_SECONDS)
        number = attempt.connect_ex(path)
    match number:
        case errno.ENOENT | errno.ENOTDIR:
            return f"there is no socket at {path}: is the driver running?"
        case errno.ECONNREFUSED if not Path(path).is_socket():
            return f"{path} is no socket"
        case errno.ECONNREFUSED:
            return f"no process listens on {path}: the driver that created the socket has ended"
        case errno.EACCES | errno.EPERM:
            return f"you may not connect to {path}: try again as root"
        case _:
            return None


def as_dict(answer: Message) -> dict[str, Any]:
    try:
        return json_format.MessageToDict(answer)
    except json_format.SerializeToJsonError as error:
        raise Internal(f"the driver's response cannot be written as JSON: {error}") from None


async def answers(client: CsiClient, method: AnyRpc, request: Message) -> AsyncIterator[Message]:
    if not method.streams:
        yield await client.call(method, request)
        return
    async for answer in client.stream(method, request):
        yield answer


def print_methods(output: str) -> None:
    if output == "yaml":
        click.echo(rendered({service: [m.name for m in methods] for service, methods in rpc.SERVICES.items()}, output))
        return
    from rich.console import Console  # noqa: PLC0415 - import it only for a table: it is slow
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table("METHOD", "REQUEST", "RESPONSE", box=None, pad_edge=False)
    for method in rpc.ALL:
        answer = method.response.DESCRIPTOR.name + (" (stream)" if method.streams else "")
        table.add_row(f"{method.service}.{method.name}", method.request.DESCRIPTOR.name, answer)
    # In a pipe every row must stay one line, even if the terminal is narrow.
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name="orlop csi")  # ends the process with its exit code
