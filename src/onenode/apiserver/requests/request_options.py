"""The options in the query of a request, or in the body of a deletion: read, checked, refused in Kubernetes' words.

A value that cannot be read is a 400, options that contradict each other are a 422. Of an option given twice the first
counts; options nobody knows are passed over. Pure.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from onenode.apiserver.answers.status_answers import Refusal, bad_request, bad_version, invalid_options
from onenode.apiserver.schema.field_errors import Cause, forbidden, invalid, not_supported, too_long
from onenode.go_text import quoted
from orlop.kube.label_requirements import InvalidSelector
from orlop.kube.selectors import FieldSelector, LabelSelector

INTEGER: Final = re.compile(r"[+-]?[0-9]{1,18}")
DECIMAL: Final = re.compile(r"[0-9]{1,19}")
LARGEST_VERSION: Final = 2**63 - 1
FALSE: Final = frozenset({"false", "0"})
EXACT: Final = "Exact"
NOT_OLDER: Final = "NotOlderThan"
ALL: Final = "All"
POLICIES: Final = ("Foreground", "Background", "Orphan")
LONGEST_MANAGER: Final = 128

ANY_LABELS: Final = LabelSelector()
ANY_FIELDS: Final = FieldSelector()

Query = Sequence[tuple[str, str]]


def first_options(query: Query) -> Mapping[str, str]:
    return dict(reversed(query))


def flag_option(options: Mapping[str, str], name: str) -> bool:
    return name in options and options[name] not in FALSE


def integer_option(options: Mapping[str, str], name: str) -> int | None:
    text = options.get(name, "")
    if not text:
        return None
    if not INTEGER.fullmatch(text):
        raise bad_request(f"strconv.ParseInt: parsing {quoted(text)}: invalid syntax")
    return int(text)


def read_version(text: str) -> int:
    """A resourceVersion as a number; none at all is 0."""
    if not text:
        return 0
    if not DECIMAL.fullmatch(text) or int(text) > LARGEST_VERSION:
        raise bad_version(text)
    return int(text)


# ---- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ListOptions:
    labels: LabelSelector = ANY_LABELS
    fields: FieldSelector = ANY_FIELDS
    watch: bool = False
    version: str = ""
    match: str = ""
    limit: int = 0
    continue_token: str = ""
    timeout_seconds: int | None = None
    bookmarks: bool = False
    send_initial: bool | None = None

    @property
    def selects(self) -> bool:
        return bool(self.labels) or bool(self.fields)


def asks_to_watch(query: Query) -> bool:
    return flag_option(first_options(query), "watch")


def read_list_options(query: Query) -> ListOptions:
    options = first_options(query)
    labels, fields = _selectors(options)
    read = ListOptions(
        labels=labels,
        fields=fields,
        watch=flag_option(options, "watch"),
        version=options.get("resourceVersion", ""),
        match=options.get("resourceVersionMatch", ""),
        limit=max(0, integer_option(options, "limit") or 0),
        continue_token=options.get("continue", ""),
        timeout_seconds=integer_option(options, "timeoutSeconds"),
        bookmarks=flag_option(options, "allowWatchBookmarks"),
        send_initial=flag_option(options, "sendInitialEvents") if "sendInitialEvents" in options else None,
    )
    if causes := list(_watch_causes(read) if read.watch else _list_causes(read)):
        raise invalid_options("ListOptions", causes)
    return read


def _selectors(options: Mapping[str, str]) -> tuple[LabelSelector, FieldSelector]:
    try:
        labels = LabelSelector.parse(options.get("labelSelector", ""))
        return labels, FieldSelector.parse(options.get("fieldSelector", ""))
    except InvalidSelector as error:
        raise bad_request(str(error)) from None


def _watch_causes(options: ListOptions) -> Iterator[Cause]:
    if options.send_initial is None:
        if options.match:
            why = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
            yield forbidden("resourceVersionMatch", why)
    elif options.match != NOT_OLDER:
        yield forbidden(
            "resourceVersionMatch", "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
        )
    if options.continue_token:
        yield forbidden("continue", "continue is forbidden for watch")


def _list_causes(options: ListOptions) -> Iterator[Cause]:
    if options.send_initial is not None:
        yield forbidden("sendInitialEvents", "sendInitialEvents is forbidden for list")
    if not options.match:
        return
    if options.continue_token:
        yield forbidden("resourceVersionMatch", "resourceVersionMatch is forbidden when continue is provided")
    if not options.version:
        why = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        yield forbidden("resourceVersionMatch", why)
    if options.match not in {EXACT, NOT_OLDER}:
        yield not_supported("resourceVersionMatch", options.match, (EXACT, NOT_OLDER, ""))
    if options.match == EXACT and options.version == "0":
        why = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        yield forbidden("resourceVersionMatch", why)


@dataclass(frozen=True, slots=True)
class ListTime:
    """As of when a list is asked for: at exactly one revision, or at any that is not older."""

    revision: int
    exact: bool


def list_time(options: ListOptions) -> ListTime:
    version = read_version(options.version)
    if options.continue_token and version:
        raise bad_request("specifying resource version is not allowed when using continue")
    exact = options.match == EXACT or (not options.match and options.limit > 0 and version > 0)
    return ListTime(version, exact)


# ---- writing ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class WriteOptions:
    dry_run: bool = False
    strict: bool = False
    warn: bool = True


def read_write_options(query: Query, kind_of_options: str) -> WriteOptions:
    """`kind_of_options` is CreateOptions, UpdateOptions or PatchOptions: refusals name it."""
    options = first_options(query)
    validation = options.get("fieldValidation", "")
    dry_run = [value for name, value in query if name == "dryRun"]
    causes = [*_dry_run_causes(dry_run), *_manager_causes(options.get("fieldManager", ""))]
    if validation not in {"", "Ignore", "Warn", "Strict"}:
        causes.append(not_supported("fieldValidation", validation, ("", "Ignore", "Strict", "Warn")))
    if causes:
        raise invalid_options(kind_of_options, causes)
    return WriteOptions(bool(dry_run), validation == "Strict", validation in {"", "Warn"})


def _dry_run_causes(values: Iterable[Any]) -> Iterator[Cause]:
    given = list(values)
    if any(value != ALL for value in given):
        yield not_supported("dryRun", given, (ALL,))


def _manager_causes(manager: str) -> Iterator[Cause]:
    if len(manager.encode()) > LONGEST_MANAGER:
        yield too_long("fieldManager", LONGEST_MANAGER)
    if not manager.isprintable():
        yield invalid("fieldManager", manager, "should only contain printable characters")


# ---- deleting --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class DeletionOptions:
    """`propagation` is empty where the client left it to the kind."""

    dry_run: bool = False
    uid: str | None = None
    version: str | None = None
    propagation: str = ""
    grace_seconds: int | None = None


def read_deletion_options(query: Query, body: Mapping[str, Any] | None) -> DeletionOptions:
    """From the body, which was decoded as a DeleteOptions, or from the query where there is none."""
    given = dict(body) if body is not None else _deletion_query(query)
    guards = given.get("preconditions") or {}
    propagation, orphan = given.get("propagationPolicy") or "", given.get("orphanDependents")
    dry_run = given.get("dryRun") or []
    causes = [*_propagation_causes(propagation, orphan), *_dry_run_causes(dry_run)]
    if causes:
        raise invalid_options("DeleteOptions", causes)
    if orphan is not None:
        propagation = "Orphan" if orphan else "Background"
    grace = given.get("gracePeriodSeconds")
    return DeletionOptions(bool(dry_run), guards.get("uid"), guards.get("resourceVersion"), propagation, grace)


def _deletion_query(query: Query) -> dict[str, Any]:
    options = first_options(query)
    given: dict[str, Any] = {
        "propagationPolicy": options.get("propagationPolicy", ""),
        "dryRun": [value for name, value in query if name == "dryRun"],
        "gracePeriodSeconds": integer_option(options, "gracePeriodSeconds"),
    }
    if "orphanDependents" in options:
        given["orphanDependents"] = flag_option(options, "orphanDependents")
    return given


def _propagation_causes(propagation: str, orphan: bool | None) -> Iterator[Cause]:  # noqa: FBT001 - a client's option
    if propagation and orphan is not None:
        why = "orphanDependents and deletionPropagation cannot be both set"
        yield invalid("propagationPolicy", propagation, why)
    elif propagation and propagation not in POLICIES:
        yield not_supported("propagationPolicy", propagation, (*POLICIES, "nil"))


# ---- continue tokens -------------------------------------------------------------------------------------------------

# The token with which a client asks for the next page of a list: the version of the first page, and where it ended.
#
# It looks like Kubernetes' own, and is as opaque: clients hand it back as it is. Pure.


FORMAT: Final = "meta.k8s.io/v1"
LONGEST: Final = 4096
# Behind the name, so that a name which begins with this one comes later.
END: Final = "\0"
NEWEST: Final = -1
"""In place of a revision: whatever is newest then."""


@dataclass(frozen=True, slots=True)
class ContinueToken:
    revision: int
    namespace: str
    name: str


class _Wire(msgspec.Struct):
    v: str
    rv: int
    start: str


_DECODER: Final = msgspec.json.Decoder(_Wire)


def write_token(token: ContinueToken) -> str:
    place = f"{token.namespace}/{token.name}" if token.namespace else token.name
    text = msgspec.json.encode(_Wire(FORMAT, token.revision, place + END))
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def read_token(text: str) -> ContinueToken:
    if len(text) > LONGEST:
        raise _refused(f"it is longer than {LONGEST} characters")
    try:
        wire = _DECODER.decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise _refused("it is not one of this server's") from None
    namespace, _, name = wire.start.removesuffix(END).rpartition("/")
    if wire.v != FORMAT or (wire.rv < 1 and wire.rv != NEWEST) or not name or "/" in namespace:
        raise _refused("it is not one of this server's")
    return ContinueToken(wire.rv, namespace, name)


def _refused(why: str) -> Refusal:
    return bad_request(f"invalid continue token: {why}")
