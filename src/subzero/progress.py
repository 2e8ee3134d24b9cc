"""What long work tells: what is done, at what rate, how long is left. Plain lines, since they also go to logs."""

import sys
import time


class Progress:
    """Counts units of work and prints a line every few seconds and one at the end.

    Args:
        what: the work, as a user would name it.
        total: how many units there are.
        unit: what is counted, in the plural.
        every: seconds between lines.
    """

    def __init__(self, what: str, total: int, unit: str, every: float = 5.0, stream=None):
        self.what, self.total, self.unit, self.every = what, total, unit, every
        self.stream = stream or sys.stderr
        self.count, self.start = 0, time.monotonic()
        self.last = self.start

    def advance(self, count: int) -> None:
        self.count += count
        now = time.monotonic()
        if now - self.last >= self.every or self.count >= self.total:
            self.last = now
            seconds = max(now - self.start, 1e-9)
            rate = self.count / seconds
            if self.count >= self.total:
                tail = f"done in {duration(seconds)}"
            else:
                tail = f"{duration((self.total - self.count) / rate)} left"
            print(
                f"{self.what}: {self.count:,} of {self.total:,} {self.unit}, {rate:,.0f} {self.unit}/s, {tail}",
                file=self.stream,
                flush=True,
            )


def duration(seconds: float) -> str:
    """'8 s', '3 min 20 s' or '2 h 5 min'."""
    seconds = round(seconds)
    if seconds < 60:
        return f"{seconds} s"
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60} s"
    return f"{seconds // 3600} h {seconds % 3600 // 60} min"
