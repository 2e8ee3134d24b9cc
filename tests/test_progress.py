import io

import pytest

from subzero.progress import Progress, duration


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.4, "59 s"), (60, "1 min 0 s"), (200, "3 min 20 s"), (7500, "2 h 5 min")]
)
def test_durations(seconds, text):
    assert duration(seconds) == text


def test_lines_say_what_is_done_the_rate_and_the_time_left(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("subzero.progress.time.monotonic", lambda: now[0])
    stream = io.StringIO()
    progress = Progress("extraction", 4000, "tokens", every=5, stream=stream)
    for seconds in (4, 6, 8, 16):
        now[0] = 100.0 + seconds
        progress.advance(1000)
    assert stream.getvalue().splitlines() == [
        "extraction: 2,000 of 4,000 tokens, 333 tokens/s, 6 s left",
        "extraction: 4,000 of 4,000 tokens, 250 tokens/s, done in 16 s",
    ]
