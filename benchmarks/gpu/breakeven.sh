#!/usr/bin/env bash
# Break-even costs of three target shapes on a GPU machine without a network, where the kit of ../device lies unpacked in KIT.
#   KIT=... OUT=... CONFIGS=... bash benchmarks/gpu/breakeven.sh smollm2|dense|moe [BUDGET_S [GROUPS]]
# One call stays below ten minutes; CONFIGS holds targets/Qwen__Qwen3-8B.json and targets/Qwen__Qwen3-30B-A3B.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
shape=$1 budget=${2:-}
case $shape in
  smollm2) target=$KIT/model; budget=${budget:-560} ;;
  dense) target=$CONFIGS/targets/Qwen__Qwen3-8B.json; budget=${budget:-330} ;;
  moe) target=$CONFIGS/targets/Qwen__Qwen3-30B-A3B.json; budget=${budget:-560} ;;
  *) echo "unknown shape $shape" >&2; exit 2 ;;
esac
groups=${3:-1,2,3}
[ -z "${3:-}" ] && [ "$shape" = dense ] && groups=1  # its second group, with DFlash blocks, is a call of its own
export PYTHONPATH=$PWD/src
exec python3 benchmarks/gpu/breakeven.py --shape "$shape" --target "$target" --tokenizer "$KIT/model" --pythonpath "$KIT/site" \
  --out "$OUT/$shape" --budget-s "$budget" --groups "$groups"
