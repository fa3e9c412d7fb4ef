// What one element is, decided on its bits: NaN, infinity, zero, subnormal, and its value as a float or double.
//
// Host and device: the CUDA kernels include this file. Integers only, so that neither -ffast-math nor flush-to-zero
// (torch.set_flush_denormal) can change a verdict. No torch, nothing of std:: in the per-element path.
#pragma once

#include <cstdint>
#include <cstring>

#include "record/record.h"

#if defined(__CUDACC__) || defined(__HIPCC__)
#define NANSCAN_HD __host__ __device__ __forceinline__
#elif defined(__GNUC__) || defined(__clang__)
#define NANSCAN_HD inline __attribute__((always_inline))
#else
#define NANSCAN_HD inline
#endif

namespace nanscan {

// Ordered so that a complex element's class is the larger one of its parts': zero only if both are, subnormal if any is
// and neither is bad, bad by the worse part.
enum class Class : uint8_t { kZero = 0, kNormal = 1, kSubnormal = 2, kNegInf = 3, kPosInf = 4, kNaN = 5 };

NANSCAN_HD bool is_bad(Class c) { return c >= Class::kNegInf; }
NANSCAN_HD Class worse(Class a, Class b) { return a > b ? a : b; }

NANSCAN_HD float float_from_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}
NANSCAN_HD double double_from_bits(uint64_t bits) {
  double value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// A binary format with the usual layout (sign, exponent, mantissa): all ones in the exponent is infinity or NaN.
// U: unsigned integer of the format's width. kMant: mantissa bits.
template <typename U, int kMant>
struct Ieee {
  using Bits = U;
  static constexpr int kBits = 8 * static_cast<int>(sizeof(U));
  static constexpr U kMag = static_cast<U>(~U{0}) >> 1;                      // everything but the sign
  static constexpr U kMinNormal = static_cast<U>(U{1} << kMant);             // smallest magnitude that is not subnormal
  static constexpr U kInf = static_cast<U>(kMag & ~static_cast<U>(kMinNormal - 1));  // magnitudes above are NaN

  NANSCAN_HD static Class classify(U bits) {
    const U mag = static_cast<U>(bits & kMag);
    if (mag >= kInf) {
      if (mag > kInf) return Class::kNaN;
      return bits > kMag ? Class::kNegInf : Class::kPosInf;
    }
    if (mag >= kMinNormal) return Class::kNormal;
    return mag == 0 ? Class::kZero : Class::kSubnormal;
  }
};

struct F64 : Ieee<uint64_t, 52> {
  static constexpr DType kDType = DType::kF64;
  NANSCAN_HD static double value(uint64_t bits) { return double_from_bits(bits); }
};

struct F32 : Ieee<uint32_t, 23> {
  static constexpr DType kDType = DType::kF32;
  NANSCAN_HD static float value(uint32_t bits) { return float_from_bits(bits); }
};

// A float32 without its lower half.
struct BF16 : Ieee<uint16_t, 7> {
  static constexpr DType kDType = DType::kBF16;
  NANSCAN_HD static float value(uint16_t bits) { return float_from_bits(static_cast<uint32_t>(bits) << 16); }
};

// Decodes a small format into a float, exactly. Not for infinities or NaN: classify first.
// kExp, kMant: field widths; kBias: exponent bias.
template <int kExp, int kMant, int kBias>
NANSCAN_HD float decode_small(uint32_t bits) {
  const uint32_t sign = (bits >> (kExp + kMant)) & 1u;
  const uint32_t exponent = (bits >> kMant) & ((1u << kExp) - 1u);
  const uint32_t mantissa = bits & ((1u << kMant) - 1u);
  if (exponent == 0) {  // subnormal: mantissa * 2^(1 - bias - kMant); the factor is a normal float
    const float unit = float_from_bits(static_cast<uint32_t>(127 + 1 - kBias - kMant) << 23);
    const float value = static_cast<float>(mantissa) * unit;
    return sign ? -value : value;
  }
  return float_from_bits(sign << 31 | (exponent + (127 - kBias)) << 23 | mantissa << (23 - kMant));
}

struct F16 : Ieee<uint16_t, 10> {
  static constexpr DType kDType = DType::kF16;
  NANSCAN_HD static float value(uint16_t bits) { return decode_small<5, 10, 15>(bits); }
};

struct F8E5M2 : Ieee<uint8_t, 2> {
  static constexpr DType kDType = DType::kF8E5M2;
  NANSCAN_HD static float value(uint8_t bits) { return decode_small<5, 2, 15>(bits); }
};

// "fn": no infinities, and only the largest magnitude is NaN; the rest of the top exponent is ordinary numbers.
struct F8E4M3FN {
  using Bits = uint8_t;
  static constexpr DType kDType = DType::kF8E4M3FN;
  NANSCAN_HD static Class classify(uint8_t bits) {
    const uint8_t mag = bits & 0x7f;
    if (mag == 0x7f) return Class::kNaN;
    if (mag >= 8) return Class::kNormal;
    return mag == 0 ? Class::kZero : Class::kSubnormal;
  }
  NANSCAN_HD static float value(uint8_t bits) { return decode_small<4, 3, 7>(bits); }
};

// "fnuz": no infinities, no negative zero (its pattern is the only NaN), exponent bias one higher.
template <int kExp, int kMant, int kBias, DType kType>
struct F8Fnuz {
  using Bits = uint8_t;
  static constexpr DType kDType = kType;
  NANSCAN_HD static Class classify(uint8_t bits) {
    if (bits == 0x80) return Class::kNaN;
    const uint8_t mag = bits & 0x7f;
    if (mag >= (1 << kMant)) return Class::kNormal;
    return mag == 0 ? Class::kZero : Class::kSubnormal;
  }
  NANSCAN_HD static float value(uint8_t bits) { return decode_small<kExp, kMant, kBias>(bits); }
};
using F8E4M3FNUZ = F8Fnuz<4, 3, 8, DType::kF8E4M3FNUZ>;
using F8E5M2FNUZ = F8Fnuz<5, 2, 16, DType::kF8E5M2FNUZ>;

}  // namespace nanscan
