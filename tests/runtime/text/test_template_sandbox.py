"""Programs that would run for ever, or fill the memory, are refused; harmless ones are not."""

import sys

import attrs
import jinja2.exceptions
import pytest

from triolet.runtime.text.template_sandbox import (
    IN_THREAD,
    INLINE,
    BoundedSandbox,
    RenderLimits,
    TemplateTooCostly,
    render_within,
)

# The deadline ends three of these templates.
THREAD = attrs.evolve(IN_THREAD, seconds=0.3)
LONG = "{% set x = 'a' * 100000 %}"
GROW = "{% set ns = namespace(x=[1], t='aa') %}{% for i in range(60) %}BODY{% endfor %}"
TURN = "{% for a in range(100000) %}{% for b in range(100000) %}BODY{% endfor %}{% endfor %}"


def render(template: str, limits: RenderLimits = IN_THREAD) -> str:
    return render_within(limits, BoundedSandbox().from_string(template), {}, len(template))


@pytest.mark.parametrize("limits", [INLINE, THREAD], ids=["inline", "thread"])
@pytest.mark.parametrize(
    "template",
    [
        TURN,
        LONG + TURN.replace("BODY", "{% if 'b' in x %}{% endif %}"),
        LONG + TURN.replace("BODY", "{% set y = x[1:] %}"),
        LONG + TURN.replace("BODY", "{{ x }}"),
        TURN.replace("BODY", "x" * 10_000),
        "{% macro m(n) %}{% if n %}{{ m(n-1) }}{{ m(n-1) }}{% endif %}{% endmacro %}{{ m(30) }}",
        "{{ 'a' * 10 ** 9 }}",
        "{{ 1000000000 * 'a' }}",
        "{% set n = 10 ** 9 %}{{ [1] * n }}",
        "{{ 10 ** (10 ** 10) }}",
        GROW.replace("BODY", "{% set ns.n = (ns.n or 3) * (ns.n or 3) %}"),
        GROW.replace("BODY", "{% set ns.t = ns.t + ns.t %}"),
        GROW.replace("BODY", "{% set ns.t = ns.t ~ ns.t %}"),
        GROW.replace("BODY", "{% set y %}{{ ns.t }}{{ ns.t }}{% endset %}{% set ns.t = y %}"),
        GROW.replace("BODY", "{% set ns.x = [ns.x, ns.x] %}") + "{{ ns.x }}",
        GROW.replace("BODY", "{% set ns.x = [ns.x + ns.x] %}") + "{{ ns.x }}",
        GROW.replace("BODY", "{% set ns.x = dict(a=ns.x, b=ns.x) %}") + "{{ ns.x|string }}",
        GROW.replace("BODY", "{% set ns.x = cycler(ns.x, ns.x).items %}") + "{{ ns.x }}",
        "{{ 'a'|center(1000000000) }}",
        "{{ 'a'.center(1000000000) }}",
        "{{ '\t'.expandtabs(tabsize=1000000000) }}",
        "{{ '%1000000000d' % 1 }}",
        "{{ '%*d' % (1000000000, 1) }}",
        "{{ '%.1000000000f'|format(1.0) }}",
        "{{ ('%(a)9999d' * 2000) % {'a': 1} }}",
        "{{ ('%-9999.9999d' * 2000)|format(*range(2000)) }}",
        "{{ '{:1000000000}'.format(1) }}",
        "{{ '{:{}}'.format(1, 1000000000) }}",
        "{{ '{a:1000000000}'.format_map({'a': 1}) }}",
        "{{ ('<'|safe + '{:1000000000}').format(1) }}",
        LONG + "{% set f = '{0}' * 10000 %}{{ f.format(x) }}",
        LONG + "{{ x.replace('', x) }}",
        LONG + "{{ x|replace('a', x) }}",
        LONG + "{{ x.join(x) }}",
        LONG + "{{ range(100000)|join(x) }}",
        LONG + "{{ range(1000)|map('string')|join(x * 9) }}",
        LONG + "{{ ('\n' * 100000)|indent(x) }}",
        LONG + "{{ dict.fromkeys(range(100000), [x])|string }}",
        "{{ [1]|batch(1000000000, 1)|list }}",
        "{{ [1]|slice(1000000000)|list }}",
        "{{ 1|round(1000000000, 'ceil') }}",
        "{{ range(100000)|map('center', 60000)|list|length }}",
        "{{ [[1], [2]]|sum(start=[]) }}",
        "{{ (' a' * 60000000).split()|length }}",
    ],
)
def test_what_costs_too_much_is_refused(template: str, limits: RenderLimits) -> None:
    with pytest.raises(TemplateTooCostly):
        render(template, limits)


@pytest.mark.parametrize(
    "template", ["{{ (1).to_bytes(9) }}", "{{ 'a'.encode() }}", "{{ 'a'.translate({}) }}"]
)
def test_methods_that_are_left_out_are_not_there(template: str) -> None:
    with pytest.raises(jinja2.exceptions.SecurityError, match="unsafe"):
        render(template)


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ 'a' * 3 }}{{ [1] * 2 }}{{ 2 ** 8 }}{{ 7 % 4 }}{{ 2 ** -1 }}", "aaa[1, 1]25630.5"),
        ("{{ '%s %5d' % ('a', 1) }}{{ '{:>3}|{!r}'.format(1, 'b') }}", "a     1  1|'b'"),
        ("{{ '{a}'.format_map({'a': 1}) }}{{ ('<b>'|safe + '{}').format('<') }}", "1<b>&lt;"),
        ("{{ ' '.join(['a', 'b']) }}{{ ['a', 'b']|map('upper')|join(',') }}", "a bA,B"),
        ("{{ 'a,b'.split(',') }}{{ 'aXb'.replace('X', '-') }}", "['a', 'b']a-b"),
        ("{{ 'abc'[::-1] }}{{ [1, 2, 3][1:] }}{{ 'a' ~ 1 ~ [2] }}", "cba[2, 3]a1[2]"),
        ("{% for a, b in {'x': 1}.items() %}{{ a }}{{ b }}{% endfor %}", "x1"),
        ("{% for k, v in {'x': 1}|items %}{{ k }}{{ v }}{% endfor %}", "x1"),
        ("{{ [3, 1]|sort }}{{ [{'a': 1}]|map(attribute='a')|list }}{{ [1, 2]|sum }}", "[1, 3][1]3"),
        ("{{ [1, 2, 3]|select('in', [2, 3])|list }}{{ 'x' is eq 'x' }}", "[2, 3]True"),
        ("{{ 'a\nb'|indent(2) }}{{ 1.256|round(2) }}", "a\n  b1.26"),
        ("{% macro m() %}{{ caller() }}{{ varargs }}{% endmacro %}{% call m(1) %}x{% endcall %}",
         "x(1,)"),
    ],
)  # fmt: skip
def test_harmless_programs_say_what_they_said(template: str, text: str) -> None:
    assert render(template) == text


def test_without_a_block_the_trace_function_ends_it() -> None:
    template = "{% set x = 'a' * 4000000 %}" + "{{ 'b' in x }}" * 1000
    with pytest.raises(TemplateTooCostly, match=r"not rendered within 0\.01 s"):
        render(template, attrs.evolve(THREAD, seconds=0.01))


def test_the_thread_is_not_traced_afterwards() -> None:
    before = sys.gettrace()
    assert render("{{ 1 }}") == "1"
    assert sys.gettrace() is before


@pytest.mark.parametrize(
    "value",
    [
        "range",
        "'a'.upper",
        "'a'.format",
        "'a'|attr('upper')",
        "{}.items",
        "3 .bit_length",
        "cycler(1, 2)",
        "cycler(1, 2).next",
        "joiner(1)",
        "[1]|map('string')",
        "[1]|reverse",
        "[{'a': 1}]|selectattr('a')",
        "{'a': 1}|items",
        "['upper']|map('attr', 'upper')|list",
        "['a']|map(attribute='upper')|list",
        "self.block",
        "self",
        "namespace(a='a'.upper)",
        "(range, {'a': range})",
    ],
)
@pytest.mark.parametrize(
    "shown", ["{{ V }}", "{{ V ~ '' }}", "{{ '%s' % (V,) }}", "{{ (V,)|string|upper }}"]
)
def test_no_text_of_a_value_has_an_address(value: str, shown: str) -> None:
    block = "{% block block %}{% endblock %}"
    text = render(block + shown.replace("V", f"({value})"))
    assert text
    assert "0x" not in text.lower()


def test_what_stands_for_functions_and_iterators_works() -> None:
    source = (
        "{% set c = cycler(1, 2) %}{{ c.next() }}{{ c.next() }}{{ c.current }}"
        "{% set j = joiner('-') %}{{ j() }}{{ j() }}{{ range(2)|list }}{{ range is callable }}"
        "{% set up = 'a'.upper %}{{ up() }}{{ '{}'.format(7) }}{{ ([1, 2]|reverse)|join }}"
        "{% for k, v in {'a': 1}|items %}{{ k }}{{ v }}{% endfor %}{{ [1, 2]|map('string')|first }}"
    )
    assert render(source) == "121-[0, 1]TrueA721a11"
