#!/usr/bin/env bash
# Everything that only a GPU can show, in one run of at most 8 minutes: builds nanscan, tests it on the device, measures
# it, and lets compute-sanitizer look at the kernels.
#
#   benchmarks/gpu_check.sh              # rows, outcomes and the log go to $OUT, else to benchmarks/results/
#   benchmarks/gpu_check.sh --dry        # without a GPU: what needs none runs, the rest is named as left out
#   benchmarks/gpu_check.sh --only 'tests scan'      # some of the stages; "build" unless it was done before
#
# Needs Python with torch, a C++ compiler and ninja; nvcc; no network. What is missing is said, and the rest goes on. A
# stage that fails or runs into its time limit stops no other. Exit code 1 if any failed.
#   PYTHON  the interpreter (python3)          LIMIT  seconds for all of it (470)          MAX_JOBS  compilers at a time
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
root=$PWD
python=${PYTHON:-python3}
out=${OUT:-$root/benchmarks/results}
dry=0 only=""
while [ $# -gt 0 ]; do
  case $1 in
    --dry) dry=1 ;;
    --only) only=" ${2:-} " && shift ;;
    *) sed -n '2,12p' "$0" | cut -c3- && exit 2 ;;
  esac
  shift
done
limit=${LIMIT:-$([ $dry = 1 ] && echo 1200 || echo 470)}  # a machine without a GPU has fewer cores
mkdir -p "$out" || exit 1
log=$out/gpu_check.log summary=$out/gpu_check.txt
: >"$log" && : >"$summary"
# A package of its own, put together by setup.py: nothing is installed, and the repository root is not on sys.path.
lib=$root/build/gpu-check/lib
export PYTHONPATH=$lib${PYTHONPATH:+:$PYTHONPATH} NANSCAN_REQUIRE_NATIVE=1 PYTHONUNBUFFERED=1
export PATH=$PATH:${CUDA_HOME:-/usr/local/cuda}/bin
failed=0

say() { echo "$*" | tee -a "$summary"; }
has() { command -v "$1" >/dev/null 2>&1; }
wanted() { [ -z "$only" ] || [[ $only == *" $1 "* ]]; }
left_out() { say "left out  $1: $2"; }

stage() { # stage NAME SECONDS COMMAND...
  local name=$1 most=$2 began=$SECONDS left=$((limit - SECONDS)) code
  shift 2
  wanted "$name" || return 0
  if [ "$left" -lt 10 ]; then
    left_out "$name" "the $limit seconds of the whole run are used up" && failed=1
    return 0
  fi
  [ "$most" -gt "$left" ] && most=$left
  printf '\n==== %s: %s\n' "$name" "$*" >>"$log"
  timeout -k 5 "$most" "$@" >>"$log" 2>&1
  code=$?
  case $code in
    0) say "ok        $name ($((SECONDS - began)) s)" ;;
    124 | 137) say "FAILED    $name: not done after $most s" && failed=1 ;;
    *) say "FAILED    $name: exit code $code after $((SECONDS - began)) s, see $log" && failed=1 ;;
  esac
  return "$code"
}

said() { # said NAME PATTERN: these lines of what the stage printed
  ! wanted "$1" || sed -n "/^==== $1:/,\$p" "$log" | grep -E "$2" | sed 's/^/          /' | tee -a "$summary"
}

needs_gpu() { # needs_gpu NAME SECONDS COMMAND...: a stage that a dry run leaves out
  if [ "$dry" = 1 ]; then
    ! wanted "$1" || left_out "$1" "needs a CUDA device (--dry)"
  else
    stage "$@"
  fi
}

# ---- what is here
say "machine   $(uname -m), $(nproc) cores, $("$python" --version 2>&1)"
for tool in nvcc c++ ninja compute-sanitizer nvidia-smi; do
  has "$tool" || say "missing   $tool"
done
for module in torch numpy setuptools rich pytest hypothesis triton; do
  "$python" -c "import $module" >/dev/null 2>&1 || say "missing   Python package $module"
done
! has nvidia-smi || nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>>"$log" | sed 's/^/gpu       /' | tee -a "$summary"
say "torch     $("$python" -c 'import torch; print(torch.__version__, "CUDA", torch.version.cuda, "devices", torch.cuda.device_count())' 2>&1 | tail -1)"

# ---- build
cuda=cuda
has "${NVCC:-nvcc}" || cuda=auto
stage build $((limit * 2 / 5)) env NANSCAN_BUILD=$cuda "$python" setup.py -q build --build-lib "$lib"
if ! compgen -G "$lib/nanscan/_C*.so" >/dev/null; then
  say "FAILED    there is no compiled core in $lib: nothing else can run"
  exit 1
fi

# ---- is it right
stage smoke 60 "$python" "$root/benchmarks/cuda_smoke.py" $([ "$dry" = 1 ] && echo --any-torch)
said smoke '^(ok|FAILED) '
if "$python" -c 'import pytest, hypothesis' >/dev/null 2>&1; then
  # -P: python -m would put the repository root on sys.path. minversion: whatever pytest is here will do.
  stage tests 150 "$python" -P -m pytest -q -m gpu -o minversion=6 -p no:cacheprovider --durations=5 tests/gpu/test_on_gpu*.py
  said tests '^[0-9]+ (passed|failed|skipped|error).* in |^FAILED |^ERROR '
else
  ! wanted tests || { left_out tests "pytest or hypothesis is missing" && failed=1; }
fi
needs_gpu values 60 "$python" benchmarks/gpu_small_scans.py

# ---- how fast is it
if [ "$dry" = 1 ]; then
  stage scan-help 60 "$python" benchmarks/bench_gpu_scan.py --help
  stage step-help 60 "$python" benchmarks/bench_gpu_step.py --help
fi
needs_gpu scan 120 "$python" benchmarks/bench_gpu_scan.py --results "$out"
for question in hook launches step graph; do
  needs_gpu "$question" 90 "$python" benchmarks/bench_gpu_step.py --only "$question" --results "$out"
done

# ---- what a checker says of the kernels
for tool in memcheck racecheck initcheck synccheck; do
  if [ "$dry" = 0 ] && ! has compute-sanitizer; then
    ! wanted "$tool" || left_out "$tool" "compute-sanitizer is not on PATH"
    continue
  fi
  needs_gpu "$tool" 60 compute-sanitizer --tool "$tool" --error-exitcode 9 --print-limit 20 \
    "$python" benchmarks/gpu_small_scans.py
  if [ "$dry" = 0 ] && tail -n 40 "$log" | grep -q "Device not supported"; then
    say "          compute-sanitizer refuses this device; its other tools are left out"
    break
  fi
done

say "$([ $failed = 0 ] && echo "all that ran went well" || echo "something FAILED") ($SECONDS s); rows and $(basename "$log") are in $out"
exit $failed
