"""The commands of ``rl4dialog``, a module each: its ``HELP``, its arguments, and what it calls."""
