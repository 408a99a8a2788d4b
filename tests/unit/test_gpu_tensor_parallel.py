"""The two-GPU driver: its plan fits, its launches keep multicast off, and a whole wave runs on servers that answer as SGLang does."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from draftsmith.engines.sglang.engine import SGLang
from draftsmith.manifest import read_jsonl
from draftsmith.measure.collectives import MULTICAST_OFF

GPU = Path(__file__).resolve().parents[2] / "benchmarks" / "gpu"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, GPU / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


driver = load("tensor_parallel")

STAND_IN = """
import argparse, json, os, time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int)
parser.add_argument("--speculative-num-steps", type=int, default=0)
known, _ = parser.parse_known_args()
step, per_round = 0.0005, int(float(os.environ.get("SGLANG_SIMULATE_ACC_LEN", "1")))
if "p2p-off" in os.environ.get("BREAK", "") and "NCCL_P2P_DISABLE" in os.environ:
    raise SystemExit("no way between the GPUs")

class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.end_headers(); self.wfile.write(b"{}")
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200); self.end_headers()
        wanted, done, rounds = body["sampling_params"]["max_new_tokens"], 1, 0
        while True:
            for index in range(len(body["input_ids"])):
                meta = {"completion_tokens": done}
                if per_round > 1 and done == wanted:
                    meta["spec_verify_ct"] = rounds
                self.wfile.write(f"data: {json.dumps({'index': index, 'output_ids': [1], 'meta_info': meta})}\\n\\n".encode())
            self.wfile.flush()
            if done == wanted:
                break
            time.sleep(step * (1 + known.speculative_num_steps))
            rounds += 1
            done = min(done + per_round, wanted)
    def log_message(self, *words): pass

ThreadingHTTPServer(("127.0.0.1", known.port), Handler).serve_forever()
"""


def test_every_group_is_in_one_part_and_every_part_fits() -> None:
    parts = driver.parts()
    where = {}
    for number, part in enumerate(parts):
        assert len(part) <= driver.MAX_SERVERS
        for gpu in range(driver.NUM_GPUS):
            assert sum(placed.group.gb for placed in part if gpu in placed.gpus) <= driver.GPU_GB
        for placed in part:
            assert where.setdefault(placed.group, number) == number
            assert len(placed.gpus) == placed.group.tp
            assert placed.group.gpu is None or placed.gpus == (placed.group.gpu,)
    assert set(where) == set(driver.GROUPS)


def test_no_launch_can_reach_multicast(tmp_path: Path) -> None:
    for part in driver.parts():
        ports, free = set(), driver.free_ports(2 * len(part))
        for number, placed in enumerate(part):
            launch = driver.plan_one(placed, number, free, tmp_path, tmp_path).launch
            words = SGLang().argv(Path("python"), launch, launch.flags["port"])
            ports |= {launch.flags["port"], launch.flags["nccl-port"]}
            assert MULTICAST_OFF.items() <= launch.env.items()
            assert launch.env["SGLANG_OPT_USE_CUSTOM_ALL_REDUCE_V2"] == "0"
            assert "--enforce-disable-flashinfer-allreduce-fusion" in words
            assert not {"--enable-symm-mem", "--enable-nccl-nvls", "--enable-torch-symm-mem", "--enable-mscclpp"} & set(words)
            through_host = placed.group.link == "p2p-off"
            assert ("--disable-custom-all-reduce" in words) == ("NCCL_P2P_DISABLE" in launch.env) == through_host
        assert len(ports) == 2 * len(part)


def test_the_cut_is_kimis_shape_but_for_what_it_says() -> None:
    config = json.loads((GPU / "shapes" / "kimi-cut-6" / "config.json").read_text())
    drafter = json.loads((GPU / "shapes" / "kimi-cut-6" / "drafter.json").read_text())
    assert "made by Draftsmith" in config["draftsmith_note"] and "made by Draftsmith" in drafter["draftsmith_note"]
    assert (config["n_routed_experts"], config["num_experts_per_tok"], config["hidden_size"], config["kv_lora_rank"]) == (384, 8, 7168, 512)
    assert config["moe_intermediate_size"] * 2 == 2048 * 0.5  # bytes of an expert: bf16 here, INT4 in the published checkpoints
    assert drafter["hidden_size"] == config["hidden_size"] and drafter["vocab_size"] == config["vocab_size"]
    assert max(drafter["eagle_config"]["eagle_aux_hidden_state_layer_ids"]) < config["num_hidden_layers"]


@pytest.fixture
def kit(tmp_path: Path) -> Path:
    """A kit whose SGLang is a stand-in that streams forced rounds."""
    package = tmp_path / "kit" / "site" / "sglang"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(STAND_IN)
    (tmp_path / "kit" / "model").mkdir()
    (tmp_path / "kit" / "model" / "tokenizer.json").write_text("{}")
    return tmp_path / "kit"


def drive(kit: Path, out: Path, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(GPU / "tensor_parallel.py"), "--kit", str(kit), "--out", str(out)]
    env = {**os.environ, "PYTHONPATH": str(GPU.parents[1] / "src"), **env}
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=300, env=env, check=False)


def test_a_part_from_start_to_file(kit: Path, tmp_path: Path) -> None:
    """Servers over two links side by side; those without a way between the GPUs die and take no other with them."""
    ran = drive(kit, tmp_path / "out", "--part", "3", "--tokens", "129", BREAK="p2p-off")
    assert ran.returncode == 0, ran.stderr
    folder = tmp_path / "out" / "part-3"
    died = {line["name"]: line.get("died", "") for line in read_jsonl(folder / "launches.jsonl")}
    assert len(died) == len(driver.parts()[2])
    assert all(("no way between the GPUs" in why) == ("p2p-off" in name) for name, why in died.items()), died
    rows = [row for row in read_jsonl(folder / "waves.jsonl") if row["phase"] == "cell"]
    assert len(rows) == 2 * 4 * 2 * 2 and not [row["invalid"] for row in rows if "invalid" in row]
    assert {row["accept_len"] for row in rows if row["depth"]} == {2.0}
    assert {row["round_s"] for row in rows if not row["depth"]} == {None}
    first = [row["name"] for row in rows if row["pass"] == 0]
    assert [row["name"] for row in rows if row["pass"] == 1] == first[::-1]
    assert json.loads((folder / "about.json").read_text())["load"]["vocab_size"] == 163840


def test_what_cannot_end_in_time_is_not_begun(kit: Path, tmp_path: Path) -> None:
    ran = drive(kit, tmp_path / "out", "--part", "1", "--budget-s", "100")
    assert ran.returncode == 0 and "not begun" in ran.stdout
    assert not (tmp_path / "out" / "part-1").exists()
