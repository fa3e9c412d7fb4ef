"""NS3xx: reductions over nothing, masks that leave nothing, and Inf meeting 0 or Inf."""

from __future__ import annotations

from nanscan.record import TensorStats
from nanscan.why.rule import Evidence, Rule, ops
from nanscan.why.situation import Arg, Situation
from nanscan.why.words import infinite, number, zero

_MEANS = ops(
    "mean nanmean median nanmedian mse_loss l1_loss smooth_l1_loss huber_loss soft_margin_loss "
    "binary_cross_entropy nll_loss_forward nll_loss2d_forward nll_loss std var std_mean var_mean "
    "adaptive_avg_pool2d _adaptive_avg_pool2d"
)
_NLL = ops("nll_loss_forward nll_loss2d_forward nll_loss nll_loss2d cross_entropy_loss")
_SPREADS = ops("std var std_mean var_mean nanstd")
_SOFTMAXES = ops("_softmax _log_softmax softmax log_softmax _masked_softmax _safe_softmax")
_ATTENTIONS = ops(
    "scaled_dot_product_attention _scaled_dot_product_attention_math "
    "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
    "_scaled_dot_product_efficient_attention _native_multi_head_attention"
)
_PRODUCTS = ops("mul _foreach_mul multiply addcmul _foreach_addcmul lerp _foreach_lerp")
_MATRIX = ops("mm bmm addmm baddbmm mv addmv dot linear matmul convolution einsum mkldnn_linear _mkl_linear conv2d")
_FACTORS = ops("self mat1 mat2 batch1 batch2 vec other tensor input weight")
_DIFFERENCES = ops(
    "add sub sum cumsum logcumsumexp _foreach_add _foreach_sub mean rsub native_layer_norm native_batch_norm "
    "native_group_norm std var var_mean std_mean diff index_add scatter_add logsumexp mse_loss l1_loss "
    "smooth_l1_loss huber_loss logaddexp _fused_rms_norm"
)


def _source(s: Situation) -> Arg | None:
    return s.arg("self", "input")


def _count(s: Situation) -> int | None:
    """How many numbers one element of the result was computed from."""
    arg = _source(s)
    if arg is None:
        return None
    if arg.shape is not None and 0 in arg.shape:
        return 0
    return None if arg.seen is None else arg.seen.numel


def _mean_over_nothing(s: Situation) -> Evidence | None:
    if s.in_node or not s.nan or not s.clean:
        return None
    if s.name in _NLL:
        weight = s.arg("weight")
        zeros = "" if weight is None or not (seen := zero(weight)) else f" (their weights hold {seen})"
        return (f"the mean runs over the targets that count, and there is none{zeros}",)
    if _count(s) != 0:
        return None
    shape = (_source(s) or Arg("")).shape
    return (f"{s.name} ran over 0 elements{'' if shape is None else f', of shape {list(shape)}'}: 0 / 0",)


def _std_of_one(s: Situation) -> Evidence | None:
    n = _count(s)
    correction = s.arg("correction", "unbiased")
    taken = 1.0 if correction is None or correction.at is None else correction.at
    if s.in_node or not s.clean or not n or n - taken > 0:
        return None
    return (f"{s.name} of {n} element{'s' if n > 1 else ''} divides by {n} - {number(taken)} = {number(n - taken)}",)


def _masked_row(s: Situation) -> Evidence | None:
    if s.in_node or not s.nan:
        return None
    if s.name in _ATTENTIONS:
        mask = s.arg("attn_mask", "attn_bias", "mask")
        return (f"the mask holds {seen}",) if mask is not None and (seen := infinite(mask)) and s.inputs else None
    x = _source(s)
    row = None if x is None else x.seen
    if row is None or not row.neginf or row.posinf:
        return None
    if x is not None and x.part is not None:
        return (f"all {row.numel} scores of the row are -Inf",) if row.neginf == row.numel else None
    return (f"{row.neginf} of {row.numel} scores are -Inf, whole rows among them",)


def _zero_times_inf(s: Situation) -> Evidence | None:
    if s.in_node or not s.nan:
        return None
    args = list(s.args.values())
    if s.name in _MATRIX:
        return _blank_factor(s)
    for arg in args:
        others = [other for other in args if other is not arg]
        if (bad := infinite(arg)) and (blank := next((z for o in others if (z := zero(o))), None)):
            return (f"{arg.name} is {bad} and its factor {blank} there: the product is NaN",)
    if args and any(arg.at == 0 for arg in args) and any(m.inf for m in s.made_of):
        return (f"{s.name} multiplied an Inf by 0",)
    return None


def _blank_factor(s: Situation) -> Evidence | None:
    """A matrix product is 0 * Inf for certain where one factor is nothing but zeros."""
    factors = [(arg, arg.seen) for name, arg in s.args.items() if name in _FACTORS]
    blank = [arg.name for arg, stats in factors if stats is not None and 0 < stats.zero == stats.numel]
    bad = next((seen for arg, _ in factors if (seen := infinite(arg))), None)
    return (f"{blank[0]} is all 0 there, and the other factor holds {bad}",) if blank and bad else None


def _inf_minus_inf(s: Situation) -> Evidence | None:
    if s.in_node or not s.nan or s.clean:
        return None
    if s.name in _MATRIX:
        args = list(s.args.values())
        bad = next((f"{arg.name} holds {seen}" for arg in args if (seen := infinite(arg))), None)
        return (f"{bad}: its products with the other factor are 0 * Inf, or Inf - Inf in the sum",) if bad else None
    if s.name not in _DIFFERENCES:
        return None
    bad_args = [(arg.name, seen) for arg in s.args.values() if (seen := infinite(arg))]
    if bad_args:
        return (f"{s.name} took Inf from Inf: {', '.join(f'{name} {seen}' for name, seen in bad_args)}",)
    stats = next((one for one in s.inputs if one.posinf or one.neginf), None)
    return (f"{s.name} took Inf from Inf: {_held(stats)}",) if stats is not None else None


def _held(stats: TensorStats) -> str:
    return f"it read {stats.posinf} +Inf and {stats.neginf} -Inf"


def _inf_over_inf(s: Situation) -> Evidence | None:
    if s.in_node or not s.nan:
        return None
    if s.name in _SOFTMAXES:
        x = _source(s)
        row = None if x is None else x.seen
        return (f"the row holds {row.posinf} +Inf",) if row is not None and row.posinf else None
    top, bottom = infinite(s.arg("self")), infinite(s.arg("other"))
    return (f"{top} / {bottom} is NaN",) if top and bottom else None


def _ctc(s: Situation) -> Evidence | None:
    if s.in_node or not s.inf or not s.clean:
        return None
    return ("no alignment exists: the input has fewer frames than its target (and its repeats) need",)


RULES = (
    Rule(
        id="NS301",
        cause="mean over nothing",
        ops=_MEANS,
        when=_mean_over_nothing,
        rank=60,
        why="The mean of no elements is 0 / 0. A filter or a mask left nothing of this batch, or every target is "
        "the index that the loss ignores.",
        remedy="skip the batch, or loss = x.sum() / max(x.numel(), 1)",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    error = torch.tensor([0.2, 0.4])
    nanscan.check(error[error > 1].mean(), "hard examples")
print(scanner.report())
""",
    ),
    Rule(
        id="NS302",
        cause="std of one element",
        ops=_SPREADS,
        when=_std_of_one,
        why="std and var divide by n - 1 by default, which is 0 for a single element. The last batch of an epoch, "
        "or a group of one, gets there.",
        remedy="x.std(correction=0), or drop_last=True",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    returns = torch.tensor([1.5])
    nanscan.check((returns - returns.mean()) / (returns.std() + 1e-8), "advantage")
print(scanner.report())
""",
    ),
    Rule(
        id="NS303",
        cause="fully masked softmax row",
        ops=_SOFTMAXES | _ATTENTIONS,
        when=_masked_row,
        rank=60,
        why="softmax of a row of only -Inf is 0 / 0. A sequence that is all padding, or a mask that is inverted, "
        "leaves a query without any key.",
        remedy="leave one key visible, use torch.finfo(x.dtype).min, or zero such rows afterwards",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    scores = torch.zeros(2, 3).masked_fill(torch.tensor([[False] * 3, [True] * 3]), float("-inf"))
    nanscan.check(scores.softmax(-1), "attention")
print(scanner.report())
""",
    ),
    Rule(
        id="NS304",
        cause="0 * inf",
        ops=_PRODUCTS | _MATRIX,
        when=_zero_times_inf,
        why="0 * Inf is NaN, so multiplying with a mask of zeros does not remove an Inf. The Inf itself may be "
        "meant (log of a masked probability), the product is not.",
        remedy="torch.where(mask, x, 0.0) instead of x * mask",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    p = torch.tensor([0.0, 1.0])
    logp = torch.tensor([0.0, 0.0]).masked_fill(p == 0, float("-inf"))
    nanscan.check((p * logp).sum(), "entropy")
print(scanner.report())
""",
    ),
    Rule(
        id="NS305",
        cause="inf - inf",
        ops=_DIFFERENCES | _MATRIX,
        when=_inf_minus_inf,
        rank=45,
        why="Inf - Inf is NaN. Masked entries of -Inf are subtracted from each other, summed with a +Inf, or "
        "multiplied by weights of both signs in a matrix product.",
        remedy="give a row that is masked completely 0 instead of -inf, and zero its result afterwards",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    logits = torch.zeros(3).masked_fill(torch.tensor([True, True, True]), float("-inf"))
    nanscan.check(logits - logits.max(), "shifted logits")
print(scanner.report())
""",
    ),
    Rule(
        id="NS306",
        cause="inf / inf",
        ops=ops("div true_divide divide") | _SOFTMAXES,
        when=_inf_over_inf,
        rank=55,
        why="Inf / Inf is NaN. Both sides have overflowed, as in a softmax by hand, or softmax was given a +Inf.",
        remedy="torch.softmax, which subtracts the maximum first, and finite scores for it",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    top = torch.zeros(2).masked_fill(torch.tensor([True, False]), float("inf"))
    nanscan.check(top / top.sum(), "share")
print(scanner.report())
""",
    ),
    Rule(
        id="NS307",
        cause="infeasible CTC target",
        ops=ops("_ctc_loss ctc_loss _cudnn_ctc_loss"),
        when=_ctc,
        why="CTC needs at least as many input frames as target symbols, and one more between equal neighbours. "
        "Where the input is shorter the probability is 0 and the loss +Inf.",
        remedy="nn.CTCLoss(zero_infinity=True), and drop samples whose input is too short",
        example="""\
import torch
import nanscan

with nanscan.trace() as scanner:
    log_probs = torch.zeros(2, 1, 4).log_softmax(-1)
    target = torch.tensor([[1, 2, 3]])
    loss = torch.nn.functional.ctc_loss(log_probs, target, torch.tensor([2]), torch.tensor([3]))
    nanscan.check(loss, "loss")
print(scanner.report())
""",
    ),
)
