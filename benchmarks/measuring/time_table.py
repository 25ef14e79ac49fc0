"""A table of durations of equal work, done in turns by ours and by the programs that others run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

QUANTILES = (0.1, 0.5, 0.99)


def show_times(what: str, seconds: Mapping[str, Sequence[float]], programs: str = "programs") -> None:
    """Print quantiles in milliseconds, and how much cheaper than the programs each is.

    The fastest tenth is what a busy machine changes least.
    """
    print(f"{what}: p10, p50 and p99 in milliseconds; times cheaper than the {programs} at p10 and p50")
    theirs = [_quantile(seconds[programs], share) for share in QUANTILES]
    for name, each in seconds.items():
        ours = [_quantile(each, share) for share in QUANTILES]
        figures = " ".join(f"{value * 1e3:8.2f}" for value in ours)
        cheaper = " ".join(f"{other / own:6.1f}" for own, other in zip(ours[:2], theirs[:2], strict=True))
        print(f"  {name:<20} {figures}   {1 / ours[1]:6.0f} a second   {cheaper}")


def _quantile(seconds: Sequence[float], share: float) -> float:
    return sorted(seconds)[min(len(seconds) - 1, int(len(seconds) * share))]
