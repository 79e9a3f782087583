"""Loop of a driver in Python. drivers.py describes the format of its lines."""

import json
import os
import sys


class Missing(Exception):
    """Reports that the library has no such call."""


def main(name, version, call):
    """Runs a driver. `call` takes a name and its values, and returns the result. Its errors may have `names`."""
    # Output of the library must not mix with the answers.
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answers.write(json.dumps({"name": name, "version": version}) + "\n")
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": call(request["call"], request["with"])}
        except Missing as why:
            answer = {"missing": str(why)}
        except Exception as error:
            names = [*getattr(error, "names", []), type(error).__name__]
            answer = {"error": {"names": names, "message": str(error)}}
        answers.write(json.dumps(answer) + "\n")
