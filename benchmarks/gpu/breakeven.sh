#!/usr/bin/env bash
# Break-even costs of three target shapes on a GPU machine without a network, where the kit of ../device lies unpacked in KIT.
#   KIT=... OUT=... CONFIGS=... bash benchmarks/gpu/breakeven.sh smollm2|dense|moe [BUDGET_S]
# One call stays below ten minutes; CONFIGS holds targets/Qwen__Qwen3-8B.json and targets/Qwen__Qwen3-30B-A3B.json.
set -euo pipefail
cd "$(dirname "$0")/../.."
shape=$1 budget=${2:-}
case $shape in
  smollm2) target=$KIT/model; budget=${budget:-510} ;;
  dense) target=$CONFIGS/targets/Qwen__Qwen3-8B.json; budget=${budget:-330} ;;
  moe) target=$CONFIGS/targets/Qwen__Qwen3-30B-A3B.json; budget=${budget:-560} ;;
  *) echo "unknown shape $shape" >&2; exit 2 ;;
esac
groups=9
[ "$shape" = moe ] && [ "$budget" -lt 500 ] && groups=2
[ "$shape" = dense ] && [ "$budget" -lt 400 ] && groups=1  # the second group needs another start
export PYTHONPATH=$PWD/src
exec python3 benchmarks/gpu/breakeven.py --shape "$shape" --target "$target" --tokenizer "$KIT/model" --pythonpath "$KIT/site" \
  --out "$OUT/$shape" --budget-s "$budget" --groups "$groups"
