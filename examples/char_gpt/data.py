"""The text every Python carries: the topics behind help(), cut into rows of equal length."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import torch

PAD = 0  # character id of padding; real characters count from 1
IGNORED = -100  # target of a padded position: cross_entropy leaves it out


def load_documents(path: Path | None = None) -> list[str]:
    """The documents to learn: one file, or the topics of pydoc_data (about 500 KB in all)."""
    if path is not None:
        return [path.read_text(encoding="utf-8")]
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise SystemExit("this Python came without pydoc_data: give a text of your own with --text FILE") from error
    return [topics[name] for name in sorted(topics)]


class Rows:
    """Documents cut into rows of `length` + 1 characters; the last one of a document is shorter and gets padded.

    Args:
        documents: what to cut.
        length: characters the model sees at once.
    """

    def __init__(self, documents: list[str], length: int) -> None:
        self.length = length
        self.characters = sorted(set("".join(documents)))
        ids = {c: i + 1 for i, c in enumerate(self.characters)}
        self.rows: list[list[int]] = []
        for text in documents:
            coded = [ids[c] for c in text]
            self.rows += [coded[i : i + length + 1] for i in range(0, len(coded) - 1, length)]

    @property
    def n_ids(self) -> int:
        """Size of the vocabulary, padding included."""
        return len(self.characters) + 1

    def batches(self, size: int, steps: int, seed: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """`steps` batches (input, target), both [size, length]. Full rows first, in random order, and the short
        ends of documents last: what needs most memory runs in the first step, and rows of one kind share a batch.
        """
        order = torch.randperm(len(self.rows), generator=torch.Generator().manual_seed(seed)).tolist()
        full = [i for i in order if len(self.rows[i]) == self.length + 1]
        short = [i for i in order if len(self.rows[i]) <= self.length]
        n_short = min(len(short), size * max(1, steps // 50))
        n_full = steps * size - n_short
        chosen = [full[i % len(full)] for i in range(n_full)]
        chosen += sorted(short[:n_short], key=lambda i: -len(self.rows[i]))
        for start in range(0, steps * size, size):
            yield self._batch([self.rows[i] for i in chosen[start : start + size]])

    def _batch(self, rows: list[list[int]]) -> tuple[torch.Tensor, torch.Tensor]:
        table = torch.full((len(rows), self.length + 1), PAD)
        for line, row in zip(table, rows, strict=True):
            line[: len(row)] = torch.tensor(row)
        source, target = table[:, :-1].contiguous(), table[:, 1:].clone()
        return source, target.masked_fill_(target == PAD, IGNORED)
