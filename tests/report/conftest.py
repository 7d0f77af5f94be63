"""Chromium without a screen; tests that need it are skipped where it is missing."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ARGUMENTS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    program = shutil.which("chromium") or shutil.which("chromium-browser")
    if program is None:
        pytest.skip("no chromium on this machine (Debian: apt-get install chromium)")
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """Opens a page's text; what its console and network did must be nothing at the test's end."""
    contexts: list[Any] = []
    wrong: list[str] = []

    def open_(html: str, *, width: int = 1280, dark: bool = False, scripts: bool = True) -> Any:
        file = tmp_path / "page.html"
        file.write_text(html, encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
        )
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda told: wrong.append(f"{told.type}: {told.text}"))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(f"dialog: {dialog.message}"))
        page.on("request", lambda asked: asked.url != file.as_uri() and wrong.append(asked.url))
        page.goto(file.as_uri())
        if scripts:
            # Every folded part opened and every chart in view at once, so that all are drawn.
            page.evaluate("document.querySelectorAll('section > details').forEach(e => e.open = 1)")
            for figure in page.locator("figure:has(script)").all():
                figure.scroll_into_view_if_needed()
                figure.locator(".choices").wait_for(timeout=20_000)
        return page

    yield open_
    for context in contexts:
        context.close()
    # A blob: address is a picture that the page itself saved.
    assert [each for each in wrong if not each.startswith("blob:")] == []
