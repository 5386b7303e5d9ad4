"""Filters as text, as JSON and as trees: each form can be read from another, and errors give the position."""

from __future__ import annotations

import contextlib
import json

import pytest
from hypothesis import given, strategies as st

from modalhash.store import And, Comparison, Filter, FilterError, Not, Or, all_of, any_value

fields = st.sampled_from(["year", "camera.model", "group: food", "é", "and", "in", "extra.kind", "123"])
values = st.one_of(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20),
    st.sampled_from(["true", "AND", "2004", "2024-01-01", '"', "\\", "a b", "1.5", "-0", "007"]),
    st.integers(-(2**63) + 1, 2**63 - 1),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
)
comparisons = st.builds(Comparison, fields, st.sampled_from(["=", "!=", "<", "<=", ">", ">="]), values)
filters = st.recursive(
    comparisons,
    lambda part: st.one_of(
        st.builds(Not, part),
        st.builds(And, st.lists(part, min_size=2, max_size=3).map(tuple)),
        st.builds(Or, st.lists(part, min_size=2, max_size=3).map(tuple)),
    ),
    max_leaves=8,
)


def evaluate(one, truth):
    """The truth of a filter, given that of its comparisons."""
    if isinstance(one, Comparison):
        return truth(one)
    if isinstance(one, Not):
        return not evaluate(one.part, truth)
    return (all if isinstance(one, And) else any)(evaluate(part, truth) for part in one.parts)


def leaves(one):
    return [(leaf.field.removeprefix("extra."), leaf.operator, leaf.value) for leaf in one.comparisons()]


@pytest.mark.slow
@given(filters, st.randoms(use_true_random=False))
def test_the_text_and_the_json_mean_the_same(one, random):
    verdicts = {leaf: random.random() < 0.5 for leaf in leaves(one)}

    def truth(leaf):
        return verdicts[leaf.field.removeprefix("extra."), leaf.operator, leaf.value]

    for again in (Filter.parse(str(one)), Filter.from_json(json.loads(json.dumps(one.to_json())))):
        assert leaves(again) == leaves(one)
        assert [type(leaf.value) for leaf in again.comparisons()] == [type(leaf.value) for leaf in one.comparisons()]
        assert evaluate(again, truth) == evaluate(one, truth)


def test_and_binds_tighter_than_or_and_not_tightest():
    a, b, c = (Comparison(name, "=", 1) for name in "abc")
    assert Filter.parse("a = 1 or b = 1 and not c = 1") == Or((a, And((b, Not(c)))))
    assert Filter.parse("(a = 1 OR b = 1) And NOT (c = 1)") == And((Or((a, b)), Not(c)))
    assert Filter.parse("not not a = 1") == a
    assert a & b & c == And((a, b, c))
    assert (a | b) & ~c == Filter.parse("(a=1 or b=1) and not c=1")
    assert [all_of(), all_of(None, a), all_of(a, None, b & c)] == [None, a, And((a, b, c))]


def test_values_are_what_they_look_like():
    def value(text):
        return Filter.parse(f"x = {text}").value

    assert [value("3"), value("-3.5"), value("true"), value("007")] == [3, -3.5, True, "007"]
    assert [value("2024-01-01"), value("hot air balloon"), value('"3"')] == ["2024-01-01", "hot air balloon", "3"]
    assert value(r'"a \"b\" \\ c"') == r'a "b" \ c'
    assert Filter.parse('label in (boat, "the sea", 7)') == any_value("label", ["boat", "the sea", 7])
    assert Filter.parse('"my field" < 3') == Comparison("my field", "<", 3)


def test_json_forms():
    assert Filter.of({"label": "boat", "year": {">=": 2000, "<": 2005}}) == And(
        (
            Comparison("label", "=", "boat"),
            And((Comparison("year", ">=", 2000), Comparison("year", "<", 2005))),
        )
    )
    assert Filter.of({"label": ["boat", "sea"]}) == Filter.of({"label": {"in": ["boat", "sea"]}})
    assert Filter.of('{"not": {"kind": "learned"}}') == Filter.of("not kind = learned")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "character 1: expected a field .*, got the end"),
        ("label", "character 6: expected one of = != < <= > >= or in after 'label', got the end"),
        ("label =", "character 8: expected a value"),
        ("label = boat year = 3", "character 19: expected and, or, or the end, got '='"),
        ("label = boat and", "character 17: expected a field"),
        ("(label = boat", r"character 14: expected and, or, or \), got the end"),
        ("label = boat)", r"character 13: expected and, or, or the end, got '\)'"),
        ("label = (boat)", r"character 9: expected a value.*, got '\('"),
        ("label in boat", r"character 10: expected \( and values"),
        ("label in (boat", r"character 15: expected , or \)"),
        ("label in ()", r"character 11: expected a value"),
        ('label = "boat', "character 9: a quote that does not end"),
        ("label ~ boat", "character 7: expected one of"),
        ("label = ! 3", "character 9: '!'"),
        ("and = 3", "character 1: expected a field"),
        ("label < boat", "label has no order; use = or !="),
        ('"a\\"b" = 3', "has a quote"),
        ("x = 99999999999999999999", "too large"),
        ("{", "character 2: not valid JSON"),
        ('{"and": []}', "expected a list of filters"),
        ('{"x": {"~": 3}}', "operator '~'; expected one of"),
        ('{"x": {}}', "expected operators and values"),
        ('{"x": null}', "the value is NoneType"),
        ('{"x": [[1]]}', "the value is list"),
        ('{"x": []}', "a list of 1 to 200 values"),
        ('{"x": NaN}', "expected a finite number"),
        ("{}", "expected an object"),
        ("(" * 30 + "x = 3" + ")" * 30, "at most 20 brackets"),
        ('{"not": ' * 60 + '{"x": 3}' + "}" * 60, "more than 20"),
        ('{"not": ' * 480, "not valid JSON|more than 20"),
        (" or ".join(["x = 3"] * 201), "201 comparisons; expected at most 200"),
        ("x = " + "3" * 4000, "4,004 characters; expected at most 4,000"),
    ],
)
def test_what_is_wrong_is_told(text, message):
    with pytest.raises(FilterError, match=message):
        Filter.of(text)


@pytest.mark.slow
@given(st.text(max_size=60) | st.lists(st.sampled_from(list('()=<>!," \\{}:ab1')), max_size=40).map("".join))
def test_any_text_is_a_filter_or_an_error(text):
    with contextlib.suppress(FilterError):
        Filter.of(text)


def test_other_things_are_no_filters():
    with pytest.raises(TypeError, match="where is int"):
        Filter.of(3)
    with pytest.raises(FilterError, match="expected a name"):
        Comparison("", "=", 3)


def test_a_filter_denied_twice_prints_as_it_is_read():
    twice = Filter.parse("not (not (label = red or label = blue))")
    assert Filter.parse(str(twice)) == twice


@pytest.mark.parametrize("name", ["and", "or"])
def test_a_list_of_one_filter_is_that_filter(name):
    assert Filter.from_json({name: [{"id": {"in": ["a", "b"]}}]}) == Filter.parse("id in (a, b)")
