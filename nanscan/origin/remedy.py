"""The next call or command for a birth: concrete, and something that can be done to this kind of place."""

from __future__ import annotations

from nanscan.origin.births import DATA_CAUSE, MEMORY_CAUSE, Birth
from nanscan.origin.torch_nn import TORCH_NN
from nanscan.sites import Site, SiteKind, SiteTable


def remedy(birth: Birth, sites: SiteTable, batch: int | None, maker: Site | None = None) -> str:
    """What to do about `birth`, which came up in root call number `batch`; `maker`: of the Inf that it came out of."""
    site = sites[birth.fact.site]
    if birth.cause == DATA_CAUSE:
        return f"look at {birth.tensor} of batch {batch}: drop or repair its non-finite entries before the model"
    if birth.cause == MEMORY_CAUSE:
        return f"find what writes into {birth.tensor} without PyTorch (data_ptr, numpy, ctypes, .data)"
    if birth.params:
        return (
            f"print(nanscan.scan({_getter(sites, site)})) after loading and after initialisation: "
            "nothing watched has written the bad value"
        )
    if site.kind is SiteKind.CHECK:
        before = "the model's output" if site.module is None else f"what {site.module or site.module_type} was given"
        return f"look between {site.label} and the check before it (if there is none: {before})"
    if birth.phase == "optimizer" and site.kind is SiteKind.PARAM_GRAD:
        return "look at what runs between backward() and optimizer.step(): clipping, unscaling, hooks on gradients"
    if birth.phase == "optimizer":
        return f"check lr, eps and the optimizer's state for {birth.tensor}"
    if birth.phase == "backward" and birth.module is None:
        how = "put nanscan.check(tensor, 'name') on the values between the model's output and the loss"
        return how if birth.tensor is None else f"{how}, and run these steps once without torch.compile"
    return _inside(birth, sites, maker)


def _inside(birth: Birth, sites: SiteTable, maker: Site | None) -> str:
    if birth.op is not None:
        return f"call {birth.op} by itself on such inputs: PyTorch sees nothing of what it does inside"
    place = birth.module or birth.module_type
    if birth.module is None or birth.module_type not in TORCH_NN:
        return f"put nanscan.check(tensor, 'name') inside {place or 'the code around it'} to find the line"
    if maker is not None and maker.module_type not in TORCH_NN:
        return f"put nanscan.check(tensor, 'name') inside {maker.label}, which made the Inf, to find the line"
    own = [site for site in _all(sites) if site.kind is SiteKind.PARAM and site.module == birth.module]
    if not own:
        return f"check what {place} reads: put nanscan.check(tensor, 'name') before it is called"
    return f"check what {place} reads and its parameters: print(nanscan.scan({_getter(sites, own[0])}))"


def _all(sites: SiteTable) -> list[Site]:
    """All sites; the table itself has no iterator that ends with what is there now."""
    return [sites[i] for i in range(len(sites))]


def _getter(sites: SiteTable, site: Site) -> str:
    """The call that gets a parameter or buffer out of the user's model."""
    name, how = site.tensor or "", "get_buffer" if site.kind is SiteKind.BUFFER else "get_parameter"
    root = name.partition(".")[0]
    # A second model of one scanner: its class name stands before every name, and its root is the module of that name.
    if any(s.module == root and s.module_type and root.startswith(s.module_type) for s in _all(sites)):
        name = name.partition(".")[2] or name
    return f"model.{how}({name!r})"
