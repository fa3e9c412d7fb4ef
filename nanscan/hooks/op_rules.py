"""What the op observer has to know of single ops, as data. Everything else it reads from the op's schema.

Users add to it with `add_rule` (an op that only moves data, an output that may be non-finite).
"""

from __future__ import annotations

from enum import IntFlag


class OpRule(IntFlag):
    """The bits of csrc/hooks/op_table.h that are data."""

    LOOK = 2  # looks at data or returns an alias of it: no scan, and no reader of bad memory
    UNINIT = 4  # returns memory that nobody has filled
    CONSTANT = 8  # makes constants out of Python numbers, or overwrites its argument with them
    SELECTS = 16  # its result consists of elements of its inputs, or it compares them
    HOST = 32  # hands a value to the host
    OVERWRITES = 64  # fills the argument it writes without reading it
    FILLED = 128  # its argument was filled without an op: torch.tensor(list) allocates and writes by itself


def _named(names: str) -> tuple[str, ...]:
    return tuple(f"aten::{name}" for name in names.split())


_BY_RULE = {
    OpRule.LOOK: "isnan isinf isfinite isposinf isneginf ne eq lt gt le ge signbit is_nonzero equal _unsafe_view "
    "_reshape_alias detach_ lift_fresh_copy set_ _is_any_true _is_all_true "
    "record_stream is_same_size _amp_foreach_non_finite_check_and_unscale_ _amp_update_scale_",
    OpRule.UNINIT: "empty empty_like empty_strided new_empty new_empty_strided empty_permuted resize_ resize_as_",
    OpRule.CONSTANT: "full full_like new_full scalar_tensor fill_ zero_ zeros ones eye arange linspace "
    "ones_like zeros_like rand_like randn_like randint_like new_zeros new_ones "
    "normal_ uniform_ exponential_ random_ bernoulli_ geometric_ log_normal_ cauchy_ rand randn",
    OpRule.SELECTS: "where index index_select gather masked_fill masked_fill_ masked_select nan_to_num nan_to_num_ "
    "clamp clamp_ clamp_min clamp_max cat stack clone copy_ _to_copy max min amax amin aminmax "
    "maximum minimum fmax fmin topk sort argmax argmin scatter scatter_ slice_scatter select_scatter "
    "relu relu_ threshold hardtanh embedding take take_along_dim masked_scatter flip roll repeat "
    "constant_pad_nd max_pool2d_with_indices dropout native_dropout _softmax _log_softmax logsumexp "
    "exp sigmoid multinomial nonzero unique _unique2 cummax cummin median nanmedian sign heaviside "
    "index_put index_put_ _index_put_impl_ scatter_reduce scatter_reduce_ tril triu nansum",
    OpRule.HOST: "_local_scalar_dense",
    OpRule.OVERWRITES: "copy_ _foreach_copy_ _foreach_zero_",
    OpRule.FILLED: "lift_fresh",
}

RULES: dict[str, OpRule] = {}
for _rule, _names in _BY_RULE.items():
    for _name in _named(_names):
        RULES[_name] = RULES.get(_name, OpRule(0)) | _rule

# Outputs by index that may legally hold -inf: bookkeeping that only the op's own backward reads.
LEGAL_OUTPUTS: dict[str, tuple[int, ...]] = {
    "aten::_ctc_loss": (1,),
    "aten::_scaled_dot_product_flash_attention_for_cpu": (1,),
    "aten::_scaled_dot_product_efficient_attention": (1,),
    "aten::_scaled_dot_product_flash_attention": (1,),
    "aten::_scaled_dot_product_cudnn_attention": (1,),
}


def add_rule(op: str, rule: OpRule | None = None, legal_outputs: tuple[int, ...] = ()) -> None:
    """Teach the observer about an op of yours: ``add_rule("mylib::shuffle", OpRule.SELECTS)``."""
    if "::" not in op:
        raise ValueError(f"add_rule(op={op!r}): give the op's full name, such as 'mylib::shuffle'")
    if rule is not None:
        RULES[op] = RULES.get(op, OpRule(0)) | rule
    if legal_outputs:
        LEGAL_OUTPUTS[op] = (*LEGAL_OUTPUTS.get(op, ()), *legal_outputs)


def masks() -> tuple[dict[str, int], dict[str, int]]:
    """(rules, legal outputs as bit masks) for the core."""
    legal = {op: sum(1 << i for i in set(outputs)) for op, outputs in LEGAL_OUTPUTS.items()}
    return {op: int(rule) for op, rule in RULES.items()}, legal
