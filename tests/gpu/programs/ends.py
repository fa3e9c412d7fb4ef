"""A program that ends with records still held: by close(), by the with statement, or by just ending."""

from __future__ import annotations

import sys

from late import start
from trainings import ForwardNan


def main() -> None:
    start()
    run = ForwardNan(dir=sys.argv[2])
    run.start()
    for step in range(3):
        run.at(step)
        run.optimizer.zero_grad()
        run.update(run.loss(run.net(run.batch(step)), step))
    if sys.argv[3] == "close":
        run.scanner.close()
    elif sys.argv[3] == "with":
        with run.scanner:
            pass
    elif sys.argv[3] == "fault":
        raise SystemError("the program's own")
    print("over")


if __name__ == "__main__":
    main()
