"""A small collector in plain PyTorch: the records the hooks would write, so that detectors are tested without them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nanscan.health import GrowthWatch
from nanscan.record import RECORD_DTYPE, DType, Flag
from nanscan.sites import SiteTable


class Collector:
    """Records of outputs, of the gradients reaching them, of parameters' gradients and of parameters, step by step."""

    def __init__(self, *models):
        self.sites = SiteTable()
        self._rows = []
        self._handles = []
        self._parameters = []
        for i, model in enumerate(models):
            prefix = f"{i}." if len(models) > 1 else ""
            for name, module in model.named_modules():
                base = self.sites.add_module(prefix + name, type(module).__name__)
                self._handles.append(module.register_forward_hook(self._forward_hook(base)))
            for name, p in model.named_parameters():
                site = self.sites.add_parameter(prefix + name, prefix + name.rpartition(".")[0], None)
                self._parameters.append((site, p))
                if p.is_leaf:  # as after each backward; frozen ones get no gradient, and may be unfrozen later
                    frozen = not p.requires_grad
                    p.requires_grad_(True)
                    self._handles.append(
                        p.register_post_accumulate_grad_hook(lambda p, site=site: self.add(site + 1, p.grad))
                    )
                    p.requires_grad_(not frozen)

    def _forward_hook(self, base):
        def hook(module, args, output):
            for value in flatten(output):
                self.add(base, value)
                if value.requires_grad:
                    value.register_hook(lambda g: self.add(base + 2, g))

        return hook

    def add(self, site, tensor):
        """One record, with float64 statistics. Small tensors: numpy is several times quicker than torch."""
        x = tensor.detach().float().numpy().astype(np.float64).ravel()
        ok = np.isfinite(x)
        finite = x if ok.all() else x[ok]
        row = dict.fromkeys(RECORD_DTYPE.names, 0)
        row |= {"site": site, "n": len(x), "dtype": int(DType.F32), "n_nan": len(x) - len(finite)}
        if row["n_nan"]:
            row["flags"] = int(Flag.BAD)
        if len(finite):
            row["min"], row["max"], row["mean"] = finite.min(), finite.max(), finite.mean()
            row["m2"] = np.square(finite - row["mean"]).sum()
        self._rows.append(tuple(row.values()))

    def take(self):
        """The finished step's records, parameters included; the next step begins."""
        for site, p in self._parameters:
            self.add(site, p)
        rows, self._rows = self._rows, []
        return np.array(rows, RECORD_DTYPE)

    def close(self):
        for handle in self._handles:
            handle.remove()


def flatten(value):
    if torch.is_tensor(value):
        return [value] if value.is_floating_point() and value.numel() else []
    if isinstance(value, (tuple, list)):
        return [x for v in value for x in flatten(v)]
    return []


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def watch_training():
    """watch_training(models, step_fn, steps, **GrowthWatch options) -> findings; step_fn(i) returns False to stop."""

    def run(models, step_fn, steps, **options):
        collector = Collector(*(models if isinstance(models, tuple) else (models,)))
        watch, findings = GrowthWatch(collector.sites, **options), []
        try:
            for i in range(steps):
                go_on = step_fn(i)
                findings += watch.observe(i, collector.take())
                if go_on is False:
                    break
        finally:
            collector.close()
        return findings

    return run


@pytest.fixture
def records_of():
    """records_of({site: RMS}, **fields) -> records of constant tensors of 4 elements."""

    def build(values, **fields):
        records = np.zeros(len(values), RECORD_DTYPE)
        records["site"] = list(values)
        records["n"], records["dtype"] = 4, DType.F32
        records["mean"] = records["min"] = records["max"] = list(values.values())
        for name, value in fields.items():
            records[name] = value
        return records

    return build
