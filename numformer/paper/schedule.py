"""The learning rate of the paper (section 5.3)."""


def warmup_rate(step: int, d_model: int, warmup: int = 4000, factor: float = 1.0) -> float:
    """The learning rate of a step, counted from 1   (section 5.3, equation 3).

    rate = factor * d_model^-0.5 * min(step^-0.5, step * warmup^-1.5): it rises linearly for
    `warmup` steps and then falls with the square root of the step.
    """
    return factor * d_model**-0.5 * min(step**-0.5, step * warmup**-1.5)
