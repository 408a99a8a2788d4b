"""Why an engine died: on excerpts of real logs (tests/data/logs says how they were made)."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest
import yaml

from draftsmith.engines import rootcause
from draftsmith.engines.rootcause import causes, find_cause

LOGS = Path(__file__).parents[1] / "data" / "logs"
EXPECTED = yaml.safe_load((LOGS / "expected.yaml").read_text())
FAMILY = {"vllm-0.26.0": "vllm", "vllm-0.32.0": "vllm", "sglang-0.5.17": "sglang", "sglang-0.5.23": "sglang"}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_cause_of_a_real_death(name: str) -> None:
    """The line that a person would point at, not the last one; and a hint that names what to change."""
    expected = EXPECTED[name]
    text = (LOGS / f"{name}.log").read_text()
    cause, hint = find_cause(text, FAMILY[name.split("/")[0]])
    assert expected["cause"] in cause and "\n" not in cause
    assert expected["hint"] in hint


def test_every_excerpt_is_expected_and_has_no_traces_of_a_machine() -> None:
    kept = {str(path.relative_to(LOGS).with_suffix("")) for path in LOGS.rglob("*.log")} - {"vllm-0.32.0/up", "sglang-0.5.23/up"}
    assert kept == set(EXPECTED)
    for path in LOGS.rglob("*.log"):
        text = path.read_text()
        assert len(text.splitlines()) <= 130, path
        folders = set(re.findall(r"(?<![\w.:/-])/(\w[\w.-]*)/", text))
        assert folders <= {"env", "models", "python", "nowhere", "tmp", "v1"}, (path, folders)


def test_every_cause_is_a_pattern_with_a_hint_that_can_be_filled_in() -> None:
    for engine in ("vllm", "sglang", "an engine without a table"):
        for cause in causes(engine):
            groups = dict.fromkeys(cause.pattern.groupindex, "x")
            assert cause.kind and "{" not in cause.hint.format(**groups)


def test_information_and_warnings_kill_nobody() -> None:
    log = (
        "(EngineCore pid=2) WARNING 11-29 15:11:20 [cpu.py:1] No module named 'triton'\n"
        "(EngineCore pid=2) INFO 11-29 15:11:20 [a.py:1] NCCL error handling is on\n"
        "INFO:     127.0.0.1 CUDA error: none\n"
        "ValueError: the real one\n"
    )
    assert find_cause(log, "vllm")[0] == "ValueError: the real one"


def test_a_module_that_sglang_can_do_without_is_no_cause() -> None:
    """A line of 0.5.23's start that went well."""
    log = "Ignore import error when loading sglang.srt.models.inkling: No module named 'cutlass'\nRuntimeError: the real one\n"
    assert find_cause(log, "sglang")[0] == "RuntimeError: the real one"


def test_a_lost_worker_counts_only_when_nothing_tells_more() -> None:
    lost = "(EngineCore pid=2) ERROR 11-29 19:28:10 [m.py:1] Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down.\n"
    assert find_cause(lost + "RuntimeError: Executor failed.\n", "vllm")[0].startswith("Worker proc VllmWorker-0 died unexpectedly")
    assert find_cause("ValueError: no such thing\n" + lost, "vllm")[0] == "ValueError: no such thing"


def test_what_engines_say_of_gpus_and_of_killed_processes() -> None:
    """As read in the sources of vLLM 0.26.0 and SGLang 0.5.17."""
    log = (
        "ValueError: Free memory on device cuda:0 (3.10/139.81 GiB) on startup is less than desired GPU memory utilization"
        " (0.9, 125.83 GiB). Decrease GPU memory utilization or reduce GPU memory used by other processes.\n"
    )
    cause, hint = find_cause(log, "vllm")
    assert "3.10/139.81 GiB" in cause and cause.endswith("(0.9, 125.83 GiB)") and "gpu-memory-utilization" in hint
    log = "[2026-11-30 07:00:00] Subprocess scheduler_0 (pid=620) crashed with exit code {}. Triggering SIGQUIT for cleanup...\n"
    cause, hint = find_cause(log.format(-9), "sglang")
    assert cause == "Subprocess scheduler_0 (pid=620) crashed with exit code -9" and "killed from outside" in hint
    cause, hint = find_cause(log.format(-6), "sglang")
    assert cause.endswith("exit code -6") and "native code" in hint
    assert find_cause("RuntimeError: the reason\n" + log.format(-6), "sglang")[0] == "RuntimeError: the reason"
    assert "CUDA_VISIBLE_DEVICES" in find_cause("RuntimeError: No CUDA GPUs are available\n", "vllm")[1]


def test_a_line_of_code_is_no_cause() -> None:
    log = (
        'Traceback (most recent call last):\n  File "a.py", line 1, in f\n    raise OSError("Address already in use")\nValueError: other\n'
    )
    assert find_cause(log, "vllm")[0] == "ValueError: other"


def test_a_failed_look_up_is_explained_by_its_handler() -> None:
    log = (
        "Traceback (most recent call last):\nKeyError: 'nosuch'\n\nDuring handling of the above exception, another exception occurred:\n\n"
        "Traceback (most recent call last):\nValueError: there is no model nosuch\nRuntimeError: Engine core initialization failed.\n"
    )
    assert find_cause(log, "vllm")[0] == "ValueError: there is no model nosuch"
    alone = "Traceback (most recent call last):\nKeyError: 'layers.0.q_norm.weight'\nRuntimeError: Engine core initialization failed.\n"
    assert find_cause(alone, "vllm")[0] == "KeyError: 'layers.0.q_norm.weight'"


def test_a_bare_assert_gets_its_statement_from_the_source(tmp_path: Path) -> None:
    """Python prints the first line of a statement only; the rest, with the flags, is in the file."""
    source = tmp_path / "hook.py"
    source.write_text(
        textwrap.dedent(
            """
            def handle(server_args):
                assert (
                    server_args.speculative_eagle_topk is None
                    and server_args.speculative_num_draft_tokens is None
                )
            """
        )
    )
    log = f'Traceback (most recent call last):\n  File "{source}", line 3, in handle\n    assert (\n           ^^^^^^\nAssertionError\n'
    cause, hint = find_cause(log, "sglang")
    assert cause.startswith(
        "AssertionError at hook.py:3: assert server_args.speculative_eagle_topk is None and server_args.speculative_num"
    )
    assert hint == "the flags behind it: --speculative-eagle-topk, --speculative-num-draft-tokens"
    elsewhere = log.replace(str(source), "/gone/hook.py")
    assert find_cause(elsewhere, "sglang")[0] == "AssertionError at hook.py:3: assert ("


def test_a_condition_is_shown_without_its_block(tmp_path: Path) -> None:
    source = tmp_path / "hook.py"
    source.write_text("def f(args):\n    if args.topk > 1:\n        pass\n    while args.steps > 1:\n        pass\n    return args\n")
    assert rootcause.statement_at(source, 2) == "if args.topk > 1:"
    assert rootcause.statement_at(source, 4) == "while args.steps > 1:"
    assert rootcause.statement_at(source, 6) == "return args"
    assert rootcause.statement_at(source, 99) == "" and rootcause.statement_at(tmp_path / "gone.py", 1) == ""
    (tmp_path / "broken.py").write_text("def (:\n")
    assert rootcause.statement_at(tmp_path / "broken.py", 1) == ""


def test_progress_bars_do_not_hide_the_last_line() -> None:
    assert find_cause("loading:   0%\rloading: 100%\rthe last words\n", "vllm") == ("the last words", "see the log")
