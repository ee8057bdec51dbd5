#include <algorithm>
#include <cstdint>

#include "device/cpu/convert.h"
#include "device/cpu/dispatch.h"
#include "device/cpu/quantized_matrix.h"
#include "device/cpu/simd.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "device/cpu/quantized_matrix_simd.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep
#include <hwy/highway.h>

// A block is computed a piece of a row at a time: codes become floats, then these are scaled, while
// they are in the L1 cache.

HWY_BEFORE_NAMESPACE();
namespace onnxgrad::device::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
using Words = hn::Rebind<std::uint32_t, Floats>;
using SignedWords = hn::Rebind<std::int32_t, Floats>;
using Bytes = hn::Rebind<std::uint8_t, Floats>;
inline constexpr std::int64_t kLanes = hn::MaxLanes(Floats());
inline constexpr std::int64_t kPiece = 256;  // columns

// Bits of a code, and what makes signed codes unsigned ones: xor with `flip`, then minus it.
struct CodeForm {
  int bits = 8;
  std::uint32_t flip = 0;
};

HWY_INLINE CodeForm form_of(DataType type) {
  switch (type) {
    case DataType::kUint2:
      return {2, 0};
    case DataType::kInt2:
      return {2, 2};
    case DataType::kUint4:
      return {4, 0};
    case DataType::kInt4:
      return {4, 8};
    case DataType::kInt8:
      return {8, 128};
    default:
      return {8, 0};
  }
}

HWY_INLINE float code_at(const CodeForm& form, const std::byte* codes, std::int64_t i) {
  const std::int64_t bit = i * form.bits;
  const auto byte = std::to_integer<std::uint32_t>(codes[bit / 8]);
  const std::uint32_t code = (byte >> (bit % 8)) & ((1U << form.bits) - 1);
  return static_cast<float>(static_cast<std::int32_t>(code ^ form.flip) -
                            static_cast<std::int32_t>(form.flip));
}

// Numbers of unsigned codes: themselves, without what was added to signed ones.
struct Numbers {
  explicit Numbers(std::uint32_t flip)
      : flips(hn::Set(Words(), flip)), start(hn::Set(Floats(), static_cast<float>(flip))) {}
  HWY_INLINE Vector operator()(hn::Vec<Words> codes) const {
    const auto whole = hn::BitCast(SignedWords(), hn::Xor(codes, flips));
    return hn::Sub(hn::ConvertTo(Floats(), whole), start);
  }
  hn::Vec<Words> flips;
  Vector start;
};

// Entries of a table of 16.
struct Entries {
  explicit Entries(const float* table)
      : entries(table)
#if HWY_TARGET != HWY_SCALAR
        ,
        held(kLanes == 16 ? hn::LoadU(Floats(), table) : hn::Zero(Floats()))
#endif
  {
  }
  HWY_INLINE Vector operator()(hn::Vec<Words> codes) const {
    const auto at = hn::BitCast(SignedWords(), codes);
#if HWY_TARGET != HWY_SCALAR
    if constexpr (kLanes == 16) {
      return hn::TableLookupLanes(held, hn::IndicesFromVec(Floats(), at));
    }
#endif
    return hn::GatherIndex(Floats(), entries, at);
  }
  const float* entries;
#if HWY_TARGET != HWY_SCALAR
  Vector held;
#endif
};

// Unpacks whole vectors of elements from element i on, which begins a byte; returns the first
// element that is left.
template <int kBits, class F>
HWY_INLINE std::int64_t unpack_vectors(const std::byte* codes, std::int64_t i, std::int64_t count,
                                       float* to, const F& number) {
  constexpr std::int64_t kPerByte = 8 / kBits;
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(codes);
  const auto mask = hn::Set(Words(), (1U << kBits) - 1);
  std::int64_t done = 0;
  for (; done + kPerByte * kLanes <= count; done += kPerByte * kLanes) {
    const auto packed = hn::PromoteTo(Words(), hn::LoadU(Bytes(), bytes + (i + done) / kPerByte));
    if constexpr (kBits == 8) {
      hn::StoreU(number(packed), Floats(), to + done);
    } else if constexpr (kBits == 4) {
      hn::StoreInterleaved2(number(hn::And(packed, mask)), number(hn::ShiftRight<4>(packed)),
                            Floats(), to + done);
    } else {
      hn::StoreInterleaved4(number(hn::And(packed, mask)),
                            number(hn::And(hn::ShiftRight<2>(packed), mask)),
                            number(hn::And(hn::ShiftRight<4>(packed), mask)),
                            number(hn::ShiftRight<6>(packed)), Floats(), to + done);
    }
  }
  return done;
}

// to[j] = number of code i + j
HWY_INLINE void unpack(const QuantizedMatrix& w, std::int64_t i, std::int64_t count, float* to) {
  const CodeForm form = form_of(w.type);
  const auto one = [&](std::int64_t j) HWY_ATTR {
    const float code = code_at(form, w.codes, i + j);
    to[j] = w.table == nullptr ? code : w.table[static_cast<std::int64_t>(code)];
  };
  std::int64_t j = 0;
  const std::int64_t per_byte = 8 / form.bits;
  for (; j < count && (i + j) % per_byte != 0; ++j) one(j);
  if (w.table != nullptr) {
    j += unpack_vectors<4>(w.codes, i + j, count - j, to + j, Entries(w.table));
  } else if (form.bits == 8) {
    j += unpack_vectors<8>(w.codes, i + j, count - j, to + j, Numbers(form.flip));
  } else if (form.bits == 4) {
    j += unpack_vectors<4>(w.codes, i + j, count - j, to + j, Numbers(form.flip));
  } else {
    j += unpack_vectors<2>(w.codes, i + j, count - j, to + j, Numbers(form.flip));
  }
  for (; j < count; ++j) one(j);
}

// to[j] = (to[j] - zero) scale
HWY_INLINE void scale_run(float* to, std::int64_t count, float zero, float scale) {
  std::int64_t j = 0;
  const Vector zeros = hn::Set(Floats(), zero);
  const Vector scales = hn::Set(Floats(), scale);
  for (; j + kLanes <= count; j += kLanes) {
    const Vector steps = hn::Sub(hn::LoadU(Floats(), to + j), zeros);
    hn::StoreU(hn::Mul(steps, scales), Floats(), to + j);
  }
  for (; j < count; ++j) to[j] = (to[j] - zero) * scale;
}

HWY_INLINE void scale_each(float* to, std::int64_t count, const float* zeros, const float* scales) {
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    const Vector steps = hn::Sub(hn::LoadU(Floats(), to + j), hn::LoadU(Floats(), zeros + j));
    hn::StoreU(hn::Mul(steps, hn::LoadU(Floats(), scales + j)), Floats(), to + j);
  }
  for (; j < count; ++j) to[j] = (to[j] - zeros[j]) * scales[j];
}

HWY_INLINE float zero_at(const QuantizedMatrix& w, std::int64_t i) {
  if (w.zeros == nullptr) return w.zero;
  if (w.zeros_type == DataType::kFloat32) return reinterpret_cast<const float*>(w.zeros)[i];
  return code_at(form_of(w.zeros_type), w.zeros, i);
}

// Scales and zeros of the columns of a piece, one for each; rows that share them follow each other.
class OwnScales {
 public:
  OwnScales(const QuantizedMatrix& w, std::int64_t column, std::int64_t count)
      : w_(w), column_(column), count_(count) {}

  HWY_INLINE void apply(std::int64_t row, float* to) {
    move_to(row);
    scale_each(to, count_, zeros_, scales_);
  }

  HWY_INLINE void move_to(std::int64_t row) {
    const std::int64_t start = row / w_.row_block * w_.scale_row;
    if (start != start_) load(start);
  }
  const float* zeros() const { return zeros_; }
  // to[j] += scales[j] from[j]
  HWY_INLINE void add_scaled(const float* from, float* to) const {
    std::int64_t j = 0;
    for (; j + kLanes <= count_; j += kLanes) {
      const Vector sum = hn::MulAdd(hn::LoadU(Floats(), from + j), hn::LoadU(Floats(), scales_ + j),
                                    hn::LoadU(Floats(), to + j));
      hn::StoreU(sum, Floats(), to + j);
    }
    for (; j < count_; ++j) to[j] += scales_[j] * from[j];
  }

 private:
  HWY_INLINE void load(std::int64_t start) {
    start_ = start;
    for (std::int64_t j = 0; j < count_; ++j) {
      const std::int64_t column = column_ + j;
      const std::int64_t at =
          start + (w_.groups != nullptr ? w_.groups[column] : column / w_.column_block);
      scales_[j] = w_.scales[at];
      zeros_[j] = zero_at(w_, at);
    }
  }

  const QuantizedMatrix& w_;
  std::int64_t column_, count_;
  std::int64_t start_ = -1;
  float scales_[kPiece];
  float zeros_[kPiece];
};

// Scales the elements of a row whose columns share scales in blocks.
HWY_INLINE void scale_blocks(const QuantizedMatrix& w, std::int64_t row, std::int64_t column,
                             std::int64_t count, float* to) {
  const std::int64_t start = row / w.row_block * w.scale_row;
  for (std::int64_t j = 0; j < count;) {
    const std::int64_t block = (column + j) / w.column_block;
    const std::int64_t left = w.column_block - (column + j) % w.column_block;
    const std::int64_t length = std::min(left, count - j);
    scale_run(to + j, length, zero_at(w, start + block), w.scales[start + block]);
    j += length;
  }
}

// The sum of x[j] y[j], in an order that depends on `count` alone.
HWY_INLINE float dot(const float* x, const float* y, std::int64_t count) {
  Vector even = hn::Zero(Floats());
  Vector odd = hn::Zero(Floats());
  std::int64_t j = 0;
  for (; j + 2 * kLanes <= count; j += 2 * kLanes) {
    even = hn::MulAdd(hn::LoadU(Floats(), x + j), hn::LoadU(Floats(), y + j), even);
    odd = hn::MulAdd(hn::LoadU(Floats(), x + j + kLanes), hn::LoadU(Floats(), y + j + kLanes), odd);
  }
  float sum = hn::GetLane(hn::SumOfLanes(Floats(), hn::Add(even, odd)));
  for (; j < count; ++j) sum += x[j] * y[j];
  return sum;
}

// Whether pieces of rows are whole bytes of 4-bit codes, whose scales change between vectors.
HWY_INLINE bool has_plain_rows(const QuantizedMatrix& w) {
  const bool are_vectors = w.column_block == kAllOfThem || w.column_block % (2 * kLanes) == 0;
  return form_of(w.type).bits == 4 && w.table == nullptr && w.groups == nullptr && are_vectors &&
         w.row_length % 2 == 0;
}

// Codes of 4 bits are multiplied where they are in bytes: the elements of A with even and those
// with odd numbers are brought side by side instead, once for all rows.
HWY_ATTR void dot_plain_rows(const QuantizedDots& dots) {
  const QuantizedMatrix& w = *dots.matrix;
  const CodeForm form = form_of(w.type);
  const auto* bytes = reinterpret_cast<const std::uint8_t*>(w.codes);
  const auto mask = hn::Set(Words(), 15U);
  const auto flips = hn::Set(Words(), form.flip);
  const auto whole = [&](hn::Vec<Words> codes)
                         HWY_ATTR { return hn::BitCast(SignedWords(), hn::Xor(codes, flips)); };
  constexpr std::int64_t kStep = 2 * kLanes;
  HWY_ALIGN float a[kPiece];
  std::fill(dots.sums, dots.sums + dots.count, 0.0F);
  for (std::int64_t c = 0; c < w.columns; c += kPiece) {
    const std::int64_t count = std::min(kPiece, w.columns - c);
    const std::int64_t vectors = count / kStep * kStep;
    for (std::int64_t j = 0; j < vectors; j += kStep) {
      Vector even;
      Vector odd;
      hn::LoadInterleaved2(Floats(), dots.a + c + j, even, odd);
      hn::Store(even, Floats(), a + j);
      hn::Store(odd, Floats(), a + j + kLanes);
    }
    for (std::int64_t r = 0; r < dots.count; ++r) {
      const std::int64_t row = dots.first + r;
      const std::int64_t start = row / w.row_block * w.scale_row;
      const std::int64_t element = row * w.row_length + c;
      Vector total = hn::Zero(Floats());
      for (std::int64_t j = 0; j < vectors;) {
        const std::int64_t at = start + (c + j) / w.column_block;
        const std::int64_t left = w.column_block - (c + j) % w.column_block;
        const std::int64_t end = j + std::min(left, vectors - j);
        const Vector zero = hn::Set(Floats(), static_cast<float>(form.flip) + zero_at(w, at));
        Vector even = hn::Zero(Floats());
        Vector odd = hn::Zero(Floats());
        for (; j < end; j += kStep) {
          const auto packed = hn::PromoteTo(Words(), hn::LoadU(Bytes(), bytes + (element + j) / 2));
          const Vector low = hn::ConvertTo(Floats(), whole(hn::And(packed, mask)));
          const Vector high = hn::ConvertTo(Floats(), whole(hn::ShiftRight<4>(packed)));
          even = hn::MulAdd(hn::Sub(low, zero), hn::Load(Floats(), a + j), even);
          odd = hn::MulAdd(hn::Sub(high, zero), hn::Load(Floats(), a + j + kLanes), odd);
        }
        total = hn::MulAdd(hn::Add(even, odd), hn::Set(Floats(), w.scales[at]), total);
      }
      float sum = hn::GetLane(hn::SumOfLanes(Floats(), total));
      for (std::int64_t j = vectors; j < count; ++j) {
        const std::int64_t at = start + (c + j) / w.column_block;
        sum +=
            (code_at(form, w.codes, element + j) - zero_at(w, at)) * w.scales[at] * dots.a[c + j];
      }
      dots.sums[r] += sum;
    }
  }
}

HWY_ATTR void dot_rows(const QuantizedDots& dots) {
  const QuantizedMatrix& w = *dots.matrix;
  if (dots.m == 1 && has_plain_rows(w)) return dot_plain_rows(dots);
  const bool has_own = w.groups != nullptr || w.column_block < kLanes;
  HWY_ALIGN float numbers[kPiece];
  for (std::int64_t r = 0; r < dots.count; ++r) {
    const std::int64_t row = dots.first + r;
    float* sums = dots.sums + r * dots.m;
    std::fill(sums, sums + dots.m, 0.0F);
    for (std::int64_t c = 0; c < w.columns; c += kPiece) {
      const std::int64_t count = std::min(kPiece, w.columns - c);
      unpack(w, row * w.row_length + c, count, numbers);
      if (has_own) {
        OwnScales(w, c, count).apply(row, numbers);
      } else {
        scale_blocks(w, row, c, count, numbers);
      }
      for (std::int64_t i = 0; i < dots.m; ++i) {
        sums[i] += dot(dots.a + i * w.columns + c, numbers, count);
      }
    }
  }
}

// to[j] += factor (numbers[j] - zeros[j])
HWY_INLINE void add_row(const float* numbers, const float* zeros, float factor, std::int64_t count,
                        float* to) {
  const Vector factors = hn::Set(Floats(), factor);
  std::int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    const Vector steps = hn::Sub(hn::LoadU(Floats(), numbers + j), hn::LoadU(Floats(), zeros + j));
    hn::StoreU(hn::MulAdd(factors, steps, hn::LoadU(Floats(), to + j)), Floats(), to + j);
  }
  for (; j < count; ++j) to[j] += factor * (numbers[j] - zeros[j]);
}

// Rows with common scales are summed up before they are scaled.
HWY_ATTR void sum_rows(const QuantizedRowSums& rows) {
  const QuantizedMatrix& w = *rows.matrix;
  static_assert(QuantizedRowSums::kMostColumns <= kPiece);
  HWY_ALIGN float numbers[kPiece];
  HWY_ALIGN float partial[kPiece];
  OwnScales own(w, rows.first, rows.count);
  std::fill(rows.sums, rows.sums + rows.count, 0.0F);
  for (std::int64_t r = 0; r < rows.k;) {
    const std::int64_t left = w.row_block - r % w.row_block;
    const std::int64_t end = r + std::min(left, rows.k - r);
    own.move_to(r);
    std::fill(partial, partial + rows.count, 0.0F);
    for (; r < end; ++r) {
      unpack(w, r * w.row_length + rows.first, rows.count, numbers);
      add_row(numbers, own.zeros(), rows.a[r], rows.count, partial);
    }
    own.add_scaled(partial, rows.sums);
  }
}

HWY_ATTR void read_block(float* to, std::ptrdiff_t to_row, const SourceBlock& block) {
  const auto& w = *static_cast<const QuantizedMatrix*>(block.matrix);
  const std::int64_t row = block.first / w.columns;
  const std::int64_t column = block.first % w.columns;
  const bool has_own = w.groups != nullptr || w.column_block < kLanes;
  for (std::int64_t c = 0; c < block.columns; c += kPiece) {
    const std::int64_t count = std::min(kPiece, block.columns - c);
    OwnScales own(w, column + c, count);
    for (std::int64_t r = 0; r < block.rows; ++r) {
      float* at = to + r * to_row + c;
      unpack(w, (row + r) * w.row_length + column + c, count, at);
      if (has_own) {
        own.apply(row + r, at);
      } else {
        scale_blocks(w, row + r, column + c, count, at);
      }
      std::fill(at + count, at + (count + kLanes - 1) / kLanes * kLanes, 0.0F);
    }
  }
}

ReadBlockFn block_reader() { return read_block; }

using DotRowsFn = void (*)(const QuantizedDots& dots);
DotRowsFn row_dots() { return dot_rows; }

using SumRowsFn = void (*)(const QuantizedRowSums& rows);
SumRowsFn row_sums() { return sum_rows; }

}  // namespace onnxgrad::device::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace onnxgrad::device {

HWY_EXPORT(block_reader);
HWY_EXPORT(row_dots);
HWY_EXPORT(row_sums);

void run_quantized_dots(Isa isa, const QuantizedDots& dots) {
  chosen(HWY_DISPATCH_TABLE(row_dots), isa)()(dots);
}

void run_quantized_row_sums(Isa isa, const QuantizedRowSums& rows) {
  chosen(HWY_DISPATCH_TABLE(row_sums), isa)()(rows);
}

bool is_code_type(DataType type) {
  switch (type) {
    case DataType::kUint2:
    case DataType::kInt2:
    case DataType::kUint4:
    case DataType::kInt4:
    case DataType::kUint8:
    case DataType::kInt8:
      return true;
    default:
      return false;
  }
}

GemmSource source_of_quantized(Isa isa, DataType rounds) {
  GemmSource source;
  source.read = chosen(HWY_DISPATCH_TABLE(block_reader), isa)();
  source.parts = 3;
  if (rounds != DataType::kUndefined) source.convert = find_widening(isa, rounds, /*rounds=*/true);
  return source;
}

}  // namespace onnxgrad::device
#endif  // HWY_ONCE
