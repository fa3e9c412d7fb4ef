"""Evidence in numbers: how a rule says what it saw."""

from __future__ import annotations

import math
from collections.abc import Callable

from nanscan.record import DType, TensorStats
from nanscan.why.situation import Arg, Situation

NARROW = (DType.F16, DType.F8_E4M3FN, DType.F8_E5M2, DType.F8_E4M3FNUZ, DType.F8_E5M2FNUZ)


def number(x: float) -> str:
    """``0.5``, ``-1e+09``, ``inf``: six digits, and nine where six would make a whole number of it."""
    text = f"{x:.6g}"
    return text if float(text) == x or not float(text).is_integer() or abs(x) > 1e6 else f"{x:.9g}"


def zero(arg: Arg | None) -> str | None:
    """ "0", or how many zeros there are; None where there is none, or nobody knows."""
    return _met(arg, lambda at: at == 0, lambda s: s.zero > 0, lambda s: f"{s.zero} zeros among {s.numel} elements")


def negative(arg: Arg | None) -> str | None:
    """ "-0.25", or how far down the values go."""
    return below(arg, 0.0)


def below(arg: Arg | None, bound: float) -> str | None:
    """The value if it is less than `bound`, or the least of all values."""
    return _met(arg, lambda at: at < bound, lambda s: s.min < bound, lambda s: f"values down to {number(s.min)}")


def above(arg: Arg | None, bound: float) -> str | None:
    """The value if it is more than `bound`, or the largest of all values."""
    return _met(arg, lambda at: at > bound, lambda s: s.max > bound, lambda s: f"values up to {number(s.max)}")


def beyond(arg: Arg | None, bound: float) -> str | None:
    """The value if its size is more than `bound`, or the largest size of all values."""
    return _met(
        arg,
        lambda at: abs(at) > bound,
        lambda s: s.absmax > bound,
        lambda s: f"values up to {number(s.absmax)} in size",
    )


def at_size(arg: Arg | None, bound: float) -> str | None:
    """The value if its size is exactly `bound`, or the largest size if that is."""
    return _met(
        arg,
        lambda at: abs(at) == bound,
        lambda s: s.absmax == bound,
        lambda s: f"values of exactly {number(bound)} in size",
    )


def infinite(arg: Arg | None) -> str | None:
    """ "inf" or "-inf", or how many there are."""
    return _met(
        arg,
        math.isinf,
        lambda s: s.posinf + s.neginf > 0,
        lambda s: f"{s.posinf} +Inf and {s.neginf} -Inf among {s.numel} elements",
    )


def _met(
    arg: Arg | None,
    one: Callable[[float], bool],
    some: Callable[[TensorStats], bool],
    words: Callable[[TensorStats], str],
) -> str | None:
    if arg is None:
        return None
    at = arg.at
    if at is not None:
        return number(at) if one(at) else None
    stats = arg.seen
    return words(stats) if stats is not None and some(stats) else None


def overwritten(s: Situation, arg: Arg | None, must_be: str) -> str | None:
    """What an argument that the op wrote over must have been; None if it can still be looked at, or was bad itself."""
    gone = s.clean and arg is not None and arg.value is None and arg.seen is None
    return f"{must_be} (it wrote over it: nothing else gives that)" if gone else None


def limit_of(dtype: DType) -> str:
    """``float16 ends at 65504``."""
    return f"{dtype.torch_name} ends at {number(dtype.max_finite)}"


def known_facts(s: Situation) -> tuple[str, ...]:
    """What can be said where no rule applies: sizes, headroom, growth. No guess."""
    if s.role != "origin":
        return ()
    facts = []
    if s.largest and s.clean:
        dtype = next(stats.dtype for stats in s.inputs if stats.finite)
        room = DType.from_torch_name(dtype).max_finite / s.largest
        facts.append(f"all it read was finite, max|x| {number(s.largest)}, {room:.2g} times below the largest {dtype}")
    past = [x for x in s.past.absmax if x > 0]
    if len(past) >= 3:
        facts.append(f"max|x| here in the last {len(past)} steps: {number(past[0])} to {number(past[-1])}")
    return tuple(facts)
