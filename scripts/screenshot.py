"""Picture of a report by headless Chromium: scripts/screenshot.py runs/NAME/report/report.html out.png --width 390 --dark --full"""

from __future__ import annotations

import argparse
import html
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
)
TIMEOUT_S = 120
MAX_HEIGHT = 16000
MIN_WINDOW = 500  # Chromium makes no narrower window, so the page sits in a frame of the wanted width
FRAME = """<!doctype html><meta name="color-scheme" content="light dark">
<style>body {{ margin: 0 }} iframe {{ border: 0; display: block; color-scheme: light dark }}</style>
<iframe width="{width}" height="{height}" srcdoc="{page}"
  onload="document.title = 'height ' + this.contentDocument.documentElement.scrollHeight"></iframe>"""


def main() -> int:
    """Exit code 0 when the picture is there, 4 when Chromium is not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("report", type=Path, metavar="REPORT_HTML")
    parser.add_argument("out", type=Path, metavar="OUT.png")
    parser.add_argument("--width", type=int, default=1280, help="CSS pixels (default 1280)")
    parser.add_argument("--height", type=int, default=900, help="CSS pixels (default 900)")
    parser.add_argument("--dark", action="store_true", help="as a reader with a dark system sees it")
    parser.add_argument("--full", action="store_true", help="the whole page instead of the first screen")
    args = parser.parse_args()
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        print("no Chromium found\n  hint: apt-get install -y chromium", file=sys.stderr)
        return 4
    if not args.report.is_file():
        print(f"no report at {args.report}", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        look = ["--blink-settings=preferredColorScheme=0"] if args.dark else ["--blink-settings=preferredColorScheme=1"]
        page = frame(args.report, args.width, 10, folder)
        height = args.height
        if args.full:
            dom = browse(chromium, folder / "profile", ["--dump-dom", *look, page.as_uri()])
            height = min(int(re.findall(r"<title>height (\d+)", dom)[0]), MAX_HEIGHT)
        page = frame(args.report, args.width, height, folder)
        args.out.parent.mkdir(parents=True, exist_ok=True)
        window = f"--window-size={max(args.width, MIN_WINDOW)},{height}"
        browse(chromium, folder / "profile", [f"--screenshot={args.out.resolve()}", window, *look, page.as_uri()])
    with Image.open(args.out) as picture:
        picture.crop((0, 0, args.width, height)).save(args.out)
    print(args.out)
    return 0


def frame(report: Path, width: int, height: int, folder: Path) -> Path:
    """A page with the report in a frame of this size."""
    page = folder / "frame.html"
    page.write_text(FRAME.format(width=width, height=height, page=html.escape(report.read_text())))
    return page


def browse(chromium: str, profile: Path, arguments: list[str]) -> str:
    """Run Chromium with a new profile; its stdout."""
    shutil.rmtree(profile, ignore_errors=True)
    command = [chromium, *FLAGS, f"--user-data-dir={profile}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
