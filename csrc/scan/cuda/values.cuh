// How values come out of 16-byte loads: cells (the widest integer that holds whole values), decoding, sign flips.
#pragma once

#include <type_traits>

#include "scan/classify.h"
#include "scan/cuda/device.cuh"

namespace nanscan::cuda {

// What the kernels ask of a format beyond classify.h. value = raw * kFactor, exactly: comparing raws compares values,
// and the factor disappears into the fused multiply-add that subtracts the shift.
template <typename F>
struct Decode {  // F64, F32, BF16: the bits are the value's, or its upper half
  static constexpr float kFactor = 1.0f;
  static constexpr typename F::Bits kMinNormal = F::kMinNormal;
  NANSCAN_D static auto raw(typename F::Bits bits) { return F::value(bits); }
};

template <>
struct Decode<F16> {
  static constexpr float kFactor = 1.0f;
  static constexpr uint16_t kMinNormal = F16::kMinNormal;
  NANSCAN_D static float raw(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }  // one instruction
};

// One byte: its exponent and mantissa in a float's fields make a float that is 2^(127 - bias) too small, subnormals
// included (denormal floats cost nothing on these devices; the library is built without flush-to-zero).
template <int kMant>
struct DecodeByte {
  static constexpr uint8_t kMinNormal = 1 << kMant;
  NANSCAN_D static float raw(uint8_t bits) {
    const int32_t top = static_cast<int32_t>(static_cast<uint32_t>(bits) << 24);
    constexpr uint32_t kFields = 0x80000000u | 0x7fu << (23 - kMant);  // the shift below drags the sign along
    return float_from_bits(static_cast<uint32_t>(top >> (1 + kMant)) & kFields);
  }
};
template <>
struct Decode<F8E4M3FN> : DecodeByte<3> {
  static constexpr float kFactor = 0x1p120f;
};
template <>
struct Decode<F8E5M2> : DecodeByte<2> {
  static constexpr float kFactor = 0x1p112f;
};
template <>
struct Decode<F8E4M3FNUZ> : DecodeByte<3> {
  static constexpr float kFactor = 0x1p119f;
};
template <>
struct Decode<F8E5M2FNUZ> : DecodeByte<2> {
  static constexpr float kFactor = 0x1p111f;
};

// An element type: kParts values of format F, side by side. Complex numbers have two.
template <typename F, int kParts_>
struct Element {
  using Format = F;
  using Bits = typename F::Bits;
  using Cell = std::conditional_t<sizeof(Bits) == 8, uint64_t, uint32_t>;
  using Real = std::conditional_t<sizeof(Bits) == 8, double, float>;  // what sums of a group run in

  static constexpr int kParts = kParts_;
  static constexpr int kBytes = kParts * static_cast<int>(sizeof(Bits));
  static constexpr int kValueBits = 8 * static_cast<int>(sizeof(Bits));
  static constexpr int kPerCell = static_cast<int>(sizeof(Cell) / sizeof(Bits));  // values
  static constexpr int kCells = static_cast<int>(16 / sizeof(Cell));              // of a vector
  static constexpr int kPerVector = 16 / kBytes;                                  // elements

  // The same bits in every value of a cell.
  static constexpr Cell kOnes = static_cast<Cell>(~Cell{0}) / static_cast<Bits>(~Bits{0});
  static constexpr Cell kTop = kOnes << (kValueBits - 1);
  static constexpr Cell kMag = static_cast<Cell>(~kTop);

  NANSCAN_D static Bits bits(Cell cell, int i) { return static_cast<Bits>(cell >> (i * kValueBits)); }
  NANSCAN_D static Real raw(Cell cell, int i) { return Decode<F>::raw(bits(cell, i)); }
};

// Sign bits to turn in a complex element, for torch's lazy conj and neg views. Real tensors are negated at the end.
struct Flips {
  bool re;
  bool im;
};

// 16 bytes of memory as cells.
template <typename E>
struct Vector {
  typename E::Cell cell[E::kCells];

  NANSCAN_D static Vector load(const uint4* from) {
    const uint4 v = __ldcs(from);  // read once: evict first
    Vector out;
    if constexpr (E::kCells == 4) {
      out.cell[0] = v.x;
      out.cell[1] = v.y;
      out.cell[2] = v.z;
      out.cell[3] = v.w;
    } else {
      out.cell[0] = v.x | static_cast<uint64_t>(v.y) << 32;
      out.cell[1] = v.z | static_cast<uint64_t>(v.w) << 32;
    }
    return out;
  }

  // The value in front drops out, all move up by one, and this one comes last.
  NANSCAN_D void push(typename E::Bits bits) {
    using Cell = typename E::Cell;
    constexpr int kRest = 8 * static_cast<int>(sizeof(Cell)) - E::kValueBits;
#pragma unroll
    for (int c = 0; c < E::kCells; ++c) {
      const Cell next = c + 1 < E::kCells ? cell[(c + 1) % E::kCells] : Cell{bits};
      if constexpr (kRest == 0) {
        cell[c] = next;
      } else {
        cell[c] = cell[c] >> E::kValueBits | next << kRest;
      }
    }
  }

  // A complex part fills one cell: even cells are real parts.
  NANSCAN_D void flip(Flips flips) {
    if constexpr (E::kParts == 2) {
#pragma unroll
      for (int c = 0; c < E::kCells; ++c) {
        const bool turn = c % 2 == 0 ? flips.re : flips.im;
        cell[c] ^= turn ? E::kTop : typename E::Cell{0};
      }
    }
  }
};

}  // namespace nanscan::cuda
