"""The picture is well-formed and has every span; the lines say what took most of each moment."""

import xml.etree.ElementTree as ElementTree

from triolet.bench.steps.timeline import join_records
from triolet.bench.steps.timeline_picture import LOOKS, picture, sentences, text_lanes
from triolet.engine.step_recorder import Span

from .step_records import two_steps

SVG = "{http://www.w3.org/2000/svg}"


def test_every_span_is_a_box_with_its_time() -> None:
    root = ElementTree.fromstring(picture(join_records(two_steps()), "a < b"))
    tips = [each.text for each in root.iter(f"{SVG}title")]
    assert len(tips) == len(two_steps())
    assert "step 1: forward 100 µs" in tips
    assert "a < b" in [each.text for each in root.iter(f"{SVG}text")]
    for box in root.iter(f"{SVG}rect"):
        assert float(box.get("width", "0")) > 0
        assert float(box.get("x", "0")) >= 0


def test_every_span_has_its_looks() -> None:
    assert set(LOOKS) == set(Span)


def test_lines_have_a_column_for_each_moment() -> None:
    engine, worker, scale, words = text_lanes(join_records(two_steps()), columns=22)
    assert len(engine) == len(worker) == len(" engine ||") + 22
    # From 0 to 220 µs: computing from the second column on, with the last tenth sampling.
    assert worker == " worker |·FFFFFFFFFSwFFFFFFFFFF|"
    assert "0.22 ms" in scale
    assert "F forward" in words


def test_sentences_tell_what_hides() -> None:
    first, second = sentences(join_records(two_steps()).figures)
    assert "every 110 µs" in first
    assert "idles 10 µs" in first
    assert "works 10 µs a step, 50 % of it" in second
