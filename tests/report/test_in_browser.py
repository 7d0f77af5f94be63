"""Pages as a reader meets them: hover, keyboard, phone, dark, hostile names; in Chromium."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from orderone.report.charts import estimates, lines
from orderone.report.page import Found, Section, page
from orderone.report.runs import report
from tests.report.run_folders import HOSTILE, NAMES, hostile, training, verdict

COLUMNS = ["name", "size"]
ROWS = [["b", "1,200"], ["a", "−3"], ["c", "2.5e-3"], ["d", ""]]
CONTRAST = """
() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || []).map(Number);
  const linear = (c) => (c / 255 <= 0.04045 ? c / 255 / 12.92 : ((c / 255 + 0.055) / 1.055) ** 2.4);
  const light = (c) => 0.2126 * linear(c[0]) + 0.7152 * linear(c[1]) + 0.0722 * linear(c[2]);
  const ratio = (a, b) => {
    const [l, m] = [light(a), light(b)].sort((x, y) => y - x);
    return (l + 0.05) / (m + 0.05);
  };
  const back = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (e instanceof HTMLElement && c.length && c[3] !== 0) return c;
    }
    return [255, 255, 255];
  };
  const least = (query, property) => {
    const seen = [...document.querySelectorAll(query)].filter((e) => e.getClientRects().length);
    const found = seen.map((e) => ratio(parse(getComputedStyle(e)[property]), back(e)));
    return found.length ? Math.min(...found) : 0;
  };
  return [
    least('figure svg text:not(:empty)', 'fill'),
    least('h1, h2, p, td, th, b, summary, button', 'color'),
    least('figure .mark-line path', 'stroke'),
  ];
}
"""


def straight(steps: int = 11):
    frame = pl.DataFrame({"step": range(steps), "value": [float(2 * i) for i in range(steps)]})
    return lines(frame, x=("step", "step"), y=("value", "loss"), title="A line")


def table(rows=ROWS):
    return page(title="t", found=[], sections=[Section(heading="T", columns=COLUMNS, rows=rows)])


def first_column(opened_page) -> str:
    return "".join(opened_page.locator("tbody td:first-child").all_inner_texts())


@pytest.mark.parametrize(("share", "step"), [(0.02, 0), (0.5, 5), (0.98, 10)])
def test_a_hover_tells_the_point_nearest_to_it(opened, share, step):
    """Value is 2 × step, whichever of the three places is pointed at."""
    shown = opened(page(title="t", found=[], sections=[Section(heading="h", chart=straight())]))
    shown.locator(".live").scroll_into_view_if_needed()
    box = shown.locator(".live .root > g > path.background").first.bounding_box()
    shown.mouse.move(box["x"] + share * box["width"], box["y"] + (1 - share) * box["height"])
    shown.locator(".tip:visible").wait_for()
    assert shown.locator(".tip td").all_inner_texts() == ["step", str(step), "value", str(2 * step)]


def test_a_hover_tells_an_estimate(opened):
    frame = pl.DataFrame({"layer": ["in", "out"], "value": [1.0, 3.0], "error": [0.1, 0.2]})
    chart = estimates(frame, x=("layer", "layer"), y=("value", "G"), error="error", title="t")
    shown = opened(page(title="t", found=[], sections=[Section(heading="h", chart=chart)]))
    shown.locator(".live .mark-symbol path").last.hover()
    told = dict(zip(*[iter(shown.locator(".tip td").all_inner_texts())] * 2, strict=True))
    assert told["layer"] == "out"
    assert float(told["value"]) == 3.0
    assert float(told["error"]) == 0.2


def test_the_static_picture_is_one_click_away_and_there_without_scripts(opened):
    html = page(title="t", found=[], sections=[Section(heading="h", chart=straight())])
    shown = opened(html)
    assert shown.locator(".live svg").is_visible()
    assert not shown.locator(".static svg").is_visible()
    shown.get_by_role("button", name="Static SVG").click()
    assert shown.locator(".static svg").is_visible()
    assert not shown.locator(".live").is_visible()
    still = opened(html, scripts=False)
    assert still.locator(".static svg").is_visible()
    assert still.locator(".static").get_attribute("aria-label") == "h"


def test_a_picture_can_be_saved(opened):
    chart = Section(heading="Loss & more", chart=straight())
    shown = opened(page(title="t", found=[], sections=[chart]))
    with shown.expect_download() as waiting:
        shown.get_by_role("button", name="Save SVG").click()
    assert waiting.value.suggested_filename == "Loss-more.svg"
    assert Path(waiting.value.path()).read_text().startswith("<svg")


def test_a_table_sorts_by_keyboard_and_says_so(opened):
    """Numbers as numbers, empty cells last either way, a third press as it was written."""
    shown = opened(table())
    head = shown.locator("th").nth(1)
    shown.locator("th button").first.focus()
    shown.keyboard.press("Tab")  # to the second column's
    for word, order in (("ascending", "acbd"), ("descending", "bcad"), ("none", "bacd")):
        shown.keyboard.press("Enter")
        assert head.get_attribute("aria-sort") == word
        assert first_column(shown) == order
    shown.locator("th button").first.click()
    assert first_column(shown) == "abcd"
    assert head.get_attribute("aria-sort") == "none"


def test_facts_beside_their_names_have_nothing_to_sort(opened):
    facts = Section(heading="About", columns=("", ""), rows=[["Source", "1"], ["Cost", "2"]])
    shown = opened(page(title="t", found=[], sections=[facts]))
    assert first_column(shown) == "SourceCost"
    assert shown.locator("th button").count() == 0


def test_numbers_of_a_chart_are_a_table(opened):
    shown = opened(page(title="t", found=[], sections=[Section(heading="h", chart=straight(3))]))
    shown.get_by_text("Numbers").press("Enter")
    shown.locator("figure td").first.wait_for()
    assert shown.locator("figure td").all_inner_texts() == ["0", "0", "1", "2", "2", "4"]


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_lines_are_seen_in_both_modes(opened, tmp_path, dark):
    """WCAG's 4.5 for text, in both kinds of picture too, and 3 for lines."""
    html = report([training(tmp_path / "a"), verdict(tmp_path / "b", held=False)]).html()
    shown = opened(html, dark=dark)
    for _ in range(2):
        letters, words, drawn = shown.evaluate(CONTRAST)
        assert letters > 4.5
        assert words > 4.5
        assert drawn > 3
        for button in shown.get_by_role("button", name="Static SVG").all():
            button.click()


def test_nothing_is_wider_than_a_phone(opened, tmp_path):
    long = "a-name-of-a-run-that-is-much-longer-than-a-telephone-is-wide-" * 2
    paths = [training(tmp_path / f"{long}{i}", lr=0.1 * i) for i in (1, 2)]
    shown = opened(report([*paths, verdict(tmp_path / "v", held=True)]).html(), width=390)
    assert shown.evaluate("document.documentElement.scrollWidth") == 390
    text = shown.locator(".live svg text").first
    assert text.evaluate("e => e.getScreenCTM().a") == 1  # letters are as large as they were drawn


@pytest.mark.parametrize("widths", [(390,), (1280, 390)])
def test_a_legend_of_many_rows_is_seen_whole(opened, widths):
    """Also after the window became narrow."""
    names = [f"encoder_layer_{i}" for i in range(7)]
    rows = [(name, step, float(step)) for name in names for step in range(3)]
    frame = pl.DataFrame(rows, schema=["layer", "step", "norm"], orient="row")
    colour = ("layer", "layer")
    chart = lines(frame, x=("step", "step"), y=("norm", "‖θ‖"), colour=colour, title="t")
    html = page(title="t", found=[], sections=[Section(heading="h", chart=chart)])
    shown = opened(html, width=widths[0])
    for width in widths[1:]:
        shown.set_viewport_size({"width": width, "height": 900})
    shown.wait_for_function(
        """() => {
          const [picture, legend] = [".live svg", ".live .role-legend"].map(
            (query) => document.querySelector(query).getBoundingClientRect());
          return legend.height > 100 && legend.bottom <= picture.bottom;
        }""",
        timeout=5_000,
    )


def test_a_hostile_run_shows_its_names_and_runs_none(opened, tmp_path):
    shown = opened(report([hostile(tmp_path), training(tmp_path / "a")]).html())
    text = shown.locator("body").inner_text()
    for name in NAMES:
        assert name in text
    for summary in shown.get_by_text("Numbers").all():
        summary.click()
    for chart in shown.locator("figure").all():
        box = chart.bounding_box()
        chart.scroll_into_view_if_needed()
        chart.hover(position={"x": box["width"] / 2, "y": box["height"] / 3})
    for button in shown.locator("th button").all()[:40]:
        button.click(force=True)
    assert shown.evaluate("window.hit") is None
    assert shown.locator("img").count() == 0
    assert shown.locator("script:not([type])").count() == 2  # Vega and ours


def test_a_hostile_name_is_told_by_a_hover_as_it_is(opened):
    frame = pl.DataFrame({"x": [0.0, 1.0], "y": [0.0, 1.0], HOSTILE: [HOSTILE] * 2})
    chart = lines(frame, x=("x", "x"), y=("y", "y"), colour=(HOSTILE, HOSTILE), title=HOSTILE)
    shown = opened(page(title="t", found=[], sections=[Section(heading="h", chart=chart)]))
    box = shown.locator(".live .root > g > path.background").first.bounding_box()
    shown.mouse.move(box["x"] + 5, box["y"] + box["height"] - 5)
    shown.locator(".tip:visible").wait_for()
    assert shown.locator(".tip td").all_inner_texts()[-2:] == [HOSTILE, HOSTILE]
    assert shown.evaluate("window.hit") is None


def test_a_script_that_is_not_ours_does_not_run(opened, tmp_path):
    """The page's policy holds even if an escape were forgotten."""
    html = page(title="t", found=[], sections=[Section(heading="h", text="MARK")])
    broken = html.replace(
        "MARK", "<b onclick='window.hit=1' id=b>b</b><script>window.hit=2</script>"
    )
    file = tmp_path / "broken.html"
    file.write_text(broken)
    shown = opened(html)
    bare = shown.context.new_page()
    bare.goto(file.as_uri())
    bare.locator("#b").click()
    assert bare.evaluate("window.hit") is None


def test_verdicts_come_first(opened, tmp_path):
    shown = opened(report([verdict(tmp_path / "v", held=False)]).html())
    first = shown.locator(".found p").first
    assert first.inner_text().startswith("not held It counts")
    assert first.bounding_box()["y"] < 200


def test_marks_say_in_words_what_their_colour_says(opened):
    found = [Found(text=str(held), held=held) for held in (True, False, None)]
    shown = opened(page(title="t", found=found, sections=[]))
    assert shown.locator(".mark").all_inner_texts() == ["held", "not held", "open"]
