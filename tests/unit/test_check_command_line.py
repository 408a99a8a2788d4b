"""check: reading a launch command as people copy it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftsmith.check.command_line import Pasted, parse_command
from draftsmith.errors import UsageError


def read(text: str) -> Pasted:
    return parse_command([text])


ENTRIES = [
    ("python -m sglang.launch_server --model-path X", "sglang"),
    ("python3 -m sglang.launch_server --model-path X", "sglang"),
    ("/opt/venv/bin/python3.12 -u -m sglang.launch_server --model-path X", "sglang"),
    ("sglang serve --model-path X", "sglang"),
    ("python -m vllm.entrypoints.openai.api_server --model X", "vllm"),
    ("vllm serve X", "vllm"),
    ("/usr/local/bin/vllm serve X", "vllm"),
    ("uv run vllm serve X", "vllm"),
    ("docker run --gpus all -p 8000:8000 --ipc=host vllm/vllm-openai:v0.11.0 --model X", "vllm"),
    ("docker run --gpus all lmsysorg/sglang:v0.5.7-cu126 python3 -m sglang.launch_server --model-path X", "sglang"),
    ("cd /srv && nohup python -m sglang.launch_server --model-path X", "sglang"),
]


@pytest.mark.parametrize(("text", "family"), ENTRIES)
def test_every_way_to_start_an_engine(text: str, family: str) -> None:
    found = read(text)
    assert found.family == family
    assert found.flags == {("model-path" if family == "sglang" else "model"): "X"} and found.unread == ()


def test_the_tag_of_an_image_is_a_version() -> None:
    assert read(ENTRIES[8][0]).version == "0.11.0" and read(ENTRIES[9][0]).version == "0.5.7"
    assert read("docker run lmsysorg/sglang:latest sglang serve --model-path X").version is None


FLAGS = {"model-path": "X", "tp": "8", "trust-remote-code": True, "speculative-algorithm": "EAGLE3"}


@pytest.mark.parametrize(
    "rest",
    [
        "--model-path X --tp 8 --trust-remote-code --speculative-algorithm EAGLE3",
        "--model-path=X --tp=8 --trust-remote-code --speculative-algorithm=EAGLE3",
        "--model-path X \\\n  --tp 8 \\\n  --trust-remote-code --speculative-algorithm EAGLE3",
        "--model-path X \\  \n  --tp 8 \\\n  --trust-remote-code \\\n  --speculative-algorithm EAGLE3 &",
        "--model-path X\n  --tp 8\n  --trust-remote-code --speculative-algorithm EAGLE3\n",
        "--model-path X --tp 8 --trust-remote-code --speculative-algorithm EAGLE3 > server.log 2>&1 &",
        "--model-path X --tp 8 --trust-remote-code --speculative-algorithm EAGLE3 2>&1 | tee log",
        "--model-path X --tp 8 --trust-remote-code --speculative-algorithm EAGLE3; echo done",
        "--model-path X --tp 8 --trust-remote-code --speculative-algorithm EAGLE3\ncurl http://127.0.0.1:30000/health",
        "--model-path X --tp 8 --trust-remote-code --speculative-algorithm EAGLE3  # the head of last week",
        "--model-path 'X' --tp \"8\" --trust-remote-code --speculative-algorithm EAGLE3",
        "--trust-remote-code \\\n  # eight cards\n  --model-path X --tp 8 --speculative-algorithm EAGLE3",
        "--model-path X --tp 2 --trust-remote-code --speculative-algorithm EAGLE3 --tp 8",
    ],
)
def test_what_people_copy(rest: str) -> None:
    found = read(f"python -m sglang.launch_server {rest}")
    assert dict(found.flags) == FLAGS and found.unread == ()
    assert found.repeated == (("tp",) if "--tp 2" in rest else ())


def test_numbers_at_the_end_are_not_file_descriptors() -> None:
    assert read("sglang serve --model-path X --tp 2 > log").flags["tp"] == "2"


def test_words_that_the_shell_has_split() -> None:
    found = parse_command(["A=1", "vllm", "serve", "X", "--speculative-config", '{"method": "eagle3", "model": "a b"}', "-tp", "2"])
    assert found.env == {"A": "1"} and found.flags["tensor-parallel-size"] == "2"
    assert json.loads(str(found.flags["speculative-config"]))["model"] == "a b"


@pytest.mark.parametrize(
    ("text", "env"),
    [
        ("CUDA_VISIBLE_DEVICES=0,1 A='x y' sglang serve --model-path X", {"CUDA_VISIBLE_DEVICES": "0,1", "A": "x y"}),
        ("export A=1 B=2\nsglang serve --model-path X", {"A": "1", "B": "2"}),
        ("env A=1 sglang serve --model-path X", {"A": "1"}),
        (
            "docker run -e A=1 --env B=2 --env=C=3 lmsysorg/sglang:v0.5.7 sglang serve --model-path X",
            {"A": "1", "B": "2", "C": "3"},
        ),
    ],
)
def test_environment(text: str, env: dict[str, str]) -> None:
    found = read(text)
    assert found.env == env and found.flags == {"model-path": "X"}


def test_variables_that_the_text_sets_are_put_in_and_others_stay() -> None:
    found = read("M=/m/llama\nK=${K:-3}\nsglang serve --model-path $M/x --tp ${TP} --speculative-num-steps $K --a ${B:-7}")
    assert found.flags == {"model-path": "/m/llama/x", "tp": "${TP}", "speculative-num-steps": "3", "a": "7"}


@pytest.mark.parametrize(
    ("rest", "expected"),
    [
        ("X --enforce-eager -tp 2", {"model": "X", "enforce-eager": True, "tensor-parallel-size": "2"}),
        ("--enforce-eager X", {"model": "X", "enforce-eager": True}),
        ("X -tp=4 -O3", {"model": "X", "tensor-parallel-size": "4", "optimization-level": "3"}),
        ("X --no-enable-prefix-caching --max-model-len 32k", {"model": "X", "no-enable-prefix-caching": True, "max-model-len": "32k"}),
        ("X --compilation-config -1", {"model": "X", "compilation-config": "-1"}),
    ],
)
def test_vllms_own_forms(rest: str, expected: dict[str, Any]) -> None:
    assert read(f"vllm serve {rest}").flags == expected


def test_dotted_flags_become_json_over_what_is_there() -> None:
    found = read("""vllm serve X --speculative-config '{"method": "mtp"}' --speculative-config.num_speculative_tokens 2 --a.b.c=d""")
    assert json.loads(str(found.flags["speculative-config"])) == {"method": "mtp", "num_speculative_tokens": 2}
    assert json.loads(str(found.flags["a"])) == {"b": {"c": "d"}}


def test_lists_and_stray_words() -> None:
    assert read("sglang serve --cuda-graph-bs 1 2 4 --tp 8").flags == {"cuda-graph-bs": "1 2 4", "tp": "8"}
    assert read("vllm serve X Y").unread == ("Y",)
    assert read("sglang serve --model-path X —tp 8").odd_dashes == ("—tp",)


def test_flags_alone() -> None:
    found = read("--speculative-algorithm EAGLE3 --speculative-num-steps 3")
    assert found.family is None and found.flags == {"speculative-algorithm": "EAGLE3", "speculative-num-steps": "3"}


@pytest.mark.parametrize("text", ["ls -l", "docker run -it ubuntu bash", 'vllm serve X --speculative-config \'{"a": 1', "   "])
def test_what_is_no_launch(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_command([text] if text.strip() else [])
    assert caught.value.hint


def test_a_shell_around_the_command() -> None:
    inner = 'vllm serve T --speculative-config "{\\"method\\": \\"eagle3\\"}" --port 1'
    for around in ("bash -c '{}'", "docker run vllm/vllm-openai:v0.27.1 /bin/bash -lc '{}'", "FOO=1 sh -c '{}' &"):
        pasted = parse_command([around.format(inner)])
        assert (pasted.family, pasted.flags["model"], pasted.flags["port"]) == ("vllm", "T", "1"), around
        assert pasted.flags["speculative-config"] == '{"method": "eagle3"}'


def test_an_image_with_the_engine_as_entry_point() -> None:
    pasted = parse_command(["docker run --entrypoint vllm vllm/vllm-openai:v0.27.1 serve T --port 1"])
    assert pasted.flags == {"model": "T", "port": "1"} and pasted.version == "0.27.1" and pasted.unread == ()
