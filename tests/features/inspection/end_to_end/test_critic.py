"""The critic of complete runs: the command, its files and the report."""

import copy
import json

import pytest
from guessing import GAME
from runs import make_config, module_run, run_folder, trained_run

from rl4dialog import cli
from rl4dialog.inference.loading import load_run, read_run_config
from rl4dialog.policies.base import LMActorCriticPolicy
from rl4dialog.runs.report.pages import write_report

run = module_run(lambda folder: make_config(folder, **GAME))


def measured(run, *flags):
    sizes = ["--n_states", "12", "--n_continuations", "2", "--n_ordered", "3"]
    code = cli.main(["critic", "--run", str(run), *sizes, *flags])
    return code, json.loads((run / "critic.json").read_text(encoding="utf-8")) if code == 0 else None


def test_command_writes_prints_and_reports_what_it_measured(run, capsys):
    code, found = measured(run)
    assert code == 0 and (run / "critic.png").read_bytes().startswith(b"\x89PNG")
    about = [found[name] for name in ("checkpoint", "split", "seed", "n_states", "n_continuations")]
    assert about == ["iteration_000002", "val", 0, 12, 2]
    assert len(found["bins"]) == 6 and "explained_variance/turn_3" in found["metrics"]
    printed = capsys.readouterr().out
    assert "explained_variance/turn_3" in printed and "values are of normalized rewards or include" in printed
    assert measured(run)[1] == found and measured(run, "--seed", "1")[1] != found
    page = write_report(run).read_text(encoding="utf-8").replace("<wbr>", "")
    assert '<section id="critic">' in page and "explained_variance/turn_3" in page
    (run / "critic.json").unlink()
    assert '<section id="critic">' not in write_report(run).read_text(encoding="utf-8")


def test_critic_that_reads_the_secret_is_measured_with_it(tmp_path):
    of_critic = {"alg__policy__args__critic": "separate", "alg__policy__args__critic_reads": "secret"}
    config = make_config(tmp_path, **copy.deepcopy(GAME), **of_critic, train_evaluation__value_rank_states=12)
    own = trained_run(tmp_path, config)
    code, found = measured(own)
    assert code == 0 and found["notes"]
    # All conversations begin with the same prompt, so only the secret tells their first states apart.
    assert len({state["value"] for state in found["states"] if state["turn"] == 1}) > 1


def test_single_replies_are_measured_within_them(tmp_path, capsys):
    config = make_config(tmp_path, train_evaluation__n_iters=1, reward_fn={"id": "chrf"})
    code, found = measured(trained_run(tmp_path, config), "--split", "train")
    assert code == 0 and found["n_states"] == 12 and found["metrics"]["reliability"] is not None
    assert not [key for key in found["metrics"] if "turn" in key or key == "order"]


def test_values_of_logged_conversations_are_those_of_their_beginnings(tmp_path, capsys, monkeypatch):
    lengths = {"env__args__max_turns": 8, "env__args__max_episode_length": 20, "env__args__max_prompt_length": 200}
    talks = {"datapool__args__samples": "dialogues", "env__args__partner": {"id": "replay"}}
    config = make_config(tmp_path, **lengths, **talks, train_evaluation__n_iters=1, reward_fn={"id": "chrf"})
    own = trained_run(tmp_path, config)
    read, values_of = {}, LMActorCriticPolicy.predict_sequence_values

    def noting(policy, replies):
        values = values_of(policy, replies)
        for row, value in zip(replies.rows(), values[:, 0].tolist(), strict=True):
            read["".join(run.tokenizer.decode(row.prompt).split())] = value
        return values

    run = load_run(read_run_config(own), own)
    monkeypatch.setattr(LMActorCriticPolicy, "predict_sequence_values", noting)
    assert cli.main(["critic", "--run", str(own), "--logged", "--split", "train"]) == 0
    found = json.loads((own / "critic_logged.json").read_text(encoding="utf-8"))
    assert (own / "critic_logged.png").exists() and "auc_within_turns" in capsys.readouterr().out
    samples = run.data.samples("train")
    by_id = {str(sample.id): sample for sample in samples}
    assert {str(state["id"]) for state in found["states"]} == by_id.keys()
    for state in found["states"]:
        sample = by_id[str(state["id"])]
        said = [*sample.references[:1], *sample.meta_data["continuation"]][: 2 * (state["turn"] - 1)]
        begun = sample.prompt_or_input_text + "".join(f"{text}<EOU>" for text in said)
        assert state["value"] == pytest.approx(read["".join(begun.split())])
        assert state["return"] > 0.2, "what was said is the reference"
    assert cli.main(["critic", "--run", str(own), "--logged", "--success", "won"]) == 2
    assert "no outcome 'won'" in capsys.readouterr().err
    assert cli.main(["critic", "--run", str(own), "--success", "won"]) == 2
    assert cli.main(["critic", "--run", str(own), "--logged", "--n_states", "20"]) == 2
    assert "--n_states is only without --logged" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"alg__id": "rloo", "alg__args__n_generations": 2}, "rloo, has no critic"),
        ({"env__args__partner": {"id": "replay"}, "env__args__max_turns": 2}, "'replay' cannot be repeated"),
    ],
)
def test_runs_that_cannot_be_measured_are_refused(tmp_path, changes, message, capsys):
    pool = {"datapool__args__samples": "dialogues"} if "env__args__partner" in changes else {}
    config = make_config(tmp_path, **changes, **pool, train_evaluation__n_iters=1)
    code, _ = measured(trained_run(tmp_path, config))
    assert code == 2 and message in capsys.readouterr().err
    assert not (run_folder(tmp_path) / "critic.json").exists()
