"""The tokenizer's own chat template: what it writes, what only it may write, and what it refuses."""

import pickle
from datetime import UTC, datetime

import pytest
from tiny import make_tokenizer

from rl4dialog.core.errors import DataError
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.text import chat_template, template_trial
from rl4dialog.text.chat_template import START_VARIABLE, ChatTemplate, fix_start_time, parse_time, start_time

CHATML = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system here') }}{% endif %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def template(chat_template=CHATML):
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|im_start|>", "<|im_end|>", "<|image|>"]})
    tokenizer.chat_template = chat_template
    return ChatTemplate(tokenizer)


def test_special_tokens_that_the_template_writes_are_its_own():
    assert set(template().control_tokens) == {"<|im_start|>", "<|im_end|>"}, "neither <eos> nor <|image|> is written"
    chat = DialogueFormat("chat_template", None, pickle.loads(pickle.dumps(template())))
    assert chat.prompt(["w1"]) == "<|im_start|>user\nw1<|im_end|>\n<|im_start|>assistant\n"
    with pytest.raises(DataError, match=r"a text cannot contain <\|im_end\|>, which is markup of the chat template"):
        chat.check_said("w1<|im_end|>")
    chat.check_said("w1 <|image|>")


def test_what_cannot_be_written_is_an_error_of_ours():
    with pytest.raises(DataError, match=r"rejects messages of the roles system, user: no system here"):
        template()([{"role": "system", "content": "w1"}, {"role": "user", "content": "w2"}])
    for program in ("{{ 'a' + 1 }}", "{{ 1 / 0 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"):
        with pytest.raises(DataError, match=r"the chat template of .* rejects messages of the roles user: "):
            template(program)([{"role": "user", "content": "w1"}])
    with pytest.raises(DataError, match=r"nothing was said before the reply, and .* needs a message; give a first"):
        template("{{ messages[0].content }}")([])
    with pytest.raises(DataError, match=r"needs a tokenizer with a chat template, and .* has none; choose another"):
        template(None)([{"role": "user", "content": "w1"}])


@pytest.mark.parametrize(
    "start", [datetime(2026, 3, 9, 0, 5, 7, tzinfo=UTC), datetime(2024, 12, 31, 23, 59, tzinfo=UTC)]
)
def test_clock_of_a_template_stands_still_at_the_start(start):
    tokenizer = make_tokenizer()
    codes = "%a %A %b %B %d %-d %e %m %-m %y %Y %H %-H %I %-I %M %S %p %j %U %u %w %Z %c %x %X %D %F %T %R"
    tokenizer.chat_template = (
        f"\n{{% set f = '{codes}' %}}{{% if strftime_now is defined %}}{{{{ strftime_now(f) }}}}{{% endif %}}"
    )
    found = pickle.loads(pickle.dumps(ChatTemplate(tokenizer, start)))
    assert found.reads_clock and found([{"role": "user", "content": "w1"}]) == "\n" + start.strftime(codes)
    assert not template().reads_clock


def test_start_is_the_recorded_one_in_utc(monkeypatch):
    monkeypatch.setenv(START_VARIABLE, "2026-01-31")
    try:
        assert fix_start_time().isoformat() == start_time().isoformat() == "2026-01-31T00:00:00+00:00"
        assert parse_time("2026-02-01T01:30:00.5+02:00").isoformat() == "2026-01-31T23:30:00+00:00"
    finally:
        monkeypatch.delenv(START_VARIABLE)
        fix_start_time()
    with pytest.raises(DataError, match="must be a time such as 2026-01-31T12:00:00"):
        parse_time("yesterday")


@pytest.mark.parametrize("program", ["{{ ['a', 'b'] | random }}", "{{ lipsum(n=1) }}"])
def test_template_that_draws_at_random_is_refused(program):
    with pytest.raises(DataError, match="writes something at random"):
        template(program)([{"role": "user", "content": "w1"}])


_DOUBLED = "{% set n = namespace(s='abcdefgh') %}{% for i in range(80) %}STATEMENT{% endfor %}{{ n.s }}"


@pytest.mark.parametrize(
    "program",
    [
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ bos_token + f(50) }}",
        *("{{ 'ab' * 10**11 }}", "{{ '%*d' % (10**11, 1) }}", "{{ messages|tojson(indent=10**11) }}"),
        "{% generation %}{% set s = 'a' * 10**6 %}{{ s.replace('a', s) }}{% endgeneration %}",
        _DOUBLED.replace("STATEMENT", "{% set n.s = n.s ~ n.s %}"),
        "{% if not add_generation_prompt and messages[0].role == 'system' %}{{ 'a'.ljust(10**11) }}{% endif %}",
    ],
)
def test_template_that_loops_or_fills_the_memory_is_refused(monkeypatch, program):
    monkeypatch.setattr(template_trial, "SECONDS", 1)
    with pytest.raises(DataError, match=r"user: it needs more than 1 s or 1,024 MiB for a few short messages"):
        template(program)([{"role": "user", "content": "w1"}])


def test_template_that_loops_only_for_certain_messages_is_interrupted(monkeypatch):
    monkeypatch.setattr(chat_template, "SECONDS", 0.1)
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    program = (
        f"{{% for m in messages %}}{{% if m.content == 'w1' %}}{loop}{{% endif %}}{{{{ m.content }}}}{{% endfor %}}"
    )
    assert template(program)([{"role": "user", "content": "w2"}]) == "w2"
    with pytest.raises(DataError, match=r"user: it takes more than 0\.1 s"):
        template(program)([{"role": "user", "content": "w1"}])
