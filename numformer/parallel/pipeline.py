"""A model cut into stages, one a rank, through which micro-batches follow each other."""

from numformer.errors import InputError

Order = list[tuple[str, int]]  # ("forward", m) and ("backward", m), m the number of a micro-batch


def one_forward_one_backward(stages: int, micro_batches: int) -> list[Order]:
    """The order of forwards and backwards in each stage, with at most `stages` at once on the way.

    PipeDream-flush (Narayanan et al. 2021, section 2.2.1): stage s begins with the forwards that
    keep the stages behind it at work, P - 1 - s of them; then one forward and one backward take
    turns; then come the backwards that are left. So stage s keeps what P - s forwards saved, and
    not what all M did.
    """
    _require(stages, micro_batches)
    return [
        _order(min(stages - 1 - stage, micro_batches), micro_batches) for stage in range(stages)
    ]


def _order(ahead: int, micro_batches: int) -> Order:
    order: Order = [("forward", m) for m in range(ahead)]
    for m in range(micro_batches - ahead):
        order += [("forward", ahead + m), ("backward", m)]
    return order + [("backward", m) for m in range(micro_batches - ahead, micro_batches)]


def all_forward_all_backward(stages: int, micro_batches: int) -> list[Order]:
    """The order of GPipe (Huang et al. 2019, figure 2c): all forwards, then all backwards.

    The backwards begin with the latest micro-batch. Each stage keeps what all forwards saved.
    """
    _require(stages, micro_batches)
    forwards: Order = [("forward", m) for m in range(micro_batches)]
    backwards: Order = [("backward", m) for m in reversed(range(micro_batches))]
    return [forwards + backwards for _ in range(stages)]


def bubble(stages: int, micro_batches: int) -> float:
    """The share of a step in which a stage waits, with either order: (P - 1) / (M + P - 1).

    The first micro-batch reaches the last stage after P - 1 forwards, and as long passes at the end
    (Huang et al. 2019, section 2.3).
    """
    _require(stages, micro_batches)
    return (stages - 1) / (micro_batches + stages - 1)


def _require(stages: int, micro_batches: int) -> None:
    if stages < 1 or micro_batches < 1:
        raise InputError(
            "a pipeline has stages and micro-batches",
            f"{stages} stages, {micro_batches} micro-batches",
            "Give at least one of each.",
        )
