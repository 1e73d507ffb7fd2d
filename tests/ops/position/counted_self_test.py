"""Stands for the self-test where kernels do not matter: counts its runs in the file given, and lets all pass."""

import json
import sys

if __name__ == "__main__":
    runs, _, _, dtype, *kernels = sys.argv[1:]
    with open(runs, "a") as file:  # noqa: PTH123 - one write of a line, which other processes do not tear
        file.write(f"{dtype}\n")
    print("what a library prints is no event")
    print(json.dumps({"event": "ready"}))
    for kernel in kernels:
        print(json.dumps({"event": "start", "kernel": kernel}))
        found = {"reason": "", "error": 1e-7, "allowed": 1e-5, "seconds": 0.1}
        print(json.dumps({"event": "verdict", "kernel": kernel, **found}), flush=True)
