from __future__ import annotations

import base64
import json
import stat
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.access.certificates import UnusableCertificate
from onenode.apiserver.access.signed_tokens import BoundObject, InvalidToken, TokenClaims, TokenSigner, ensure_signer

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SIGNER = TokenSigner(rsa.generate_private_key(public_exponent=65537, key_size=2048))
CLAIMS = TokenClaims(
    namespace="default",
    account="builder",
    account_uid="u-1",
    audiences=("https://api", "vault"),
    issued=NOW,
    expires=NOW + timedelta(hours=1),
    id="j-1",
    bound=BoundObject("Pod", "p1", "u-2"),
)


def part(token: str, number: int) -> dict[str, object]:
    text = token.split(".")[number]
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))  # type: ignore[no-any-return]


def test_a_token_gives_back_what_it_claims():
    token = SIGNER.sign(CLAIMS)

    assert SIGNER.read(token, "vault", NOW) == CLAIMS
    assert SIGNER.read(SIGNER.sign(replace(CLAIMS, bound=None)), "vault", NOW).bound is None


def test_a_token_looks_as_kubernetes_own():
    token = SIGNER.sign(CLAIMS)

    assert part(token, 0)["alg"] == "RS256"
    payload = part(token, 1)
    assert payload["sub"] == "system:serviceaccount:default:builder"
    assert payload["aud"] == ["https://api", "vault"]
    assert payload["exp"] == int(NOW.timestamp()) + 3600
    assert payload["kubernetes.io"] == {
        "namespace": "default",
        "serviceaccount": {"name": "builder", "uid": "u-1"},
        "pod": {"name": "p1", "uid": "u-2"},
    }


@pytest.mark.parametrize("when", [NOW - timedelta(seconds=61), NOW + timedelta(hours=1)], ids=["too early", "too late"])
def test_a_token_is_good_only_in_its_time(when: datetime):
    with pytest.raises(InvalidToken, match="time"):
        SIGNER.read(SIGNER.sign(CLAIMS), "vault", when)


def test_a_token_is_good_only_for_its_audiences():
    with pytest.raises(InvalidToken, match="not for other"):
        SIGNER.read(SIGNER.sign(CLAIMS), "other", NOW)


def test_a_token_of_another_key_is_refused():
    other = TokenSigner(rsa.generate_private_key(public_exponent=65537, key_size=2048))

    with pytest.raises(InvalidToken, match="not signed by this server"):
        SIGNER.read(other.sign(CLAIMS), "vault", NOW)


@pytest.mark.parametrize("algorithm", ["none", "HS256", "RS512"])
def test_a_header_that_names_another_algorithm_is_refused(algorithm: str):
    _, payload, signature = SIGNER.sign(CLAIMS).split(".")
    header = base64.urlsafe_b64encode(json.dumps({"alg": algorithm}).encode()).decode().rstrip("=")

    for forged in (f"{header}.{payload}.{signature}", f"{header}.{payload}."):
        with pytest.raises(InvalidToken):
            SIGNER.read(forged, "vault", NOW)


@given(st.text() | st.binary().map(lambda raw: raw.hex()) | st.just("a.b.c") | st.from_regex(r"[\w-]+\.[\w-]+\.[\w-]+"))
def test_what_is_no_token_is_refused_and_not_quoted(text: str):
    with pytest.raises(InvalidToken) as caught:
        SIGNER.read(text, "vault", NOW)

    assert len(text) < 12 or text not in str(caught.value)


@given(st.integers(min_value=0), st.characters(codec="ascii"))
def test_a_token_with_another_character_anywhere_is_refused(place: int, character: str):
    token = SIGNER.sign(CLAIMS)
    place %= len(token)
    changed = token[:place] + character + token[place + 1 :]
    if (
        base64.urlsafe_b64decode(f"{token.split('.')[2]}==") == _signature(changed)
        and changed.split(".")[:2] == token.split(".")[:2]
    ):
        return  # the last character of base64 has spare bits
    with pytest.raises(InvalidToken):
        SIGNER.read(changed, "vault", NOW)


def _signature(token: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(f"{token.split('.')[2]}==")
    except (ValueError, IndexError):
        return None


def test_the_key_is_made_once_and_for_root_alone(short_folder: Path):
    path = short_folder / "sa.key"

    token = ensure_signer(path).sign(CLAIMS)

    assert ensure_signer(path).read(token, "vault", NOW) == CLAIMS
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_file_that_holds_no_key_is_named_and_left_alone(short_folder: Path):
    path = short_folder / "sa.key"
    path.write_text("precious")

    with pytest.raises(UnusableCertificate, match=r"sa\.key"):
        ensure_signer(path)

    assert path.read_text() == "precious"
