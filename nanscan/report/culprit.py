"""The block that names the first culprit: where, value, why, before, warned, after, next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanscan.events.aftermath import Aftermath
from nanscan.events.event import Event
from nanscan.record import TensorStats
from nanscan.report.after import consequences
from nanscan.report.draw import Block, draw
from nanscan.report.numbers import coordinates, count, dtype_name, magnitude, plural, share, trend

MAX_BEFORE = 5  # steps of history shown
RECENT = 200  # steps for which a growth that was warned of is taken to be the same trouble
DEFAULT_NEXT = "print(scanner.first) shows every field of the event"


def first_culprit_lines(
    event: Event,
    *,
    history: Sequence[float] | None = None,
    after: Aftermath | None = None,
    warned: Event | None = None,
    world_size: int = 1,
    next_step: str | None = None,
) -> list[str]:
    """Terminal lines for the first error.

    Args:
        history: max|x| at that site in the last steps, oldest first. after: what followed.
        warned: the last warning before it (see `warning_before`).
        next_step: the next command or call; by default the event's remedy.
    """
    return draw(
        decide_culprit(event, history=history, after=after, warned=warned, world_size=world_size, next_step=next_step)
    )


def warning_before(event: Event, events: Iterable[Event]) -> Event | None:
    """The last warning of a step before `event`, on its rank."""
    found = [e for e in events if e.severity == "warning" and e.step < event.step and e.rank == event.rank]
    return max(found, key=lambda e: (e.step, e.seq), default=None)


def decide_culprit(
    event: Event,
    *,
    history: Sequence[float] | None = None,
    after: Aftermath | None = None,
    warned: Event | None = None,
    world_size: int = 1,
    next_step: str | None = None,
) -> Block:
    """The same as plain data."""
    return Block(
        title(event, world_size),
        (
            ("where", _where(event)),
            ("source", event.source or ""),
            ("value", _value(event)),
            ("inputs", _inputs(event)),
            ("why", _why(event)),
            ("clean", _clean(event)),
            ("before", "; ".join(filter(None, (_before(event, history), event.clean_before)))),
            ("warned", _warned(warned)),
            ("after", _after(event, after)),
            ("chain", _chain(event)),
            ("next", next_step or _next(event, warned)),
        ),
    )


def title(event: Event, world_size: int = 1) -> str:
    rank = f"  rank {event.rank}/{world_size}" if world_size > 1 else ""
    batch = f"  batch {event.batch}" if event.batch is not None and event.batch != event.step else ""
    what = "FIRST NON-FINITE" if event.severity == "error" else f"NON-FINITE ({event.severity})"
    return f"nanscan: {what}  step {event.step}{batch}{rank}  {event.phase}"


def _where(event: Event) -> str:
    parts = [event.tensor_label or "the parameters"] if event.phase == "optimizer" else [_place(event)]
    if event.tensor_label is not None and event.phase != "optimizer":
        parts.insert(0 if event.tensor_kind == "check" else 1, event.tensor_label)
    if event.op is not None:
        parts.append(event.op)
    if event.output_index is not None:
        parts.append(f"output[{event.output_index}]")
    if event.stats is not None:
        shape = "" if event.shape is None else f" ({', '.join(map(str, event.shape))})"
        parts.append(f"{dtype_name(event.stats.dtype)}{shape}")
    return "  ".join(parts)


def _place(event: Event) -> str:
    if event.module is not None:
        place = f"{event.module or '(root)'}  {event.module_type or ''}".rstrip()
        return f"in {place}" if event.tensor_kind == "check" else place
    if event.phase != "backward" or event.tensor_kind == "check":
        return "outside every module"
    return "after the model, in the loss code" if event.tensor is None else "in the loss code or a compiled backward"


def _value(event: Event) -> str:
    stats = event.stats
    if stats is None:
        return ""
    kinds = [(stats.nan, "NaN"), (stats.posinf, "+Inf"), (stats.neginf, "-Inf")]
    text = ", ".join(f"{count(n)} {name}" for n, name in kinds if n)
    text += f" of {count(stats.numel)}{share(stats.nonfinite, stats.numel)}"
    index = event.first_bad_index
    if index is not None and event.shape != ():
        place = coordinates(index, event.shape) if event.shape else (index,)
        text += f", first at [{', '.join(map(str, place))}]"
    if stats.finite and stats.absmax < float("inf"):
        text += f"; the rest max|x| {magnitude(stats.absmax)}"
    return text


def _inputs(event: Event) -> str:
    if not event.inputs:
        return ""
    if all(not stats.nonfinite for stats in event.inputs.values()):
        largest = max((s.absmax for s in event.inputs.values() if s.absmax < float("inf")), default=None)
        return "all finite" + ("" if largest is None else f", max|x| {magnitude(largest)}")
    return "; ".join(f"{name} {_state(stats)}" for name, stats in event.inputs.items())


def _state(stats: TensorStats) -> str:
    if not stats.nonfinite:
        return "finite"
    kinds = [(stats.nan, "NaN"), (stats.posinf, "+Inf"), (stats.neginf, "-Inf")]
    return "holds " + ", ".join(f"{count(n)} {name}" for n, name in kinds if n)


# Evidence that the rows "inputs" and "after" give already.
_SAID_ELSEWHERE = (
    "its inputs were finite",
    "non-finite values",
    "later module outputs",
    "parameter gradients after it",
    "steps in a row: its scale has collapsed",
)


def _why(event: Event) -> str:
    """A cause only where the facts are certain; otherwise the facts themselves, after the bare counts `value` shows."""
    facts = event.evidence[1:] if event.stats is not None else event.evidence
    said = [text for text in facts if not any(mark in text for mark in _SAID_ELSEWHERE)]
    if event.cause != "unknown":
        said.insert(0, event.cause)
    return "; ".join(said[:3])


def _clean(event: Event) -> str:
    return "" if event.last_clean is None else f"the same memory was last seen clean at {event.last_clean}"


def _before(event: Event, history: Sequence[float] | None) -> str:
    if not history:
        return ""
    last = list(history)[-MAX_BEFORE:]
    note = trend(last)
    # The gradient of what a module read is kept where it was made; its own history is that of its output's gradient.
    what = "gradient of its output, max|x|" if event.phase == "backward" and event.tensor is None else "max|x|"
    text = f"{what} last {plural(len(last), 'step')}: {' '.join(map(magnitude, last))}"
    return f"{text}  ({note})" if note else text


def _warned(warned: Event | None) -> str:
    if warned is None:
        return ""
    said = warned.evidence[0] if warned.evidence and not warned.nonfinite else f"{warned.kind} in {warned.place}"
    return f"step {warned.step}: {said}"


def _next(event: Event, warned: Event | None) -> str:
    remedy = event.remedy or DEFAULT_NEXT
    grew = warned is not None and warned.kind == "explosion" and event.step - warned.step <= RECENT
    if warned is None or warned.remedy is None or not grew or event.role == "external":
        return remedy
    first, _, _ = warned.remedy.partition("; then ")  # its second half sends to the place that the warning names
    return f"{first}; then {remedy}"


def _after(event: Event, after: Aftermath | None) -> str:
    parts = [] if after is None else consequences(event, after)
    if event.hidden_by:
        parts.append(event.hidden_by)
    return "; ".join(parts)


def _chain(event: Event) -> str:
    return " > ".join(event.chain) if len(event.chain) > 1 else ""
