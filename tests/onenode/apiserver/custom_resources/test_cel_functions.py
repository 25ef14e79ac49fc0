"""Kubernetes' own functions in expressions: of lists, sets, texts, formats, quantities, versions and addresses."""

from __future__ import annotations

from typing import Any

import pytest

from onenode.apiserver.custom_resources.expressions import (
    CelScope,
    EvaluationFailed,
    InvalidExpression,
    compile_expression,
)

TRUE = [
    "[1, 3, 2].indexOf(2) == 2 && ['a'].indexOf('b') == -1 && 'abc'.indexOf('c') == 2",
    "['a', 'b', 'a'].lastIndexOf('a') == 2 && 'aba'.lastIndexOf('a') == 2",
    "[3, 1].min() == 1 && [3, 1].max() == 3 && [1, 2].isSorted() && [1.5, 2.5].sum() == 4.0",
    "sets.contains([1, 2, 3], [3, 1]) && !sets.contains([1], [2]) && sets.contains([1], [])",
    "sets.equivalent([1, 2], [2, 1, 1]) && sets.intersects([1, 2], [2, 3]) && !sets.intersects([1], [2])",
    "sets.contains([{'a': 1}, [2]], [[2]]) && !sets.intersects([{'a': 1}], [{'a': 2}])",
    "'abc 123'.find('[0-9]+') == '123' && 'abc'.find('[0-9]+') == ''",
    "'a1b2c3'.findAll('[0-9]') == ['1', '2', '3'] && 'a1b2'.findAll('[0-9]', 1) == ['1'] && 'a'.findAll('b') == []",
    "url('https://me@example.com:80/a b?k=1&k=2&e').getHost() == 'example.com:80'",
    "url('https://[::1]:80/').getHostname() == '::1' && url('https://[::1]:80/').getPort() == '80'",
    "url('https://example.com/p%20q r').getEscapedPath() == '/p%20q%20r'",
    "url('https://e.com/?k=1&k=a+b&e').getQuery() == {'k': ['1', 'a b'], 'e': ['']}",
    "url('HTTPS://e.com').getScheme() == 'https' && url('/a').getScheme() == '' && url('/a').getHost() == ''",
    "isURL('mailto:a@b') && isURL('/a') && !isURL('../a')",
    "!isURL('') && !isURL('https://a b/') && !isURL('https://a:x/')",
    "quantity('1Gi') == quantity('1024Mi') && quantity('1') != quantity('2')",
    "quantity('50k').isGreaterThan(quantity('49999')) && quantity('100m').isLessThan(quantity('1'))",
    "quantity('5').compareTo(quantity('5000m')) == 0 && quantity('4').compareTo(quantity('5')) == -1",
    "quantity('1.5').isInteger() == false",
    "quantity('2Ki').asInteger() == 2048 && quantity('0.5').asApproximateFloat() == 0.5",
    "quantity('1').add(quantity('500m')).sub(1) == quantity('0.5') && quantity('-1').sign() == -1",
    "isQuantity('1.3G') && !isQuantity('1.3 G') && !isQuantity('x')",
    "semver('1.10.0').isGreaterThan(semver('1.9.9')) && semver('1.0.0-rc.1').isLessThan(semver('1.0.0'))",
    "semver('1.0.0-alpha.2').isLessThan(semver('1.0.0-alpha.10')) && semver('1.0.0+a') == semver('1.0.0+b')",
    "semver('1.2.3').major() == 1 && semver('1.2.3').minor() == 2 && semver('1.2.3-x').patch() == 3",
    "semver('v01.2', true) == semver('1.2.0') && isSemver('1.0.0') && !isSemver('v1.0') && isSemver('v1.0', true)",
    "ip('127.0.0.1').family() == 4 && ip('::1').isLoopback() && ip('0.0.0.0').isUnspecified()",
    "ip('::1') == ip('0:0:0:0:0:0:0:1') && string(ip('0:0:0:0:0:0:0:1')) == '::1' && ip.isCanonical('::1')",
    "!ip.isCanonical('0::1') && !isIP('1.2.3')",
    "!isIP('::ffff:1.2.3.4') && !isIP('fe80::1%eth0') && !isIP('01.2.3.4')",
    "ip('224.0.0.1').isLinkLocalMulticast()",
    "ip('ff02::1').isLinkLocalMulticast() && !ip('ff05::1').isLinkLocalMulticast()",
    "ip('169.254.1.1').isLinkLocalUnicast() && ip('fe80::1').isLinkLocalUnicast() && ip('10.0.0.1').isGlobalUnicast()",
    "!ip('255.255.255.255').isGlobalUnicast()",
    "!ip('127.0.0.1').isGlobalUnicast() && ip('2001:db8::1').isGlobalUnicast()",
    "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsIP(ip('10.1.2.3'))",
    "cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16') && !cidr('10.1.0.0/16').containsCIDR(cidr('10.0.0.0/8'))",
    "!cidr('10.0.0.0/8').containsIP('::1') && !cidr('::/0').containsCIDR('10.0.0.0/8')",
    "cidr('10.1.2.3/8').ip() == ip('10.1.2.3') && cidr('10.1.2.3/8').masked() == cidr('10.0.0.0/8')",
    "cidr('10.1.2.3/8').prefixLength() == 8 && string(cidr('10.1.2.3/8')) == '10.1.2.3/8'",
    "isCIDR('::/0') && !isCIDR('10.0.0.0') && !isCIDR('10.0.0.0/33') && !isCIDR('10.0.0.0/08')",
    "!format.dns1123Label().validate('a-b').hasValue() && format.dns1123Label().validate('A').hasValue()",
    "format.dns1123Label().validate('A').value()[0].startsWith('a lowercase RFC 1123 label must consist of')",
    "format.named('labelValue').hasValue() && !format.named('x').hasValue()",
    "!format.qualifiedName().validate('a.b/c').hasValue() && !format.uri().validate('/a').hasValue()",
    "format.date().validate('x').value() == ['invalid date'] && !format.dns1035LabelPrefix().validate('a-').hasValue()",
    "self.size == '5' && quantity(self.size).isGreaterThan(quantity('4')) && ip(self.ip).family() == 6",
]


@pytest.mark.parametrize("text", TRUE)
def test_a_function_of_kubernetes_is_evaluated(text: str):
    assert compile_expression(text, "bool").evaluate({"size": "5", "ip": "::1"}) is True


WRONG = [
    ("quantity('x').sign() == 1", "'x' is not a quantity"),
    ("quantity('1.5').asInteger() == 1", "cannot convert value to integer"),
    ("quantity('1').isLessThan(semver('1.0.0'))", "no such overload"),
    ("semver('1.0').major() == 1", "'1.0' is no semantic version"),
    ("semver('1-x', true).major() == 1", "a short version cannot contain"),
    ("ip('1.2.3').family() == 4", "does not appear to be an IPv4 or IPv6 address"),
    ("ip.isCanonical('x')", "does not appear to be an IPv4 or IPv6 address"),
    ("cidr('1.2.3.4').prefixLength() == 8", "is no CIDR block"),
    ("url('a b').getHost() == ''", "invalid URI for request"),
    ("'a'.find('(') == ''", "error parsing regexp"),
    ("format.dns1123Label().validate('a').value() == []", "optional.none"),
    ("{'a': 1}.hasValue()", "no such overload"),
    ("[].max() == 1", "empty"),
    ("self.isSorted()", "'<=' not supported"),
]


@pytest.mark.parametrize(("text", "reason"), WRONG)
def test_a_value_that_a_function_cannot_use_is_an_error_with_its_reason(text: str, reason: str):
    with pytest.raises(EvaluationFailed, match=reason):
        compile_expression(text, "bool").evaluate([1, "a"])


NOT_THERE = ["[1].all(i, v, v > 0)", "{'a': 1}.transformList(k, v, v)", "authorizer.path('/').check('get').allowed()"]


@pytest.mark.parametrize("text", [*NOT_THERE, "quantity('1') < quantity('2')"])
def test_what_kubernetes_has_and_the_library_cannot_take_is_refused(text: str):
    with pytest.raises(InvalidExpression):
        compile_expression(text, "bool")


FOUND = [
    ("self.find('a(b|c)')", "ab"),
    ("self.find('^b')", ""),
    ("self.findAll('[a-c]')", ["a", "b", "a", "c"]),
    ("self.findAll('^a')", ["a"]),
    ("self.findAll('[a-c]', 2)", ["a", "b"]),
    ("self.findAll('[a-c]', 0)", []),
    ("self.findAll('b*')", ["", "b", "", "", ""]),
    ("self.findAll(r'\\bac')", ["ac"]),
]


@pytest.mark.parametrize(("text", "value"), FOUND)
def test_matches_are_found_as_in_go(text: str, value: Any):
    scope = CelScope.of("self")

    assert scope.compile(text).evaluate(scope.values({"self": "ab ac"})) == value


def test_a_pattern_that_backtracks_is_found_in_linear_time():
    """With Python's `re` this takes longer than anybody lives."""
    expression = compile_expression("self.find('^(a+)+$') == '' && self.findAll('(a*)*b').size() == 0", "bool")

    assert expression.evaluate(f"{'a' * 60}X") is True


def test_letters_for_private_use_are_found_as_well():
    expression = compile_expression(r"self.findAll('\\pC') == ['\ue000', '\ue001']", "bool")

    assert expression.evaluate("a\ue000b\ue001") is True


def test_sets_of_thousands_are_compared_at_once():
    many = [str(number) for number in range(50_000)]
    expression = compile_expression("sets.equivalent(self, self) && !sets.intersects(self, ['x'])", "bool")

    assert expression.evaluate(many) is True
