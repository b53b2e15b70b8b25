"""Write docs/arguments.md: `python -m scripts.arguments_page`."""

from __future__ import annotations

from pathlib import Path

from shared.arguments.page import page

PAGE = Path(__file__).parents[1] / "docs" / "arguments.md"

if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
