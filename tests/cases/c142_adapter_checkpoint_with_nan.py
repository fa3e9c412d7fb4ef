"""One frozen backbone, one adapter per language, all loaded from checkpoints; the run that made the third adapter
had diverged before it was saved. Two batches of other languages pass without trouble. Source:
cardwing/Codes-for-PVKD#9, openvla/openvla#53."""
import torch
from torch import nn

EXPECT = {"phase": "forward", "op": None, "event": "foreign", "consumer": "aten::addmm", "module": "adapters.fi.up",
          "source_tensor": "adapters.fi.up.weight", "cause": "bad parameter",
          "also": ["aten::addmm", "aten::linear", "aten::t"], "also_phase": ["data"], "step": 2, "steps": 3,
          "kind": "nan", "after": {"loss": "nan", "params": "nan"}}


class Adapter(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.down, self.up = nn.Linear(d, 2), nn.Linear(2, d)

    def forward(self, h):
        return h + self.up(torch.relu(self.down(h)))


class Multilingual(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Linear(6, 8).requires_grad_(False)
        self.adapters = nn.ModuleDict({lang: Adapter(8) for lang in ("de", "et", "fi")})
        self.head = nn.Linear(8, 3)

    def forward(self, x, lang):
        return self.head(self.adapters[lang](torch.tanh(self.backbone(x))))


def build():
    torch.manual_seed(0)
    model = Multilingual()
    for lang, adapter in model.adapters.items():
        checkpoint = {k: v.clone() for k, v in Adapter(8).state_dict().items()}
        if lang == "fi":
            checkpoint["up.weight"][3:5] = float("nan")
        adapter.load_state_dict(checkpoint)
    opt = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
    x, y = torch.randn(3, 5, 6), torch.randint(3, (3, 5))

    def step_fn(i):
        opt.zero_grad()
        loss = nn.functional.cross_entropy(model(x[i], ("de", "et", "fi")[i]), y[i])
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
