"""transformers' Trainer logs earlier losses instead of a NaN: whoever is told of the first error is told that too."""

from __future__ import annotations

import math
import sys

import pytest
import torch

import nanscan
from nanscan.scanner.loggers import what_hides_it

SENTENCE = "Trainer logs hide it: logging_nan_inf_filter=True replaces NaN losses in the log"


class Impostor:
    """Has the name and the setting, and is none."""

    class args:
        logging_nan_inf_filter = True

    def train(self):
        return what_hides_it()


Impostor.__name__ = "Trainer"


def test_other_programs_are_not_mistaken_for_it(training):
    assert Impostor().train() is None
    scanner = nanscan.enable(training.net, on_anomaly="record")
    training.run(3, at={1: "forward"})
    assert scanner.first.hidden_by is None


def test_somebodys_attribute_may_raise():
    class Trainer:
        __module__ = "transformers.trainer"

        @property
        def args(self):
            raise RuntimeError("not yet")

        def train(self):
            return what_hides_it()

    assert Trainer().train() is None


def test_asking_imports_nothing():
    before = set(sys.modules)
    what_hides_it()
    assert set(sys.modules) == before


class TestRealTrainer:
    """A GPT-2 of one layer, random weights, no download."""

    transformers = None

    @pytest.fixture(autouse=True)
    def _imported(self):
        pytest.importorskip("accelerate")
        type(self).transformers = pytest.importorskip("transformers")

    def train(self, folder, level="module", filtered=True, at=3, steps=6, trainer_class=None):
        """(scanner, logged losses, losses of the model): the forward of batch `at` goes NaN."""
        transformers = self.transformers
        torch.manual_seed(0)
        model = transformers.GPT2LMHeadModel(
            transformers.GPT2Config(vocab_size=32, n_positions=16, n_embd=16, n_layer=1, n_head=2)
        )
        calls, true = [], []

        def trap(module, args, output):
            calls.append(1)
            return output * float("nan") if len(calls) - 1 == at else None

        model.transformer.h[0].mlp.register_forward_hook(trap)
        scanner = nanscan.enable(model, level=level, on_anomaly="record")
        handle = model.register_forward_hook(lambda m, a, out: true.append(float(out.loss.detach())))
        data = [{"input_ids": torch.arange(8) % 32, "labels": torch.arange(8) % 32} for _ in range(4 * steps)]
        args = transformers.TrainingArguments(
            output_dir=str(folder), max_steps=steps, logging_steps=1, report_to=[], use_cpu=True, disable_tqdm=True,
            save_strategy="no", per_device_train_batch_size=2, logging_nan_inf_filter=filtered,
        )  # fmt: skip
        trainer = (trainer_class or transformers.Trainer)(model=model, args=args, train_dataset=data)
        trainer.train()
        handle.remove()
        return scanner, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry], true

    @pytest.mark.parametrize("level", ["module", "op"])
    def test_the_default_hides_it_and_the_report_says_so(self, tmp_path, level):
        scanner, logged, true = self.train(tmp_path, level)
        assert [math.isfinite(loss) for loss in true] == [True] * 3 + [False] * 3
        assert all(math.isfinite(loss) for loss in logged), "else nothing is hidden"
        assert scanner.first.step == 3
        assert scanner.first.hidden_by == SENTENCE
        assert [event.hidden_by for event in scanner.events].count(SENTENCE) == 1
        assert SENTENCE in " ".join(scanner.report().split())
        after = scanner._levels.aftermath
        assert (after.last_clean, after.later_steps) == (2, 2)

    def test_a_trainer_made_from_it_does_the_same(self, tmp_path):
        class Mine(self.transformers.Trainer):
            pass

        scanner, _, _ = self.train(tmp_path, trainer_class=Mine)
        assert scanner.first.hidden_by == SENTENCE

    def test_with_the_filter_off_the_log_shows_it(self, tmp_path):
        scanner, logged, _ = self.train(tmp_path, filtered=False)
        assert not all(math.isfinite(loss) for loss in logged)
        assert scanner.first.hidden_by is None
        assert "Trainer logs" not in scanner.report()
