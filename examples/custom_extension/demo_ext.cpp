// Two ways to bring C++ into a PyTorch program, each with a mistake in it.
#include <ATen/core/Tensor.h>
#include <torch/csrc/utils/pybind.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <vector>

namespace {

// x: [rows, n] fp32, contiguous. Each row divided by its root mean square.
// The mistake: no epsilon. A row of zeros is 0 / 0.
at::Tensor rms_scale(const at::Tensor& x) {
  at::Tensor out = x.clone();
  float* p = out.data_ptr<float>();
  const int64_t n = x.size(-1);
  for (int64_t row = 0; row < x.numel() / n; ++row, p += n) {
    float sum = 0.0f;
    for (int64_t i = 0; i < n; ++i) sum += p[i] * p[i];
    const float rms = std::sqrt(sum / static_cast<float>(n));
    for (int64_t i = 0; i < n; ++i) p[i] /= rms;
  }
  return out;
}

// out[i] = mean of x[i] and x[i + 1], over all elements; both fp32, contiguous. Writes through the pointer: no op, no
// dispatcher, nothing that PyTorch could see.
// The mistake: the last element has no right neighbour, and the loop goes on to it all the same. What it reads there is
// the guard behind the copy, which a debug allocator would have filled with NaN as well.
void smooth_into(const at::Tensor& x, at::Tensor out) {
  const int64_t n = x.numel();
  const float* p = x.data_ptr<float>();
  std::vector<float> copy(p, p + n);
  copy.push_back(std::numeric_limits<float>::quiet_NaN());
  float* q = out.data_ptr<float>();
  for (int64_t i = 0; i < n; ++i) q[i] = 0.5f * (copy[i] + copy[i + 1]);
}

}  // namespace

TORCH_LIBRARY(demo_ext, m) { m.def("rms_scale(Tensor x) -> Tensor"); }
TORCH_LIBRARY_IMPL(demo_ext, CPU, m) { m.impl("rms_scale", &rms_scale); }

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("smooth_into", &smooth_into, py::arg("x"), py::arg("out")); }
