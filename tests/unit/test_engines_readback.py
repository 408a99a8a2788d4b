"""What took effect against what was asked for: settings from real pages and logs, variables from real processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from draftsmith.engines import secrets
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.readback import changed_settings, changed_variables, environment_of, planned_variables
from draftsmith.engines.sglang.engine import SGLang
from draftsmith.engines.vllm.engine import VLLM

LOG = (Path(__file__).parents[1] / "data" / "logs" / "vllm-0.32.0" / "up.log").read_text()
PAGES = Path(__file__).parents[1] / "data" / "pages"
TARGET, DRAFTER = Path("/models/target"), Path("/models/drafter")
FLAGS = {"max-model-len": 1024, "max-num-seqs": 64, "max-num-batched-tokens": 8192, "enforce-eager": True, "dtype": "bfloat16"}
METRICS = 'vllm:cache_config_info{block_size="128",cache_dtype="auto",engine="0",gpu_memory_utilization="0.92"} 1.0\n'


def launch(depth: int = 3, drafter: Path = DRAFTER, **flags: object) -> Launch:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return Launch("speculative", TARGET, {**FLAGS, **named}, {}, Drafting("eagle3", drafter, depth))  # type: ignore[dict-item]


def vllm_differences(asked: Launch, pages: dict[str, str] | None = None) -> list[str]:
    return changed_settings(VLLM().requested(asked), VLLM().effective(LOG, pages or {}))


def test_a_launch_as_it_ran_has_no_difference() -> None:
    """The real log of exactly this launch; every setting that it names is compared."""
    asked, found = VLLM().requested(launch()), VLLM().effective(LOG, {})
    assert set(asked) & set(found) >= {"target", "drafter", "depth", "drafting_method", "max_model_len", "enforce_eager", "dtype"}
    assert changed_settings(asked, found) == []
    forgiving = launch(dtype="auto", seed=0, tensor_parallel_size=1, kv_cache_dtype="auto", max_model_len="32k", quantization=None)
    assert vllm_differences(forgiving) == []


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (launch(depth=15), "depth: 15 was asked for, 3 is in effect"),
        (launch(drafter=Path("/models/other")), "drafter: /models/other was asked for, /models/drafter is in effect"),
        (launch(max_model_len=4096), "max_model_len: 4096 was asked for, 1024 is in effect"),
        (launch(dtype="float32"), "dtype: float32 was asked for, torch.bfloat16 is in effect"),
        (launch(enforce_eager=False), "enforce_eager: False was asked for, True is in effect"),
        (launch(quantization="fp8"), "quantization: fp8 was asked for, None is in effect"),
        (launch(enable_prefix_caching=False), "enable_prefix_caching: False was asked for, True is in effect"),
    ],
)
def test_a_difference_names_both_values(asked: Launch, said: str) -> None:
    assert vllm_differences(asked) == [said]


def test_pages_know_what_the_log_does_not() -> None:
    info = {"vllm_config": {"scheduler_config": {"max_num_seqs": 32, "max_num_batched_tokens": 8192}, "speculative_config": None}}
    pages = {
        "/metrics": METRICS,
        "/v1/models": json.dumps({"data": [{"id": "target", "max_model_len": 512}]}),
        "/server_info?config_format=json": json.dumps(info),
    }
    assert vllm_differences(launch(block_size=16), pages) == [
        "max_model_len: 1024 was asked for, 512 is in effect",
        "max_num_seqs: 64 was asked for, 32 is in effect",
        "block_size: 16 was asked for, 128 is in effect",
    ]


def test_sglang_tells_every_resolved_argument() -> None:
    """Names as in 0.5.17's server_info."""
    page = {
        "model_path": str(TARGET),
        "speculative_algorithm": "EAGLE3",
        "speculative_draft_model_path": str(DRAFTER),
        "speculative_num_steps": 1,
        "speculative_eagle_topk": 1,
        "speculative_num_draft_tokens": 2,
        "page_size": 16,
        "disable_radix_cache": True,
        "max_running_requests": 64,
        "dp_size": 1,
        "cuda_graph_bs": [1, 2],
        "internal_states": [{"effective_max_running_requests_per_dp": 48}],
    }
    flags = {"page-size": 1, "disable-radix-cache": True, "max-running-requests": 64, "cuda-graph-bs": "1 2", "port": 1}
    asked = Launch("speculative", TARGET, flags, {}, Drafting("eagle3", DRAFTER, 3))
    found = SGLang().effective("", {"/server_info": json.dumps(page)})
    assert sorted(changed_settings(SGLang().requested(asked), found)) == [
        "depth: 3 was asked for, 1 is in effect",
        "draft_tokens: 4 was asked for, 2 is in effect",
        "max_running_requests: 64 was asked for, 48 is in effect",
        "page_size: 1 was asked for, 16 is in effect",
    ]


def test_real_pages_agree_with_the_launch_that_made_them() -> None:
    pages = {
        "/server_info?config_format=json": (PAGES / "vllm-0.32.0-server_info.json").read_text(),
        "/metrics": (PAGES / "vllm-0.32.0-metrics.txt").read_text(),
    }
    found = VLLM().effective("", pages)
    asked = {"max_num_seqs": "4", "max_num_batched_tokens": "2048", "max_model_len": "512", "depth": "3", "enforce_eager": "True"}
    assert set(asked) < set(found) and changed_settings(asked, found) == []
    assert changed_settings({**asked, "max_num_seqs": "8"}, found) == ["max_num_seqs: 8 was asked for, 4 is in effect"]
    flags = {"attention-backend": "torch_native", "disable-overlap-schedule": True, "dtype": "auto", "device": "cpu", "tp": 1}
    sglang = SGLang().effective("", {"/server_info": (PAGES / "sglang-0.5.23-server_info.json").read_text()})
    assert sglang["max_running_requests"] == "4096"  # the argument was not given; the scheduler's own limit is told
    assert changed_settings(SGLang().requested(Launch("baseline", TARGET, flags)), sglang) == []
    capped = SGLang().requested(Launch("baseline", TARGET, {**flags, "max-running-requests": 8192}))
    assert changed_settings(capped, sglang) == ["max_running_requests: 8192 was asked for, 4096 is in effect"]


def test_variants_and_spellings_agree() -> None:
    asked = {"quantization": "awq", "kv_cache_dtype": "fp8", "dtype": "half", "mem_fraction_static": "0.80", "load_format": "auto"}
    found = {"quantization": "awq_marlin", "kv_cache_dtype": "fp8_e4m3", "dtype": "torch.float16", "mem_fraction_static": "0.8"}
    assert changed_settings(asked, {**found, "load_format": "safetensors"}) == []
    assert changed_settings({"load_format": "dummy"}, {"load_format": "auto"}) != []


def settled_environment(child: subprocess.Popen) -> dict[str, str]:
    """The variables of a new process; for a moment after its start the kernel shows none."""
    deadline = time.monotonic() + 10
    while (found := environment_of(child.pid)) is None:
        assert time.monotonic() < deadline
    return found


def test_variables_of_a_real_process() -> None:
    env = {**os.environ, "NCCL_ALGO": "Ring", "VLLM_API_KEY": "sk-secret"}
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env) as child:
        found = settled_environment(child)
        assert found["NCCL_ALGO"] == "Ring"
        assert changed_variables({"NCCL_ALGO": "Ring"}, [child.pid], "vllm") == []
        [said] = changed_variables({"NCCL_ALGO": "Tree", "VLLM_API_KEY": "sk-secret"}, [child.pid], "vllm")
        assert said.startswith("NCCL_ALGO: 'Tree' was set, ") and said.endswith(f"(pid {child.pid}) has 'Ring'")
        [said] = changed_variables({"VLLM_API_KEY": "sk-other"}, [child.pid], "vllm")
        assert "sk-" not in said and "(hidden)" in said
        assert changed_variables({"OMP_NUM_THREADS": "7"}, [child.pid], "vllm") == [], "vLLM sets it for every worker"
        assert len(changed_variables({"OMP_NUM_THREADS": "7"}, [child.pid], "sglang")) == 1
        child.kill()
    assert environment_of(child.pid) is None and changed_variables({"NCCL_ALGO": "Tree"}, [child.pid], "vllm") == []


def test_a_list_of_folders_may_grow_but_not_lose() -> None:
    """torch's compile workers under SGLang 0.5.17 get their parent's import path behind the given PYTHONPATH."""
    env = {"PATH": os.environ["PATH"], "PYTHONPATH": "/kit:/usr/lib/python312.zip", "LD_LIBRARY_PATH": "/front:/b"}
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(60)"], env=env) as child:
        settled_environment(child)
        for name, planned, differs in (
            ("PYTHONPATH", "/kit", False),
            ("PYTHONPATH", "/kit:/other", True),
            ("LD_LIBRARY_PATH", "/b", False),
            ("LD_LIBRARY_PATH", "/b:/front", True),
        ):
            assert bool(changed_variables({name: planned}, [child.pid], "sglang")) == differs, (name, planned)
        [said] = changed_variables({"NCCL_ALGO": "Ring"}, [child.pid, child.pid], "sglang")
        assert said.endswith("lacks it (as 1 more do)")
        child.kill()


def test_what_is_planned_includes_what_the_caller_had() -> None:
    planned = planned_variables({"A": "1", "NCCL_ALGO": "Ring"}, {"NCCL_ALGO": "Tree", "SGLANG_X": "2", "VLLM_Y": "3", "HOME": "/root"})
    assert planned == {"A": "1", "NCCL_ALGO": "Ring", "SGLANG_X": "2", "VLLM_Y": "3"}


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "VLLM_API_KEY", "AWS_SECRET_ACCESS_KEY", "--api-key", "admin_api_key", "DB_PASSWORD", "ssl-keyfile-password"]
)
def test_names_of_secrets(name: str) -> None:
    assert secrets.is_secret(name)


@pytest.mark.parametrize("name", ["TOKENIZERS_PARALLELISM", "max-num-batched-tokens", "tokenizer", "KEYRING_X", "VLLM_MAX_TOKENS_PER_STEP"])
def test_names_that_only_look_like_secrets(name: str) -> None:
    assert not secrets.is_secret(name)


def test_a_command_line_without_its_secrets() -> None:
    argv = ["python", "--api-key", "k1", "--hf-token=k2", "--port", "1", "--api-key", "--flag"]
    assert secrets.masked_argv(argv) == ["python", "--api-key", "(hidden)", "--hf-token=(hidden)", "--port", "1", "--api-key", "--flag"]


@pytest.mark.parametrize(
    ("host", "env", "warned"),
    [
        ("127.0.0.1", {}, False),
        ("localhost", {}, False),
        ("::1", {}, False),
        ("127.8.8.8", {}, False),
        ("0.0.0.0", {}, True),
        ("::", {}, True),
        ("10.0.0.7", {}, True),
        ("gpu-3", {}, True),
        ("0.0.0.0", {"VLLM_API_KEY": "k"}, False),
        ("0.0.0.0", {"VLLM_API_KEY": ""}, True),
    ],
)
def test_who_may_reach_a_server(host: str, env: dict[str, str], warned: bool) -> None:
    assert bool(secrets.exposure(Launch("baseline", TARGET, {"host": host}), env)) == warned
