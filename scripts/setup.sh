#!/usr/bin/env bash
# Makes .venv with the toolkit and its test tools, every version pinned. Does nothing when it is there already.
#   PYTHON=python3.12 scripts/setup.sh     with another interpreter (3.11 or newer)
set -euo pipefail
cd "$(dirname "$0")/.."

say() { printf '[setup] %s\n' "$*" >&2; }
fail() { printf 'error: %s\n  hint: %s\n' "$1" "$2" >&2; exit 4; }

new_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
python=""
for candidate in ${PYTHON:-python3 python3.11 python3.12 python3.13 python3.14}; do
  if new_enough "$candidate"; then python=$candidate; break; fi
done
[ -n "$python" ] || fail "no Python 3.11 or newer (python3 is $(python3 --version 2>&1 || true))" "install one, or name it: PYTHON=/path/to/python3.11 $0"

torch=$(grep '^torch==' requirements/torch.txt)
if nvidia-smi -L >/dev/null 2>&1; then gpu=yes; else gpu=no; torch="$torch+cpu"; fi

stamp=.venv/setup.stamp
wanted="$(cat requirements/*.txt pyproject.toml scripts/setup.sh | sha256sum | cut -d' ' -f1) gpu=$gpu $("$python" --version)"
if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ] && .venv/bin/python -c 'import draftsmith' 2>/dev/null; then
  say ".venv is up to date"
  exit 0
fi

start=$SECONDS
if ! new_enough .venv/bin/python; then
  rm -rf .venv
  "$python" -m venv .venv || fail "cannot make a virtual environment" "install python3-venv"
fi
rm -f "$stamp"
pip=(.venv/bin/python -m pip)
install=("${pip[@]}" install --quiet --quiet --disable-pip-version-check --no-input)

say "installing $torch"
if [ "$gpu" = yes ]; then
  "${install[@]}" "$torch" || fail "cannot install $torch" "check the network and pip's configuration"
elif ! "${install[@]}" --no-deps "$torch"; then
  index=https://download.pytorch.org/whl/cpu
  say "the configured package index has no $torch, trying PyTorch's own: $index"
  "${install[@]}" --no-deps --index-url "$index" "$torch" ||
    fail "$torch is neither on the configured package index nor on $index" "check the network, or set PIP_FIND_LINKS to a folder with the wheel"
fi
say "installing the toolkit and its test tools"
"${install[@]}" --no-deps -r requirements/toolkit.txt -r requirements/dev.txt || fail "pip failed" "see its message above"
"${install[@]}" --no-deps --no-build-isolation --editable . || fail "cannot install draftsmith itself" "see pip's message above"
echo "$wanted" > "$stamp"
say "ready after $((SECONDS - start)) s: $(du -sm .venv | cut -f1) MiB in .venv"
