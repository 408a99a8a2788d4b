"""Pictures of the report for the documents, from a committed result as this version shows it: scripts/screenshots.py [RUN]"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

from draftsmith.report.write import report_of

ROOT = Path(__file__).resolve().parents[1]
RESULT = ROOT / "results" / "smollm2-135m-instruct_eagle3_2-core-cpu_2026-11-30"
VIEWS = {"report-wide": (1280, 1080), "report-phone": (390, 1500)}  # name: CSS pixels


def main() -> int:
    """Exit code of scripts/screenshot.py: 0 when the pictures are there, 4 without Chromium."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path, nargs="?", default=RESULT, metavar="RUN", help="what `draftsmith report RUN` takes")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images", help="folder for the pictures (default docs/images)")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        report_of([args.run], Path(name))
        for view, (width, height) in VIEWS.items():
            out = args.out / f"{view}.png"
            size = ["--width", str(width), "--height", str(height)]
            code = subprocess.call([sys.executable, str(ROOT / "scripts" / "screenshot.py"), f"{name}/report.html", str(out), *size])
            if code:
                return code
            with Image.open(out) as picture:
                picture.convert("RGB").save(out, optimize=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
