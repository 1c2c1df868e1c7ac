"""The commands of ``rl4dialog``, one module each, with a help text, the arguments and a ``run`` function."""
