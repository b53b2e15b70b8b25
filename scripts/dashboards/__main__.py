"""`python -m scripts.dashboards`: write them, or with --check fail if the files differ."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from scripts.dashboards.kv import KV
from scripts.dashboards.overview import OVERVIEW
from scripts.dashboards.request_life import LIFE
from scripts.dashboards.transfer import TRANSFER

PAGES = (OVERVIEW, LIFE, KV, TRANSFER)
FOLDER = Path(__file__).resolve().parents[2] / "observability" / "grafana" / "dashboards"


def files() -> dict[Path, str]:
    """What should be there."""
    return {
        FOLDER / f"{page.uid}.json": json.dumps(page.to_json(), indent=2) + "\n" for page in PAGES
    }


def outdated() -> list[str]:
    """Names of files that are missing, differ, or should not be there."""
    wanted = files()
    known = {path: path.read_text(encoding="utf-8") for path in FOLDER.glob("*.json")}
    paths = wanted.keys() | known.keys()
    return sorted(path.name for path in paths if wanted.get(path) != known.get(path))


def main() -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description="Write the Grafana dashboards.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if they differ")
    if parser.parse_args().check:
        wrong = outdated()
        if wrong:
            print(f"run `make dashboards`: {', '.join(wrong)}", file=sys.stderr)
        return bool(wrong)
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
