"""Bounds ε from below by one run, for any mechanism that has the trade-off curve of Laplace noise.

The method is that of S. Mahloujifar, L. Melis and K. Chaudhuri, "Auditing f-Differential Privacy in One Run" (ICML
2025, arXiv:2410.22235). It also holds if the noise of canaries is dependent. Clients draw it independently, which
`pausefl_audit.findings.multiple_of_claims` uses. That bound is at least as tight, so audits report it
(`python -m benchmarks.own power` compares both).
"""

import math

from pausefl_audit.findings import Guesses, greatest_rejected


def epsilon_by_trade_off(guesses: Guesses, alpha: float) -> float:
    """A lower bound on the ε of releases. It is too high with probability at most `alpha`."""
    return greatest_rejected(lambda epsilon: are_too_many(guesses, epsilon, alpha))


def are_too_many(guesses: Guesses, epsilon: float, alpha: float) -> bool:
    """Whether no mechanism with Laplace's curve has that many right guesses, or more, with probability `alpha`.

    Of m canaries, c′ are guessed, and exactly j guesses are right with probability p_j. The paper's recursion follows
    from its inequality, for each i and with f̄ = 1 − f: Σ_{j≥i} (j/m) p_j ≤ f̄(Σ_{j≥i−1} ((c′−j)/m) p_j). It starts from
    the tail, with all of `alpha` at its beginning, and keeps both sums minimal. Their total is at most c′/m.
    """
    right, made, canaries = guesses.right, guesses.made, guesses.canaries
    hits, misses = alpha * right / canaries, alpha * (made - right) / canaries
    for i in reversed(range(right)):
        least = max(misses, laplace_least(hits, epsilon))
        hits, misses = hits + i / (made - i) * (least - misses), least
        if hits + misses > made / canaries:
            return True
    return False


def laplace_least(probability: float, epsilon: float) -> float:
    """The least probability, in one world, of an event that has `probability` in the other: the inverse of 1 − f.

    f is the trade-off curve of two Laplace laws that are ε scales apart (J. Dong, A. Roth and W. Su, "Gaussian
    Differential Privacy", 2022): f(a) = 1 − e^ε a up to a = e^(−ε)/2, e^(−ε)/(4a) up to a = 1/2, then e^(−ε)(1 − a).
    """
    ratio = math.exp(-epsilon)
    if probability <= 1 / 2:
        return probability * ratio
    if probability <= 1 - ratio / 2:
        return ratio / (4 * (1 - probability))
    return max(0.0, 1 - (1 - probability) / ratio)
