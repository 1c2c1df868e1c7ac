"""How dialogues become prompts, and the markup of chat templates."""

import json
import re

import pytest
from conversations import TEMPLATES, built, make_backend, make_format
from tiny import make_env

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import Dialogue, Prompt, Sample, Turn
from rl4dialog.data.dialogue_format import ChatMarkup, DialogueFormat, chat_messages, dialogue_samples
from rl4dialog.data.toy_pools import DummyPool
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import encode_prompt, encode_reply


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


def form_of(source, kind="byte_level"):
    """A template in a tokenizer with another end of sequence than ChatML's."""
    form = make_format("chatml", make_backend(kind))
    special = ["<|im_start|>", "<|im_end|>", "<|im_sep|>", "<s>", "</s>"]
    form.tokenizer.add_special_tokens({"additional_special_tokens": special, "eos_token": "<eos>"})
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
        def __call__(self, messages, reply_comes=True):
            calls.append(messages)
            return super().__call__(messages, reply_comes)

    chat = DialogueFormat("chat_template", None, Counting(built("chatml", "byte_level").tokenizer))
    chat.prompt(SAID)
    n = len(calls)
    assert isinstance(chat.prompt(SAID[::-1]), Prompt) and len(calls) == n + 1


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
ASKING = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
THOUGHT = "<think>\nA tea.\n</think>\n\nTea"
QWEN_3 = (  # thoughts are in the last message only, and an empty one is written, too
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' and loop.last %}"
    "{% set parts = m.content.split('</think>') %}<think>\n"
    "{{ parts[0].removeprefix('<think>').strip('\n') if parts | length > 1 }}\n</think>\n\n{{ parts[-1].lstrip('\n') }}"
    "{% else %}{{ m.content.split('</think>')[-1] }}{% endif %}<|im_end|>\n{% endfor %}"
)
LINES, LINE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", ASKING.replace("<|im_start|>", "")
LINE = LINE.replace("assistant\n", "assistant:")
OPEN = ASKING.replace("assistant\n", "assistant\n<think>\n")
INST = "{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }} "
LABELS = {
    "chatml": (
        CHATML + ASKING,
        {"Tea": "Tea<|im_end|>", " Tea \n": " Tea \n<|im_end|>", THOUGHT: THOUGHT + "<|im_end|>"},
    ),
    "marked for training": (
        CHATML.replace("{{ m.content }}<|im_end|>", "{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}")
        + ASKING,
        {"Tea": "Tea<|im_end|>"},
    ),
    "stripping": (CHATML.replace("m.content", "m.content | trim") + ASKING, {" Tea \n": "Tea<|im_end|>"}),
    "stripping before": (CHATML.replace("m.content", "m.content.lstrip()") + ASKING, {" Tea \n": "Tea \n<|im_end|>"}),
    "always asking": (CHATML + "<|im_start|>assistant", {"Tea": "\nTea<|im_end|>"}),
    "eos after all": (CHATML + ASKING.replace("{% end", "{% else %}{{ eos_token }}{% end"), {"Tea": "Tea<|im_end|>"}),
    "last differs": (
        CHATML.replace("_end|>", "{{ '_sep|>' if loop.last and m.role != 'user' else '_end|>' }}") + ASKING,
        {"Tea": "Tea<|im_sep|>"},
    ),
    "spaced": (INST + "{{ eos_token }}{% endif %}{% endfor %}", {"Tea": " Tea <eos>"}),
    "end is text": (LINES.replace("\n", " ###\n") + LINE, {"Tea": " Tea ###"}),
    "eos after a line": (LINES + LINE.replace("{% end", "{% else %}{{ eos_token }}{% end"), {"Tea": " Tea\n<eos>"}),
    "thought is open": (CHATML + OPEN, {THOUGHT: THOUGHT[8:] + "<|im_end|>"}),
    "thought is empty": (
        QWEN_3 + ASKING,
        {"Tea": "<think>\n\n</think>\n\nTea<|im_end|>", THOUGHT: THOUGHT + "<|im_end|>"},
    ),
    "thought is open and empty": (
        QWEN_3 + OPEN,
        {"Tea": "\n</think>\n\nTea<|im_end|>", THOUGHT: THOUGHT[8:] + "<|im_end|>"},
    ),
}


def answering(form, *replies):
    """A pool with replies to a first message, read in this format."""
    prompts = [form.dialogue.prompt([f"Hello {i}"]) for i in range(len(replies))]
    samples = [Sample(i, prompt, [reply]) for i, (prompt, reply) in enumerate(zip(prompts, replies, strict=True))]
    return DummyPool(samples, dialogue_format=form.dialogue)


def labels(form, pool):
    """Prompts and labels of a pool, as token ids."""
    for sample, _ in pool:
        prompt = sample.prompt_or_input_text
        reply = encode_reply(form.tokenizer, sample.references[0], pool.end_of_turn, prompt=prompt)
        yield encode_prompt(form.tokenizer, prompt, None), reply


@pytest.mark.parametrize("name", LABELS)
@pytest.mark.parametrize("kind", ["byte_level", "llama"])
def test_prompt_and_label_are_the_beginning_of_the_conversation_as_transformers_writes_it(name, kind, caplog):
    source, expected = LABELS[name]
    form = form_of(source, kind)
    pool = answering(form, *expected)
    for i, (reply, (prompt, label)) in enumerate(zip(expected, labels(form, pool), strict=True)):
        messages = [*chat_messages([f"Hello {i}"]), {"role": "assistant", "content": reply}]
        whole = form.tokenizer.apply_chat_template(messages)["input_ids"]
        assert whole[: len(prompt) + len(label)] == prompt + label
        before, after = (
            form.tokenizer.decode(ids, clean_up_tokenization_spaces=False) for ids in (prompt, prompt + label)
        )
        assert after.removeprefix(before).strip(" ") == expected[reply].strip(" ")
        end = EndOfTurn(form.tokenizer, [form.tokenizer.eos_token_id], pool.end_of_turn)
        assert end.is_end(label) and not any(end.is_end(label[:n]) for n in range(len(label)))
    assert ("writes" in caplog.text) == ("empty" in name), "what is written before a reply is said"


LOST = r"does not write the reply of sample 1 as it is learned: it has .*"
NOT_LEARNED = {
    "no end": (LINES + LINE, "Tea", "writes no end after a reply, so"),
    "open thought": (CHATML + OPEN, "Tea", "reply of sample 1 does not close it with </think>, so"),
    "another tag": (CHATML + OPEN.replace("<think>", "[THINK]"), "[THINK] Tea", r"not close it with \[/THINK\]"),
    "lost thought": (CHATML.replace("content", "content.split('k>')[-1]") + OPEN, THOUGHT, LOST + "<think>.nA tea"),
    "doubled end": (CHATML + ASKING, "Tea<|im_end|>", r"with <\|im_end\|>, which the reply of sample 1 contains"),
    "other prompt": (LAST_ONLY, "Tea", LOST + r"Tea<.* where prompt and label have .*Hello 1"),
    "other words": (
        CHATML.replace("content", "content | replace('Tea', 'Teo')") + ASKING,
        "Tea",
        LOST + "Teo<.*have .*Tea<",
    ),
}


@pytest.mark.parametrize("name", NOT_LEARNED)
def test_label_that_the_template_does_not_write_is_said_once_by_name(name, caplog):
    source, reply, message = NOT_LEARNED[name]
    form = form_of(source)
    for _ in range(2):
        answering(form, " ", reply)
    assert len(re.findall(f"the chat template of 'some/model' .*{message}", caplog.text)) == 1
    assert any(re.search(message, fault) for fault in form.dialogue.faults)


def test_template_without_a_generation_prompt_is_refused_with_what_it_lacks():
    match = (
        r"'some/model' writes '<\|im_start\|>assistant\\n' before a reply, but not at the end of a prompt: add {% if "
    )
    with pytest.raises(DataError, match=match):
        answering(form_of(CHATML), "Tea")
    with pytest.raises(DataError, match=match):
        answering(form_of(CHATML))


def test_pool_with_a_format_must_pass_on_its_prompts():
    form = form_of(CHATML + ASKING)
    prompt = form.dialogue.prompt(SAID, "i am kind")
    assert str(prompt) is prompt and f"{prompt}".turns == prompt.turns
    for text in (prompt.strip(), prompt[:], "" + prompt, json.loads(json.dumps(prompt))):
        with pytest.raises(DataError, match=r"the prompt of sample 7 is a plain text, whose turns are not known"):
            DummyPool([Sample(7, text, ["x"])], dialogue_format=form.dialogue)
    DummyPool([Sample(7, str(prompt), ["x"])], dialogue_format=form.dialogue)
