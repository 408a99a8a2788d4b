"""An environment with the released speculators, beside this one: torch and transformers are taken from here, the rest is 135 MB.

python tests/golden/speculators/environment.py FOLDER      prints its interpreter, for DRAFTSMITH_SPECULATORS_PYTHON and make.py
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

PACKAGES = (
    *("speculators==0.9.0", "hs-connectors==0.9.0", "datasets==5.1.0", "dill==0.4.1", "multiprocess==0.70.19", "xxhash==4.1.0"),
    *("loguru==0.7.3", "pydantic-settings==2.16.3", "python-dotenv==1.2.4", "openai==3.57.0", "jiter==0.19.0", "sniffio==1.3.1"),
    *("httpx==0.28.1", "httpcore==1.0.9", "pandas==3.1.1", "protobuf==7.36.2", "psutil==7.2.2"),
)


def make(folder: Path) -> Path:
    """Its interpreter; made when it is not there."""
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, symlinks=True)
        [site] = (folder / "lib").glob("python3.*/site-packages")
        words = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--target", str(site), *PACKAGES]
        subprocess.run(words, check=True, stdout=sys.stderr)
        (site / "beside.pth").write_text(f"{sysconfig.get_path('purelib')}\n")
    return python.absolute()


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    print(make(Path(sys.argv[1])))
