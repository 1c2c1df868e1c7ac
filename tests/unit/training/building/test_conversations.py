"""Checks of conversations before anything is loaded."""

import copy
from contextlib import nullcontext

import pytest
from conversations import built
from runs import keep_registries, make_config, supervised

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import ConfigError, DataError
from rl4dialog.core.protocols import PartnerService
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.pool import Data, TextGenPool
from rl4dialog.envs.conversation import OutsidePartner
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.training.building.components import check_components
from rl4dialog.training.building.conversations import build_partner, check_conversations
from rl4dialog.training.building.texts import Lengths, Texts

SAID = ["how are you ?"]


def config_of(tmp_path, partner=None, **args):
    chosen = {"id": "scripted", "args": {"replies": ["yes", "no"]}} if partner is None else partner
    kwargs = {f"env__args__{name}": value for name, value in args.items()}
    return parse_config(make_config(tmp_path, env__args__partner=chosen, **kwargs), "test")


def texts_of(samples, tokenizer, dialogue_format=None, max_length=40):
    pool = TextGenPool(samples)
    if dialogue_format is not None:
        pool.use_format(dialogue_format)
    return Texts(
        tokenizer, Data(dict.fromkeys(("train", "val", "test"), pool), pool.end_of_turn), Lengths(max_length, 8)
    )


def test_conversations_that_can_begin_pass(tmp_path):
    form = built("chatml", "byte_level")
    samples = [Sample(i, form.dialogue.prompt(SAID, persona), ["x"]) for i, persona in enumerate([None, "i am kind"])]
    for first in ("sample", "agent"):
        check_conversations(config_of(tmp_path, first_speaker=first), texts_of(samples, form.tokenizer, form.dialogue))


def test_persona_that_leaves_no_room_is_told_with_its_sample(tmp_path):
    form = built("chatml", "byte_level")
    personas = ["i am kind", "i am kind", "i like tea " * 20]
    samples = [Sample(f"s{i}", form.dialogue.prompt(SAID, persona), ["x"]) for i, persona in enumerate(personas)]
    with pytest.raises(DataError, match=r"sample 's2' of the train split: .*no room for a turn in max_prompt_length"):
        check_conversations(config_of(tmp_path), texts_of(samples, form.tokenizer, form.dialogue))
    check_conversations(config_of(tmp_path), texts_of(samples[:2], form.tokenizer, form.dialogue))


def test_template_that_refuses_the_first_speaker_is_told(tmp_path):
    form = built("llama2", "byte_level")
    texts = texts_of([Sample("s", form.dialogue.prompt(SAID), ["x"])], form.tokenizer, form.dialogue)
    check_conversations(config_of(tmp_path), texts)
    with pytest.raises(DataError, match="first_speaker is agent, but the chat template rejects"):
        check_conversations(config_of(tmp_path, first_speaker="agent"), texts)


@pytest.mark.parametrize("first", ["agent", "partner"])
def test_plain_text_has_no_other_first_speaker(tmp_path, first):
    form = built("chatml", "byte_level")
    partner = {"id": "rules", "args": {"rules": [{"pattern": "x", "replies": ["y"]}], "opening": "hello"}}
    texts = texts_of([Sample("s", "how are you ?", ["x"])], form.tokenizer)
    with pytest.raises(DataError, match=f"first_speaker is {first}, but sample 's' is a plain text"):
        check_conversations(config_of(tmp_path, first_speaker=first, partner=partner), texts)


def test_template_that_rewrites_the_past_is_told_only_to_runs_with_a_partner(tmp_path):
    tokenizer = copy.deepcopy(built("chatml", "byte_level").tokenizer)
    tokenizer.chat_template = (
        "{% for m in messages %}{% if loop.last %}{{ m.content }}{% else %}...{% endif %}{% endfor %}"
    )
    form = DialogueFormat("chat_template", None, ChatTemplate(tokenizer))
    texts = texts_of([Sample("s", form.prompt(["how are you ?"]), ["x"])], tokenizer, form)
    with pytest.raises(DataError, match="rewrites the past"):
        check_conversations(config_of(tmp_path), texts)
    check_conversations(parse_config(make_config(tmp_path), "test"), texts)


def test_samples_without_a_continuation_cannot_be_replayed(tmp_path):
    form = built("chatml", "byte_level")
    prompt = form.dialogue.prompt(SAID)
    samples = [Sample("a", prompt, ["x"], {"continuation": ["well"]}), Sample("b", prompt, ["x"])]
    config = config_of(tmp_path, partner={"id": "replay"})
    with pytest.raises(DataError, match=r"sample 'b' of the train split: partner 'replay' needs samples"):
        check_conversations(config, texts_of(samples, form.tokenizer, form.dialogue))
    check_conversations(config, texts_of(samples[:1], form.tokenizer, form.dialogue))


@pytest.mark.parametrize("block", ["train_evaluation__generation_kwargs", "alg__policy__args__generation_kwargs"])
def test_post_processing_is_for_single_replies(tmp_path, block):
    kwargs = {block: {"post_processing_fn": "three_sentence_summary"}}
    partner = {"env__args__partner": {"id": "scripted", "args": {"replies": ["yes"]}}}
    with pytest.raises(ConfigError, match=r"generation_kwargs\.post_processing_fn .* env\.args\.partner; remove it"):
        check_components(parse_config(make_config(tmp_path, **kwargs, **partner), "test"))
    check_components(parse_config(make_config(tmp_path, **kwargs), "test"))


@pytest.mark.parametrize(
    ("samples", "changes", "error", "message"),
    [
        (["w", ""], {}, DataError, "sample 1: its references, .* without a partner, has no text"),
        (["w", "w " * 200], {}, DataError, r"sample 1: .* has \d+ tokens .*max_secret_length is 20; raise it"),
        (["w"], {"partner": {"id": "self_play"}}, DataError, r"persona, meta_data\['partner_persona'\], has no text"),
        (["w"], {"model": "some/model"}, ConfigError, r"max_episode_length is 68, but 'some/model' has only 64 pos"),
        (["w"], {"model": "some/t5"}, None, ""),
    ],
)
def test_secrets_of_samples_are_read_at_load(tmp_path, monkeypatch, samples, changes, error, message):
    form, name = built("chatml", "byte_level"), changes.get("model", "builtin/tiny-gpt2")
    monkeypatch.setattr("rl4dialog.training.building.conversations.named_model_positions", {"some/model": 64}.get)
    settings = {"alg__policy__args__critic_reads": "secret", "alg__policy__args__model_name": name}
    if "partner" in changes:
        settings["env__args__partner"] = changes["partner"]
    config = parse_config(make_config(tmp_path, **settings, env__args__max_secret_length=20), "test")
    given = [Sample(i, form.dialogue.prompt(SAID), [text] * bool(text)) for i, text in enumerate(samples)]
    texts = texts_of(given, form.tokenizer, form.dialogue)
    check_conversations(config, texts)  # nobody reads them
    texts.lengths.secret = 20
    with nullcontext() if error is None else pytest.raises(error, match=message):
        check_conversations(config, texts)


def test_dry_run_reaches_the_checks(tmp_path, capsys):
    from runs import train

    config = make_config(tmp_path, env__args__partner={"id": "replay"})
    assert train(tmp_path, config, "--dry_run") == 2
    assert "partner 'replay' needs samples" in capsys.readouterr().err


class Service(PartnerService):
    """Reads the conversation in gemma's template, which must start with a message of the user."""

    @property
    def side(self):
        form = built("gemma", "byte_level")
        return OutsidePartner(form.dialogue, form.end, len(form.tokenizer), 40, 8)

    def answers(self, observations):
        raise AssertionError


@pytest.mark.parametrize(
    ("first", "persona", "message"),
    [
        ("agent", None, None),
        ("sample", None, "rejects messages of the roles assistant, user.*use env.args.first_speaker: agent"),
        ("partner", None, "rejects a conversation that the assistant starts"),
        ("agent", "kind", "rejects messages of the roles system, user"),
    ],
)
def test_outside_partner_must_be_able_to_read_the_beginning(tmp_path, monkeypatch, first, persona, message):
    keep_registries(monkeypatch)
    PartnerRegistry.add("service", Service)
    form = built("chatml", "byte_level")
    info = {"history": SAID, **({"partner_persona": persona} if persona else {})}
    texts = texts_of([Sample("s0", form.dialogue.prompt(SAID), ["x"], info)], form.tokenizer, form.dialogue)
    config = config_of(tmp_path, {"id": "service"}, first_speaker=first)
    with pytest.raises(DataError, match=f"sample 's0' of the train split.*{message}") if message else nullcontext():
        build_partner(config.env.args.partner, config, texts)


def test_replies_from_elsewhere_can_be_learned_without_rollouts(tmp_path):
    form = built("chatml", "byte_level")
    prompt = form.dialogue.prompt(SAID)
    replayed, single = Sample("a", prompt, ["x"], {"continuation": ["well"]}), Sample("b", prompt, ["x"])
    made = make_config(tmp_path, env__args__partner={"id": "replay"}, alg=supervised())
    del made["train_evaluation"]["n_iters"]
    texts = texts_of([replayed], form.tokenizer, form.dialogue)
    texts.data.pools["train"] = TextGenPool([replayed, single])
    texts.data.pools["train"].use_format(form.dialogue)
    check_conversations(parse_config(made, "test"), texts)
    texts.data.pools["val"] = texts.data.pools["train"]
    with pytest.raises(DataError, match="sample 'b' of the val split"):
        check_conversations(parse_config(made, "test"), texts)
