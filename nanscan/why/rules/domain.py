"""NS1xx: a function asked outside its domain, or at a pole."""

from __future__ import annotations

from nanscan.why.rule import Evidence, Rule
from nanscan.why.situation import Situation
from nanscan.why.words import got

LOGS = frozenset({"log", "log2", "log10"})


def _log_of_zero(s: Situation) -> Evidence | None:
    if not s.in_node and s.inf and (x := s.arg("self")) and (seen := got(x, "zero")):
        return (f"{s.name} was given {seen}, and {s.name}(0) is -Inf",)
    return None


RULES = (
    Rule(
        id="NS101",
        cause="log of zero",
        ops=LOGS,
        when=_log_of_zero,
        why="log(0) is -Inf. A probability, a distance or a sum of counts that rounds to exactly 0 is enough; the Inf "
        "turns into NaN as soon as it is multiplied by 0 or subtracted from another one.",
        remedy="torch.log(x.clamp_min(torch.finfo(x.dtype).tiny)), or log_softmax instead of log(softmax)",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    p = torch.tensor([0.2, 0.8, 0.0])
    entropy = -torch.log(p).sum()
    nanscan.check(entropy, "entropy")
print(scanner.report())
""",
    ),
)
