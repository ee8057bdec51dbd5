#include "device/cpu/convert.h"

#include <cstdint>
#include <limits>
#include <type_traits>

#include "base/f16.h"
#include "base/visit_types.h"
#include "device/isa.h"

namespace onnxgrad::device {
namespace {

using base::Bfloat16;
using base::Float16;

template <class T>
constexpr bool kIsF16 = std::is_same_v<T, Float16> || std::is_same_v<T, Bfloat16>;

/// Returns a value of type From as a value of an arithmetic type.
template <class From>
auto widen(From value) {
  if constexpr (kIsF16<From>) {
    return to_float(value);
  } else {
    return value;
  }
}

template <class To, class From>
To round_to_f16(From value) {
  float single = 0;
  if constexpr (std::is_same_v<From, double>) {
    single = base::to_odd_float(value);
  } else {
    single = static_cast<float>(value);
  }
  if constexpr (std::is_same_v<To, Float16>) return base::to_float16(single);
  if constexpr (std::is_same_v<To, Bfloat16>) return base::to_bfloat16(single);
}

/// Converts floating point to integer through int64, as processors and NumPy do.
template <class To, class From>
To to_integer(From value) {
  constexpr auto kLimit = static_cast<From>(9223372036854775808.0);  // 2^63
  if (value != value) return 0;
  if constexpr (std::is_same_v<To, std::uint64_t>) {
    if (value >= 2 * kLimit) return std::numeric_limits<To>::max();
    if (value >= kLimit) return static_cast<To>(value);
  }
  if (value >= kLimit) return static_cast<To>(std::numeric_limits<std::int64_t>::max());
  if (value <= -kLimit) return static_cast<To>(std::numeric_limits<std::int64_t>::min());
  return static_cast<To>(static_cast<std::int64_t>(value));
}

template <class To, class From>
To convert_one(From given) {
  const auto value = widen(given);
  using Wide = decltype(value);
  if constexpr (std::is_same_v<To, bool>) {
    return value != 0;
  } else if constexpr (kIsF16<To>) {
    return round_to_f16<To>(value);
  } else if constexpr (std::is_floating_point_v<std::remove_cv_t<Wide>> && std::is_integral_v<To>) {
    return to_integer<To>(value);
  } else {
    return static_cast<To>(value);
  }
}

template <class To, class From>
void convert(void* to, const void* from, std::int64_t n) {
  const From* x = static_cast<const From*>(from);
  To* y = static_cast<To*>(to);
  for (std::int64_t i = 0; i < n; ++i) y[i] = convert_one<To>(x[i]);
}

/// Calls f with a value of the element type; false if conversions do not support it.
template <class F>
bool with_type(DataType dtype, F f) {
  return base::visit_numbers(dtype, f) || base::visit_types<Float16, Bfloat16>(dtype, f);
}

}  // namespace

ConvertFn find_conversion(Isa isa, DataType from, DataType to) {
  ConvertFn found = find_vector_conversion(isa, from, to);
  if (found != nullptr) return found;
  with_type(from, [&](auto source) {
    with_type(to, [&](auto target) { found = convert<decltype(target), decltype(source)>; });
  });
  return found;
}

}  // namespace onnxgrad::device
