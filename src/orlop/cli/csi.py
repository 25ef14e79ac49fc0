"""`orlop csi METHOD [JSON]`: any RPC of any CSI driver, from the shell.

JSON in, JSON out. Exit codes: 0 the driver answered, 1 it answered with an error (code and message on stderr),
2 the question was wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, Final

import click
from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from orlop.csi.client import CsiClient
from orlop.csi.endpoint import Endpoint, InvalidEndpoint, UnixEndpoint, parse_endpoint
from orlop.csi.error_codes import CsiError, Internal, Unavailable
from orlop.csi.grpc_transport import GrpcConnection
from orlop.csi.proto import rpc
from orlop.csi.rpc_type import Rpc
from orlop.foundation.clock import SystemClock
from orlop.foundation.duration import Duration, InvalidDuration
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import hide, silent_log

AnyRpc = Rpc[Any, Any]
DEEPEST_TEMPLATE: Final = 6
WIDE: Final = 200


class EndpointType(click.ParamType[Endpoint]):
    name = "endpoint"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            return parse_endpoint(value)
        except InvalidEndpoint as error:
            self.fail(str(error), param, ctx)


class DurationType(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        try:
            seconds = Duration.parse(value).seconds
        except InvalidDuration as error:
            self.fail(str(error), param, ctx)
        if seconds <= 0:
            self.fail(f"{value!r} is no time to wait: write something like 15s", param, ctx)
        return seconds


@click.command(
    "orlop csi",
    epilog="Examples: `orlop csi --list`, `orlop csi Node.NodePublishVolume --template`, "
    "`orlop csi GetPluginInfo -e unix:///csi/csi.sock`, `orlop csi CreateVolume @request.json`.",
)
@click.argument("method", required=False)
@click.argument("request_json", metavar="[JSON]", required=False, default="{}")
@click.option(
    "-e", "--endpoint", type=EndpointType(), envvar="CSI_ENDPOINT", help="The driver's socket (or $CSI_ENDPOINT)."
)
@click.option(
    "--timeout", type=DurationType(), default="15s", show_default=True, help="How long to wait for the answer."
)
@click.option("-o", "--output", type=click.Choice(["json", "yaml"]), default="json", help="How to print the answer.")
@click.option("--list", "list_methods", is_flag=True, help="List every method there is.")
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
    """Call METHOD of a CSI driver with a request given as JSON.

    METHOD is `Service.Method`, or `Method` alone. JSON is the request in protobuf's JSON form; `@FILE` reads it from
    a file and `-` from standard input.
    """
    if list_methods:
        print_methods(output)
        return
    if method is None:
        raise click.UsageError("METHOD is missing; --list shows them all.")
    found = find_method(method)
    if template:
        show(request_template(found.request.DESCRIPTOR), output)
        return
    if endpoint is None:
        raise click.UsageError(
            "--endpoint is missing: the address of the driver's socket, such as unix:///csi/csi.sock."
        )
    request = parse_request(found, read_json(request_json))
    try:
        asyncio.run(print_answers(found, request, endpoint, timeout, output))
    except CsiError as error:
        click.echo(f"{error.code.name}: {error.message}", err=True)
        sys.exit(1)


def find_method(text: str) -> AnyRpc:
    wanted = text.strip("/").replace("csi.v1.", "").replace("/", ".").lower()
    found = [method for method in rpc.ALL if wanted in {method.name.lower(), f"{method.service}.{method.name}".lower()}]
    if len(found) != 1:
        raise click.UsageError(f"there is no method {text!r}; --list shows them all.")
    return found[0]


def read_json(text: str) -> str:
    try:
        if text == "-":
            return sys.stdin.read()
        return Path(text[1:]).read_text() if text.startswith("@") else text
    except (OSError, UnicodeDecodeError) as error:
        source = "standard input" if text == "-" else text[1:]
        raise click.UsageError(f"cannot read the request from {source}: {error}") from None


def parse_request(method: AnyRpc, text: str) -> Message:
    name = method.request.DESCRIPTOR.name
    if not text.lstrip().startswith("{"):
        raise click.UsageError(f"the JSON is no {name}: it has to be an object, such as {{}}")
    try:
        return json_format.Parse(text, method.request())  # type: ignore[no-any-return]  # the stubs leave it open
    except json_format.ParseError as error:
        raise click.UsageError(f"the JSON is no {name}: {hide(str(error), secrets_in(text))}") from None


def secrets_in(text: str) -> set[str]:
    """What protobuf may quote of a request that it cannot read: all below each key that speaks of secrets."""
    found: set[str] = set()

    def look(value: Any, *, secret: bool) -> None:
        if isinstance(value, dict):
            for key, inner in value.items():
                look(inner, secret=secret or "secret" in key.lower())
        elif isinstance(value, list):
            for inner in value:
                look(inner, secret=secret)
        elif secret:
            found.add(str(value))

    with suppress(ValueError, RecursionError):
        look(json.loads(text), secret=False)
    return found


async def print_answers(method: AnyRpc, request: Message, endpoint: Endpoint, timeout: float, output: str) -> None:  # noqa: ASYNC109
    if isinstance(endpoint, UnixEndpoint) and not os.path.exists(endpoint.path):  # noqa: ASYNC240, PTH110 - once, here
        raise Unavailable(f"there is no socket at {endpoint.path}: is the driver running?")
    clock = SystemClock()
    client = CsiClient(
        GrpcConnection(endpoint),
        log=silent_log(),
        metrics=Metrics("cli"),
        clock=clock,
        random=Random(),  # noqa: S311 - spreads retries, guards nothing
        timeout=timeout,
    )
    try:
        async for answer in answers(client, method, request):
            show(as_dict(answer), output)
    finally:
        await client.close()


def as_dict(answer: Message) -> dict[str, Any]:
    try:
        return json_format.MessageToDict(answer)
    except json_format.SerializeToJsonError as error:
        raise Internal(f"the driver's answer cannot be written as JSON: {error}") from None


async def answers(client: CsiClient, method: AnyRpc, request: Message) -> AsyncIterator[Message]:
    if not method.streams:
        yield await client.call(method, request)
        return
    async for answer in client.stream(method, request):
        yield answer


def show(value: Any, output: str) -> None:
    if output == "json" and sys.stdout.isatty():
        from rich.console import Console  # noqa: PLC0415 - only a person's terminal pays for colours

        Console().print_json(data=value, ensure_ascii=False)
    else:
        click.echo(rendered(value, output))


def rendered(value: Any, output: str) -> str:
    if output == "yaml":
        import yaml  # noqa: PLC0415 - only who asks for it pays for it

        return str(yaml.safe_dump(value, sort_keys=False)).rstrip()
    return json.dumps(value, indent=2, ensure_ascii=False)


def print_methods(output: str) -> None:
    if output == "yaml":
        click.echo(rendered({service: [m.name for m in methods] for service, methods in rpc.SERVICES.items()}, output))
        return
    from rich.console import Console  # noqa: PLC0415 - only who asks for a table pays for it
    from rich.table import Table  # noqa: PLC0415 - as above

    table = Table("METHOD", "REQUEST", "ANSWER", box=None, pad_edge=False)
    for method in rpc.ALL:
        answer = method.response.DESCRIPTOR.name + (" (many)" if method.streams else "")
        table.add_row(f"{method.service}.{method.name}", method.request.DESCRIPTOR.name, answer)
    # Into a pipe every row stays one line, however narrow the terminal is.
    Console(width=None if sys.stdout.isatty() else WIDE).print(table)


def request_template(descriptor: Descriptor, depth: int = 0) -> dict[str, Any]:
    return {field.json_name: _example(field, depth) for field in descriptor.fields}


def _example(field: FieldDescriptor, depth: int) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return {}
    value = _single_example(field, depth)
    return [value] if field.is_repeated else value


def _single_example(field: FieldDescriptor, depth: int) -> Any:
    if field.message_type is not None:
        well_known = {"google.protobuf.BoolValue": False, "google.protobuf.Timestamp": "2026-01-01T00:00:00Z"}
        if field.message_type.full_name in well_known:
            return well_known[field.message_type.full_name]
        return request_template(field.message_type, depth + 1) if depth < DEEPEST_TEMPLATE else {}
    if field.enum_type is not None:
        return " | ".join(value.name for value in field.enum_type.values)
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
        return "0"  # JSON's numbers are too small for it, so protobuf writes a string
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return ""
    return False if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else 0


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name="orlop csi")  # ends the process with its exit code
