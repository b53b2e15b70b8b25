"""A real Chromium for tests, and what went wrong in it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser, BrowserContext, Page

#: Phone, tablet, desk: width and height in CSS pixels.
SIZES = {"phone": (390, 844), "tablet": (820, 1180), "desk": (1440, 900)}
#: The longest that anything may take on a machine that is busy.
PATIENCE_MS = 60_000
#: Of axe-core's four grades, those that keep people out.
GRAVE = {"serious", "critical"}
_WATCH_POLICY = """
window.violations = [];
document.addEventListener("securitypolicyviolation", (event) => {
  window.violations.push(`${event.violatedDirective}: ${event.blockedURI}`);
});
"""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skips the test, with the reason, where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = shutil.which("chromium")
    if path is None:
        pytest.skip("chromium is not installed")
    with sync_api.sync_playwright() as playwright:
        # A container's user may be root, and its kernel may allow no sandbox. In place of a GPU
        # there would be one of software, which paints dearer than the processor by itself.
        args = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=path, args=args)
        try:
            yield browser
        finally:
            browser.close()


@dataclass(slots=True)
class Visit:
    """One visitor's tab. `problems` are the console's errors and uncaught exceptions."""

    page: Page
    context: BrowserContext
    problems: list[str] = field(default_factory=list)

    def resize(self, size: str) -> None:
        """To one of SIZES."""
        width, height = SIZES[size]
        self.page.set_viewport_size({"width": width, "height": height})

    def require_no_problem(self) -> None:
        """Fail if the console, or the content security policy, complained."""
        assert self.problems == []
        assert self.page.evaluate("window.violations") == []

    def grave_violations(self) -> list[str]:
        """What axe-core finds on the page as it is now, of the grades in GRAVE."""
        found: dict[str, Any] = _axe().run(self.page).response
        return [
            f"{each['id']}: {node['html'][:160]}"
            for each in found["violations"]
            if each["impact"] in GRAVE
            for node in each["nodes"]
        ]


@contextmanager
def visit(
    browser: Browser, url: str, *, size: str = "desk", scheme: str = "light"
) -> Iterator[Visit]:
    """Open `url` in a fresh profile."""
    width, height = SIZES[size]
    context = browser.new_context(
        viewport={"width": width, "height": height},
        color_scheme=scheme,  # type: ignore[arg-type]  # light or dark
        # Each frame of an animation is painted by the processor.
        reduced_motion="reduce",
    )
    try:
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        made = Visit(page, context)
        page.add_init_script(_WATCH_POLICY)
        page.on(
            "console",
            lambda line: made.problems.append(line.text) if line.type == "error" else None,
        )
        page.on("pageerror", lambda error: made.problems.append(str(error)))
        page.goto(url)
        yield made
    finally:
        context.close()


def _axe() -> Any:
    axe = pytest.importorskip(
        "axe_playwright_python.sync_playwright", reason="axe is not installed"
    )
    return axe.Axe()
