"""Everything that a user can get wrong ends in one paragraph that says what and where, and without a traceback."""

import errno
import io
import os
import re
import signal
import sys

import pytest
from apart import Command
from runs import SHORT, lines, make_config, run_folder, train, train_arguments, trained_run

from rl4dialog import cli
from rl4dialog.core.errors import ConfigError

NLPO = {"alg__id": "nlpo", "alg__policy__id": "maskable_causal_lm_actor_critic_policy"}
SAY_MORE = {"id": "three_sentence_summary", "args": {"n": 4}}
WRONG = [
    ({"alg__args__n_step": 5}, ("'ppo'", "'n_step'", "'n_steps'")),
    ({"reward_fn__id": "roug"}, ("'roug'", "'rouge'")),
    ({"datapool__id": "dayly_dialog"}, ("'dayly_dialog'", "'daily_dialog'")),
    ({"alg__id": "pppo"}, ("'pppo'", "'ppo'")),
    ({"alg__policy__id": "causal_policy"}, ("'causal_policy'", "causal_lm_actor_critic_policy")),
    ({"train_evaluation__metrics": [{"id": "meteorr"}]}, ("'meteorr'", "'meteor'")),
    ({"reward_fn__args": {"rogue_type": "rouge1"}}, ("rogue_type", "'rouge_type'")),
    ({"reward_fn__args": {"rouge_type": "rouge7"}}, ("rouge_type", "'rouge7'")),
    ({"reward_fn__clip": "much"}, ("reward_fn.clip", "positive number", "'much'")),
    ({"reward_fn__normalize": "always"}, ("reward_fn.normalize", "'always'", "running")),
    ({"reward_fn__async_calls": {"concurency": 2}}, ("reward_fn.async_calls.concurency", "'concurrency'")),
    ({"datapool__args": {"context": 2}}, ("'context'", "context_size")),
    ({"alg__policy__args__critik": "shared"}, ("critik", "'critic'")),
    ({"alg__policy__args__critic": "both"}, ("critic", "'both'", "separate")),
    ({"alg__policy__args__generation_kwargs": {"topk": 3}}, ("topk", "'top_k'")),
    ({"alg__policy__args__generation_kwargs": {"top_p": 3.0}}, ("top_p", "3.0")),
    ({"alg__policy__args__generation_kwargs": {"do_sample": True, "num_beams": 4}}, ("num_beams",)),
    ({"train_evaluation__generation_kwargs": {"num_beams": 0}}, ("train_evaluation.generation_kwargs.num_beams",)),
    (
        {"train_evaluation__generation_kwargs": {"post_processing_fn": "three_sentences"}},
        ("post-processor 'three_sentences'", "'three_sentence_summary'"),
    ),
    (
        {"alg__policy__args__generation_kwargs": {"post_processing_fn": {"id": "three_sentence_summary", "arg": 1}}},
        ("alg.policy.args.generation_kwargs.post_processing_fn", "{id: ..., args: {...}}", "'arg'"),
    ),
    ({"alg__policy__args__generation_kwargs": {"post_processing_fn": SAY_MORE}}, ("'three_sentence_summary'", "'n'")),
    ({"alg__policy__args__generation_kwargs": {"post_processing_fn": 3}}, ("post_processing_fn", "not 3")),
    ({"env__args__priority_scale": -1}, ("env.args.priority_scale", "-1")),
    ({"alg__args__n_steps": 1, "env__n_envs": 1}, ("n_steps",)),
    ({"alg__id": "nlpo"}, ("nlpo", "'maskable_causal_lm_actor_critic_policy'")),
    ({"alg__policy__id": "maskable_causal_lm_actor_critic_policy"}, ("ppo", "use 'causal_lm_actor_critic_policy'")),
    (NLPO | {"alg__policy__args__top_mask": 1.5}, ("top_mask", "1.5")),
    ({"alg__policy__id": "seq2seq_lm_actor_critic_policy"}, ("'builtin/tiny-gpt2'", "decoder-only", "causal policy")),
    ({"alg__policy__args__model_name": "builtin/tiny-t5"}, ("'builtin/tiny-t5'", "encoder-decoder", "seq2seq policy")),
    ({"alg__id": "rloo", "alg__args__credit": "turns", "alg__args__n_generations": 2}, ("alg.args.credit", "'turn'")),
    ({"alg__policy__args__critic": "none"}, ("ppo", "needs a critic")),
    (
        {"alg__policy__args__reference": "none", "alg__policy__args__offload_reference": True, "alg__kl_div__coeff": 0},
        ("alg.policy.args.offload_reference is true", "alg.policy.args.reference is none"),
    ),
    ({"alg__args__seed": 3}, ("alg.args.seed", "is set by other parts")),
    ({"alg__args__turn_gamma": 1.5}, ("alg.args.turn_gamma", "less than or equal to 1", "1.5")),
    ({"alg__args__vf_coef": 0}, ("alg.args.vf_coef is 0", "alg.id: reinforce", "credit: turn", "baseline: none")),
    ({"alg__policy__args__value_range": [0, 1]}, ("alg.policy.args.value_range was removed because it showed no",)),
    ({"alg__policy__args__critic": "shared", "alg__policy__args__critic_reads": "secret"}, ("use critic: separate",)),
    ({"alg__policy__args__critic_reads": "all"}, ("alg.policy.args.critic_reads", "'secret'")),
    ({"alg__args__credit": "turns"}, ("alg.args.credit", "did you mean 'turn'")),
    ({"warm_start": {"warmup_ratio": 1.0}}, ("warm_start.warmup_ratio", "1.0")),
    ({"imports": ["./not_there.py"]}, ("not_there.py",)),
    ({"tokenizer__model_name": "nobody/nothing"}, ("'nobody/nothing'", "builtin/tiny-gpt2")),
    ({"alg__policy__args__model_name": "nobody/nothing"}, ("'nobody/nothing'", "builtin/tiny-gpt2")),
    ({"alg__policy__args__model_name": "builtin/huge"}, ("'builtin/huge'", "builtin/tiny-gpt2")),
]


RULES = {"id": "rules", "args": {"rules": [{"pattern": "x", "replies": "y"}]}}
PAYING = {"id": "rules", "args": {"rules": [{"pattern": "x", "reward": 1.0}]}}
GAME = {"id": "guess_what"}
MODEL = {"id": "language_model", "args": {"model_name": "nobody/nothing"}}
BRIEF = {"id": "length_penalty", "args": {"max_length": 3}}


def talking(partner, reward=BRIEF, max_turns=3, **more):
    args = {"max_prompt_length": 24, "max_episode_length": 10, "max_turns": max_turns, "partner": partner, **more}
    return {"env__args": args, "reward_fn": reward}


WRONG += [
    (talking({"id": "rulez"}), ("unknown partner 'rulez'", "'rules'")),
    (talking({"id": "rules", "args": {"rule": []}}), ("env.args.partner.args.rule", "did you mean 'rules'")),
    (
        talking({"id": "rules", "args": {"rules": [{"pattern": "("}]}}),
        ("env.args.partner.args.rules[0].pattern", "'('"),
    ),
    (talking(RULES, partner_replies=["Well?"]), ("env.args", "partner_replies is the short form of partner")),
    (talking(None, max_turns=1, first_speaker="agent"), ("env.args: first_speaker: agent needs a partner",)),
    (talking(None, max_turns=1, context_turns=2), ("env.args: context_turns needs a partner",)),
    (talking(RULES, first_speaker="partner"), ("first_speaker is partner", "'rules' has no first utterance")),
    (talking(RULES, first_speaker="user"), ("env.args.first_speaker", "'user'", "'agent'")),
    (talking(RULES, {"id": "rouge"}, 1, first_speaker="agent"), ("reward 'rouge' compares", "first_speaker: agent")),
    (talking(MODEL, {"id": "outcome"}), ("'success'", "language_model reports none")),
    (talking(PAYING), ("env.args.partner.id: rules carry rewards, which nothing uses",)),
    (talking(RULES, {"id": "partner"}), ("reward 'partner'", "never pays")),
    (talking(RULES, train_evaluation=1), ("env.args.train_evaluation",)),
    (talking(RULES) | {"train_evaluation__generation_kwargs": {"num_beams": 4}}, ("num_beams is 4", "max_turns: 3")),
    ({"reward_fn": {"id": "outcome"}}, ("pays a partner's outcome, but there is no env.args.partner",)),
    (
        {**talking(GAME, {"id": "outcome", "args": {"weights": {"succes": 1}}}), "datapool": {"id": "guess_what"}},
        ("'succes'", "reports success"),
    ),
    (
        talking(GAME, {"id": "outcome", "args": {"weights": {"success": "x"}}}),
        ("reward_fn.args.weights.success", "'x'"),
    ),
    (talking(RULES, end_when={"agent": ["ok", "("]}), ("env.args.end_when.agent[1]", "position 0")),
    (talking(RULES, end_when={"partner": ["a{%s}" % 10**20]}), ("env.args.end_when.partner[0]", "too large")),
    (talking(RULES, end_when={"agents": ["x"]}), ("env.args.end_when.agents", "did you mean 'agent'")),
    (talking(RULES, prompt_truncation_side="right"), ("prompt_truncation_side: right",)),
    (talking(RULES, max_partner_length=0), ("env.args.max_partner_length", "0")),
    (talking(RULES, partner_on_error="ignore"), ("env.args.partner_on_error", "'ignore'", "mask")),
    (talking(RULES, {**BRIEF, "pay": "turns"}), ("reward_fn.pay", "'turns'")),
    ({"train_evaluation__partner": RULES}, ("train_evaluation.partner replaces env.args.partner", "there is none")),
    (
        talking({"id": "language_model", "args": {"model_name": "x", "generation_kwargs": {"topk": 3}}}),
        ("generation_kwargs", "topk", "'top_k'"),
    ),
]


# Out of bounds.
WRONG += [
    ({"alg__policy__args__optimizer_kwargs": {"betas": 3}}, ("alg.policy.args.optimizer_kwargs", "betas")),
    ({"alg__policy__args__generation_kwargs": {"temperature": 0}}, ("generation_kwargs", "temperature")),
    ({"datapool__args__split": "val"}, ("datapool.args.split", "all three splits")),
    ({"tokenizer__vocab_size": 10**12}, ("tokenizer.vocab_size",)),
]


SMALL_TALK = {"id": "small_talk", "share": 3, "args": {"context_size": 1, "n_train": 4, "n_val": 2, "n_test": 2}}


MIXED = [
    ([{**SMALL_TALK, "args": {"contxt_size": 1}}], ("pools[0].args.contxt_size", "did you mean 'context_size'")),
    ([SMALL_TALK, {**SMALL_TALK, "args": {"split": "val"}}], ("pools[1].args.split: every run reads",)),
    ([{"id": "task_dialogues", "share": 1}], ("pools[0].id: task_dialogues needs a task",)),
    ([{"id": "smal_talk", "share": 1}], ("unknown datapool 'smal_talk'; did you mean 'small_talk'",)),
]
WRONG += [({"datapool": {"id": "mixture", "args": {"pools": pools}}}, words) for pools, words in MIXED]


@pytest.mark.parametrize(("overrides", "words"), WRONG, ids=["-".join(o).replace("__", ".") for o, _ in WRONG])
def test_wrong_value(tmp_path, refused, overrides, words):
    refused(train(tmp_path, make_config(tmp_path, **overrides)), *words)


def test_debug_shows_the_traceback(tmp_path):
    with pytest.raises(ConfigError):
        train(tmp_path, make_config(tmp_path, reward_fn__id="roug"), "--debug")


# -- rewards ----------------------------------------------------------------------------------------------------------

OF_ONE = "def bad(prompt_text, gen_text, ref_texts, meta_info):\n    "
OF_BATCH = "def bad(prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):\n    "
REWARDS = {
    "raises": (OF_ONE + "return 1 / 0", ("ZeroDivisionError", "sample")),
    # Of a whole batch that is missing no sample is to blame.
    "batch none": (OF_BATCH + "pass", ("None",)),
}


def with_reward(tmp_path, code, **overrides):
    """A run whose reward is the function ``bad``."""
    imports = "import os, time\nfrom rl4dialog import RewardFunctionRegistry\n"
    (tmp_path / "mine.py").write_text(f"{imports}@RewardFunctionRegistry.register('bad')\n{code}\n", encoding="utf-8")
    return make_config(tmp_path, **{"imports": ["./mine.py"], "reward_fn": {"id": "bad"}, **overrides})


@pytest.mark.parametrize(("vec_env", "name"), [("dummy", "raises"), ("dummy", "batch none"), ("blocks", "raises")])
def test_reward_that_fails_names_itself_the_cause_and_the_sample(tmp_path, refused, name, vec_env):
    code, words = REWARDS[name]
    unscored = {**SHORT, "train_evaluation__score_predictions": False}
    config = with_reward(tmp_path, code, env__vec_env=vec_env, **unscored)
    refused(train(tmp_path, config), "'bad'", *words)
    assert (run_folder(tmp_path) / "test_split_metrics.jsonl").is_file(), "what was measured before is kept"


def test_reward_that_fails_ends_the_run_at_the_first_evaluation(tmp_path, refused):
    code, words = REWARDS["batch none"]
    refused(train(tmp_path, with_reward(tmp_path, code, **SHORT)), "'bad'", *words)
    for name in ("test_split_metrics.jsonl", "rollout_info.jsonl"):
        assert not (run_folder(tmp_path) / name).exists()


FAILS_LATER = """
def bad(prompt_texts, gen_texts, ref_texts, dones, meta_infos=None, seen=[]):
    if len(gen_texts) == 6:  # the samples of an evaluation
        seen.append(1)
        if len(seen) > {n} and not os.path.exists({mended!r}):
            raise ConnectionError('no judge')
    return [1.0] * len(gen_texts)
"""


@pytest.mark.parametrize(("n", "iteration"), [(2, 1), (3, 2)], ids=["between", "last"])
def test_reward_that_fails_in_a_later_evaluation_loses_nothing(tmp_path, refused, n, iteration):
    config = with_reward(tmp_path, FAILS_LATER.format(n=n, mended=str(tmp_path / "mended")))
    refused(train(tmp_path, config), "no judge", f"after iteration {iteration}", "--resume")
    folder = run_folder(tmp_path)
    assert (folder / "model" / "model.safetensors").is_file()
    measured = lines(folder / "val_split_metrics.jsonl")[-1]
    assert measured["epoch"] == iteration and "lexical/rouge_rouge1" in measured["metrics"]
    (tmp_path / "mended").touch()
    assert train(tmp_path, config, "--resume") == 0
    assert [line["iteration"] for line in lines(folder / "rollout_info.jsonl")] == [1, 2]


# An answer that is never fetched: what waits inside swallows every Exception.
HANGS = (
    OF_ONE
    + """
    while True:
        try:
            time.sleep(600)
        except Exception:
            pass
"""
)


@pytest.mark.parametrize("vec_env", ["dummy", "blocks"])
def test_reward_that_never_returns_ends_the_run(tmp_path, refused, vec_env):
    config = with_reward(tmp_path, HANGS, env__vec_env=vec_env, **SHORT)
    config["reward_fn"]["timeout_s"] = 0.5
    config["train_evaluation"]["score_predictions"] = vec_env == "dummy"  # in the first evaluation
    refused(train(tmp_path, config), "reward 'bad'", "sample", "after 0.5 s", "reward_fn.timeout_s")
    if vec_env == "blocks":
        assert any((run_folder(tmp_path) / "checkpoints").iterdir()), "what was saved is kept"


def test_worker_that_dies_ends_the_run(tmp_path, refused):
    unscored = {**SHORT, "train_evaluation__score_predictions": False}
    config = with_reward(tmp_path, OF_ONE + "os._exit(7)", env__vec_env="subproc", env__n_envs=1, **unscored)
    refused(train(tmp_path, config), "process", "environment 0", "exit code 7", "same command continues")
    assert any((run_folder(tmp_path) / "checkpoints").iterdir())


# -- partners ---------------------------------------------------------------------------------------------------------

FAILING_PARTNER = """
from rl4dialog.catalog import PartnerRegistry
from rl4dialog.core.protocols import Partner

@PartnerRegistry.register("ill")
class Ill(Partner):
    def __init__(self, every: int = 1) -> None:
        self.every = every

    def reset(self, meta_info, seed):
        self.is_ill = seed % self.every == 0

    def reply(self, history):
        if self.is_ill:
            raise OSError("the line is dead")
        return "i see ."
"""


def failing_partner(tmp_path, every, **overrides):
    """A run whose partner fails in one of so many conversations, and with a healthy one for evaluations."""
    (tmp_path / "mine.py").write_text(FAILING_PARTNER, encoding="utf-8")
    settings = {
        **talking({"id": "ill", "args": {"every": every}}, max_turns=2),
        **{**SHORT, "imports": ["./mine.py"], "train_evaluation__partner": RULES},
        "train_evaluation__metrics": [{"id": "conversation"}],
    }
    return make_config(tmp_path, **settings, **overrides)


def test_partner_that_fails_ends_the_run(tmp_path, refused):
    refused(train(tmp_path, failing_partner(tmp_path, 1)), "'Ill' failed on sample", "OSError: the line is dead")


def test_partner_that_fails_at_times_is_left_out_and_counted(tmp_path):
    workers = {"env__vec_env": "blocks", "env__n_workers": 2}
    settings = {"env__args__partner_on_error": "mask", "alg__args__n_steps": 60, **workers}
    config = failing_partner(tmp_path, 4, **settings)
    config["train_evaluation"]["partner"] = config["env"]["args"]["partner"]  # evaluations, too
    assert train(tmp_path, config) == 0
    (rollout,) = [line for line in lines(run_folder(tmp_path) / "rollout_info.jsonl") if "rollout/turns" in line]
    assert 0 < rollout["rollout/partner_failed"] < 1 and rollout["rollout/masked_rewards"] > 0
    assert "the partner failed in " in (run_folder(tmp_path) / "log.txt").read_text(encoding="utf-8")


# -- the machine ------------------------------------------------------------------------------------------------------


def test_complete_run_is_left_alone_by_the_same_command_and_by_another_config(tmp_path, capsys, caplog, refused):
    config = make_config(tmp_path, train_evaluation__n_iters=0)
    assert train(tmp_path, config) == 0
    before = times_of_files(tmp_path)
    first = capsys.readouterr().out
    assert train(tmp_path, config) == 0
    again = capsys.readouterr().out
    assert f"the run in {run_folder(tmp_path)} is complete" in again
    tables = [[line.split() for line in output.splitlines() if "|lexical/" in line] for output in (first, again)]
    assert tables[0] == tables[1] != []
    assert train(tmp_path, config, "--set", "train_evaluation.eval_every=7") == 0
    assert "is complete, so this has no effect: train_evaluation.eval_every was 1 and is now 7" in caplog.text
    words = ("seed was 0 and is now 7", "(--resume), replace it with --overwrite, or")
    refused(train(tmp_path, config, "--set", "seed=7"), *words)
    # A run that cannot start replaces nothing.
    for model, is_inside in ((str(run_folder(tmp_path) / "model"), True), ("/nope", False)):
        override = ("--overwrite", "--set", f"alg.policy.args.model_name={model}")
        message = refused(train(tmp_path, config, *override), model)
        assert ("which the new run would replace" in message) == is_inside
    assert times_of_files(tmp_path) == before


def times_of_files(tmp_path):
    return {path: path.stat().st_mtime_ns for path in run_folder(tmp_path).rglob("*")}


class _NoSpace(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("stream", [_NoSpace(), io.TextIOWrapper(io.BytesIO(), encoding="latin-1")])
def test_run_is_complete_though_nothing_can_be_printed(tmp_path, monkeypatch, stream):
    monkeypatch.setattr(sys, "stdout", stream)
    config = make_config(tmp_path, train_evaluation__n_iters=0, logging__outputs=["stdout"])
    assert (trained_run(tmp_path, config) / "result.json").is_file()


def start(tmp_path, **overrides):
    """A run that does not end by itself, once it has done an iteration."""
    config = make_config(tmp_path, **{**SHORT, "train_evaluation__n_iters": 10_000, **overrides})
    command = Command(train_arguments(tmp_path, config), tmp_path)
    command.wait_for(lambda: (run_folder(tmp_path) / "rollout_info.jsonl").is_file())
    return command


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_saves_the_run_which_then_goes_on(tmp_path, number):
    workers = {"env__vec_env": "blocks"} if number == signal.SIGINT else {}
    command = start(tmp_path, **workers)
    os.killpg(command.pid, number)
    assert command.wait(60) == cli.EXIT_INTERRUPTED
    assert "Traceback" not in command.errors
    (n_done,) = re.findall(
        rf"stopped by {number.name} after iteration (\d+); saved\. Rerun the command to continue", command.errors
    )
    n_iters = int(n_done) + 1
    config = make_config(tmp_path, **{**SHORT, **workers, "train_evaluation__n_iters": n_iters})
    assert train(tmp_path, config, "--resume", "auto") == 0
    done = [line["iteration"] for line in lines(run_folder(tmp_path) / "training_info.jsonl")]
    assert done == [*range(1, n_iters + 1)]
