"""Proves that command lines mean to Orlop what they mean to Go's `flag` package, and that mistakes are explained."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError, dataclass
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orlop.foundation.go_flags import (
    HelpRequested,
    ListOf,
    MapOf,
    UsageError,
    at_least,
    between,
    boolean,
    describe,
    flag,
    floating,
    group,
    help_text,
    integer,
    markdown_table,
    one_of,
    parse_flags,
    text,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


def seconds(value: str) -> float:
    if not value.endswith("s"):
        raise ValueError("allowed are seconds such as 15s")
    return floating(value[:-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class SidecarSettings:
    node_id: str = flag(text, required=True, name="nodeid", aliases=("node-id",), env="NODE_NAME", help="This node.")
    csi_address: str = flag(text, default="/run/csi/socket", help="Where the driver listens.", metavar="ADDRESS")
    leader_election: bool = flag(boolean, default="false", help="Elect a leader.")
    worker_threads: int = flag(integer, default="10", check=at_least(1), help="How many at once.")
    timeout: float = flag(seconds, default="15s", help="How long a call may take.", metavar="DURATION")
    qps: float = flag(floating, default="5", help="Requests per second.")
    feature_gates: Mapping[str, bool] = flag(MapOf(boolean), default="", help="A=true,B=false.")
    roots: tuple[str, ...] = flag(ListOf(text), default="", help="Folders.")
    kubeconfig: str | None = flag(text, help="Where the cluster is.")


def parse(*argv: str, **environment: str) -> SidecarSettings:
    return parse_flags(SidecarSettings, argv, program="orlop attacher", environment=environment)


def problems(*argv: str, **environment: str) -> tuple[str, ...]:
    with pytest.raises(UsageError) as caught:
        parse(*argv, **environment)
    return caught.value.problems


N = "--nodeid=n"


def test_a_flag_that_is_not_given_has_the_parsed_default():
    assert parse(N) == SidecarSettings(
        node_id="n",
        csi_address="/run/csi/socket",
        leader_election=False,
        worker_threads=10,
        timeout=15.0,
        qps=5.0,
        feature_gates={},
        roots=(),
        kubeconfig=None,
    )


def test_settings_built_by_hand_have_the_same_defaults_as_parsed_ones():
    assert SidecarSettings(node_id="n") == parse(N)


def test_settings_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        parse(N).qps = 6.0  # type: ignore[misc]


@pytest.mark.parametrize("argv", [["-qps=7"], ["--qps=7"], ["-qps", "7"], ["--qps", "7"]])
def test_one_or_two_dashes_and_equals_or_blank_mean_the_same(argv: list[str]):
    assert parse(N, *argv).qps == 7.0


def test_the_value_behind_a_blank_may_begin_with_a_dash():
    assert parse(N, "--kubeconfig", "--help").kubeconfig == "--help"


def test_only_the_first_equals_sign_splits_name_and_value():
    assert parse(N, "--kubeconfig=a=b").kubeconfig == "a=b"


@pytest.mark.parametrize("spelled", ["1", "t", "T", "true", "TRUE", "True"])
def test_every_spelling_of_true_is_taken(spelled: str):
    assert parse(N, f"--leader-election={spelled}").leader_election is True


@pytest.mark.parametrize("spelled", ["0", "f", "F", "false", "FALSE", "False"])
def test_every_spelling_of_false_is_taken(spelled: str):
    assert parse(N, f"--leader-election={spelled}").leader_election is False


def test_a_boolean_flag_alone_means_true():
    assert parse(N, "--leader-election").leader_election is True


def test_a_boolean_flag_never_takes_the_next_word_and_the_error_says_how_to_write_it():
    assert problems(N, "--leader-election", "false") == (
        "The argument 'false' is not expected: a value of --leader-election is written --leader-election=false.",
    )


def test_an_empty_value_of_a_boolean_is_an_error():
    assert problems(N, "--leader-election=") == (
        "--leader-election cannot be '': allowed are true, t, 1, false, f and 0.",
    )


def test_the_last_of_a_repeated_flag_wins_whichever_alias_was_used():
    assert parse("--nodeid=a", "--node-id=b", "-nodeid", "c").node_id == "c"


def test_a_repeated_flag_must_be_right_every_time_as_go_sets_each_in_turn():
    assert problems(N, "--qps=x", "--qps=5") == (
        "--qps cannot be 'x': allowed are numbers such as 5, 0.5, -1e3 and inf.",
    )


def test_a_map_flag_grows_with_each_use_and_the_last_value_of_a_key_wins():
    gates = parse(N, "--feature-gates=A=true,B=false", "--feature-gates", "B=true, C = 0").feature_gates
    assert gates == {"A": True, "B": True, "C": False}


def test_a_list_flag_grows_with_each_use():
    assert parse(N, "--roots=a,b", "--roots=", "--roots=c").roots == ("a", "b", "c")


def test_a_map_entry_without_a_value_is_named():
    assert problems(N, "--feature-gates=A=true,B") == (
        "--feature-gates cannot be 'A=true,B': allowed are pairs key=value separated by commas, and 'B' is none.",
    )


def test_a_bad_value_in_a_map_names_its_key():
    assert problems(N, "--feature-gates=A=maybe") == (
        "--feature-gates cannot be 'A=maybe': for A allowed are true, t, 1, false, f and 0.",
    )


def test_every_problem_is_reported_at_once():
    found = problems("--qps=fast", "--worker-threads", "0", "--lead-election", "--roots=a", "stray", "--timeout")
    assert found == (
        "There is no flag --lead-election; did you mean --leader-election?",
        "The argument 'stray' is not expected: only flags are.",
        "The flag --timeout needs a value: --timeout=DURATION.",
        "The flag --nodeid or the environment variable NODE_NAME is required: This node.",
        "--worker-threads cannot be '0': allowed is 1 or more.",
        "--qps cannot be 'fast': allowed are numbers such as 5, 0.5, -1e3 and inf.",
    )


def test_a_usage_error_tells_where_help_is_found():
    with pytest.raises(UsageError, match="Run `orlop attacher --help` to see every flag"):
        parse()


def test_the_word_behind_an_unknown_flag_is_not_a_second_problem():
    assert problems(N, "--node-ids", "x") == ("There is no flag --node-ids; did you mean --node-id?",)


def test_an_unknown_flag_that_resembles_none_gets_no_suggestion():
    assert problems(N, "--zzzzzz=1") == ("There is no flag --zzzzzz.",)


def test_a_flag_in_the_wrong_case_is_suggested_in_the_right_one():
    assert problems(N, "--CSI-Address=x") == ("There is no flag --CSI-Address; did you mean --csi-address?",)


@pytest.mark.parametrize("argument", ["---qps=5", "--=5", "-=5"])
def test_what_go_calls_bad_syntax_is_refused(argument: str):
    assert problems(N, argument) == (f"The argument {argument!r} is not a flag: a flag is --name or --name=value.",)


@pytest.mark.parametrize("word", ["-", "word", ""])
def test_a_word_that_is_no_flag_is_refused(word: str):
    assert problems(N, word) == (f"The argument {word!r} is not expected: only flags are.",)


def test_two_dashes_end_the_flags_and_what_follows_is_refused():
    assert problems(N, "--", "--qps=1") == ("The argument '--qps=1' is not expected: only flags are.",)


def test_two_dashes_with_nothing_behind_are_fine():
    assert parse(N, "--").node_id == "n"


@pytest.mark.parametrize("spelled", ["-h", "-help", "--help", "--h"])
def test_help_wins_over_every_problem(spelled: str):
    with pytest.raises(HelpRequested) as asked:
        parse("--unknown", "--qps=x", spelled)
    assert "Usage: orlop attacher [flags]" in asked.value.text


def test_the_environment_stands_in_for_a_flag_that_is_not_given():
    assert parse(NODE_NAME="from-env").node_id == "from-env"
    assert parse(N, NODE_NAME="from-env").node_id == "n"


def test_an_empty_environment_variable_counts_as_unset():
    assert problems(NODE_NAME="") == (
        "The flag --nodeid or the environment variable NODE_NAME is required: This node.",
    )


def test_a_required_flag_must_not_be_empty():
    assert problems("--nodeid=") == ("--nodeid cannot be '': it is required, so it must not be empty.",)


def test_a_bad_value_from_the_environment_names_the_variable():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class WithEnvironment:
        port: int = flag(integer, default="1", env="PORT", check=between(1, 65535), help="A port.")

    with pytest.raises(UsageError) as caught:
        parse_flags(WithEnvironment, [], program="p", environment={"PORT": "70000"})
    assert caught.value.problems == (
        "--port from the environment variable PORT cannot be '70000': allowed is 1 to 65535.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    log_format: str = flag(one_of("text", "json"), default="text", help="How lines look.")
    verbosity: int = flag(integer, name="v", default="0", help="How much is logged.", deprecated="use --log-level.")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSettings:
    log: LogSettings = group(LogSettings)
    lease: float = flag(seconds, default="15s", help="How long a lease holds.")
    renew: float = flag(seconds, default="10s", help="When it is renewed.")
    built_by: str = "hand"  # no flag: stays what it is

    def cross_check(self) -> Iterator[str]:
        if self.renew >= self.lease:
            yield f"--renew={self.renew}s must be less than --lease={self.lease}s."


def test_a_group_of_flags_joins_the_table_and_is_built_as_a_value_of_its_own():
    parsed = parse_flags(ProcessSettings, ["--log-format=json", "--lease=20s"], program="p")
    assert parsed == ProcessSettings(log=LogSettings(log_format="json"), lease=20.0)
    assert [row.name for row in describe(ProcessSettings).rows] == ["log-format", "v", "lease", "renew"]


def test_a_group_built_by_hand_has_its_defaults():
    assert ProcessSettings().log == LogSettings()


def test_flags_that_exclude_each_other_are_refused_by_the_settings_own_check():
    with pytest.raises(UsageError) as caught:
        parse_flags(ProcessSettings, ["--renew=30s"], program="p")
    assert caught.value.problems == ("--renew=30.0s must be less than --lease=15.0s.",)


def test_the_check_of_a_group_is_asked_too():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Outer:
        inner: ProcessSettings = group(ProcessSettings)

    with pytest.raises(UsageError, match="must be less than"):
        parse_flags(Outer, ["--renew=30s"], program="p")


def test_the_cross_check_is_not_asked_about_values_that_are_wrong_alone():
    with pytest.raises(UsageError) as caught:
        parse_flags(ProcessSettings, ["--renew=30"], program="p")
    assert caught.value.problems == ("--renew cannot be '30': allowed are seconds such as 15s.",)


def test_a_deprecated_flag_works_and_warns_only_when_used():
    warnings: list[str] = []
    assert parse_flags(ProcessSettings, ["-v=3"], program="p", warn=warnings.append).log.verbosity == 3
    assert warnings == ["The flag --v is deprecated: use --log-level."]
    parse_flags(ProcessSettings, [], program="p", warn=warnings.append)
    assert len(warnings) == 1


def test_two_flags_of_one_name_are_a_mistake_of_the_programmer():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Twice:
        one: str = flag(text, default="", help="One.")
        other: str = flag(text, default="", aliases=("one",), help="Other.")

    with pytest.raises(TypeError, match="Twice declares the flag --one twice"):
        describe(Twice)


def test_a_default_its_own_flag_refuses_is_a_mistake_of_the_programmer():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Wrong:
        many: int = flag(integer, default="0", check=at_least(1), help="Many.")

    with pytest.raises(TypeError, match="Wrong gives --many the default '0': allowed is 1 or more"):
        describe(Wrong)


def test_help_shows_every_name_default_requirement_variable_and_deprecation():
    shown = help_text(describe(SidecarSettings), program="orlop attacher", summary="Attaches volumes.")
    assert shown.startswith("Attaches volumes.\n\nUsage: orlop attacher [flags]\n\n")
    assert (
        "  --nodeid=VALUE, --node-id=VALUE\n        This node. (required) (or the environment variable NODE_NAME)"
        in shown
    )
    assert "  --csi-address=ADDRESS\n        Where the driver listens. (default /run/csi/socket)\n" in shown
    assert "  --leader-election\n" in shown
    assert "Deprecated: use --log-level." in help_text(describe(ProcessSettings), program="p")


def test_help_breaks_no_flag_that_is_named_in_a_sentence():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Wordy:
        mode: str = flag(text, default="", help="word " * 17 + "--log-level-of-all")

    assert "--log-level-of-all" in help_text(describe(Wordy), program="p")


@dataclass(frozen=True, slots=True, kw_only=True)
class Obsolete:
    log_dir: str = flag(text, default="", help="Without effect.", deprecated="see --v.")
    log_file: str = flag(text, default="", help="Without effect.", deprecated="see --v.")
    folder: str = flag(text, default="a", help="Without effect.")
    place: str = flag(text, default="b", help="Without effect.")


def test_deprecated_flags_of_the_same_meaning_are_explained_once():
    shown = help_text(describe(Obsolete), program="p").splitlines()
    assert shown[2:] == [
        "  --log-dir=VALUE, --log-file=VALUE",
        "        Without effect. Deprecated: see --v.",
        "  --folder=VALUE",
        "        Without effect. (default a)",
        "  --place=VALUE",
        "        Without effect. (default b)",
    ]


def test_the_docs_table_has_one_row_per_flag_and_no_cell_breaks_it():
    @dataclass(frozen=True, slots=True, kw_only=True)
    class Piped:
        mode: str = flag(text, default="a|b", help="One of\na | b.")

    assert markdown_table(describe(Piped)) == (
        "| Flag | Default | Meaning |\n|---|---|---|\n| `--mode` | `a\\|b` | One of a \\| b. |\n"
    )


@pytest.mark.parametrize(
    ("spelled", "number"),
    [
        ("0", 0), ("-0", 0), ("+7", 7), ("1_000", 1000), ("0x1F", 31), ("0X_1f", 31), ("-0b1_01", -5), ("0o17", 15),
        ("017", 15), ("0_7", 7), ("9223372036854775807", 2**63 - 1), ("-9223372036854775808", -(2**63)),
    ],
)  # fmt: skip
def test_integers_are_spelled_as_in_go(spelled: str, number: int):
    assert integer(spelled) == number


@pytest.mark.parametrize(
    "spelled",
    ["", "-", "08", "0x", "0b2", "0o8", "1__0", "_1", "1_", "0x_", " 1", "1 ", "1.0", "1e3", "٣", "0x1g", "--1", "1\n"],
)
def test_integers_go_refuses_are_refused(spelled: str):
    with pytest.raises(ValueError, match="allowed are whole numbers such as"):
        integer(spelled)


@pytest.mark.parametrize("spelled", ["9223372036854775808", "-9223372036854775809", "0x" + "f" * 5000])
def test_integers_beyond_64_bits_are_refused(spelled: str):
    with pytest.raises(ValueError, match="fit into 64 bits"):
        integer(spelled)


@pytest.mark.parametrize(
    ("spelled", "number"),
    [
        ("5", 5.0), (".5", 0.5), ("5.", 5.0), ("-1e3", -1000.0), ("+1E-2", 0.01), ("0x1p-2", 0.25), ("0x.8P1", 1.0),
        ("1_23.50_0_0e+1_2", 1.235e14), ("0x_1_2.3_4_5p+1_2", 74565.0), ("Inf", math.inf), ("-infinity", -math.inf),
        ("010", 10.0), ("1e-400", 0.0),
    ],
)  # fmt: skip
def test_floats_are_spelled_as_in_go(spelled: str, number: float):
    assert floating(spelled) == number


def test_not_a_number_is_a_float_as_in_go():
    assert math.isnan(floating("NaN"))


@pytest.mark.parametrize("spelled", ["", ".", "e1", "1e", "0x1", "0x1e2", "1__0", "_1", "1_.5", "+nan", "infin", " 1"])
def test_floats_go_refuses_are_refused(spelled: str):
    with pytest.raises(ValueError, match="allowed are numbers such as"):
        floating(spelled)


@pytest.mark.parametrize("spelled", ["1e400", "-1e400", "0x1p5000"])
def test_floats_beyond_64_bits_are_refused(spelled: str):
    with pytest.raises(ValueError, match="fit into 64 bits"):
        floating(spelled)


@given(st.integers(-(2**63), 2**63 - 1), st.sampled_from([str, hex, oct, bin, "{:_}".format, "{:#_x}".format]))
def test_every_64_bit_integer_is_read_back_from_every_base(number: int, spell: Any):
    assert integer(spell(number)) == number


@given(st.floats(allow_nan=False, allow_infinity=False), st.sampled_from([repr, float.hex]))
def test_every_float_is_read_back_from_decimal_and_hexadecimal(number: float, spell: Any):
    assert floating(spell(number)) == number


@given(st.text(max_size=12))
def test_whatever_integer_accepts_is_at_most_64_bits_and_whatever_it_refuses_is_a_value_error(written: str):
    try:
        number = integer(written)
    except ValueError as refusal:
        number = len(str(refusal))
    assert -(2**63) <= number < 2**63


TRUE = st.sampled_from(["1", "t", "T", "true", "TRUE", "True"])
FALSE = st.sampled_from(["0", "f", "F", "false", "FALSE", "False"])
WORDS = (
    st.text(st.characters(codec="utf-8", exclude_characters=",="), min_size=1, max_size=8).map(str.strip).filter(bool)
)


def spelled(name: str, written: str) -> st.SearchStrategy[list[str]]:
    dashes = st.sampled_from(["-", "--"])
    joined = dashes.map(lambda dash: [f"{dash}{name}={written}"])
    return joined | dashes.map(lambda dash: [f"{dash}{name}", written])


def spelled_boolean(name: str, value: bool) -> st.SearchStrategy[list[str]]:  # noqa: FBT001 - a value, not a switch
    dashes = st.sampled_from(["-", "--"])
    joined = st.builds(lambda dash, word: [f"{dash}{name}={word}"], dashes, TRUE if value else FALSE)
    return joined | dashes.map(lambda dash: [f"{dash}{name}"]) if value else joined


@st.composite
def settings_and_command_lines(draw: st.DrawFn) -> tuple[SidecarSettings, list[str]]:
    wanted = SidecarSettings(
        node_id=draw(st.text(min_size=1)),
        csi_address=draw(st.text()),
        leader_election=draw(st.booleans()),
        worker_threads=draw(st.integers(1, 2**63 - 1)),
        timeout=draw(st.floats(allow_nan=False)),
        qps=draw(st.floats(allow_nan=False)),
        feature_gates=draw(st.dictionaries(WORDS, st.booleans())),
        roots=tuple(draw(st.lists(WORDS))),
        kubeconfig=draw(st.text()),
    )
    gates = [draw(spelled("feature-gates", f"{key}={value}")) for key, value in wanted.feature_gates.items()]
    one_of_each = [
        draw(spelled(draw(st.sampled_from(["nodeid", "node-id"])), wanted.node_id)),
        draw(spelled("csi-address", wanted.csi_address)),
        draw(spelled_boolean("leader-election", wanted.leader_election)),
        draw(
            spelled("worker-threads", draw(st.sampled_from([str(wanted.worker_threads), hex(wanted.worker_threads)])))
        ),
        draw(spelled("timeout", f"{wanted.timeout!r}s")),
        draw(spelled("qps", repr(wanted.qps))),
        draw(spelled("roots", ",".join(wanted.roots))),
        draw(spelled("kubeconfig", wanted.kubeconfig or "")),
    ]
    overridden = [draw(spelled("qps", "1")), draw(spelled("node-id", "other"))]
    final = draw(st.permutations([*one_of_each, *gates]))
    return wanted, [word for argument in [*overridden, *final] for word in argument]


# Each example is a large one: a long run takes fewer of them, to stay within the time of a test.
@settings(max_examples=min(settings.default.max_examples, 2_000))
@given(settings_and_command_lines())
def test_settings_written_in_any_of_gos_spellings_and_any_order_are_read_back(
    drawn: tuple[SidecarSettings, list[str]],
):
    wanted, argv = drawn
    assert parse(*argv) == wanted


@given(st.lists(st.text(st.sampled_from("-=hqpsnodeid 1t,"), max_size=8)))
def test_any_command_line_gives_settings_help_or_problems_and_never_another_error(argv: list[str]):
    try:
        sentences = [parse(*argv).node_id + "."]
    except UsageError as refusal:
        sentences = list(refusal.problems)
    except HelpRequested as asked:
        sentences = [asked.text.strip()]
    assert all(sentence.endswith((".", "?", ")")) for sentence in sentences)
