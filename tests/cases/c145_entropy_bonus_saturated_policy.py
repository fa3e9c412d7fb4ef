"""Policy gradient with an entropy bonus from torch.special.entr: it is 0 at probability 0, but its slope there is
infinite. One observation of the second rollout saturates the softmax. Source: pyro-ppl/numpyro#1696,
huggingface/trl#7252 (the review)."""
import torch
from torch import nn

EXPECT = {"phase": "backward", "op": "SpecialEntrBackward0", "module": None, "cause": "gradient of x log x at zero",
          "also_cause": ["log of zero"], "step": 1, "steps": 2, "kind": "inf",
          "after": {"loss": "finite", "grads": "nan", "params": "nan"}}


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 16), nn.ReLU())
        self.policy, self.value = nn.Linear(16, 3), nn.Linear(16, 1)

    def forward(self, obs):
        h = self.body(obs)
        return self.policy(h), self.value(h)[..., 0]


def build():
    torch.manual_seed(0)
    model = ActorCritic()
    opt = torch.optim.SGD(model.parameters(), lr=1e-2)
    obs = torch.randn(2, 8, 4)
    obs[1, 5] *= 3000                            # one sensor without normalisation
    action, ret = torch.randint(3, (2, 8)), torch.randn(2, 8)

    def step_fn(i):
        opt.zero_grad()
        logits, value = model(obs[i])
        value = value.clamp(-5, 5)
        probs = logits.softmax(-1)
        chosen = logits.log_softmax(-1).gather(-1, action[i][:, None])[:, 0]
        entropy = torch.special.entr(probs).sum(-1)
        loss = (-(ret[i] - value.detach()) * chosen + (ret[i] - value).pow(2) - 0.01 * entropy).mean()
        loss.backward()
        opt.step()
        return loss.item()
    return model, step_fn
