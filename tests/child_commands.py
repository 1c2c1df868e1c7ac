"""Commands that an experiment would start, done in this process."""

from rl4dialog.training import own_process


class FakeProcess:
    """A command that has ended at its second poll, or once it is terminated."""

    def __init__(self, code, polls=2):
        self.code, self.polls = code, polls

    def poll(self):
        self.polls -= 1
        return None if self.polls > 0 else self.code

    def terminate(self):
        self.code, self.polls = 75, 0

    kill = terminate

    def wait(self):
        return self.code


def replace_commands(monkeypatch, start):
    """Start something else in place of commands, given their arguments and output; returns the list of the former."""
    commands = []

    def start_command(arguments, output=None, **others):
        commands.append(arguments)
        return start(arguments, output)

    monkeypatch.setattr(own_process, "start_command", start_command)
    monkeypatch.setattr(own_process, "_POLL_S", 0.001)
    return commands
