// Several threads scan shared read-only memory at once: every dtype, sizes 0 .. 200 and around the chunk seams, every
// misalignment, each into a buffer cut to size so that a read past the end is one past the allocation. Each result is
// compared with the exact pass. Meant for -fsanitize=address,undefined and -fsanitize=thread.
#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "scan/chunk.h"
#include "scan/layout.h"
#include "scan/scan_cpu.h"

using namespace nanscan;

namespace {

uint32_t next_random(uint32_t& state) {
  state ^= state << 13;
  state ^= state >> 17;
  return state ^= state << 5;
}

Moments exact(const char* data, int64_t n, DType dtype) {
  Moments m;
  switch (dtype) {
    case DType::kF64: scan_exact<F64>(data, n, 0, m); break;
    case DType::kF32: scan_exact<F32>(data, n, 0, m); break;
    case DType::kF16: scan_exact<F16>(data, n, 0, m); break;
    case DType::kBF16: scan_exact<BF16>(data, n, 0, m); break;
    case DType::kF8E4M3FN: scan_exact<F8E4M3FN>(data, n, 0, m); break;
    case DType::kF8E5M2: scan_exact<F8E5M2>(data, n, 0, m); break;
    case DType::kF8E4M3FNUZ: scan_exact<F8E4M3FNUZ>(data, n, 0, m); break;
    case DType::kF8E5M2FNUZ: scan_exact<F8E5M2FNUZ>(data, n, 0, m); break;
    case DType::kC64: scan_exact_pairs<F32>(data, n, 0, m); break;
    default: scan_exact_pairs<F64>(data, n, 0, m); break;
  }
  return m;
}

bool same(const Moments& a, const Moments& b) {
  const double std = std::sqrt(b.m2 / (b.n_parts ? static_cast<double>(b.n_parts) : 1.0));
  const double margin = 1e-4 * std + 1e-13 * std::fabs(b.mean) + 1e-150;
  return a.n == b.n && a.n_nan == b.n_nan && a.n_posinf == b.n_posinf && a.n_neginf == b.n_neginf &&
         a.n_zero == b.n_zero && a.n_subnormal == b.n_subnormal && a.n_parts == b.n_parts && a.min == b.min &&
         a.max == b.max && a.first_bad == b.first_bad && (std::fabs(a.mean - b.mean) <= margin || std::isinf(margin)) &&
         (std::fabs(a.m2 - b.m2) <= 3e-4 * b.m2 + 1e-250 || a.m2 == b.m2);
}

// Random bits, or tame values, without or with NaN and infinities: random bits of a wide format are mostly huge and end
// in the exact pass, tame values in the optimistic one, and bad ones between them in the masked one.
void fill(std::vector<char>& bytes, int offset, int64_t n, DType dtype, bool tame, bool planted, uint32_t& state) {
  for (char& byte : bytes) byte = static_cast<char>(next_random(state) >> 11);
  if (!tame) return;
  const int64_t parts = dtype == DType::kC64 || dtype == DType::kC128 ? 2 * n : n;
  for (int64_t i = 0; i < parts; ++i) {
    double value = static_cast<double>(next_random(state) % 2001) / 1000.0 - 1.0;  // some exact zeros
    char* at = bytes.data() + offset;
    if (planted && next_random(state) % 16 == 0) value = next_random(state) % 2 == 0 ? INFINITY : NAN;
    const float narrow = static_cast<float>(value);
    if (dtype == DType::kF64 || dtype == DType::kC128) memcpy(at + 8 * i, &value, 8);
    if (dtype == DType::kF32 || dtype == DType::kC64) memcpy(at + 4 * i, &narrow, 4);
    if (dtype == DType::kBF16) memcpy(at + 2 * i, reinterpret_cast<const char*>(&narrow) + 2, 2);
    if (dtype == DType::kF16) at[2 * i + 1] = static_cast<char>(at[2 * i + 1] & 0xbb);  // exponent below the top
  }
}

std::atomic<int> failures{0};

void check(const char* data, int64_t n, DType dtype, const char* what) {
  Moments m;
  scan_dense(data, n, dtype, m);
  if (!same(m, exact(data, n, dtype)) && failures.fetch_add(1) == 0) {
    const Moments e = exact(data, n, dtype);
    std::fprintf(stderr, "%s dtype %d n %lld: mean %.17g, expected %.17g; m2 %.17g, expected %.17g; zero %llu, %llu\n",
                 what, static_cast<int>(dtype), static_cast<long long>(n), m.mean, e.mean, m.m2, e.m2,
                 static_cast<unsigned long long>(m.n_zero), static_cast<unsigned long long>(e.n_zero));
  }
}

void scan_everything(uint32_t seed) {
  uint32_t state = seed * 2654435761u + 1;
  for (int d = 1; d < kNumDTypes; ++d) {
    const DType dtype = static_cast<DType>(d);
    std::vector<int64_t> lengths{511, 512, 513, 2048, 2049, 4095, 4096, 4097, 9001};
    for (int64_t n = 0; n <= 200; ++n) lengths.push_back(n);
    for (int64_t n : lengths) {
      const int offset = static_cast<int>(next_random(state) % 17);
      std::vector<char> bytes(static_cast<size_t>(offset + n * size_bytes(dtype)));
      fill(bytes, offset, n, dtype, next_random(state) % 3 != 0, next_random(state) % 2 == 0, state);
      check(bytes.data() + offset, n, dtype, "dense");
    }
    // Every third column of a matrix, through a gather into a buffer cut to size
    std::vector<char> matrix(static_cast<size_t>(30 * 40 * size_bytes(dtype)));
    fill(matrix, 0, 30 * 40, dtype, true, true, state);
    const int64_t sizes[] = {30, 13}, strides[] = {40, 3};
    Layout layout;
    layout.init(sizes, strides, 2);
    std::vector<char> gathered(static_cast<size_t>(layout.n() * size_bytes(dtype)));
    layout.gather(matrix.data(), size_bytes(dtype), 0, 100, gathered.data());
    layout.gather(matrix.data(), size_bytes(dtype), 100, layout.n() - 100, gathered.data() + 100 * size_bytes(dtype));
    for (int64_t i = 0; i < layout.n(); ++i) {
      const char* from = matrix.data() + (i / 13 * 40 + i % 13 * 3) * size_bytes(dtype);
      const char* to = gathered.data() + i * size_bytes(dtype);
      if (memcmp(from, to, static_cast<size_t>(size_bytes(dtype))) != 0) failures += 1;
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int n_threads = argc > 1 ? std::atoi(argv[1]) : 8;
  // Shared by all threads, large enough for several spans
  std::vector<float> shared(300'000);
  uint32_t state = 7;
  for (float& value : shared) value = static_cast<float>(next_random(state) % 1000) - 500.0f;
  shared[299'999] = INFINITY;
  for (const SimdLevel level : {SimdLevel::kPortable, SimdLevel::kAvx2}) {
    if (!set_simd_level(level)) continue;
    std::vector<std::thread> threads;
    for (int t = 0; t < n_threads; ++t) {
      threads.emplace_back([&, t] {
        Moments m;
        scan_dense(shared.data(), 300'000, DType::kF32, m);
        if (m.first_bad != 299'999 || m.n_posinf != 1) failures += 1;
        scan_everything(static_cast<uint32_t>(t + 1));
      });
    }
    for (std::thread& thread : threads) thread.join();
    std::printf("%s %d failures\n", name_of(level), failures.load());
  }
  return failures.load() == 0 ? 0 : 1;
}
