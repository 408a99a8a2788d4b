"""A byte-level tokenizer with three real-style chat templates, and an engine that answers with readable text, for the data tests."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aiohttp import web
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from mock_server import MockServer

CHATML = (
    "{% for message in messages %}{% if loop.first and message['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou help.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA3 = (
    "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}"
    "{{ message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ ' ' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
PHI3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
SPECIAL = {
    CHATML: ["<|im_end|>", "<|im_start|>"],
    LLAMA3: ["<|eot_id|>", "<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>"],
    MISTRAL: ["</s>", "<s>"],
    PHI3: ["<|endoftext|>", "<|end|>", "<|user|>", "<|assistant|>"],
}
BOS = {LLAMA3: "<|begin_of_text|>", MISTRAL: "<s>"}


def make_tokenizer(template: str | None, special: list[str] | None = None) -> PreTrainedTokenizerFast:
    """One token per byte, plus the template's special tokens; the first of them is the eos token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    base = Tokenizer(models.BPE(vocab={letter: place for place, letter in enumerate(letters)}, merges=[]))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    base.decoder = decoders.ByteLevel()
    names = special or SPECIAL.get(template or "", ["</s>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=base, eos_token=names[0], bos_token=BOS.get(template or ""))
    tokenizer.add_special_tokens({"additional_special_tokens": names[1:]})
    tokenizer.chat_template = template
    return tokenizer


def make_target(folder: Path, template: str) -> Path:
    """A target folder with a tokenizer and no weights."""
    tokenizer = make_tokenizer(template)
    tokenizer.save_pretrained(folder)
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": tokenizer.eos_token_id}))
    return folder


class ChattyServer(MockServer):
    """Answers prompts with `speak(prompt text, seed) -> (answer text, ended)`; a spoken answer ends with the eos token."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, speak: Callable[[str, int | None], tuple[str, bool]]) -> None:
        super().__init__()
        self.tokenizer = tokenizer
        self.speak = speak

    def __enter__(self) -> ChattyServer:
        super().__enter__()
        return self

    async def answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        text, ended = self.speak(str(self.tokenizer.decode(body["prompt"])), body.get("seed"))
        ids = self.tokenizer(text, add_special_tokens=False)["input_ids"][: body["max_tokens"]]
        reason = "length"
        if ended and len(ids) < body["max_tokens"]:
            ids, reason = [*ids, self.tokenizer.eos_token_id], "stop"
        else:
            text = self.tokenizer.decode(ids)
        choice = {"index": 0, "text": text, "token_ids": ids, "finish_reason": reason}
        counts = {"prompt_tokens": len(body["prompt"]), "completion_tokens": len(ids)}
        return web.json_response({"choices": [choice], "usage": counts})
