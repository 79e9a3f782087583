"""Assertions and waits for the scenarios of every suite."""

import time

WAIT_SECONDS = 30


class Skip(Exception):
    """Ends a scenario that the library does not support."""


def skip(why):
    raise Skip(why)


def fail(why):
    raise AssertionError(why)


def same(found, expected, what="the value"):
    if found != expected:
        fail(f"{what} is {short(found)}, not {short(expected)}")


def short(value):
    text = repr(value)
    return text if len(text) <= 300 else f"{text[:200]}.. ({len(text)} characters)"


def until(what, holds, seconds=WAIT_SECONDS):
    """Calls `holds` until its result is true, and returns that result. Fails after `seconds`."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if answer := holds():
            return answer
        time.sleep(0.02)
    fail(f"not within {seconds} s: {what}")
