"""One look at the world for all who ask at about the same time, and never an older one than the question.

Whoever asks while a look is under way waits for the next: the one under way may have seen the world as it was before
the asker's own last act. All who wait share that next one. A look that fails is an error for the one who looked alone;
the next of those who wait tries by itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SharedAnswer(Generic[T]):
    """For threads; `look` is called in the thread of one of the askers."""

    def __init__(self, look: Callable[[], T]) -> None:
        self._look = look
        self._changed = threading.Condition()
        self._begun = 0
        self._looking = False
        self._answer: tuple[int, T] | None = None
        """With the number of the look that gave it."""

    def ask(self) -> T:
        with self._changed:
            wanted = self._begun + 1
            while True:
                if self._answer is not None and self._answer[0] >= wanted:
                    return self._answer[1]
                if not self._looking:
                    break
                self._changed.wait()
            self._looking = True
            self._begun += 1
            number = self._begun
        return self._look_now(number)

    def _look_now(self, number: int) -> T:
        try:
            answer = self._look()
            with self._changed:
                self._answer = (number, answer)
            return answer
        finally:
            with self._changed:
                self._looking = False
                self._changed.notify_all()
