"""Chat templates of several families, cut from outside; templates on which training would go wrong are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from data_fakes import CHATML, LLAMA3, MISTRAL, PHI3, make_target, make_tokenizer
from draftsmith.data.template import ChatTemplate, common_length, read_end_ids
from draftsmith.errors import CheckFailed, EnvironmentFailed


def chat(template: str | None, special: list[str] | None = None) -> ChatTemplate:
    return ChatTemplate(make_tokenizer(template, special), frozenset({256}))


@pytest.mark.parametrize(
    ("template", "before", "end", "opening"),
    [
        (CHATML, "<|im_start|>system\nYou help.<|im_end|>\n<|im_start|>user\n", "<|im_end|>", "<|im_end|>\n<|im_start|>assistant\n"),
        (
            LLAMA3,
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\n",
            "<|eot_id|>",
            "<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (MISTRAL, "<s>[INST] ", "[/INST]", " [/INST]"),
        (PHI3, "<|user|>\n", "<|end|>", "<|end|>\n<|assistant|>\n"),
        ("{% for m in messages %}USER: {{ m['content'] }}{% endfor %}{{ ' BOT:' if add_generation_prompt }}", "USER: ", "BOT:", " BOT:"),
    ],
)
def test_user_turn(template: str, before: str, end: str, opening: str) -> None:
    made = chat(template)
    assert (made.user_turn.before, made.user_turn.end, made.generation_prompt) == (before, end, opening)
    made_ids = made.prompt_ids("Why?")
    assert made.decode(list(made_ids), special=True) == f"{before}Why?{opening}"


@pytest.mark.parametrize("template", [CHATML, LLAMA3, MISTRAL, PHI3])
def test_good_templates_pass(template: str) -> None:
    chat(template).check()


FAULTS = {
    "no header to answer under": (CHATML.split("{% if add_generation_prompt %}")[0], "ignores add_generation_prompt"),
    "another header than in answers": (CHATML.replace("'<|im_start|>assistant\n' }}", "'<|im_start|>bot\n' }}"), "opens an answer with"),
    "user's text upper-cased": (CHATML.replace("message['content']", "message['content'] | upper"), "changes the user's text"),
    "answers left out": (
        "{% for m in messages %}{% if m['role'] == 'user' %}U: {{ m['content'] }}\n{% endif %}{% endfor %}",
        "answer's text",
    ),
    "refuses": ("{{ raise_exception('system turn needed') }}", "system turn needed"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_templates_are_named(name: str) -> None:
    template, words = FAULTS[name]
    with pytest.raises(CheckFailed, match=words):
        chat(template, ["<|im_end|>", "<|im_start|>"]).check()


def test_user_text_rendered_twice_cannot_be_cut() -> None:
    with pytest.raises(CheckFailed, match="2 times"):
        _ = chat("{% for m in messages %}{{ m['content'] }} again: {{ m['content'] }}</s>{% endfor %}").user_turn


def test_nothing_ends_the_users_turn() -> None:
    with pytest.raises(CheckFailed, match="nothing in the chat template ends"):
        _ = chat("{% for m in messages %}{{ m['content'] }}{% endfor %}").user_turn


def test_no_template_or_no_end() -> None:
    with pytest.raises(CheckFailed, match="no chat template"):
        chat(None)
    with pytest.raises(CheckFailed, match="end-of-turn"):
        ChatTemplate(make_tokenizer(CHATML), frozenset())


def test_load_from_a_folder(tmp_path: Path) -> None:
    loaded = ChatTemplate.load(make_target(tmp_path / "target", LLAMA3))
    assert loaded.end_ids == {loaded.tokenizer.convert_tokens_to_ids("<|eot_id|>")} and loaded.user_turn.end == "<|eot_id|>"
    with pytest.raises(EnvironmentFailed, match="cannot load the tokenizer"):
        ChatTemplate.load(tmp_path)


def test_every_end_token_is_known(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 7}))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [8, 9]}))
    assert read_end_ids(tmp_path, 2) == {2, 7, 8, 9}
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "generation_config.json").unlink()
    assert read_end_ids(tmp_path, None) == frozenset()


def test_common_length() -> None:
    assert common_length("abcd", "abx", "abc") == 2
    assert common_length("ab", "abc") == 2
    assert common_length("x", "y") == 0
