#!/usr/bin/env bash
# The tests of tests/gpu on a machine without a network, with an engine and a target that were brought along.
#
#     OUT=DIR bash benchmarks/gpu/tests.sh KIT [TEST_PACKAGES] [PYTEST_WORDS...]
#
# KIT/site has the engine's packages (and what the toolkit needs), KIT/model the target. TEST_PACKAGES is a folder with pytest, where this
# interpreter has none; "" otherwise. OUT gets the log of every server, the measured times and pytest's own report. One engine takes up to six
# minutes; the test of an NCCL error needs two GPUs.
set -uo pipefail
kit=$(realpath "$1") packages=${2:-}
shift; shift || true
cd "$(dirname "$0")/../.."
export OUT=${OUT:-$PWD/gpu-tests}
mkdir -p "$OUT"
export DRAFTSMITH_GPU_PYTHONPATH=$kit/site DRAFTSMITH_GPU_TARGET=$kit/model DRAFTSMITH_HOME=${DRAFTSMITH_HOME:-$OUT/home}
export PYTHONPATH=$PWD/src:$kit/site${packages:+:$packages} PYTHONDONTWRITEBYTECODE=1 HF_HUB_OFFLINE=1
python3 -m pytest tests/gpu -v -rs -p no:cacheprovider --junitxml="$OUT/junit.xml" --durations=0 "$@" 2>&1 | tee "$OUT/pytest.log"
exit "${PIPESTATUS[0]}"
