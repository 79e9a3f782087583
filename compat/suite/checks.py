"""What scenarios of every suite say: what is compared, what is waited for, and what a library cannot do."""

import time

WAIT_SECONDS = 30


class Skip(Exception):
    """The library has no way to do this."""


def skip(why):
    raise Skip(why)


def fail(why):
    raise AssertionError(why)


def same(found, expected, what="it"):
    if found != expected:
        fail(f"{what} is {short(found)}, not {short(expected)}")


def short(value):
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}.. ({len(text)} characters)"


def until(what, holds, seconds=WAIT_SECONDS):
    """Asks again and again, and returns the first answer that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := holds():
            return answer
        time.sleep(0.02)
    fail(f"not within {seconds} s: {what}")
