"""The scan in Triton: the same 128-byte record as csrc/scan writes, for torch.compile and for other vendors' GPUs.

The files follow the flow: `classify` (bits to classes and values), `accumulate` (a chunk of memory to sums), `moments`
(sums to a partial result, partial results to a record), `kernels` (what is launched), `launch` (tensors to records),
`op` (the same as a registered operator). Importing this package loads no Triton; those modules do.
"""

# The bare name belongs to a package of the Triton repository that others probe for and import.
if __name__ != "nanscan.triton_kernels":
    raise ImportError(
        f"this folder is nanscan.triton_kernels and was about to be loaded as {__name__!r}: take nanscan's repository "
        "root off sys.path (run the pytest script, not `python -m pytest`) and import nanscan.triton_kernels"
    )
