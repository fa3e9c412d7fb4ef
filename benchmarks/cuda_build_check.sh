#!/usr/bin/env bash
# Builds nanscan against a CUDA build of torch, on a machine that needs no GPU, and tries what can be tried there: that
# the core compiles, links and loads beside the real libtorch_cuda, and takes the stream's handle from c10; that
# libnanscan_cuda is found, loaded, and says plainly that there is no device; and that watching works at both levels.
#
#   make cuda-build-check                        # torch 2.14.1: 5.5 GB, about 8 minutes on two cores
#   CUDA_TORCH=2.11.0 PYTHON=python3.12 KEEP=1 benchmarks/cuda_build_check.sh
#
# Needs nvcc, a C++ compiler, and a package index. KEEP=1 leaves the virtual environment for another run.
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
torch=${CUDA_TORCH:-2.14.1}
python=${PYTHON:-python3}
work=$root/build/cuda-check
venv=$work/venv-torch-$torch
mkdir -p "$work" || exit 1

stage() { # stage NAME COMMAND...: its output goes to a file, its outcome and time to the terminal; the first failure ends it
  local name=$1 log=$work/$1.log began=$SECONDS
  shift
  if "$@" >"$log" 2>&1; then
    echo "ok      $name ($((SECONDS - began)) s)"
  else
    echo "FAILED  $name ($((SECONDS - began)) s); the end of $log:"
    tail -n 25 "$log"
    exit 1
  fi
}

clean() { [ "${KEEP:-0}" = 1 ] || rm -rf "$venv" "$work/source"; }
trap clean EXIT

make_venv() {
  [ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
  "$venv/bin/python" -m pip --disable-pip-version-check install -q "torch==$torch" 'setuptools>=77' ninja numpy rich
}

# A copy: a build here would put a core for this torch where the checkout keeps its own.
copy_source() {
  rm -rf "$work/source" && mkdir -p "$work/source" || return
  cp -r "$root"/{nanscan,csrc,triton_kernels,examples,setup.py,pyproject.toml,README.md,LICENSE} "$work/source" || return
  rm -f "$work/source"/nanscan/*.so
}

build() {
  NANSCAN_BUILD=cuda NANSCAN_REQUIRE_NATIVE=1 "$venv/bin/python" -m pip --disable-pip-version-check install -v \
    --no-build-isolation --no-deps --force-reinstall "$work/source"
}

smoke() { (cd "$work" && env -u PYTHONPATH NANSCAN_REQUIRE_NATIVE=1 "$venv/bin/python" "$root/benchmarks/cuda_smoke.py"); }

stage venv make_venv
stage source copy_source
stage build build
stage smoke smoke
cat "$work/smoke.log"
