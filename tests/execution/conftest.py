import pytest

from numformer.execution.ranks import Threads


@pytest.fixture
def answers(monkeypatch):
    """Messages of threads take a while: for each, whether it had left each time this was asked."""
    messages, send = [], Threads.send

    def slow_send(self, array, to, tag=0):
        done = send(self, array, to, tag)
        messages.append([])
        return delayed(done, messages[-1])

    monkeypatch.setattr(Threads, "send", slow_send)
    return messages


def delayed(done, answers: list):
    """Return a function that is false twice, then `done`, and that has its `answers`."""

    def ask() -> bool:
        answers.append(len(answers) > 1 and done())
        return answers[-1]

    ask.answers = answers
    return ask
