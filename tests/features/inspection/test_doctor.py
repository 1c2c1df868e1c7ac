"""Every check of the doctor, on a healthy run and on a sick one."""

import dataclasses
import math
import re
from types import SimpleNamespace

import pytest
import torch
from covering import quick
from rich.console import Console
from runs import DENSE_REWARD, make_config
from tiny import make_tokenizer

from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.config import parse_config
from rl4dialog.core.errors import DataError, RewardError
from rl4dialog.core.protocols import Partner
from rl4dialog.core.reward_parts import RewardPart
from rl4dialog.core.types import PartnerReply
from rl4dialog.data.dialogue_format import DialogueFormat
from rl4dialog.features.inspection import examination, model_checks
from rl4dialog.features.inspection.examination import CHECKS, examine, print_findings
from rl4dialog.features.inspection.subject import N_REPLIES, Subject
from rl4dialog.scores.scoring import Scorer
from rl4dialog.text.chat_template import ChatTemplate, start_time
from rl4dialog.training.assembly import fill_cache
from rl4dialog.training.findings import Finding, NotApplicable
from rl4dialog.training.memory import MIB, MemoryPlan

EARLY = {"id": "early_stopping", "args": {"metric": "reward"}}
APPENDING = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
DATED = "{{ strftime_now('%F') }}" + APPENDING
FORGETFUL = "{% for m in messages %}{% if loop.last %}{{ m.content }}{% else %}...{% endif %}{% endfor %}"


def subject_of(tmp_path, **overrides):
    return Subject(parse_config(make_config(tmp_path, **overrides), "test"), tmp_path)


@pytest.fixture
def subject(tmp_path):
    subject = subject_of(tmp_path, datapool__args__context_size=1)
    yield subject
    subject.close()


# -- as a whole --------------------------------------------------------------------------------------------------------

ALGORITHMS = {
    "nlpo": {"alg__policy__id": "maskable_causal_lm_actor_critic_policy", "alg__policy__args__top_mask": 0.9},
    "a2c": {"alg__args": {"n_steps": 16}},
    "trpo": {"alg__args": {"n_steps": 16}},
    "rloo": {
        "alg__args__n_generations": 3,
        "env__n_envs": 3,
        "alg__policy__id": "seq2seq_lm_actor_critic_policy",
        "alg__policy__args__model_name": "builtin/tiny-t5",
        "tokenizer__model_name": "builtin/tiny-t5",
        "precision": "bf16",
    },
}


@pytest.mark.parametrize("algorithm", quick("nlpo", "rloo", of=ALGORITHMS))
def test_healthy_runs_pass(tmp_path, algorithm, capsys):
    subject = subject_of(tmp_path, alg__id=algorithm, reward_fn=DENSE_REWARD, **ALGORITHMS[algorithm])
    found = examine(subject, show_tracebacks=True)
    assert list(found) == list(CHECKS)
    assert f"Doctor, check {len(CHECKS)}/{len(CHECKS)}" in capsys.readouterr().err
    bad = {name: each for name, each in found.items() if each.level not in ("pass", "skip")}
    # A model of random weights ends its replies by chance; the stand-in's references are longer than ten tokens, and
    # some of its dialogues are in two splits. The config evaluates few samples.
    assert set(bad) <= {"reply_ends", "references", "prompts", "held_out", "evaluations"}, bad
    skipped = {name for name, each in found.items() if each.level == "skip"}
    of_others = {"chat_template", "warm_start", "conversation"}
    assert skipped == of_others | ({"learning_rate_zero"} if algorithm == "trpo" else set())


def test_supervised_run_skips_what_it_has_not(tmp_path):
    config = make_config(tmp_path)
    del config["env"], config["reward_fn"]
    config["alg"] = {"id": "supervised", "model_type": "causal", "model_name": "builtin/tiny-gpt2"}
    config["alg"]["training_args"] = {"num_train_epochs": 1}
    found = examine(Subject(parse_config(config, "test"), tmp_path))
    assert found["reward"] == Finding("skip", "alg.id: supervised has no rollouts")
    assert {name for name, each in found.items() if each.level == "pass"} >= {"vocabulary", "metrics"}
    assert not any(each.level == "fail" for each in found.values())


def test_error_of_a_part_is_told_once_and_the_others_go_on(tmp_path):
    found = examine(subject_of(tmp_path, alg__policy__args__model_name=str(tmp_path / "none")))
    assert found["prompts"].level in ("pass", "warn")
    assert found["vocabulary"].level == "fail" and "none" in found["vocabulary"].measured
    assert found["determinism"] == Finding("skip", "not run: vocabulary failed")


@pytest.mark.parametrize("debug", [False, True])
def test_error_of_another_kind_is_a_fail_and_its_traceback_is_for_debugging(subject, capsys, monkeypatch, debug):
    monkeypatch.setattr(examination, "CHECKS", {"metrics": CHECKS["metrics"]})
    subject.metrics = [None]
    assert examine(subject, show_tracebacks=debug)["metrics"] == Finding(
        "fail", "AttributeError: 'NoneType' object has no attribute 'compute'", "--debug shows the traceback"
    )
    assert ("Traceback" in capsys.readouterr().err) == debug


def test_problems_come_first_and_passed_checks_are_folded_into_a_line_each():
    findings = {
        "fine": Finding("pass", "a very long [prompt] " * 20 + "\nits end"),
        "nothing": Finding("skip", "there is none"),
        "odd": Finding("warn", "2", "look"),
        "broken": Finding("fail", "3", "mend it"),
    }
    console = Console(record=True, width=60)
    print_findings(findings, console)
    folded = console.export_text()
    assert sorted(findings, key=folded.index) == ["broken", "odd", "fine", "nothing"]
    assert "mend it" in folded and "1 pass, 1 warn, 1 fail, 1 skip" in folded
    assert "its end" not in folded and "there is none" not in folded
    assert len([line for line in folded.splitlines() if "long [prompt]" in line]) == 1
    print_findings(findings, console, show_all=True)
    in_full = " ".join(console.export_text().split())
    assert "end" in in_full and "there is none" in in_full


def test_quick_examination_loads_no_model(tmp_path, monkeypatch):
    load = "rl4dialog.training.building.language_model.build_language_model"
    monkeypatch.setattr(load, lambda *_: pytest.fail("a model is loaded"))
    config = parse_config(make_config(tmp_path, callbacks=[EARLY], warm_start={"n_epochs": 1}), "test")
    found = examine(Subject(config, tmp_path, quick=True))
    assert found["settings"].level == "warn" and "can never stop" in found["settings"].measured
    assert found["prompts"].level != "skip" and found["memory"].level == "pass"
    needs_model = {name for name, each in found.items() if "--quick" in each.measured}
    assert needs_model > {"warm_start", "reward", "metrics", "learning_rate_zero", "kl_at_start"}
    assert not any(each.level == "fail" for each in found.values())


# -- one by one --------------------------------------------------------------------------------------------------------


def sick_positions(subject):
    """A model that numbers its positions by column when it decodes."""
    forward = subject.initial_model.transformer.forward

    def by_column(*args, position_ids=None, **kwargs):
        return forward(*args, **kwargs)

    subject.initial_model.transformer.forward = by_column


def sick_dropout(subject):
    """A model that drops activations whatever its mode is."""
    norm = subject.initial_model.transformer.ln_f
    norm.register_forward_hook(lambda module, args, output: torch.nn.functional.dropout(output, 0.3, training=True))


def sick_optimizer(subject):
    """Steps that ignore the learning rate."""
    policy = subject.algorithm.policy
    step = policy.optimizer.step

    def wander():
        step()
        policy._value_head.output.weight.data += 0.01

    policy.optimizer.step = wander


def sick_seed(subject):
    """Sampling that knows no seed."""
    seeds = iter(range(10))
    subject.algorithm.set_random_seed = lambda seed: torch.manual_seed(next(seeds))


def sick_rewards(value):
    def make(subject):
        calls = iter(range(10**6))

        def pay(previous, action, current, done, meta_info):
            return value(next(calls)) if done else 0.0

        vars(subject)["scorer"] = Scorer([RewardPart("sick", 1.0, pay)])

    return make


def sick_samples(split, prompt=None, reference=None):
    """Samples with a prompt that is repeated, and one reference; those of the first training sample by default."""

    def make(subject):
        known = subject.data.samples("train")[0]
        for sample in subject.data.samples(split):
            sample.prompt_or_input_text = prompt or known.prompt_or_input_text
            sample.references[:] = [reference] if reference is not None else known.references

    return make


def sick_end(ids):
    return lambda subject: setattr(subject.initial_model.generation_config, "eos_token_id", ids)


def sick_padding(subject):
    vars(subject)["tokenizer"] = make_tokenizer()
    subject.tokenizer.add_special_tokens({"pad_token": "<new>"})
    subject.initial_model.resize_token_embeddings(10)


NAN = SimpleNamespace(compute=lambda *_: {"my/score": (None, math.nan)})
LARGE = MemoryPlan(0, 10**9 * MIB, 0, 0, 0, 0, 0)
LONG = "so many words that no reply can be as long as this one is"
SICK = [
    (
        "prompts",
        sick_samples("train", "a long prompt " * 20),
        "warn",
        "100.0% of 36 prompts are truncated to 24 tokens",
    ),
    ("references", sick_samples("train", None, LONG), "warn", "100.0% of 36 references have more than 10 tokens"),
    ("held_out", sick_samples("test"), "warn", "100.0% of 36 test samples (100.0% with the same reply) have a prompt"),
    ("evaluations", lambda subject: None, "warn", "6 val samples and 6 test samples in each evaluation"),
    ("memory", lambda subject: vars(subject).update(memory_plan=LARGE), "fail", "MiB needed"),
    ("disk", lambda subject: vars(subject).update(memory_plan=LARGE), "fail", "MiB for 3 checkpoints and the model"),
    (
        "vocabulary",
        lambda subject: subject.initial_model.resize_token_embeddings(len(subject.tokenizer) + 100),
        *("warn", "300 tokens, 400 embedding rows"),
    ),
    ("padding_token", sick_padding, "fail", "is outside the 10 embedding rows"),
    ("end_of_sequence", sick_end([7, 10**6]), "fail", "the model has no embedding for [1000000]"),
    ("end_of_sequence", sick_end(7), "warn", "generation config: [7]"),
    ("dropout_off", sick_dropout, "fail", "two passes differ by"),
    ("padding_invariance", sick_positions, "fail", "log-probabilities change by"),
    ("sampler_agreement", sick_positions, "fail", "log-probabilities of sampled tokens differ by"),
    (
        "kl_at_start",
        lambda subject: [each.data.mul_(1.1) for each in subject.algorithm.policy._reference_model.parameters()],
        *("fail", "nats per token, largest difference of a token"),
    ),
    ("reward", sick_rewards(lambda call: 1.0), "warn", f"{N_REPLIES} replies earned"),
    ("reward", sick_rewards(lambda call: float(call > 1)), "warn", "already earn the highest reward of all, 1;"),
    ("determinism", sick_seed, "warn", "replies differ although the seed is the same"),
    ("determinism", sick_rewards(float), "warn", "the same replies earned different rewards"),
    ("learning_rate_zero", sick_optimizer, "fail", "weights changed, 0 steps with a non-finite gradient"),
    ("metrics", lambda subject: vars(subject).update(metrics=[NAN]), "warn", "of which my/score are not finite"),
]


@pytest.mark.parametrize("name, make_sick, level, measured", SICK, ids=[f"{s[0]}-{s[3][:9]}" for s in SICK])
def test_sick_run_is_told(subject, name, make_sick, level, measured):
    make_sick(subject)
    found = CHECKS[name](subject)
    assert (found.level, bool(found.advice)) == (level, True), found
    assert measured in found.measured


@pytest.mark.parametrize(
    ("overrides", "kept", "n_weights"),
    [
        ({"train_evaluation__save_every": None}, "1 checkpoint and the model", 3),
        ({"train_evaluation__save_every": None, "train_evaluation__keep_best": "reward"}, "4 checkpoints and", 6),
        (
            {"callbacks": [{"id": "save_best_model", "args": {"metric": "reward"}}]},
            "3 checkpoints, best_model/ and the model",
            7,
        ),
    ],
)
def test_disk_counts_all_that_is_kept(tmp_path, overrides, kept, n_weights):
    subject = subject_of(tmp_path, **overrides)
    subject.results_path = tmp_path / "not" / "there"
    subject.memory_plan = MemoryPlan(0, 100 * MIB, 0, 0, 0, 0, 0)
    measured = model_checks.disk(subject).measured
    assert f"up to {100 * n_weights} MiB for {kept}" in measured and measured.endswith(f"free in {tmp_path}")


def test_reward_that_is_not_finite_fails_by_its_own_message(subject):
    sick_rewards(lambda call: math.nan)(subject)
    with pytest.raises(RewardError, match=r"returned nan for sample .* it must return finite numbers"):
        CHECKS["reward"](subject)
    assert CHECKS["sampler_agreement"](subject).level == "pass", "needs no reward"


def test_a_sample_with_another_goal_is_another_one(subject):
    sick_samples("test")(subject)
    for sample in subject.data.samples("test"):
        sample.meta_data = {**(sample.meta_data or {}), "goal_text": "a table outside"}
    assert "0.0% of 36 test samples" in CHECKS["held_out"](subject).measured


def test_replies_that_never_end_are_told(subject):
    subject.replies.response_ids.fill_(5)
    assert CHECKS["reply_ends"](subject).level == "warn"
    vars(subject)["_model_and_state"] = (None, "before its warm start", [])
    assert CHECKS["reply_ends"](subject).level == "pass", "the warm start teaches it"


def use_template(subject, template):
    """As if the tokenizer's template had written the prompts."""
    subject.tokenizer.chat_template = template
    subject.config.datapool.args["format"] = "chat_template"
    form, samples = (
        DialogueFormat("chat_template", None, ChatTemplate(subject.tokenizer)),
        subject.data.samples("train"),
    )
    for sample in samples:
        sample.prompt_or_input_text = form.prompt((sample.meta_data or {})["history"])
    subject.data.pools["train"].use_format(form)


@pytest.mark.parametrize(
    "template, max_turns, level, message",
    [
        (APPENDING, 1, "pass", "it writes prompts and labels, and only appends"),
        (DATED, 1, "pass", f"its date is {start_time():%Y-%m-%d}: a run keeps"),
        (FORGETFUL, 1, "warn", "rewrites the past: it omits or changes earlier messages"),
        (FORGETFUL, 2, "fail", "rewrites the past: it omits or changes earlier messages"),
        (
            APPENDING.replace("<assistant>{% endif", "<assistant><think>{% endif"),
            1,
            "warn",
            "not close it with </think>",
        ),
    ],
)
def test_chat_template_must_append_and_write_what_is_learned(subject, template, max_turns, level, message):
    use_template(subject, template)
    assert subject.config.env is not None
    subject.config.env.args.max_turns = max_turns
    found = CHECKS["chat_template"](subject)
    assert found.level == level and message in found.measured


def test_chat_template_that_did_not_write_the_prompts_fails(subject):
    use_template(subject, APPENDING)
    subject.data.pools["train"].dialogue_format = None
    assert CHECKS["chat_template"](subject).measured == "no prompt contains a conversation"


def test_first_prompt_is_shown_as_the_model_reads_it(subject):
    subject.lengths = dataclasses.replace(subject.lengths, prompt=900)
    sample = subject.data.samples("train")[0]
    sample.prompt_or_input_text = "do you like tea ? <EOU>"
    found = CHECKS["first_prompt"](subject)
    whole = subject.tokenizer.decode(subject.tokenizer("do you like tea ? <EOU>")["input_ids"])
    assert found.level == "pass" and found.measured.rpartition("any]")[2] == whole
    subject.tokenizer.chat_template = APPENDING
    assert CHECKS["first_prompt"](subject).level == "warn", "an unused template"
    use_template(subject, APPENDING)
    shown = CHECKS["first_prompt"](subject)
    assert shown.level == "pass" and shown.measured.endswith("<|endoftext|><assistant>")
    sample.prompt_or_input_text = "<|endoftext|><|endoftext|>tea"
    twice = CHECKS["first_prompt"](subject)
    assert twice.level == "warn" and twice.advice.startswith("it starts with <|endoftext|> twice")
    sample.prompt_or_input_text = "tea " * 1000
    assert len(CHECKS["first_prompt"](subject).measured) < 1000


def test_what_is_cut_of_the_first_prompt_is_marked(subject):
    sample, limit = subject.data.samples("train")[0], 12
    sample.prompt_or_input_text = "we drank green tea <EOU> did you like it ? <EOU>"
    context_size = subject.config.datapool.args.get("context_size", 5)
    sample.meta_data = {"history": ["did you like it ?"] * context_size}
    subject.lengths = dataclasses.replace(subject.lengths, prompt=limit)
    shown = CHECKS["first_prompt"](subject).measured
    assert f"[cut by context_size {context_size}: earlier utterances, if any]" in shown
    assert shown.endswith(f"[cut by max_prompt_length {limit}: we drank green tea<EOU>] did you like it ?<EOU>")


def test_warm_start_that_memorises_is_found(tmp_path):
    warm = {"n_epochs": 12, "learning_rate": 0.03, "max_samples": 4, "batch_size": 1}
    subject = subject_of(tmp_path, warm_start=warm, datapool__args__context_size=1)
    fill_cache(subject.config)
    assert CHECKS["warm_start"](subject).level == "warn" and len(subject.warm_start_losses) == 13


def test_warm_start_is_examined_only_if_it_is_there(tmp_path):
    warm_start = {"n_epochs": 1, "max_samples": 8, "batch_size": 2}
    cold = subject_of(tmp_path, warm_start=warm_start)
    assert cold.model_state == "before its warm start, which is not cached"
    fill_cache(cold.config)
    warm = subject_of(tmp_path, warm_start=warm_start)
    assert warm.model_state == "after its warm start, which is cached"
    difference = cold.initial_model.transformer.wte.weight - warm.initial_model.transformer.wte.weight
    assert difference.abs().max() > 0


# -- conversations and logs --------------------------------------------------------------------------------------------


class Says(Partner):
    """Answers as a test wants it to."""

    outcomes = ("success",)

    def __init__(self, what):
        self._what = what

    def reset(self, meta_info, seed):
        self._fails = self._what == "fails" and seed % 2 == 0

    def reply(self, history):
        if self._fails:
            raise ConnectionError("no line")
        text = {"echoes": history[-1], "says nothing": None}.get(self._what, "i see .")
        return PartnerReply(text, leaves=self._what == "leaves")

    def outcome(self):
        return {"success": 1.0}


@pytest.fixture
def found_with(tmp_path, monkeypatch):
    """What the doctor finds in conversations with a partner that says something."""
    monkeypatch.setattr(PartnerRegistry, "_entries", dict(PartnerRegistry._entries))
    PartnerRegistry.register("says")(Says)

    def find(what, max_turns=3, **overrides):
        subject = subject_of(
            tmp_path,
            env__args__partner={"id": "says", "args": {"what": what}},
            env__args__max_turns=max_turns,
            env__args__max_prompt_length=60,
            reward_fn={"id": "outcome", "args": {"per_turn": -0.25}},
            **overrides,
        )
        try:
            return CHECKS["conversation"](subject)
        finally:
            subject.close()

    return find


def test_conversation_is_shown_with_rewards_and_its_end(found_with):
    found = found_with("i see .")
    assert found.level == "pass"
    lines = found.measured.splitlines()
    assert [line for line in lines if line.startswith("partner: i see .")] == ["partner: i see ."] * 3
    assert [line.rsplit(" ", 1)[1] for line in lines if line.startswith("agent: ")][-3:] == [
        *("(-0.25)", "(-0.25)", "(+0.75)")
    ]
    assert lines[-1] == "(the model as loaded)" and "success 1" in lines[-2]


@pytest.mark.parametrize(
    ("what", "overrides", "level", "words"),
    [
        ("fails", {}, "fail", "failed in [1-7] of 8 conversations: partner 'Says' failed on sample .*no line"),
        ("fails", {"env__args__partner_on_error": "mask"}, "warn", "the partner failed in"),
        ("leaves", {}, "warn", "leaves after the first turn of every conversation"),
        ("leaves", {"max_turns": 1}, "pass", "agent:"),
        ("says nothing", {}, "warn", "never says anything"),
        ("says nothing", {"max_turns": 1}, "pass", "agent:"),
        ("echoes", {}, "warn", r"of the partner's \d+ answers repeat the agent"),
    ],
)
def test_partner_who_takes_no_part_is_told(found_with, what, overrides, level, words):
    found = found_with(what, **overrides)
    assert found.level == level
    assert re.search(words, found.measured, flags=re.DOTALL)
    assert bool(found.advice) == (level != "pass")


@pytest.mark.parametrize(
    ("partner", "error", "words"),
    [({"id": "replay"}, DataError, "partner 'replay' needs samples"), (None, NotApplicable, "no conversation partner")],
)
def test_samples_are_examined_before_anything_is_said(tmp_path, partner, error, words):
    with pytest.raises(error, match=words):
        CHECKS["conversation"](subject_of(tmp_path, env__args__partner=partner))


def test_metrics_of_conversations_are_not_measured_on_reference_replies(tmp_path):
    of_conversations = [{"id": "conversation"}, {"id": "conversation_diversity"}]
    found = CHECKS["metrics"](subject_of(tmp_path, train_evaluation__metrics=[*of_conversations, {"id": "length"}]))
    assert (found.level, found.measured.startswith("1 scores of 4")) == ("pass", True), found
    with pytest.raises(NotApplicable, match="whole conversations"):
        CHECKS["metrics"](subject_of(tmp_path, train_evaluation__metrics=of_conversations))
