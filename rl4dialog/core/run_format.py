"""The format of run folders: its number in ``config.json`` and in checkpoints, and how earlier ones are read.

Folders that were written before there was a number have format 1. Each change of the format that a reader would notice
adds one to :data:`FORMAT`, and a step to the functions here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from rl4dialog.core.config_blocks import generation_backends
from rl4dialog.core.errors import RL4DialogError, RunFolderError
from rl4dialog.core.files import CONFIG_FILE, read_or_nothing
from rl4dialog.core.yaml_loader import load_yaml

FORMAT = 2
KEY = "format"
PROVENANCE_FILE = "provenance.json"
_GONE = ("on_worker_death", "max_restarts")
# They showed no gain; earlier versions trained with them.
_REMOVED = {
    *("alg.args.gae_horizon", "alg.args.agreement_mask", "alg.policy.args.n_critics"),
    *("alg.args.baseline: evpo", "alg.args.baseline: tether"),
    *("alg.policy.args.value_range", "alg.policy.args.value_loss", "alg.args.value_gae_lambda"),
    *(f"alg.args.n_generations of {id}" for id in ("ppo", "nlpo", "reinforce")),
}
_Value = TypeVar("_Value")


def numbered(content: Mapping[str, Any]) -> dict[str, Any]:
    """A config or state with the number of today's format, to be written."""
    return {KEY: FORMAT, **content}


def config_of(path: Path) -> dict[str, Any]:
    """Read a run's ``config.json``; see :func:`current_config`."""
    return current_config(load_yaml(path), path.parent)


def current_config(content: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The config of a run in today's form, without the number; that of a later format is refused."""
    config, number = _without_number(content, run)
    if number < 2 and isinstance(env := config.get("env"), Mapping):  # had no effect on what is trained
        config["env"] = {key: value for key, value in env.items() if key not in _GONE}
    if isinstance(generation := config.get("generation"), Mapping):
        # It was written with the keys of every backend. Those of a backend that is missing here had their defaults,
        # unless it is the run's own, which is refused by its id.
        known = {key for backend in generation_backends().values() for key in backend.model_fields}
        config["generation"] = {key: value for key, value in generation.items() if key in known}
    return config


def why_removed(id: str | None, key: str, value: Any) -> str | None:
    """Why runs with a setting of ``alg.id`` that earlier versions had are not trained; ``None`` for all others."""
    found = _REMOVED.intersection((key, f"{key}: {value}", f"{key} of {id}"))
    why = "was removed because it showed no gain (see docs/negative_results.md), so a run with it can be evaluated, but"
    return f"{found.pop()} {why} not be trained or resumed; start a new run without it" if found else None


def why_no_values(config: Mapping[str, Any]) -> str | None:
    """Why the outputs of a run's saved critic are not its values; ``None`` if they are."""
    if config["alg"]["policy"]["args"].get("value_range") is None:
        return None
    return "the run's critic had values in a range (alg.policy.args.value_range), which was removed"


def current_state(content: Mapping[str, Any], run: Path) -> dict[str, Any]:
    """The state of a checkpoint in today's form, without the number."""
    state, number = _without_number(content, run)
    if number < 2 and "trainer" in state and isinstance(state["random"], dict):  # of one process
        state["random"] = [state["random"]]
    if number < 2 and "kl_controller" in state:
        state.setdefault("baseline", {})
    return state


def current_critic(tensors: Mapping[str, _Value]) -> dict[str, _Value]:
    """The tensors of a critic of format 1 by their names of today; the caller checks which of both a policy has."""
    today = ("_value_head.trunk.", "_value_head.output.")
    return {
        key
        if key.startswith(today)
        else key.replace("_value_head.", today[1], 1).replace("_critic_trunk.", today[0], 1): value
        for key, value in tensors.items()
    }


@contextmanager
def naming_writer(run: Path) -> Iterator[None]:
    """Add to errors about a run folder which version wrote it, and so can read it, if this is known and not today's."""
    try:
        yield
    except (RL4DialogError, KeyError, RuntimeError) as error:
        config = read_or_nothing(run / CONFIG_FILE)
        number = config.get(KEY, 1) if isinstance(config, Mapping) else FORMAT
        if number == FORMAT or (writer := _writer(run)) is None:
            raise
        about = f"{run} was written by {writer} (format {number}), readable by that version"
        if isinstance(error, RL4DialogError):
            raise type(error)(f"{error}. {about}") from error
        raise RunFolderError(f"{about}; here it fails with {error!r}") from error


def _without_number(content: Mapping[str, Any], run: Path) -> tuple[dict[str, Any], int]:
    found = dict(content)
    number = found.pop(KEY, 1)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= FORMAT:
        reads = f"this version reads up to {FORMAT}; use that version, or a later one"
        raise RunFolderError(
            f"{run} was written by {_writer(run) or 'an unknown version'} (format {number!r}); {reads}"
        )
    return found, number


def _writer(run: Path) -> str | None:
    """The version that wrote a run, with its commit, as far as they are recorded."""
    record = read_or_nothing(run / PROVENANCE_FILE)
    try:
        last = [record, *record.get("resumed", [])][-1]
        commit = ((last.get("git") or {}).get("package") or {}).get("commit")
        return f"rl4dialog {last['versions']['rl4dialog']}" + (f" at commit {commit[:8]}" if commit else "")
    except (KeyError, TypeError, AttributeError):
        return None
