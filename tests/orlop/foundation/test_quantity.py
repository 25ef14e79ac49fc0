"""Quantities are read and written as Kubernetes does; the examples are facts of its own type's behaviour."""

from __future__ import annotations

import re
from decimal import Decimal, localcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.quantity import Format, InvalidQuantity, Quantity

DECIMAL, BINARY, EXPONENT = Format.DECIMAL_SI, Format.BINARY_SI, Format.DECIMAL_EXPONENT
INT64_MAX = 2**63 - 1
INT64_MIN = -(2**63)

READINGS = [
    # zero keeps the format of its suffix
    *[(f"0{suffix}", "0", DECIMAL) for suffix in ("", "n", "u", "m", "k", "M", "G", "T")],
    *[(f"0{suffix}", "0", BINARY) for suffix in ("Ki", "Mi", "Gi", "Ti")],
    ("1", "1", DECIMAL),
    # binary suffixes
    ("1Ki", "1024", BINARY),
    ("8Ki", "8192", BINARY),
    ("7Mi", "7340032", BINARY),
    ("6Gi", "6442450944", BINARY),
    ("5Ti", "5497558138880", BINARY),
    ("4Pi", "4503599627370496", BINARY),
    ("3Ei", "3458764513820540928", BINARY),
    ("10Ti", "10995116277760", BINARY),
    ("100Ti", "109951162777600", BINARY),
    # decimal suffixes
    ("5n", "5e-9", DECIMAL),
    ("4u", "4e-6", DECIMAL),
    ("3m", "3e-3", DECIMAL),
    ("9", "9", DECIMAL),
    ("8k", "8e3", DECIMAL),
    ("50k", "50e3", DECIMAL),
    ("7M", "7e6", DECIMAL),
    ("6G", "6e9", DECIMAL),
    ("5T", "5e12", DECIMAL),
    ("40T", "40e12", DECIMAL),
    ("300T", "300e12", DECIMAL),
    ("2P", "2e15", DECIMAL),
    ("1E", "1e18", DECIMAL),
    # exponents: E followed by digits is not exa
    ("1E-3", "1e-3", EXPONENT),
    ("1e3", "1e3", EXPONENT),
    ("1E6", "1e6", EXPONENT),
    ("1e9", "1e9", EXPONENT),
    ("1E12", "1e12", EXPONENT),
    ("1e13", "1e13", EXPONENT),
    ("1e14", "1e14", EXPONENT),
    ("1e15", "1e15", EXPONENT),
    ("1E18", "1e18", EXPONENT),
    # fractions
    ("100.035k", "100035", DECIMAL),
    ("0.001", "0.001", DECIMAL),
    ("0.0005k", "0.5", DECIMAL),
    ("0.005", "0.005", DECIMAL),
    ("0.05", "0.05", DECIMAL),
    ("0.5", "0.5", DECIMAL),
    ("0.00050k", "0.5", DECIMAL),
    ("0.00500", "0.005", DECIMAL),
    ("0.05000", "0.05", DECIMAL),
    ("0.50000", "0.5", DECIMAL),
    ("0.5e0", "0.5", EXPONENT),
    ("0.5e-1", "0.05", EXPONENT),
    ("0.5e-2", "0.005", EXPONENT),
    ("10.035M", "10035000", DECIMAL),
    ("1.2e3", "1200", EXPONENT),
    ("1.3E+6", "1300000", EXPONENT),
    ("1.40e9", "1.4e9", EXPONENT),
    ("1.53E12", "1.53e12", EXPONENT),
    ("1.6e15", "1.6e15", EXPONENT),
    ("1.7E18", "1.7e18", EXPONENT),
    ("9.01", "9.01", DECIMAL),
    ("8.1k", "8100", DECIMAL),
    ("7.123456M", "7123456", DECIMAL),
    ("6.987654321G", "6987654321", DECIMAL),
    ("5.444T", "5.444e12", DECIMAL),
    ("40.1T", "40.1e12", DECIMAL),
    ("300.2T", "300.2e12", DECIMAL),
    ("2.5P", "2.5e15", DECIMAL),
    ("1.01E", "1.01e18", DECIMAL),
    # what is finer than a billionth is rounded away from zero
    ("3.001n", "4e-9", DECIMAL),
    ("1.1E-9", "2e-9", EXPONENT),
    ("0.0000000001", "1e-9", DECIMAL),
    ("0.0000000005", "1e-9", DECIMAL),
    ("0.00000000050", "1e-9", DECIMAL),
    ("0.5e-9", "1e-9", EXPONENT),
    ("0.9n", "1e-9", DECIMAL),
    ("0.00000012345", "124e-9", DECIMAL),
    ("0.00000012354", "124e-9", DECIMAL),
    # only binary quantities end at the largest int64
    ("8Ei", "9223372036854775807", BINARY),
    ("9Ei", "9223372036854775807", BINARY),
    ("9223372036854775807Ki", "9223372036854775807", BINARY),
    ("12E", "12e18", DECIMAL),
    ("18446744073709551616", "18446744073709551616", DECIMAL),
    # binary fractions; less than one is no longer binary
    ("100.035Ki", "102435.84", BINARY),
    ("0.5Mi", "524288", BINARY),
    ("0.05Gi", "53687091.2", BINARY),
    ("0.025Ti", "27487790694.4", BINARY),
    ("0.0009765625Ki", "1", BINARY),
    ("0.000976562Ki", "0.999999488", DECIMAL),
    ("0.000000000001Ki", "2e-9", DECIMAL),
    # odd, but within the grammar
    (".001", "0.001", DECIMAL),
    (".0001k", "0.1", DECIMAL),
    ("1.", "1", DECIMAL),
    ("1.G", "1e9", DECIMAL),
    ("007", "7", DECIMAL),
]

WRITINGS = [
    (2**30, BINARY, "1Gi", ["1024Mi"]),
    (300 * 2**20, BINARY, "300Mi", ["307200Ki"]),
    (6 * 2**10, BINARY, "6Ki", []),
    (1001 * 2**30, BINARY, "1001Gi", ["1025024Mi"]),
    (2**40, BINARY, "1Ti", ["1024Gi"]),
    (5, BINARY, "5", ["5000m"]),
    (1023, BINARY, "1023", []),
    (1025, BINARY, "1025", []),
    ("0.5", BINARY, "500m", ["0.5", "0.500"]),
    ("1234.567", BINARY, "1234567m", []),
    ("1048.576", BINARY, "1048576m", []),
    (10**9, DECIMAL, "1G", ["1000M", "0.001T"]),
    ("0.001", DECIMAL, "1m", ["1000u"]),
    ("0.08", DECIMAL, "80m", []),
    ("1.08", DECIMAL, "1080m", ["1.08", "1080000000n", "1.080"]),
    (300 * 10**6, DECIMAL, "300M", []),
    (10**12, DECIMAL, "1T", []),
    (1234567 * 10**6, DECIMAL, "1234567M", []),
    (3000, DECIMAL, "3k", []),
    (5, DECIMAL, "5", ["+5", "05", "5."]),
    (0, DECIMAL, "0", ["00", "-0", "0.000"]),
    (0, BINARY, "0", ["0Ki"]),
    (0, EXPONENT, "0", ["0e5"]),
    (10**9, EXPONENT, "1e9", [".001e12", "1E9", "1e+9"]),
    ("0.001", EXPONENT, "1e-3", ["0.001e0"]),
    ("1e-9", EXPONENT, "1e-9", ["1000e-12"]),
    ("0.08", EXPONENT, "80e-3", []),
    (300 * 10**6, EXPONENT, "300e6", []),
    (1234, EXPONENT, "1234", ["1234e0"]),
    (10**12, EXPONENT, "1e12", []),
    (3000, EXPONENT, "3e3", []),
    (10**4, EXPONENT, "10e3", ["1e4"]),
    ("1e-9", DECIMAL, "1n", []),
    ("1080e-9", DECIMAL, "1080n", []),
    ("1e-6", DECIMAL, "1u", []),
    ("1080e-6", DECIMAL, "1080u", []),
    ("1.2345", DECIMAL, "1234500u", ["1.2345"]),
    ("1.024", DECIMAL, "1024m", [".001Ki"]),
    (3 * 2**29, BINARY, "1536Mi", ["1.5Gi"]),
    # there is no suffix beyond exa
    (10**21, DECIMAL, "1e21", ["1000E"]),
    (12 * 10**18, DECIMAL, "12E", []),
]

REFUSED = [
    *["1.1.M", "1+1.0M", "0.1mi", "0.1am", "aoeu", ".5i", "1i", "-3.01i", "-3.01e-", " 1", "1 ", "Non-Numeric"],
    *["1e", "1Ee3", "1k5", "1-", "1+5", "1ki", "1K", "1KI", "--1", "+-1", "1_000", "1e1_0", "1e1.5", "0x10", "1\n"],
    *["١", "1e٣", "Infinity", "NaN", "1,5", "1 Gi"],  # noqa: RUF001 - digits of other scripts are no digits here
]


def nanos(number: int | str) -> int:
    return int(Decimal(number).scaleb(9))


def negative(text: str) -> str:
    return "-" + text.lstrip("+-")


@pytest.mark.parametrize(("text", "number", "form"), READINGS, ids=[text for text, *_ in READINGS])
def test_a_text_means_what_kubernetes_takes_it_for(text: str, number: str, form: Format):
    for written, expected in ((text, nanos(number)), ("+" + text, nanos(number)), ("-" + text, -nanos(number))):
        quantity = Quantity.parse(written)
        assert (quantity.nanos, quantity.format) == (expected, form)


@pytest.mark.parametrize(("number", "form", "canonical", "others"), WRITINGS)
def test_the_canonical_form_is_kubernetes_own(number: int | str, form: Format, canonical: str, others: list[str]):
    assert str(Quantity(nanos(number), form)) == canonical
    for text in [canonical, *others]:
        assert str(Quantity.parse(text)) == canonical


@pytest.mark.parametrize(("number", "form", "canonical", "others"), [case for case in WRITINGS if case[0]])
def test_a_negative_quantity_is_written_as_its_opposite_with_a_sign(
    number: int | str, form: Format, canonical: str, others: list[str]
):
    assert str(Quantity(-nanos(number), form)) == negative(canonical)
    for text in [canonical, *others]:
        assert str(Quantity.parse(negative(text))) == negative(canonical)


@pytest.mark.parametrize("text", REFUSED)
def test_a_refused_text_is_named_and_told_what_is_allowed(text: str):
    with pytest.raises(InvalidQuantity, match=re.escape(repr(text)) + " is not a quantity: .*; allowed is a decimal"):
        Quantity.parse(text)


@pytest.mark.parametrize("text", ["", "+", "-", ".", "-.", "Ki", "E", "e5", "m", "+Gi"])
def test_a_quantity_without_digits_is_refused_by_name(text: str):
    with pytest.raises(InvalidQuantity, match=re.escape(repr(text)) + ".*does not begin with a number"):
        Quantity.parse(text)


def test_a_wrong_suffix_is_named():
    with pytest.raises(InvalidQuantity, match=r"'5GB' is not a quantity: 'GB' is no suffix"):
        Quantity.parse("5GB")


@pytest.mark.parametrize("text", ["1e1000000", "1e500", "0.001e503", "1e" + "9" * 900, "1E4294967299", "9" * 501])
def test_an_absurd_quantity_is_refused_before_it_fills_the_memory(text: str):
    with pytest.raises(InvalidQuantity, match="larger than 10 to the power of 500"):
        Quantity.parse(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [("1e-1000000", "1e-9"), ("9e-" + "9" * 900, "1e-9"), ("-1e-99999", "-1e-9"), ("0e99999", "0"), ("0e-99999", "0")],
)
def test_an_absurd_exponent_that_makes_nothing_large_is_read_like_any_other(text: str, canonical: str):
    assert str(Quantity.parse(text)) == canonical


def test_an_endless_text_is_refused_without_repeating_it():
    with pytest.raises(InvalidQuantity, match="it has 5000 characters, of at most 1000") as caught:
        Quantity.parse("9" * 5000)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    "text", ["1e499", "9" * 500, "9" * 497 + ".5", "9" * 500 + ".000000001", "." + "0" * 998 + "1"]
)
def test_the_largest_and_smallest_texts_can_be_read_written_and_read_again(text: str):
    quantity = Quantity.parse(text)
    assert Quantity.parse(str(quantity)) == quantity
    assert quantity.value() > 0


@pytest.mark.parametrize(
    ("text", "value"),
    [("0", 0), ("1n", 1), ("-1n", -1), ("1.5", 2), ("-1.5", -2), ("0.05Gi", 53687092), ("5Gi", 5 * 2**30)],
)
def test_the_value_is_rounded_away_from_zero(text: str, value: int):
    assert Quantity.parse(text).value() == value


def test_a_value_beyond_an_int64_is_exact():
    assert Quantity.parse("12E").value() == 12 * 10**18


@pytest.mark.parametrize(
    ("number", "form", "text"),
    [(1000, DECIMAL, "1k"), (1234000, DECIMAL, "1234k"), (1024, BINARY, "1Ki"), (10**6, EXPONENT, "1e6")],
)
def test_a_quantity_is_made_of_a_number_in_a_format(number: int, form: Format, text: str):
    assert str(Quantity.of(number, form)) == text


def test_a_number_of_bytes_is_written_in_binary_unless_told_otherwise():
    assert str(Quantity.of(5 * 2**30)) == "5Gi"


def test_the_same_value_in_other_words_is_the_same_quantity():
    assert Quantity.parse("1Ki") == Quantity.parse("1.024k") == Quantity.parse("1024")
    assert len({Quantity.parse("1Ki"), Quantity.parse("1024000m")}) == 1


@pytest.mark.parametrize(("smaller", "larger"), [("50m", "100m"), ("100Gi", "10000T"), ("-1", "1n"), ("1G", "1Gi")])
def test_quantities_are_ordered_by_value(smaller: str, larger: str):
    assert Quantity.parse(smaller) < Quantity.parse(larger)


@pytest.mark.parametrize(
    ("left", "right", "total", "difference"),
    [
        ("1Gi", "1G", "2073741824", "73741824"),
        ("1G", "1Gi", "2073741824", "-73741824"),
        ("1Gi", "1Gi", "2Gi", "0"),
        ("1Gi", "0", "1Gi", "1Gi"),
        ("0", "1Gi", "1Gi", "-1Gi"),
        ("0", "100m", "100m", "-100m"),
        ("100m", "0", "100m", "100m"),
        ("1e3", "1k", "2e3", "0"),
    ],
)
def test_a_sum_is_written_like_its_first_part_unless_that_is_zero(left: str, right: str, total: str, difference: str):
    assert str(Quantity.parse(left) + Quantity.parse(right)) == total
    assert str(Quantity.parse(left) - Quantity.parse(right)) == difference


@pytest.mark.parametrize("units", [2**63, 2**64, 2**70, INT64_MIN, -(2**70)])
def test_a_binary_sum_beyond_what_is_read_back_is_written_in_decimal(units: int):
    assert str(Quantity.of(units)) == str(units)
    assert Quantity.parse(str(Quantity.of(units))).value() == units


def test_a_quantity_cannot_be_changed():
    with pytest.raises(AttributeError):
        Quantity.of(5).nanos = 6  # type: ignore[misc]


formats = st.sampled_from(Format)
int64s = st.integers(INT64_MIN, INT64_MAX) | st.builds(
    lambda number, bits: number << bits, st.integers(-1024, 1023), st.integers(0, 53)
)
quantities = st.builds(Quantity.of, int64s, formats) | st.builds(Quantity, int64s, formats)
numbers = st.from_regex(r"[+-]?([0-9]{1,25}(\.[0-9]{0,15})?|\.[0-9]{1,15})", fullmatch=True)
POWERS = {
    **{suffix: Decimal(1000) ** (power - 3) for power, suffix in enumerate(["n", "u", "m", "", *"kMGTPE"])},
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"], start=1)},
    **{f"{letter}{power}": Decimal(10) ** int(power) for letter in "eE" for power in ("3", "-7", "+20", "0", "-30")},
}


@given(int64s, formats)
def test_every_int64_survives_being_written_and_read(number: int, form: Format):
    assert Quantity.parse(str(Quantity.of(number, form))).value() == number


@given(quantities)
def test_what_is_written_is_read_as_the_same_quantity(quantity: Quantity):
    assert Quantity.parse(str(quantity)) == quantity


@given(quantities.filter(lambda quantity: quantity.format is not BINARY))
def test_the_canonical_form_is_a_fixed_point(quantity: Quantity):
    assert str(Quantity.parse(str(quantity))) == str(quantity)


@given(quantities)
def test_the_canonical_form_of_a_binary_quantity_is_a_fixed_point_once_it_was_read(quantity: Quantity):
    text = str(Quantity.parse(str(quantity)))
    assert str(Quantity.parse(text)) == text


def test_a_binary_quantity_without_a_suffix_is_read_back_as_a_decimal_one():
    assert str(Quantity.of(2000, BINARY)) == "2000"
    assert str(Quantity.parse("2000")) == "2k"


@given(quantities)
def test_the_canonical_form_has_no_fraction_and_no_larger_suffix_would_do(quantity: Quantity):
    parts = re.fullmatch(r"(-?[0-9]+)([a-zA-Z]*)(-?[0-9]*)", str(quantity))
    assert parts is not None
    step = 1024 if quantity._can_be_written_in_binary() and quantity.format is BINARY else 1000
    assert quantity.nanos == 0 or parts[2] == "Ei" or int(parts[1]) % step != 0


@given(numbers, st.sampled_from(list(POWERS)))
def test_any_text_of_the_grammar_is_read_exactly_or_rounded_up_by_less_than_a_billionth(number: str, suffix: str):
    with localcontext(prec=100):
        exact = abs(Decimal(number)) * POWERS[suffix] * 10**9
        if suffix.endswith("i"):
            exact = min(exact, Decimal(INT64_MAX) * 10**9)
        assert 0 <= abs(Quantity.parse(number + suffix).nanos) - exact < 1


@given(quantities, quantities)
def test_adding_and_taking_away_again_changes_nothing(left: Quantity, right: Quantity):
    assert left + right - right == left
    assert left + right == right + left


@given(quantities, quantities)
def test_the_order_is_that_of_the_numbers(left: Quantity, right: Quantity):
    assert (left < right) == (left.nanos < right.nanos)
    assert (left == right) == (left.nanos == right.nanos)
    assert left.value() <= right.value() or left > right


@given(st.text(max_size=12) | st.from_regex(r"[+-]?[0-9.]+[eEinumkKMGTP]*[-+]?[0-9]*", fullmatch=True))
def test_any_text_at_all_is_either_read_or_refused_by_name(text: str):
    try:
        reading = str(Quantity.parse(text))
    except InvalidQuantity as refusal:
        reading = str(refusal)
    assert reading.startswith(repr(text)[:10]) or Quantity.parse(reading) == Quantity.parse(text)
