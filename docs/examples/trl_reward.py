"""An unchanged TRL reward function, wrapped in a batched reward."""

from rl4dialog import BatchedRewardFunction, RewardFunctionRegistry


def reward_of_trl(prompts, completions, **kwargs):
    """The TRL reward function: lists of prompts and completions, and dataset columns by name."""
    return [float(name in completion) for name, completion in zip(kwargs["name"], completions, strict=True)]


@RewardFunctionRegistry.register("trl")
class TRLReward(BatchedRewardFunction):
    """Calls the function with the prompts, replies and metadata of a batch."""

    def __call__(self, prompt_texts, gen_texts, ref_texts, dones, meta_infos=None):
        columns = {key: [info[key] for info in meta_infos] for key in meta_infos[0]}
        return reward_of_trl(prompts=prompt_texts, completions=gen_texts, **columns)
