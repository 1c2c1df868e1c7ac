"""How dialogues become prompts, and the markup of chat templates."""

import pytest
from conversations import TEMPLATES, built, make_backend, make_format
from tiny import make_env

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue, Prompt, Sample, Turn
from rl4dialog.data.dialogue_format import ChatMarkup, DialogueFormat, chat_messages, dialogue_samples
from rl4dialog.data.toy_pools import DummyPool
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.prompts import encode_prompt


def make_dialogue(id, *texts):
    return Dialogue(id, tuple(Turn(text, i % 2, act=i % 4 + 1, emotion=i % 7) for i, text in enumerate(texts)))


def test_eou_prompt_is_that_of_rl4lms_with_its_ids():
    samples = dialogue_samples([make_dialogue("d", "a b", "c", "d ?", "e")], DialogueFormat("eou", 2))
    assert [sample.prompt_or_input_text for sample in samples] == ["a b<EOU>c <EOU>", "c<EOU>d ? <EOU>"]
    assert [sample.references for sample in samples] == [["d ?"], ["e"]]
    assert samples[1].meta_data == {"emotion": [3], "intent": [4], "history": ["c", "d ?"]}
    unlabelled = Dialogue("d", (Turn("a", 0), Turn("b", 1), Turn("c", 0)))
    first, second = dialogue_samples([unlabelled], DialogueFormat("eou", None))
    assert first.meta_data == {"history": ["a"]} and second.prompt_or_input_text == "a<EOU>b <EOU>"
    dialogues = [make_dialogue("x", "a", "b", "c"), make_dialogue("y", "a"), make_dialogue("z", "a", "b", "c")]
    samples = dialogue_samples(dialogues, DialogueFormat("eou", 1))
    assert [sample.id for sample in samples] == [1, 2, 5, 6]


def test_sample_of_a_whole_dialogue_starts_at_its_first_reply():
    dialogues = [make_dialogue("x", "a", "b", "c", "d", "e"), make_dialogue("y", "a"), make_dialogue("z", "f", "g")]
    samples = dialogue_samples(dialogues, DialogueFormat("eou", 3), "dialogues")
    assert [(sample.id, sample.prompt_or_input_text, sample.references) for sample in samples] == [
        (1, "a <EOU>", ["b"]),
        (7, "f <EOU>", ["g"]),
    ]
    labels = {"emotion": [1], "intent": [2]}
    later = [{"emotion": [i % 7], "intent": [i % 4 + 1]} for i in (2, 3, 4)]
    first, second = (sample.meta_data for sample in samples)
    assert first == {**labels, "history": ["a"], "continuation": ["c", "d", "e"], "continuation_labels": later}
    assert second == {**labels, "history": ["f"], "continuation": [], "continuation_labels": []}


def test_chat_roles_alternate_back_from_the_user():
    messages = chat_messages(["a", "b", "c"], system="be kind")
    assert messages == [
        {"role": "system", "content": "be kind"},
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "b"},
        {"role": "user", "content": "c"},
    ]
    assert [message["role"] for message in chat_messages(["b", "c"])] == ["assistant", "user"]
    with pytest.raises(DataError, match=r"'chat_template' needs a tokenizer with a chat template; .*, or format 'eou'"):
        DialogueFormat("chat_template", 3)
    prompt = built("chatml", "byte_level").dialogue.prompt(SAID[:1], "i am kind")
    assert prompt.agent_opening is not None
    assert "".join(prompt.agent_opening) == "<|im_start|>system\ni am kind<|im_end|>\n<|im_start|>assistant\n"


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


def form_of(source):
    form = make_format("chatml", make_backend("byte_level"))
    form.tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<s>", "</s>"]})
    form.tokenizer.name_or_path, form.tokenizer.chat_template = "some/model", source
    return form


@pytest.mark.parametrize("source", [THINKING, LAST_ONLY, MARKED_LAST])
def test_template_that_rewrites_the_past_is_refused_by_name(source):
    form = form_of(source)
    with pytest.raises(DataError, match=r"chat template of 'some/model' rewrites the past: .*; choose another tok"):
        form.dialogue.frame()


def test_system_message_that_moves_is_refused_where_there_is_one():
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
def test_single_prompts_of_such_templates_are_the_templates(source):
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
def test_assistant_who_must_not_be_first_is_reported(name):
    form = built(name, "byte_level")
    prompt = form.dialogue.prompt(SAID[:1])
    assert prompt.agent_opening is None
    env = make_env(form.tokenizer, end_of_turn=form.end, frame=form.dialogue.frame(), first_speaker="agent")
    with pytest.raises(DataError, match="first_speaker is agent, but the chat template rejects"):
        env.reset(options={"sample": Sample("s", prompt, ["x"])})


@pytest.mark.parametrize("name", TEMPLATES)
def test_prompt_knows_its_parts(name):
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


def test_templates_may_strip_and_texts_look_like_placeholders():
    def render(messages):
        return "".join(f"[{message['role'][0]}]{message['content'].strip()}" for message in messages) + "[a]"

    prompt = ChatMarkup(render).prompt(chat_messages([" a ", "b", "c\n"], " p "))
    assert prompt == "[s]p[u]a[a]b[u]c[a]"
    assert [turn.text for turn in prompt.turns] == ["a", "b", "c"] and prompt.opening == ("[s]", "p", "[u]")
    form = built("chatml", "byte_level")
    prompt = form.dialogue.prompt(["Placeholder0of1", "Placeholder1of3", ""])
    assert [turn.text for turn in prompt.turns] == ["Placeholder0of1", "Placeholder1of3", ""]


def test_markup_is_found_once_for_a_template():
    calls = []

    class Counting(ChatTemplate):
        def __call__(self, messages):
            calls.append(messages)
            return super().__call__(messages)

    chat = DialogueFormat("chat_template", None, Counting(built("chatml", "byte_level").tokenizer))
    chat.prompt(SAID)
    n = len(calls)
    assert isinstance(chat.prompt(SAID[::-1]), Prompt) and len(calls) == n + 1
