from __future__ import annotations

import typing
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pytest
import stable_baselines3
from feature_rows import rows_of_features
from pydantic import Field
from typing_extensions import TypedDict, Unpack

from rl4dialog import catalog
from rl4dialog.core.arguments import Count, Fraction, Positive, adapter_of, check_values, parameters_of
from rl4dialog.core.errors import ConfigError
from rl4dialog.core.registry import Registry
from rl4dialog.core.yaml_loader import apply_overrides

if TYPE_CHECKING:
    from somewhere import Unknown


def component(
    flag: bool = False,
    size: Count = 1,
    scale: Positive = 1.0,
    share: Fraction = 0.0,
    free: Annotated[float, Field(allow_inf_nan=True)] = 0.0,
    name: str = "",
    mode: Literal["max", "min"] = "max",
    pair: tuple[int, int] = (0, 0),
    weights: dict[str, float] | None = None,
    sloppy: int = None,  # type: ignore[assignment]  # noqa: RUF013
    either: float | str = 0.0,
    schedule: Positive | typing.Callable[[float], float] = 1.0,
    unknown: Unknown | None = None,
    own: ConfigError | None = None,
    bare=None,  # type: ignore[no-untyped-def]
) -> None:
    """Has arguments of many types."""


def problem(**args: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        check_values(parameters_of(component), args, "alg.args.")
    return str(caught.value)


@pytest.mark.parametrize("value", ["no", "off", "maybe", "true", 0, 1, 1.0, [], {}])
def test_what_is_no_boolean_is_refused(value: Any) -> None:
    assert problem(flag=value) == f"alg.args.flag: input should be a valid boolean, got {value!r}"


@pytest.mark.parametrize("value", [True, "1", "auto", 1.0, 0, -3, float("nan"), float("inf"), None, [1]])
def test_what_is_no_count_is_refused(value: Any) -> None:
    assert problem(size=value).startswith("alg.args.size: input should be")


@pytest.mark.parametrize("value", [True, "1", -1, 0, float("nan"), float("inf"), -float("inf"), None])
def test_what_is_no_finite_positive_number_is_refused(value: Any) -> None:
    assert problem(scale=value).startswith("alg.args.scale: input should be")


def test_messages_name_all_problems_with_their_path() -> None:
    assert problem(share=2, weights={"a": 1, "b": "much"}) == (
        "alg.args.share: input should be less than or equal to 1, got 2; "
        "alg.args.weights.b: input should be a valid number, got 'much'"
    )
    assert problem(either=[1]) == "alg.args.either: input should be a valid number or a valid string, got [1]"
    assert problem(mode="maxx").endswith("input should be 'max' or 'min', got 'maxx'; did you mean 'max'?")
    assert problem(schedule="half") == "alg.args.schedule: input should be a valid number, got 'half'"


def test_values_that_fit_are_let_through() -> None:
    fitting = {
        **{"flag": True, "size": 3, "scale": 2, "share": 1, "free": float("inf"), "name": "x", "mode": "min"},
        **{"pair": [1, 2], "weights": {"a": 1}, "either": "x", "sloppy": None, "schedule": lambda _: 1.0},
    }
    check_values(parameters_of(component), fitting, "")


@pytest.mark.parametrize("name", ["unknown", "own", "bare", "not_there"])
def test_parameter_of_an_unknown_type_takes_anything(name: str) -> None:
    check_values(parameters_of(component), {name: object()}, "")


class Narrow(TypedDict, total=False):
    rate: Positive
    elsewhere: Positive


class Loose:
    def __init__(self, rate: float = 1.0, other: int = 1) -> None: ...


class Middle:
    def __init__(self, *args: Any, **kwargs: Unpack[Narrow]) -> None: ...


def test_arguments_of_parents_and_of_our_algorithms_have_bounds() -> None:
    parameters = parameters_of(type("Both", (Middle, Loose), {}))
    assert set(parameters) == {"rate", "other"}
    with pytest.raises(ConfigError, match="rate: input should be greater than 0"):
        check_values(parameters, {"rate": -1.0}, "")
    catalog.AlgorithmRegistry.add("mine", MyAlgorithm)
    catalog.AlgorithmRegistry.check("mine", {"ent_coef": 0.5, "mine": -1, "credit": "turn"})
    for args in ({"ent_coef": "auto"}, {"max_grad_norm": -1}, {"mine": "x"}, {"credit": "word"}):
        with pytest.raises(ConfigError, match=rf"alg\.args\.{next(iter(args))}: input should be"):
            catalog.AlgorithmRegistry.check("mine", args, "alg.args")


class MyAlgorithm(stable_baselines3.PPO):
    def __init__(self, *args: Any, ent_coef: float = 0.1, mine: int = 1, **kwargs: Any) -> None: ...


REGISTRIES = [value for value in vars(catalog).values() if isinstance(value, Registry)]


@pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.kind)
def test_every_argument_of_the_catalog_has_a_type(registry: Registry) -> None:
    untyped = [
        f"{id}: {parameter}"
        for id in registry.ids()
        for name, parameter in parameters_of(registry._factory(registry.resolve(id))).items()
        if name not in registry.provided and adapter_of(parameter.annotation) is None
    ]
    assert not untyped


# Of each component one value that its constructor would take for something else, or fail at.
WRONG = """
algorithm ppo: ent_coef=auto normalize_advantage=no split_by_length=off use_sde=true max_grad_norm=-1 max_grad_norm=0
algorithm ppo: max_grad_norm=.nan vf_coef=half vf_coef=.inf clip_range=-0.2 clip_range_vf=0 target_kl=-1 n_steps=many
algorithm ppo: stats_window_size=0 learning_rate=fast learning_rate=-1e-5 n_steps=0 micro_batch_size=0 gamma=1.5
algorithm ppo: gae_lambda=-0.01 gae_lambda=null device=cuda:99 device=gpu
algorithm a2c: use_rms_prop=maybe
algorithm trpo: target_kl=null sub_sampling_factor=0
algorithm grpo: kl_in=both
algorithm rloo: n_generations=1 kl_estimator=k4
policy causal_lm_actor_critic_policy: critic=both weight_decay=-1 share_prompts=no
policy maskable_causal_lm_actor_critic_policy: top_mask=0 mask_type=learned_topp
policy maskable_seq2seq_lm_actor_critic_policy: min_tokens_to_keep=0 target_update_iterations=0
reward function length_penalty: per_word=x max_length=2.5
reward function missing_eos_penalty: penalty=x
reward function repetition_penalty: n=0
reward function learned_reward: baseline=references baseline=true
reward function rouge: shaping=every_tokn use_single_ref=no
reward function regex: pattern=3
reward function composite: rewards={}
metric causal_perplexity: stride=0 model_type=t5
metric diversity: window_size="100"
metric reply_perplexity: splits=[]
metric self_bleu: max_ngram_order=0
metric learned_reward: output=logits
metric meteor: synonyms=off
datapool conversational: turns=al held_out_share=0.5
datapool daily_dialog: context_size=2.0 format=eos max_size=true
datapool dummy_pool: n_samples=0
datapool jsonl: path=3
datapool random_numbers: largest=0
datapool small_talk: n_val=-1
callback early_stopping: patience=0
callback every_n_iterations: n=1.5 callback=3
callback save_best_model: mode=most
callback stop_on_reward_threshold: threshold=.nan metric=""
"""


@pytest.mark.parametrize("line", [*WRONG.strip().splitlines(), *rows_of_features("WRONG_ARGUMENTS")])
def test_wrong_value_is_refused_with_its_path(line: str) -> None:
    (kind, id), settings = line.partition(":")[0].rsplit(" ", 1), line.partition(": ")[2].split(" ")
    registry = next(registry for registry in REGISTRIES if registry.kind == kind)
    for setting in settings:
        args = apply_overrides({}, [setting])
        with pytest.raises(ConfigError, match=rf"^here\.args\.{next(iter(args))}: "):
            registry.check(id, args, "here.args")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"end": 1e-5}, r"alg\.args\.learning_rate: the key 'start' is missing, got \{'end': 1e-05\}$"),
        ({"start": 1e-4, "warm": 0.1}, r"learning_rate\.warm: unknown key; did you mean 'warmup'\? \(known here:"),
    ],
)
def test_keys_of_a_block_are_named(value: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        catalog.AlgorithmRegistry.check("ppo", {"learning_rate": value}, "alg.args")
