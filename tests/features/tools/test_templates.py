"""Chat templates that know calls of tools write them; others are named, and have calls as text."""

import json

import pytest
from tiny import make_tokenizer
from tool_cases import IN_TAGS, PLAIN, REJECTING, Hears, shop_toolbox

from rl4dialog.core.errors import DataError
from rl4dialog.core.types import AGENT, PARTNER, TOOL, Sample, Turn
from rl4dialog.data.dialogue_format import ChatMarkup, DialogueFormat
from rl4dialog.envs.conversation import Conversation, ConversationRules
from rl4dialog.features.tools import toolbox as toolbox_module
from rl4dialog.functional.replies import Row, joined_rows
from rl4dialog.rollouts.learned_turns import Limits, learned_turns
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.text.end_of_turn import EndOfTurn
from rl4dialog.text.prompts import encode_prompt, encoder_of, written_calls

CALL = "call buy item=a hat; n=2; size=m"
AS_JSON = '<tool_call>\n{"name": "buy", "arguments": {"item": "a hat", "n": 2, "size": "M"}}\n</tool_call>'
MESSAGES = [
    {"role": "user", "content": "w1"},
    {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"function": {"name": "buy", "arguments": {"item": "a hat", "n": 2, "size": "M"}}}],
    },
    {"role": "tool", "content": "w2"},
]


@pytest.fixture(autouse=True)
def _nothing_told():
    toolbox_module._told.clear()


def template_of(source, listed=True):
    words = [*(f"w{i}" for i in range(6)), "a", "hat", "call", "buy"]
    tokenizer = make_tokenizer(words=words)
    added = ["<|im_start|>", "<|im_end|>", "<tool_call>", "</tool_call>"]
    tokenizer.add_special_tokens({"additional_special_tokens": added[:2]})
    tokenizer.add_tokens(added[2:])
    tokenizer.chat_template = source
    template, box = ChatTemplate(tokenizer), shop_toolbox(listed=listed)
    box.prepare(template, ChatMarkup(template).frame())
    return template, box, tokenizer


def test_given_calls_and_answers_are_written_as_the_template_does():
    template, box, tokenizer = template_of(IN_TAGS)
    prompt = DialogueFormat("chat_template", None, template).prompt(["w1", CALL, "w2"], "w3")
    written = written_calls(box, prompt)
    assert written == template([{"role": "system", "content": "w3"}, *MESSAGES])
    assert [turn.can_be_first for turn in written.turns] == [True, False, False]
    ids = encode_prompt(tokenizer, written, None)
    assert tokenizer.convert_tokens_to_ids("<tool_call>") in ids, "its markup is its own token"
    assert (
        written_calls(box, DialogueFormat("chat_template", None, template).prompt(["w1", "w2", "w3"])).count(
            "tool_call"
        )
        == 0
    )
    assert "".join(box.written(CALL)) == AS_JSON and "".join(box.written("w1")) == "w1"
    assert "".join(box.written("call buy a")) == "call buy a", "what cannot be read stays as it is"


@pytest.mark.parametrize("listed", [True, False])
def test_prompts_list_the_functions(listed):
    template, _, _ = template_of(IN_TAGS, listed)
    text = template([{"role": "user", "content": "w1"}])
    assert ("<tools>" in text) == listed and (json.dumps({"enum": ["S", "M"]})[1:-1] in text) == listed


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (AS_JSON, ""),
        ('{"name": "buy", "parameters": {"item": "x", "n": 2, "size": "S"}}', ""),
        ('[{"name": "buy", "arguments": "{\\"item\\": \\"x\\", \\"n\\": 2, \\"size\\": \\"S\\"}"}]', ""),
        (CALL, ""),
        ('<tool_call>{"name": "buy"', "unreadable"),
        ("<tool_call>", "unreadable"),
        ('<tool_call>{"name": 3, "arguments": {}}', "unreadable"),
        ('<tool_call>{"name": "buy", "arguments": [1]}', "unreadable"),
        ('<tool_call>{"name": "buy", "arguments": {"item": {"a": 1}, "n": 2, "size": "S"}}', "wrong value"),
        ('<tool_call>{"name": "bye", "arguments": {}}', "unknown tool"),
        ("<tool_call>" + "[" * 100_000 + '{"name"', "unreadable"),
        ('<tool_call>{"a":' * 5000, "unreadable"),
    ],
)
def test_call_is_read(said, problem):
    _, box, _ = template_of(IN_TAGS)
    box.reset({}, 0)
    assert box.takes(said) and box.answer(said).call.problem == problem


def test_conversation_goes_on_as_the_template_writes_it():
    template, box, tokenizer = template_of(IN_TAGS)
    form = DialogueFormat("chat_template", None, template)
    tokens = [tokenizer.convert_tokens_to_ids("<|im_end|>")]
    partner = Hears()
    sides = form.frame(), partner, box
    talk = Conversation(ConversationRules(max_turns=9), EndOfTurn(tokenizer, tokens, None), 300, "left", *sides)
    talk.begin(Sample("s", form.prompt(["w1"]), [], {"history": ["w1"]}), 0)
    said = encoder_of(tokenizer).ids(AS_JSON) + tokens
    answer = talk.called(AS_JSON)
    assert talk.settle(AS_JSON, True, answer) is None
    talk.go_on(said, AS_JSON, answer)
    text = str(talk.history.prompt)
    assert text == template([*MESSAGES[:2], {"role": "tool", "content": answer.text}])
    own = encoder_of(tokenizer).ids("w3") + tokens
    reply = talk.ask("w3")
    talk.settle("w3", True, reply)
    talk.go_on(own, "w3", reply)
    later = [{"role": "assistant", "content": "w3"}, {"role": "user", "content": "w1"}]
    assert str(talk.history.prompt) == template([*MESSAGES[:2], {"role": "tool", "content": answer.text}, *later])
    assert talk.history.prompt_ids == encoder_of(tokenizer).ids(str(talk.history.prompt))
    assert partner.heard == [["w1", "w3"]]
    short = Conversation(
        ConversationRules(max_turns=9, context_turns=2), EndOfTurn(tokenizer, tokens, None), 300, "left", *sides
    )
    short.begin(Sample("s", form.prompt(["w1"]), [], {"history": ["w1"]}), 0)
    answer = short.called(AS_JSON)
    short.settle(AS_JSON, True, answer)
    short.go_on(said, AS_JSON, answer)
    assert "<tool_response>" in short.history.prompt, "no prompt begins with an answer without its call"


@pytest.mark.parametrize(
    ("source", "why"),
    [(PLAIN, "does not write calls of tools as JSON"), (REJECTING, "rejects messages of tools (no tools)")],
)
def test_template_without_tools_is_named_and_calls_are_text(source, why, caplog):
    template, box, _ = template_of(source)
    assert box.frame is None and template.tools is None
    template_of(source)
    messages = [record.message for record in caplog.records]
    assert messages == [f"the chat template of '' {why}, so calls of tools and their answers are text"]
    prompt = DialogueFormat("chat_template", None, template).prompt(["w1", CALL, "w2"])
    assert written_calls(box, prompt) is prompt and not box.takes(AS_JSON)
    assert "".join(box.written(CALL)) == CALL


def test_template_that_rewrites_calls_is_named():
    source = IN_TAGS.replace(
        "{%- elif message.role == 'assistant' %}", "{%- elif message.role == 'assistant' and messages|length < 4 %}"
    )
    _, box, _ = template_of(source)
    assert box.frame is None
    with pytest.raises(DataError):
        ChatTemplate(make_tokenizer())([{"role": "user", "content": "w1"}])


def test_whole_conversations_are_learned_as_the_template_writes_them():
    template, box, tokenizer = template_of(IN_TAGS)
    form = DialogueFormat("chat_template", None, template)
    end = EndOfTurn(tokenizer, [0], form.end_of_turn)
    speakers = (AGENT, TOOL, AGENT, PARTNER, AGENT)
    said = [Turn(text, speaker) for text, speaker in zip((CALL, "w2", "w3", "w4", "w5"), speakers, strict=True)]
    rules = ConversationRules(max_partner_length=1)
    turns = learned_turns(form.prompt(["w1"]), said, end, Limits(), form.frame(), rules, toolbox=box)
    (row,) = joined_rows(Row(turn.prompt, turn.reply) for turn in turns)
    later = [
        {"role": role, "content": text} for role, text in (("assistant", "w3"), ("user", "w4"), ("assistant", "w5"))
    ]
    whole = template([*MESSAGES, *later], reply_comes=False)
    ids = encoder_of(tokenizer).ids
    assert row.ids == ids(whole)
    learned = [id for id, is_agents in zip(row.response, row.is_agents, strict=True) if is_agents]
    assert learned == ids(f"{AS_JSON}<|im_end|>w3<|im_end|>w5<|im_end|>")
