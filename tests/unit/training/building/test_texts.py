"""Lengths, language models and policies that are built from a config."""

import json
from types import SimpleNamespace

import pytest
import torch
from conversations import TEMPLATES, make_backend, make_format
from feature_rows import rows_of_features
from pages import ROOT
from runs import make_config, run_folder, supervised, train
from tiny import make_bart, make_gpt2, make_llama, make_t5, make_tokenizer
from transformers import GenerationConfig

from rl4dialog.catalog import DataPoolRegistry
from rl4dialog.core.config import load_config, parse_config
from rl4dialog.core.errors import ConfigError, DataError, GenerationError
from rl4dialog.core.types import Sample
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.data.pool import Data, TextGenPool
from rl4dialog.data.toy_pools import DummyPool
from rl4dialog.functional.replies import Replies
from rl4dialog.text.chat_template import ChatTemplate
from rl4dialog.training.assembly import Assembly
from rl4dialog.training.building.language_model import build_language_model, build_warm_start_examples, warm_start_key
from rl4dialog.training.building.policy import build_inference_policy, set_sampler
from rl4dialog.training.building.texts import Lengths, Texts, build_pool, can_talk, run_lengths, warn_of_cut_prompts

TALKING = [("small_talk/gpt2_ppo", True), ("guess_what/llama_ppo", True), ("table_booking/smollm2_ppo", True)]
MODELS = {"gpt2": make_gpt2, "t5": make_t5, "bart": make_bart}
SAMPLES = [Sample(0, "w1 w2 w3", ["w4"]), Sample(1, "w1", ["w2 w3 w4"])]


def lengths_of(tmp_path, model, limit=None, max_new_tokens=6):
    """Of a supervised config without ``env``, on a model of 64 positions (T5: without a limit)."""
    tokenizer = make_tokenizer()
    if limit is not None:
        tokenizer.model_max_length = limit
    tokenizer.truncation_side = "right"
    folder = tmp_path / "model"
    MODELS[model](tokenizer).save_pretrained(folder)
    config = make_config(tmp_path)
    del config["env"], config["reward_fn"]
    alg = {"model_type": "causal" if model == "gpt2" else "seq2seq", "model_name": str(folder)}
    alg["generation_kwargs"] = {"do_sample": False, "max_new_tokens": max_new_tokens}
    config["alg"] = {"id": "supervised", "training_args": {}, **alg}
    return run_lengths(parse_config(config, "test"), tokenizer, Data({"train": TextGenPool(SAMPLES)}, "<EOU>"))


@pytest.mark.parametrize(
    ("model", "limit", "prompt", "total"),
    [
        ("gpt2", None, 58, 64),  # the positions; replies have 6 of them
        ("gpt2", 50, 50, 50),  # max_length, behind which there is room for a reply
        ("gpt2", 60, 58, 60),
        ("gpt2", 200, 58, 64),
        ("bart", 50, 50, 50),
        ("bart", 200, 64, 64),
        ("t5", 200, 200, 200),  # relative positions have no limit
    ],
)
def test_without_env_they_are_the_tokenizers(tmp_path, model, limit, prompt, total):
    found = lengths_of(tmp_path, model, limit)
    assert (found.prompt, found.reply, found.total, found.target) == (prompt, 6, total, None)
    assert (found.truncation_side, found.turn_end) == ("right", "<EOU>")


def test_where_nothing_has_a_limit_the_data_decide(tmp_path):
    found = lengths_of(tmp_path, "t5")
    # "w2 w3 w4" with <EOU>, which the tokenizer of the test writes as one token, glued to the last word.
    assert found == Lengths(prompt=3, reply=6, truncation_side="right", total=3)


def test_replies_that_leave_no_room_for_a_prompt_are_an_error(tmp_path):
    with pytest.raises(ConfigError, match=r"max_new_tokens is 64, which leaves no room for a prompt in the 64"):
        lengths_of(tmp_path, "gpt2", max_new_tokens=64)


def test_decoding_settings_do_not_cut_what_is_learned(tmp_path):
    config = parse_config(
        make_config(tmp_path, alg__policy__args__generation_kwargs={"do_sample": True, "max_new_tokens": 3}), "test"
    )
    assert run_lengths(config, make_tokenizer(), Data({}, "<EOU>")) == Lengths(24, 3, "left", 10, turn_end="<EOU>")


def make_supervised(tmp_path, max_length):
    """A config whose prompts and references together have no more tokens than that."""
    config = make_config(tmp_path)
    del config["env"]
    config["tokenizer"]["max_length"] = max_length
    config["alg"] = supervised(max_steps=1, per_device_train_batch_size=8)
    config["alg"]["generation_kwargs"] = {"do_sample": False, "max_new_tokens": 2}
    return config


def test_supervised_run_learns_whole_references_and_says_what_it_cuts(tmp_path, capsys):
    said = []
    for flags in (["--dry_run"], []):
        assert train(tmp_path, make_supervised(tmp_path, max_length=20), *flags) == 0
        said.append([line for line in capsys.readouterr().err.splitlines() if line.startswith("Supervised")])
    infos = (run_folder(tmp_path) / "training_info.jsonl").read_text(encoding="utf-8")
    assert '"n_references_cut": 0' in infos and '"n_prompts_cut": 0' not in infos
    of_train, of_val = said[0]
    assert "with a cut prompt" in of_train and "without their end" not in of_train and "val split" in of_val
    assert said[1][:2] == said[0], "what a dry run says, a run says too"


@pytest.mark.parametrize("flags", [["--dry_run"], []], ids=["dry_run", "run"])
def test_supervised_run_that_could_learn_nothing_is_refused_before_its_first_evaluation(tmp_path, capsys, flags):
    assert train(tmp_path, make_supervised(tmp_path, max_length=3), *flags) == 2
    assert "there is nothing to fine-tune on" in capsys.readouterr().err
    assert not list(run_folder(tmp_path).glob("*_predictions.json"))


def test_warm_start_says_what_it_cuts_also_in_a_dry_run_and_from_the_cache(tmp_path, capsys):
    config = make_config(
        tmp_path,
        env__args={"max_prompt_length": 8, "max_episode_length": 4},
        warm_start={"n_epochs": 0.5, "max_samples": 5},
        train_evaluation__n_iters=0,
    )
    first, cached = "Warm start: of 5 references:", "Warm start, from the cache:"
    for said, flag in ((first, "--dry_run"), (first, "--overwrite"), (cached, "--overwrite")):
        assert train(tmp_path, config, flag) == 0
        (line,) = (line for line in capsys.readouterr().err.splitlines() if line.startswith(said))
        assert "with a cut prompt" in line and "without their end" in line


@pytest.mark.parametrize(
    ("training_args", "code", "message"),
    [
        ({"overwrite_output_dir": True}, 0, "alg.training_args.overwrite_output_dir has no effect here"),
        ({"learning_rte": 1e-3}, 2, "alg.training_args has no key 'learning_rte'; did you mean 'learning_rate'?"),
        ({"lr_scheduler_type": "steep"}, 2, "alg.training_args: steep is not a valid"),
    ],
)
def test_dry_run_checks_training_arguments(tmp_path, capsys, training_args, code, message):
    config = make_supervised(tmp_path, max_length=64)
    config["alg"]["training_args"] = {"num_train_epochs": 1, **training_args}
    assert train(tmp_path, config, "--dry_run") == code
    assert message in " ".join(capsys.readouterr().err.split())


def test_prompts_that_are_cut_are_counted_by_split(monkeypatch, caplog):
    pools = {"train": TextGenPool([*SAMPLES, *SAMPLES]), "val": TextGenPool(SAMPLES[1:]), "test": TextGenPool(SAMPLES)}
    texts = Texts(make_tokenizer(), Data(pools, None), Lengths(2, 4))
    warn_of_cut_prompts(texts)
    assert [record.message.partition(" have more")[0] for record in caplog.records] == [
        "2 of 4 train prompts",
        "1 of 2 test prompts",
    ]
    assert "env.args.max_prompt_length = 2 tokens, up to 3, and lose" in caplog.text
    caplog.clear()
    monkeypatch.setattr("rl4dialog.training.building.texts._N_LOOKED_AT", 2)
    warn_of_cut_prompts(texts)
    assert "2 of 2 train prompts that were looked at" in caplog.text
    caplog.clear()
    warn_of_cut_prompts(Texts(texts.tokenizer, texts.data, Lengths(3, 4)))
    assert not caplog.records


@pytest.mark.parametrize(("prefix", "n_models"), [("", 1), ("maskable_", 3)])
def test_only_a_mask_needs_copies_of_the_model(tmp_path, prefix, n_models):
    tokenizer = make_tokenizer()
    config = parse_config(make_config(tmp_path, alg__policy__id=f"{prefix}causal_lm_actor_critic_policy"), "config")
    model = make_gpt2(tokenizer)
    parts = Assembly(config)
    vars(parts).update(tokenizer=tokenizer, data=Data({}, None), lengths=Lengths(8, 4))
    config.generation.backend = "auto"
    policy = build_inference_policy(parts, model)
    assert policy.sampler == "auto", "also in evaluations of a run without rollouts"
    n_weights = sum(parameter.numel() for parameter in model.parameters())
    assert sum(parameter.numel() for parameter in policy.parameters()) == n_models * n_weights
    replies = Replies.from_ids([[3, 4]], [[5, 6]], torch.device("cpu"))
    if not policy.maskable:
        torch.testing.assert_close(policy.reference_log_probs(replies), policy.sequence_log_probs(replies))


def test_graphs_that_a_model_cannot_have_are_refused_not_replaced(tmp_path):
    tokenizer, config = make_tokenizer(), parse_config(make_config(tmp_path, generation__backend="graph"), "config")
    model, parts = make_llama(tokenizer), Assembly(config)
    model.config.sliding_window, model.config.layer_types = 4, ["sliding_attention"] * 2
    vars(parts).update(tokenizer=tokenizer, data=Data({}, None), lengths=Lengths(8, 4))
    with pytest.raises(GenerationError, match=r"not possible here, because the model attends to 4 tokens.*; remove it"):
        build_inference_policy(parts, model)


@pytest.mark.parametrize("has_bf16", [True, False])
def test_emulated_bfloat16_is_told(tmp_path, monkeypatch, caplog, has_bf16):
    monkeypatch.setattr("rl4dialog.training.building.policy.is_bf16_supported", lambda emulated: has_bf16 or emulated)
    policy = SimpleNamespace(precision="bf16", device=torch.device("cuda"))
    set_sampler(policy, parse_config(make_config(tmp_path, precision="bf16"), "config"))
    assert ("precision: bf16 is emulated on this GPU" in caplog.text) != has_bf16 and policy.sampler == "auto"


# Changed one by one: what a warm start learns of conversations changes with it.
CHANGES = {"max_partner_length": 1, "context_turns": 2, "end_when": {"agent": ["^i "]}}


def talking(folder, **args):
    """The config of a run with conversations of two turns."""
    config = make_config(
        folder,
        datapool={"id": "small_talk", "args": {"samples": "dialogues", "max_size": 20}},
        warm_start={"n_epochs": 1},
        env__args={"max_prompt_length": 400, "max_episode_length": 60, "max_turns": 2, **args},
        env__args__partner={"id": "replay"},
    )
    return parse_config(config, "test")


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Config, texts and model of conversations."""
    config = talking(tmp_path_factory.mktemp("talking"))
    return config, Assembly(config).texts, make_gpt2(make_tokenizer(), n_positions=600)


def test_rules_of_conversations_and_the_last_utterance_change_what_a_warm_start_learns(built, tmp_path):
    config, texts, model = built
    key, examples = warm_start_key(config, model, texts), build_warm_start_examples(config, texts, model.config).train
    assert warm_start_key(talking(tmp_path), model, texts) == key
    for changed, value in CHANGES.items():
        other = talking(tmp_path, **{changed: value})
        assert warm_start_key(other, model, texts) != key, changed
        assert build_warm_start_examples(other, texts, model.config).train != examples, changed
    sample, _ = texts.data.pools["train"][0]
    assert sample.meta_data is not None
    sample.meta_data["continuation"][-1] += " oh"
    assert warm_start_key(config, model, texts) != key


def test_warm_start_that_memorises_is_reported_when_it_is_trained_and_loaded(tmp_path, caplog):
    warm = {"n_epochs": 12, "learning_rate": 0.03, "max_samples": 4, "batch_size": 1}
    config = parse_config(make_config(tmp_path, warm_start=warm, datapool__args__context_size=1), "test")
    for _ in range(2):
        caplog.clear()
        build_language_model(config, Assembly(config).texts)
        assert "the warm start memorises its data: the loss of val replies was lowest" in caplog.text


def test_end_and_markup_of_a_template_are_in_the_saved_model_and_the_key_of_a_warm_start(tmp_path):
    template, keys = TEMPLATES["chatml"].source, set()
    config = parse_config(make_config(tmp_path), "test")
    for source in (template, template.replace("['content']", "['content'] | trim")):
        tokenizer = make_format("chatml", make_backend("byte_level")).tokenizer
        tokenizer.add_special_tokens({"eos_token": "<eos>"})
        tokenizer.chat_template = source
        form = DialogueFormat("chat_template", None, ChatTemplate(tokenizer))
        pool = DummyPool([Sample(0, form.prompt(["tea ?"]), [" yes "])], dialogue_format=form)
        texts = Texts(tokenizer, Data({"train": pool}, pool.end_of_turn), Lengths(20, 10))
        model, end = build_language_model(config, texts), tokenizer.convert_tokens_to_ids("<|im_end|>")
        model.save_pretrained(tmp_path / "model")
        saved = GenerationConfig.from_pretrained(tmp_path / "model")
        assert saved.eos_token_id == [tokenizer.eos_token_id, end]
        warm = parse_config(make_config(tmp_path, warm_start={"n_epochs": 1}), "test")
        keys.add(json.dumps(warm_start_key(warm, model, texts)))
    assert len(keys) == 2, "the same texts, but other labels"


def test_single_replies_are_learned_without_rules(tmp_path):
    config = parse_config(make_config(tmp_path, warm_start={"n_epochs": 1}), "test")
    key = warm_start_key(config, make_gpt2(make_tokenizer()), Assembly(config).texts)
    assert not {"frame", "rules"} & key.keys()


def test_what_weights_and_vocabulary_do_not_say_is_in_the_key_of_a_warm_start(built):
    config, texts, model = built

    def key():
        return json.dumps(warm_start_key(config, model, texts))

    keys = {key()}
    model.config.n_head *= 2  # the same weights in other heads
    keys.add(key())
    model.generation_config.eos_token_id = [0, 1]
    keys.add(key())
    texts.tokenizer.eos_token = texts.tokenizer.pad_token  # the same tokens, but another one ends a reply
    keys.add(key())
    assert len(keys) == 4
    for each in (model.config, model.generation_config):
        each.transformers_version = "9"
    model.config.name_or_path = "elsewhere"
    moved = key()
    model.config.name_or_path = "here"
    assert moved == key() in keys


@pytest.mark.parametrize(("name", "expected"), [*TALKING, *rows_of_features("CAN_TALK")])
def test_chat_is_proposed_where_there_is_somebody_to_talk_to(name, expected):
    assert can_talk(load_config(ROOT / "task_configs" / f"{name}.yml")) is expected


def test_pool_that_prepare_does_not_return_is_named(monkeypatch):
    class Forgetful(TextGenPool):
        @classmethod
        def prepare(cls, split):
            cls(SAMPLES)

    monkeypatch.setattr(DataPoolRegistry, "resolve", lambda id: Forgetful)
    with pytest.raises(DataError, match=r"^prepare of datapool 'mine' must return a TextGenPool, .*, not None$"):
        build_pool("mine", {"split": "train"})
