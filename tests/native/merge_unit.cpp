// combine: a zero, associativity, order of counts and first_bad, and Chan's term with the right sign on shifted data.
#include <cmath>
#include <cstdio>

#include "scan/chunk.h"

using namespace nanscan;

#define CHECK(condition)                                           \
  do {                                                             \
    if (!(condition)) {                                            \
      std::fprintf(stderr, "line %d: %s\n", __LINE__, #condition); \
      return 1;                                                    \
    }                                                              \
  } while (0)

static Moments of(const double* values, int64_t n, uint64_t base) {
  Moments m;
  scan_exact<F64>(reinterpret_cast<const char*>(values), n, base, m);
  return m;
}
static Moments both(Moments a, const Moments& b) {
  combine(a, b);
  return a;
}
static bool near(double a, double b) { return std::fabs(a - b) <= 1e-12 * (std::fabs(a) + std::fabs(b)); }
static bool same(const Moments& a, const Moments& b) {
  return a.n == b.n && a.n_nan == b.n_nan && a.n_posinf == b.n_posinf && a.n_neginf == b.n_neginf &&
         a.n_zero == b.n_zero && a.n_subnormal == b.n_subnormal && a.n_parts == b.n_parts && a.min == b.min &&
         a.max == b.max && a.first_bad == b.first_bad && near(a.mean, b.mean) && near(a.m2, b.m2);
}

int main() {
  const double values[] = {1.0, 2.0, 0.0, -4.0, 1e3, 1e3 + 1.0, NAN, 5e-310, -INFINITY, INFINITY, 7.0, 0.25};
  const Moments whole = of(values, 12, 0);
  CHECK(whole.n == 12 && whole.n_nan == 1 && whole.n_posinf == 1 && whole.n_neginf == 1 && whole.n_zero == 1);
  CHECK(whole.n_subnormal == 1 && whole.n_parts == 9 && whole.first_bad == 6);
  CHECK(whole.min == -4.0 && whole.max == 1e3 + 1.0);

  const Moments zero;
  CHECK(same(both(whole, zero), whole) && same(both(zero, whole), whole) && same(both(zero, zero), zero));
  for (int64_t i = 0; i <= 12; ++i) {
    for (int64_t j = i; j <= 12; ++j) {
      const Moments a = of(values, i, 0), b = of(values + i, j - i, uint64_t(i));
      const Moments c = of(values + j, 12 - j, uint64_t(j));
      CHECK(same(both(both(a, b), c), whole));
      CHECK(same(both(a, both(b, c)), whole));
      CHECK(same(both(both(c, a), b), whole));  // any order
    }
  }

  // Two shards with means 0 and 10, m2 0 each: 2 * 2 / 4 * 100 = 100, not -100 or 0
  const double zeros[] = {0.0, 0.0}, tens[] = {10.0, 10.0};
  const Moments shards = both(of(zeros, 2, 0), of(tens, 2, 2));
  CHECK(shards.mean == 5.0 && shards.m2 == 100.0);

  // Ends of float64: never NaN
  const double top[] = {1.7e308, 1.7e308}, bottom[] = {-1.7e308, -1.7e308};
  const Moments ends = both(of(top, 2, 0), of(bottom, 2, 2));
  CHECK(ends.mean == 0.0 && std::isinf(ends.m2) && ends.m2 > 0.0);
  const double mixed[] = {1.7e308, -1.7e308, 1.7e308, 1.7e308};
  const Moments wide = of(mixed, 4, 0);
  CHECK(near(wide.mean, 0.85e308) && std::isinf(wide.m2));

  // What a record keeps of it
  Record record{};
  record.flags = kFlagTop;
  record.site = 5;
  store(whole, DType::kF64, record);
  CHECK(record.flags == (kFlagTop | kFlagBad) && record.site == 5 && record.first_bad == 6 && record.n == 12);
  store(zero, DType::kF64, record);
  CHECK(record.flags == kFlagTop && record.first_bad == -1 && std::isinf(record.min) && record.max < record.min);
  return 0;
}
