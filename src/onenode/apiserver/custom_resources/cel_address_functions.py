"""Kubernetes' functions of IP addresses, CIDR blocks and URLs in CEL, which read what Go's `netip` and `net/url` read.

Values are maps with one key, the name of their type, as in `cel_number_functions`. Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from typing import Any, Final
from urllib.parse import quote, unquote_plus

from onenode.apiserver.custom_resources.cel_function import CelFunction, CelValue, function, holds, member, unwrapped

IP: Final = "net.IP"
CIDR: Final = "net.CIDR"
URL: Final = "kubernetes.URL"
BROADCAST: Final = IPv4Address("255.255.255.255")
LOCAL_MULTICAST: Final = IPv4Network("224.0.0.0/24")

_ESCAPE: Final = re.compile("%(?![0-9a-fA-F]{2})")
_UNSAFE_IN_HOST: Final = re.compile(r"[\x00-\x20\x7f\"#<>\\^`{|}%]")

Address = IPv4Address | IPv6Address
IpBlock = IPv4Network | IPv6Network


# ---- addresses -------------------------------------------------------------------------------------------------------


def _address(text: str) -> Address:
    if "%" in text:
        raise ValueError(f"IP address {text!r} with zone value is not allowed")
    address = ipaddress.ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        raise ValueError(f"IPv4-mapped IPv6 address {text!r} is not allowed")
    return address


def _ip(text: str) -> CelValue:
    return {IP: str(_address(text))}


def _of_ip(ask: Callable[[Address], Any]) -> Callable[[CelValue], Any]:
    return lambda value: ask(_address(unwrapped(value, IP)))


def _is_link_local_multicast(address: Address) -> bool:
    if isinstance(address, IPv4Address):
        return address in LOCAL_MULTICAST
    return address.is_multicast and address.packed[1] & 0x0F == 0x02  # noqa: PLR2004 - the scope "link-local"


def _is_global_unicast(address: Address) -> bool:
    special = address.is_unspecified or address.is_loopback or address.is_multicast or _is_link_local(address)
    return not special and address != BROADCAST


def _is_link_local(address: Address) -> bool:
    return address.is_link_local


# ---- blocks ----------------------------------------------------------------------------------------------------------


def _block(text: str) -> tuple[Address, IpBlock]:
    """Return the address as it is written, and the whole block."""
    written, slash, length = text.partition("/")
    address = _address(written)
    if not slash or not re.fullmatch("0|[1-9][0-9]{0,2}", length):
        raise ValueError(f"{text!r} is no CIDR block")
    return address, ipaddress.ip_network(text, strict=False)


def _cidr(text: str) -> CelValue:
    address, block = _block(text)
    return {CIDR: f"{address}/{block.prefixlen}"}


def _of_cidr(ask: Callable[[Address, IpBlock], Any]) -> Callable[[CelValue], Any]:
    return lambda value: ask(*_block(unwrapped(value, CIDR)))


def _contains_ip(cidr: CelValue, other: CelValue | str) -> bool:
    block = _block(unwrapped(cidr, CIDR))[1]
    return _address(other if isinstance(other, str) else unwrapped(other, IP)) in block


def _contains_cidr(cidr: CelValue, other: CelValue | str) -> bool:
    block = _block(unwrapped(cidr, CIDR))[1]
    inner = _block(other if isinstance(other, str) else unwrapped(other, CIDR))[1]
    return inner.version == block.version and inner.prefixlen >= block.prefixlen and inner.network_address in block


def _text(value: CelValue) -> str:
    return str(unwrapped(value, CIDR if CIDR in value else IP))


# ---- URLs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _UrlParts:
    scheme: str = ""
    host: str = ""
    path: str = ""
    query: str = ""


def _url_parts(text: str) -> _UrlParts:
    """Split an absolute URL or an absolute path, as a request line has it."""
    if re.search(r"[\x00-\x1f\x7f]", text):
        raise ValueError("invalid control character in URL")
    match = re.match("([a-zA-Z][a-zA-Z0-9+.-]*):", text)
    scheme = match[1].lower() if match else ""
    rest, _, query = text[len(match[0]) if match else 0 :].partition("?")
    if not rest.startswith("/"):
        if scheme:
            return _UrlParts(scheme, query=query)
        raise ValueError("invalid URI for request")
    host = ""
    if scheme and rest.startswith("//"):
        authority, slash, path = rest[2:].partition("/")
        host, rest = _host(authority.rpartition("@")[2]), slash + path
    if _ESCAPE.search(rest):
        raise ValueError("invalid URL escape")
    return _UrlParts(scheme, host, rest, query)


def _host(text: str) -> str:
    name, port = _host_and_port(text)
    if _UNSAFE_IN_HOST.search(name) or ("[" in name and not name.endswith("]")):
        raise ValueError("invalid character in host name")
    if not re.fullmatch("(:[0-9]*)?", port):
        raise ValueError("invalid port after host")
    return text


def _host_and_port(host: str) -> tuple[str, str]:
    """The port begins with its colon; a colon inside brackets is part of an address."""
    end = host.rfind("]") + 1
    colon = host.find(":", end)
    return (host, "") if colon < 0 else (host[:colon], host[colon:])


def _url(text: str) -> CelValue:
    _url_parts(text)
    return {URL: text}


def _of_url(ask: Callable[[_UrlParts], Any]) -> Callable[[CelValue], Any]:
    return lambda value: ask(_url_parts(unwrapped(value, URL)))


def _hostname(parts: _UrlParts) -> str:
    return _host_and_port(parts.host)[0].removeprefix("[").removesuffix("]")


def _query(parts: _UrlParts) -> dict[str, list[str]]:
    """As in Go, a pair that holds a semicolon or a broken escape is dropped."""
    made: dict[str, list[str]] = {}
    for pair in parts.query.split("&"):
        if pair and ";" not in pair and not _ESCAPE.search(pair):
            key, _, value = pair.partition("=")
            made.setdefault(unquote_plus(key), []).append(unquote_plus(value))
    return made


is_url: Final = holds(_url_parts)

# `ip` is a function of texts, and a member of blocks.
ADDRESS_FUNCTIONS: Final[tuple[CelFunction, ...]] = (
    function("ip", ["STRING"], "MAP", _ip),
    function("isIP", ["STRING"], "BOOL", holds(_ip)),
    function("ip.isCanonical", ["STRING"], "BOOL", lambda text: str(_address(text)) == text),
    member("family", ["MAP"], "INT", _of_ip(lambda address: address.version)),
    member("isUnspecified", ["MAP"], "BOOL", _of_ip(lambda address: address.is_unspecified)),
    member("isLoopback", ["MAP"], "BOOL", _of_ip(lambda address: address.is_loopback)),
    member("isLinkLocalMulticast", ["MAP"], "BOOL", _of_ip(_is_link_local_multicast)),
    member("isLinkLocalUnicast", ["MAP"], "BOOL", _of_ip(_is_link_local)),
    member("isGlobalUnicast", ["MAP"], "BOOL", _of_ip(_is_global_unicast)),
    function("cidr", ["STRING"], "MAP", _cidr),
    function("isCIDR", ["STRING"], "BOOL", holds(_cidr)),
    *(member("containsIP", ["MAP", other], "BOOL", _contains_ip) for other in ("MAP", "STRING")),
    *(member("containsCIDR", ["MAP", other], "BOOL", _contains_cidr) for other in ("MAP", "STRING")),
    member("ip", ["MAP"], "MAP", _of_cidr(lambda address, _block: {IP: str(address)})),
    member("prefixLength", ["MAP"], "INT", _of_cidr(lambda _address, block: block.prefixlen)),
    member("masked", ["MAP"], "MAP", _of_cidr(lambda _address, block: {CIDR: str(block)})),
    function("string", ["MAP"], "STRING", _text),
    function("url", ["STRING"], "MAP", _url),
    function("isURL", ["STRING"], "BOOL", is_url),
    member("getScheme", ["MAP"], "STRING", _of_url(lambda parts: parts.scheme)),
    member("getHost", ["MAP"], "STRING", _of_url(lambda parts: parts.host)),
    member("getHostname", ["MAP"], "STRING", _of_url(_hostname)),
    member("getPort", ["MAP"], "STRING", _of_url(lambda parts: _host_and_port(parts.host)[1].removeprefix(":"))),
    member("getEscapedPath", ["MAP"], "STRING", _of_url(lambda parts: quote(parts.path, safe="%/:@!$&'()*+,;=~[]"))),
    member("getQuery", ["MAP"], "MAP", _of_url(_query)),
)
