"""What hooks must not do: change a bit, keep a tensor, stay behind, travel with a copy, show up in the user's modes."""

from __future__ import annotations

import copy
import gc
import pickle
import subprocess
import sys
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, 4, 3),
            nn.BatchNorm2d(4),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(2),
            nn.Dropout(0.3),
            nn.Flatten(),
        )
        self.head = nn.Linear(4 * 9, 5)

    def forward(self, x):
        return self.head(self.body(x))

    def batch(self):
        return torch.randn(6, 1, 8, 8)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 6, num_layers=2, dropout=0.2)
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(self.lstm(x)[0])

    def batch(self):
        return torch.randn(5, 3, 4)


def train(make, watch, steps):
    """Every number that training produces."""
    torch.manual_seed(3)
    model = make()
    hooked = watch(model) if watch else None
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    seen = []
    for step in range(steps):
        loss = model(model.batch()).square().mean()
        optimizer.zero_grad(set_to_none=step % 3 > 0)
        loss.backward()
        optimizer.step()
        seen += [loss.detach().clone(), *(p.grad.clone() for p in model.parameters())]
        seen += [value.clone() for value in model.state_dict().values()]
    return seen, hooked


@pytest.mark.parametrize("make", [Convolutional, Recurrent])
def test_training_is_the_same_to_the_bit(core, hook, make):
    hooked, watch = train(make, lambda model: hook(core, model, capacity=1 << 16), steps=50)
    free, _ = train(make, None, steps=50)
    assert len(watch.rows()) > 50 * 8
    for i, (ours, theirs) in enumerate(zip(hooked, free, strict=True)):
        assert torch.equal(ours, theirs), f"tensor {i} differs"


class Remembers(nn.Module):
    """Takes weak references to its activations and their gradients."""

    def __init__(self, refs):
        super().__init__()
        self.refs = refs
        self.a, self.act, self.b = nn.Linear(3, 3), nn.ReLU(inplace=True), nn.Linear(3, 3)

    def note(self, tensor):
        self.refs.append(weakref.ref(tensor))
        if tensor.requires_grad and not tensor.is_leaf:
            tensor.register_hook(lambda grad: self.refs.append(weakref.ref(grad)))
        return tensor

    def forward(self, x):
        self.note(x)
        return self.note(self.b(self.note(self.act(self.note(self.a(x))))))


@pytest.mark.parametrize("bad", [False, True])
def test_no_activation_or_gradient_is_kept(core, hook, bad):
    refs = []
    watch = hook(core, Remembers(refs))
    for _ in range(3):
        x = torch.full((2, 3), float("nan") if bad else 1.0, requires_grad=True)
        watch.model(x).sum().backward()
        refs.append(weakref.ref(x.grad))
        del x
        assert len(refs) == 8
        assert [ref() for ref in refs] == [None] * 8
        refs.clear()


def test_nothing_is_kept_when_a_forward_is_left_early(core, hook):
    class Stops(nn.Module):
        def forward(self, x):
            raise error("on purpose")

    watch = hook(core, nn.Sequential(nn.Identity(), Stops()))
    for error in (ValueError, KeyboardInterrupt):
        x = torch.ones(3, requires_grad=True)
        with pytest.raises(error):
            watch.model(x)
        watch.session.reset_stack()
        alive = weakref.ref(x)
        del x
        gc.collect()  # the traceback's frames
        assert alive() is None, error


def test_gradients_are_handed_on_without_a_copy(core, hook):
    # GIVEN a leaf that steals its gradient when nobody else holds it
    seen = []

    class Root(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))
            self.same = nn.Identity()

        def forward(self, x):
            scaled = self.same(self.weight)
            return Probe.apply(scaled * 1, seen) * x

    class Probe(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, seen):
            ctx.seen = seen
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad, None

    addresses = []
    for watch in (None, hook):
        model = Root()
        if watch:
            watch(core, model)
        model.weight.register_hook(lambda grad: addresses.append(grad.data_ptr()))
        model(torch.ones(3)).sum().backward()
        addresses.append(model.weight.grad.data_ptr() == addresses[-1])
    assert addresses[1] == addresses[3]


def test_no_hook_is_left_after_remove(core, hook):
    def hooks(model):
        return [
            (name, key)
            for name, module in model.named_modules()
            for key, value in vars(module).items()
            if "hook" in key and value
        ]

    model = Convolutional()
    before = hooks(model)
    state = model.state_dict().keys()
    watch = hook(core, model)
    assert hooks(model) != before
    assert model.state_dict().keys() == state
    model(model.batch()).sum().backward()
    watch.hooks.remove()
    watch.hooks.remove()
    assert hooks(model) == before
    assert all(p._backward_hooks is None for p in model.parameters())
    watch.rows()
    model(model.batch()).sum().backward()
    assert watch.rows() == []


def test_a_closed_session_is_freed(core, hook):
    watch = hook(core, nn.Sequential(nn.Linear(3, 3)))
    watch.model(torch.ones(2, 3)).sum().backward()
    alive = weakref.ref(watch.session)
    watch.drop()
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("make_copy", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_carries_no_live_hook(core, hook, make_copy):
    watch = hook(core, nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    twin = make_copy(watch.model)
    assert torch.equal(twin[0].weight, watch.model[0].weight)
    twin(torch.ones(2, 3)).sum().backward()
    assert watch.rows() == []
    assert watch.begun == []
    make_copy(twin)(torch.ones(2, 3))


def test_a_pickled_model_loads_where_nanscan_is_not_installed(core, hook, tmp_path):
    watch = hook(core, nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    path = tmp_path / "model.pt"
    torch.save(watch.model, path)
    program = (
        "import sys, torch; sys.modules['nanscan'] = None\n"
        f"model = torch.load({str(path)!r}, weights_only=False)\n"
        "model(torch.ones(2, 3)).sum().backward(); print('fine')"
    )
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout == "fine\n", done.stderr


class CountOps(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.ops = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.ops.append(str(func))
        return func(*args, **(kwargs or {}))


def test_the_users_dispatch_mode_sees_none_of_our_work(core, hook):
    seen = []
    for hooked in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
        x = torch.full((2, 3), float("nan"), requires_grad=True)
        if hooked:
            hook(core, model)
        with CountOps() as mode:
            model(x).sum().backward()
        seen.append(mode.ops)
    assert seen[0] == seen[1]


def test_selective_checkpointing_is_not_disturbed(core, hook):
    # GIVEN a checkpoint that replays the results of some ops in the order they were made
    kept = [torch.ops.aten.addmm.default, torch.ops.aten.detach.default]
    policy = partial(create_selective_checkpoint_contexts, kept)
    grads = []
    for hooked in (False, True):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Sigmoid(), nn.Linear(3, 3))
        if hooked:
            hook(core, model)
        out = checkpoint(model, torch.ones(2, 3, requires_grad=True), use_reentrant=False, context_fn=policy)
        out.square().sum().backward()
        grads.append([p.grad for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def test_an_inert_process_writes_nothing(core, hook):
    watch = hook(core, nn.Sequential(nn.Linear(3, 3)))
    core.module.set_inert(True)
    try:
        watch.model(torch.ones(2, 3)).sum().backward()
        assert watch.rows() == []
        assert core.module.module_depth() == 0
    finally:
        core.module.set_inert(False)
    watch.model(torch.ones(2, 3))
    assert watch.rows() != []
