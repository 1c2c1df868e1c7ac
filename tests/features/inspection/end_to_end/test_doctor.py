"""``rl4dialog doctor`` from the command line."""

from runs import make_config, write_config

from rl4dialog import cli
from rl4dialog.features.inspection.examination import CHECKS

NAN = '''
from rl4dialog import RewardFunctionRegistry

@RewardFunctionRegistry.register("nan")
def nan(prompt_text, gen_text, ref_texts, meta_info):
    """Pays what is no number."""
    return float("nan")
'''


def test_healthy_run_exits_with_0(tmp_path, capsys):
    config = write_config(tmp_path, make_config(tmp_path))
    assert cli.main(["doctor", "--config_path", str(config), "--set", "alg.args.n_epochs=2"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in CHECKS) and "fail" not in out
    assert out.endswith(f"\nNext: rl4dialog train --config_path {config} --set alg.args.n_epochs=2\n")


def test_quick_examination_names_the_command_of_the_training(tmp_path, capsys):
    config = write_config(tmp_path, make_config(tmp_path))
    assert cli.main(["doctor", "--quick", "--config_path", str(config), "--all"]) == 0
    out = capsys.readouterr().out
    assert "it needs the model," in out and "fail" not in out
    assert out.endswith(f"\nNext: rl4dialog train --config_path {config}\n")


def test_sick_run_exits_with_1_and_without_a_traceback(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(NAN)
    config = write_config(tmp_path, make_config(tmp_path, imports=["./mine.py"], reward_fn={"id": "nan"}))
    assert cli.main(["doctor", "--config_path", str(config)]) == 1
    captured = capsys.readouterr()
    assert "1 fail" in captured.out and "reward 'nan'" in " ".join(captured.out.split())
    assert "Traceback" not in captured.out + captured.err
