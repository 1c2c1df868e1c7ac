"""The markup of chat templates: found, continued, or refused."""

from __future__ import annotations

from typing import Any

import pytest
from conversations import TEMPLATES, Format, built, make_backend, make_format
from tiny import make_env

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Prompt, Sample
from rl4dialog.data.chat_markup import ChatMarkup, Message
from rl4dialog.data.dialogue_format import DialogueFormat, chat_messages
from rl4dialog.data.dummy_pool import DummyPool
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.prompts import encode_prompt

SAID = ["i like tea", "do you ?", "yes , i do"]

THINKING = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{{ m['content'].split('</think>')[-1].lstrip('\n') if m['role'] == 'assistant' else m['content'] }}<|im_end|>\n"
    "{% endfor %}<|im_start|>assistant\n"
)
SYSTEM_LAST = (  # as in Mistral's: the system message is in the last user message
    "<s>{% set system = messages[0]['content'] if messages[0]['role'] == 'system' else '' %}"
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] "
    "{{ system + '\n\n' if system and loop.last else '' }}{{ m['content'] }} [/INST]"
    "{% elif m['role'] == 'assistant' %}{{ ' ' + m['content'] + '</s>' }}{% endif %}{% endfor %}"
)
LAST_ONLY = "<|im_start|>{{ messages[-1]['content'] }}<|im_end|>"
MARKED_LAST = (
    "{% for m in messages %}<|im_start|>{{ '!' if loop.last else '' }}{{ m['content'] }}<|im_end|>\n{% endfor %}reply:"
)


def form_of(source: str) -> Format:
    form = make_format("chatml", make_backend("byte_level"))
    form.tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<s>", "</s>"]})
    form.tokenizer.name_or_path, form.tokenizer.chat_template = "some/model", source
    return form


@pytest.mark.parametrize("source", [THINKING, LAST_ONLY, MARKED_LAST])
def test_template_that_rewrites_the_past_is_refused_by_name(source: str) -> None:
    form = form_of(source)
    with pytest.raises(DataError, match=r"chat template of 'some/model' rewrites the past: .*; choose another tok"):
        form.dialogue.frame()


def test_system_message_that_moves_is_refused_where_there_is_one() -> None:
    form = form_of(SYSTEM_LAST)
    assert form.dialogue.frame().to_partner == "</s>[INST] "
    with pytest.raises(DataError, match="'some/model' rewrites the past"):
        form.dialogue.frame(with_system=True)
    for persona, is_refused in ((None, False), ("i am kind", True)):
        pool = DummyPool([Sample(0, form.dialogue.prompt(SAID[:1], persona), ["x"])])
        pool.use_format(form.dialogue)
        if is_refused:
            with pytest.raises(DataError, match="rewrites the past"):
                pool.frame()
        else:
            assert pool.frame().in_pairs


@pytest.mark.parametrize("source", [THINKING, SYSTEM_LAST, LAST_ONLY, MARKED_LAST])
def test_single_prompts_of_such_templates_are_the_templates(source: str) -> None:
    form = form_of(source)
    for context in (SAID[:1], SAID):
        messages = chat_messages(context, None if source == LAST_ONLY else "i am kind")
        prompt = form.dialogue.chat_prompt(messages)
        assert prompt == form.tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        whole = form.tokenizer(str(prompt), add_special_tokens=False)["input_ids"]
        assert encode_prompt(form.tokenizer, prompt, None) == whole
        if not prompt.opening:  # one part, which can only be cut
            assert encode_prompt(form.tokenizer, prompt, 5) == whole[-5:]


@pytest.mark.parametrize("name", ["llama2", "gemma"])
def test_assistant_who_must_not_be_first_is_reported(name: str) -> None:
    form = built(name, "byte_level")
    prompt = form.dialogue.prompt(SAID[:1])
    assert prompt.agent_opening is None
    env = make_env(form.tokenizer, end_of_turn=form.end, frame=form.dialogue.frame(), first_speaker="agent")
    with pytest.raises(DataError, match="first_speaker is agent, but the chat template rejects"):
        env.reset(options={"sample": Sample("s", prompt, ["x"])})


def test_assistant_who_can_be_first_starts_after_the_system_message() -> None:
    prompt = built("chatml", "byte_level").dialogue.prompt(SAID[:1], "i am kind")
    assert prompt.agent_opening is not None
    assert "".join(prompt.agent_opening) == "<|im_start|>system\ni am kind<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompt_knows_its_parts(name: str) -> None:
    form = built(name, "byte_level")
    persona = None if name == "gemma" else "i am kind"
    prompt = form.dialogue.prompt(SAID, persona)
    expected = form.tokenizer.apply_chat_template(
        chat_messages(SAID, persona), tokenize=False, add_generation_prompt=True
    )
    assert prompt == expected
    assert [turn.text.strip() for turn in prompt.turns] == SAID
    assert "".join(prompt.later_opening) + prompt.turns[-1].text + prompt.turns[-1].closing == form.dialogue.prompt(
        SAID[2:], persona
    )
    frame = form.dialogue.frame(bool(persona))
    assert (frame.to_agent, frame.to_partner) == (prompt.turns[-1].closing, prompt.turns[1].closing)


def test_template_that_strips_keeps_its_parts() -> None:
    def render(messages: list[Message]) -> str:
        return "".join(f"[{message['role'][0]}]{message['content'].strip()}" for message in messages) + "[a]"

    prompt = ChatMarkup(render).prompt(chat_messages([" a ", "b", "c\n"], " p "))
    assert prompt == "[s]p[u]a[a]b[u]c[a]"
    assert [turn.text for turn in prompt.turns] == ["a", "b", "c"] and prompt.opening == ("[s]", "p", "[u]")


def test_texts_that_look_like_placeholders_are_only_texts() -> None:
    form = built("chatml", "byte_level")
    prompt = form.dialogue.prompt(["Placeholder0of1", "Placeholder1of3", ""])
    assert [turn.text for turn in prompt.turns] == ["Placeholder0of1", "Placeholder1of3", ""]


def test_markup_is_found_once_for_a_template() -> None:
    calls: list[Any] = []

    class Counting(ChatTemplate):
        def __call__(self, messages: list[Message]) -> str:
            calls.append(messages)
            return super().__call__(messages)

    chat = DialogueFormat("chat_template", None, Counting(built("chatml", "byte_level").tokenizer))
    chat.prompt(SAID)
    n = len(calls)
    assert isinstance(chat.prompt(SAID[::-1]), Prompt) and len(calls) == n + 1
