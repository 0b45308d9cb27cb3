"""YAML with places, bounded."""

import math
import time

import pytest

from hwbmpq.hardware.document import ProfileError
from hwbmpq.hardware.yaml_reader import MOST_BYTES, parse_document


def plain(text: str | bytes) -> dict[str, object]:
    content = parse_document(text, "a.yaml").plain()
    assert isinstance(content, dict)
    return content


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("921.6e6", 921.6e6),  # a string in YAML 1.1
        ("9.216e+8", 921.6e6),
        ("1_000", 1000),
        ("010", 10),
        ("-3", -3),
        ("'3'", "3"),
        ('"921.6e6"', "921.6e6"),
        ("25.6 GB/s", "25.6 GB/s"),
        ("~", None),
        ("", None),
        ("true", True),
        ("yes", "yes"),  # a boolean in YAML 1.1
        ("5w", "5w"),
        (".inf", math.inf),
        ("1:30", "1:30"),  # base 60 in YAML 1.1
        ("2026-11-16", "2026-11-16"),
        ("9" * 400, "9" * 400),
    ],
)
def test_scalars_are_what_they_look_like(text: str, value: object) -> None:
    assert plain(f"a: {text}") == {"a": value}


def test_every_value_knows_its_line_and_column() -> None:
    root = parse_document("a: 1\nb:\n  - {x: 2, yy: 3}\n", "a.yaml")
    value = root.find("b", 0, "yy")
    assert str(value.place) == "a.yaml:3:16"
    assert str(value.key_place) == "a.yaml:3:12"
    assert root.find("b", 7, "nothing") is root.find("b")


def test_anchors_work() -> None:
    assert plain("a: &x {v: 1}\nb: *x") == {"a": {"v": 1}, "b": {"v": 1}}


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "a.yaml:2:1: not YAML"),
        ("a: 1\na: 2", "a.yaml:2:1: key 'a' appears twice"),
        ("- 1", "a.yaml:1:1: a profile is a mapping"),
        ("", "the file is empty"),
        ("# nothing", "the file is empty"),
        ("a: *b", "a.yaml:1:4: \\*b has no anchor &b"),
        ("a: &a [*a]", "no anchor"),
        ("a: !!python/object/apply:os.system [x]", "a profile holds plain values only"),
        ("a: !!binary aGk=", "plain values only"),
        ("a: !mine {b: 1}", "plain values only"),
        ("? [a, b]\n: 1", "a key must be plain text"),
        ("{a: 1}\n---\n{b: 1}", "a.yaml:2:1: a second document"),
        ("[" * 100_000, "nested more than 32 deep"),
        ("{a: " * 10_000, "nested more than 32 deep"),
        (BOMB, "more than 50,000 values"),
        ("a: [" + "1," * 60_000 + "]", "more than 50,000 values"),
        (f"a: &a {'x' * 1000}\nb: [{'*a,' * 2000}]", "1 MiB of text \\(aliases count in full\\)"),
        (f"a: &a {{{'x' * 1000}: 1}}\nb: [{'*a,' * 2000}]", "1 MiB of text"),
        (b"a: b\nc: \xff", "a.yaml:2:4: not UTF-8"),
        ("a: \ud800", "not UTF-8"),
        ("a: \x00", "not YAML"),
        (b"x" * (MOST_BYTES + 1), "larger than 1 MiB"),
        (b"a: 1\n" * 2_000_000, "larger than 1 MiB"),
    ],
)
def test_what_is_no_profile_ends_in_one_sentence_soon(text: str | bytes, message: str) -> None:
    start = time.perf_counter()
    with pytest.raises(ProfileError, match=message) as caught:
        plain(text)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - start < 2


def test_a_long_key_is_not_repeated_for_all_that_is_in_it() -> None:
    root = parse_document(f"? {'k' * 100_000}\n: [{'1,' * 10_000}]", "a.yaml")
    assert max(len(node.path) for node in root.walk()) == 200


def test_a_byte_order_mark_is_no_key() -> None:
    assert plain(b"\xef\xbb\xbfa: 1") == {"a": 1}
