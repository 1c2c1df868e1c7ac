"""A custom policy whose critic has a hidden layer between the last hidden states and the value."""

from torch import nn

from rl4dialog import PolicyRegistry
from rl4dialog.policies.causal import CausalLMActorCriticPolicy


@PolicyRegistry.register("deep_critic_policy")
class DeepCriticPolicy(CausalLMActorCriticPolicy):
    """A decoder-only policy with a two-layer critic."""

    def __init__(self, *args, hidden_size=64, **kwargs):
        self.hidden_size = hidden_size
        super().__init__(*args, **kwargs)

    def _build_models(self, model):
        super()._build_models(model)
        if self._value_head is None:  # critic: none
            return
        value = nn.Linear(self.hidden_size, 1)
        nn.init.zeros_(value.weight)  # values start at 0, so the first advantages are plain returns
        nn.init.zeros_(value.bias)
        states = model.config.get_text_config().hidden_size
        self._value_head.output = nn.Sequential(nn.Linear(states, self.hidden_size), nn.Tanh(), value)
