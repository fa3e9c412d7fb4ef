"""The block that names the first culprit: where, value, why, before, warned, after, next."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from nanscan.events.aftermath import Aftermath
from nanscan.events.event import Event
from nanscan.record import TensorStats
from nanscan.report.after import consequences
from nanscan.report.draw import Block, draw
from nanscan.report.numbers import coordinates, count, dtype_name, magnitude, plural, share, trend
from nanscan.why import RULES

MAX_BEFORE = 5  # steps of history shown
MAX_WHY = 3  # the cause and what shows it, or facts
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
        next_step: the next command or call; by default the event's remedy, and where its rule is explained.
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
        extra=also_fits(event),
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
    text = f"{stats.counted(count)} of {count(stats.numel)}{share(stats.nonfinite, stats.numel)}"
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
    return f"holds {stats.counted(count)}" if stats.nonfinite else "finite"


def cause_words(event: Event) -> str:
    """``log of zero (NS101)``; nothing where the cause is not known: a guess would be worse than the facts."""
    if event.cause == "unknown":
        return ""
    return event.cause if event.rule is None else f"{event.cause} ({event.rule})"


def also_fits(event: Event) -> tuple[tuple[str, str], ...]:
    """What other rules say, as a block's extra."""
    return (("why", f"also fits: {', '.join(event.others)}"),) if event.others and event.cause != "unknown" else ()


def _why(event: Event) -> str:
    """A cause only where a rule or the facts are certain, then what shows it; otherwise the facts themselves."""
    said = [cause_words(event), *(text for text in event.evidence if not _said_elsewhere(event, text))]
    return "; ".join([text for text in said if text][:MAX_WHY])


def _said_elsewhere(event: Event, text: str) -> bool:
    """Whether the rows "value", "inputs", "clean" or "after" give that piece of evidence."""
    stats = event.stats
    counts = "" if stats is None else f" holds {stats.counted()} among {stats.numel} elements"
    return (
        (bool(counts) and text.endswith(counts))
        or text.startswith(
            ("its inputs were finite, ", "finite when last written at ", "bad parameter gradients after")
        )
        or text.endswith(" later module outputs are bad in the same step")
        or (text.startswith("input ") and text.endswith(" non-finite values"))
        or "steps in a row: its scale has collapsed" in text
    )


def _clean(event: Event) -> str:
    return "" if event.last_clean is None else f"the same memory was last seen clean at {event.last_clean}"


def _before(event: Event, history: Sequence[float] | None) -> str:
    if not history:
        return ""
    last = list(history)[-MAX_BEFORE:]
    note = trend(last)
    # The gradient of what a module read is kept where it was made; its own history is that of its output's gradient.
    of_output = event.phase == "backward" and event.tensor is None and event.op is None
    what = "gradient of its output, max|x|" if of_output else "max|x|"
    text = f"{what} last {plural(len(last), 'step')}: {' '.join(map(magnitude, last))}"
    return f"{text}  ({note})" if note else text


def _warned(warned: Event | None) -> str:
    if warned is None:
        return ""
    said = warned.evidence[0] if warned.evidence and not warned.nonfinite else f"{warned.kind} in {warned.place}"
    return f"step {warned.step}: {said}"


def _next(event: Event, warned: Event | None) -> str:
    remedy = remedy_words(event, DEFAULT_NEXT)
    grew = warned is not None and warned.kind == "explosion" and event.step - warned.step <= RECENT
    if warned is None or warned.remedy is None or not grew or event.role == "external":
        return remedy
    first, _, _ = warned.remedy.partition("; then ")  # its second half sends to the place that the warning names
    return f"{first}; then {remedy}"


def remedy_words(event: Event, otherwise: str) -> str:
    """What to do, and the command that shows the rule behind the cause, with an example to run."""
    if event.rule is None:
        return event.remedy or otherwise
    # A companion may have given the remedy: then its page is the one to read.
    source = next((one.id for one in RULES if one.companion and one.remedy == event.remedy), event.rule)
    command = f"nanscan explain {source}"
    return f"{event.remedy}; {command} shows an example" if event.remedy else f"{command} says what to do"


def _after(event: Event, after: Aftermath | None) -> str:
    parts = [] if after is None else consequences(event, after)
    if event.hidden_by:
        parts.append(event.hidden_by)
    return "; ".join(parts)


def _chain(event: Event) -> str:
    return " > ".join(event.chain) if len(event.chain) > 1 else ""
