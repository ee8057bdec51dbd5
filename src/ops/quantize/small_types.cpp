#include "ops/quantize/small_types.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

namespace onnxgrad::ops {
namespace {

// Signed floating-point format. Codes above `max_code` (without the sign) are infinity, if it
// exists, and NaN.
struct Format {
  int exponent_bits = 0;
  int mantissa_bits = 0;
  int bias = 0;
  std::uint32_t max_code = 0;
  std::uint32_t infinity_code = 0;  // 0: no infinity
  std::uint32_t nan_code = 0;       // code with the sign; 0: no NaN
  bool has_negative_zero = true;
};

constexpr Format kE4M3FN{4, 3, 7, 0x7E, 0, 0x7F, true};
constexpr Format kE4M3FNUZ{4, 3, 8, 0x7F, 0, 0x80, false};
constexpr Format kE5M2{5, 2, 15, 0x7B, 0x7C, 0x7F, true};
constexpr Format kE5M2FNUZ{5, 2, 16, 0x7F, 0, 0x80, false};
constexpr Format kE2M1{2, 1, 1, 0x7, 0, 0, true};
constexpr Format kHalf{5, 10, 15, 0x7BFF, 0x7C00, 0x7E00, true};

const Format* format_of(DataType dtype) {
  switch (dtype) {
    case DataType::kFloat8E4M3FN:
      return &kE4M3FN;
    case DataType::kFloat8E4M3FNUZ:
      return &kE4M3FNUZ;
    case DataType::kFloat8E5M2:
      return &kE5M2;
    case DataType::kFloat8E5M2FNUZ:
      return &kE5M2FNUZ;
    case DataType::kFloat4E2M1:
      return &kE2M1;
    case DataType::kFloat16:
      return &kHalf;
    default:
      return nullptr;
  }
}

float decode(const Format& format, std::uint32_t code) {
  const std::uint32_t sign_bit = 1U << (format.exponent_bits + format.mantissa_bits);
  const std::uint32_t magnitude = code & (sign_bit - 1);
  const float sign = (code & sign_bit) != 0 ? -1.0F : 1.0F;
  if (code == format.nan_code && format.nan_code != 0) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (magnitude > format.max_code) {
    return magnitude == format.infinity_code ? sign * std::numeric_limits<float>::infinity()
                                             : std::numeric_limits<float>::quiet_NaN();
  }
  const std::uint32_t exponent = magnitude >> format.mantissa_bits;
  const std::uint32_t mantissa = magnitude & ((1U << format.mantissa_bits) - 1);
  const int scale = std::max(static_cast<int>(exponent), 1) - format.bias - format.mantissa_bits;
  const std::uint32_t hidden = exponent == 0 ? 0 : 1U << format.mantissa_bits;
  return sign * std::ldexp(static_cast<float>(mantissa + hidden), scale);
}

std::uint32_t too_large(const Format& format, std::uint32_t sign, bool saturate) {
  if (saturate || format.nan_code == 0) return sign | format.max_code;
  if (format.infinity_code != 0) return sign | format.infinity_code;
  return format.nan_code == 0x80 ? format.nan_code : sign | format.nan_code;
}

std::uint32_t encode(const Format& format, float value, bool saturate) {
  const std::uint32_t sign_bit = 1U << (format.exponent_bits + format.mantissa_bits);
  const std::uint32_t sign = std::signbit(value) ? sign_bit : 0;
  if (std::isnan(value)) {
    if (format.nan_code == 0) return sign_bit;  // -0, as in ml_dtypes and the node tests
    return format.nan_code == 0x80 ? format.nan_code : sign | format.nan_code;
  }
  if (std::isinf(value)) return too_large(format, sign, saturate);
  const double magnitude = std::fabs(static_cast<double>(value));
  if (magnitude == 0) return format.has_negative_zero ? sign : 0;
  int exponent = std::max(std::ilogb(magnitude), 1 - format.bias);
  double steps = std::nearbyint(std::ldexp(magnitude, format.mantissa_bits - exponent));
  const double twice = std::ldexp(1.0, format.mantissa_bits + 1);
  if (steps >= twice) {
    ++exponent;
    steps /= 2;
  }
  if (exponent + format.bias >= 1 << format.exponent_bits) return too_large(format, sign, saturate);
  const auto whole = static_cast<std::uint32_t>(steps);
  const std::uint32_t hidden = 1U << format.mantissa_bits;
  const std::uint32_t code = whole < hidden ? whole
                                            : (static_cast<std::uint32_t>(exponent + format.bias)
                                               << format.mantissa_bits) |
                                                  (whole - hidden);
  if (code > format.max_code) return too_large(format, sign, saturate);
  return code == 0 && !format.has_negative_zero ? 0 : sign | code;
}

// Encodes powers of two, 2^(code - 127); 0xFF is NaN.
std::uint32_t encode_scale(float value, bool saturate, ScaleRounding rounding) {
  if (std::isnan(value) || value < 0) return 0xFF;
  if (std::isinf(value)) return saturate ? 0xFE : 0xFF;
  if (value == 0) return 0;
  const int exponent = std::ilogb(value);
  const float rest = std::ldexp(value, -exponent);  // in [1, 2)
  int code = exponent + 127;
  if (rounding == ScaleRounding::kUp && rest > 1) ++code;
  if (rounding == ScaleRounding::kNearest && rest >= 1.5F) ++code;
  if (code > 0xFE) return saturate ? 0xFE : 0xFF;
  return static_cast<std::uint32_t>(std::max(code, 0));
}

template <class T>
T read(const std::byte* data, std::int64_t i) {
  T value;
  std::memcpy(&value, data + i * static_cast<std::int64_t>(sizeof(T)), sizeof(T));
  return value;
}

template <class T>
void write(std::byte* data, std::int64_t i, T value) {
  std::memcpy(data + i * static_cast<std::int64_t>(sizeof(T)), &value, sizeof(T));
}

std::uint32_t read_packed(const std::byte* data, std::int64_t i, int bits) {
  const int per_byte = 8 / bits;
  const int shift = static_cast<int>(i % per_byte) * bits;
  return (std::to_integer<std::uint32_t>(data[i / per_byte]) >> shift) & ((1U << bits) - 1);
}

// The first element of a byte clears the bits of the later ones.
void write_packed(std::byte* data, std::int64_t i, int bits, std::uint32_t code) {
  const int per_byte = 8 / bits;
  const int shift = static_cast<int>(i % per_byte) * bits;
  std::byte& target = data[i / per_byte];
  const std::uint32_t before = shift == 0 ? 0 : std::to_integer<std::uint32_t>(target);
  target = static_cast<std::byte>(before | ((code & ((1U << bits) - 1)) << shift));
}

float to_signed(std::uint32_t code, int bits) {
  const auto value = static_cast<int>(code);
  return static_cast<float>(value >= 1 << (bits - 1) ? value - (1 << bits) : value);
}

template <class T>
T nearest_integer(float value) {
  if (std::isnan(value)) return 0;
  constexpr auto kLow = static_cast<double>(std::numeric_limits<T>::min());
  constexpr auto kHigh = static_cast<double>(std::numeric_limits<T>::max());
  return static_cast<T>(std::clamp(std::nearbyint(static_cast<double>(value)), kLow, kHigh));
}

}  // namespace

ScaleRounding scale_rounding(std::string_view round_mode) {
  if (round_mode == "down") return ScaleRounding::kDown;
  return round_mode == "nearest" ? ScaleRounding::kNearest : ScaleRounding::kUp;
}

bool is_small_float(DataType dtype) {
  return dtype != DataType::kFloat16 &&
         (format_of(dtype) != nullptr || dtype == DataType::kFloat8E8M0);
}

bool is_small_type(DataType dtype) {
  switch (dtype) {
    case DataType::kInt2:
    case DataType::kInt4:
    case DataType::kInt8:
    case DataType::kInt16:
    case DataType::kInt32:
    case DataType::kUint2:
    case DataType::kUint4:
    case DataType::kUint8:
    case DataType::kUint16:
    case DataType::kFloat16:
    case DataType::kBfloat16:
    case DataType::kFloat32:
      return true;
    default:
      return is_small_float(dtype);
  }
}

IntegerRange integer_range(DataType dtype) {
  const int bits = size_bits(dtype);
  switch (dtype) {
    case DataType::kUint2:
    case DataType::kUint4:
    case DataType::kUint8:
    case DataType::kUint16:
      return {.low = 0, .high = std::ldexp(1.0F, bits) - 1};
    default:
      return {.low = -std::ldexp(1.0F, bits - 1), .high = std::ldexp(1.0F, bits - 1) - 1};
  }
}

float load_small(DataType dtype, const std::byte* data, std::int64_t i) {
  switch (dtype) {
    case DataType::kInt8:
      return read<std::int8_t>(data, i);
    case DataType::kUint8:
      return read<std::uint8_t>(data, i);
    case DataType::kInt16:
      return read<std::int16_t>(data, i);
    case DataType::kUint16:
      return read<std::uint16_t>(data, i);
    case DataType::kInt32:
      return static_cast<float>(read<std::int32_t>(data, i));
    case DataType::kFloat32:
      return read<float>(data, i);
    case DataType::kBfloat16:
      return std::bit_cast<float>(std::uint32_t{read<std::uint16_t>(data, i)} << 16);
    case DataType::kFloat16:
      return decode(kHalf, read<std::uint16_t>(data, i));
    case DataType::kInt4:
      return to_signed(read_packed(data, i, 4), 4);
    case DataType::kInt2:
      return to_signed(read_packed(data, i, 2), 2);
    case DataType::kUint4:
      return static_cast<float>(read_packed(data, i, 4));
    case DataType::kUint2:
      return static_cast<float>(read_packed(data, i, 2));
    case DataType::kFloat4E2M1:
      return decode(kE2M1, read_packed(data, i, 4));
    case DataType::kFloat8E8M0: {
      const int code = read<std::uint8_t>(data, i);
      return code == 0xFF ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(1.0F, code - 127);
    }
    default: {
      const Format* format = format_of(dtype);
      return format == nullptr ? 0.0F : decode(*format, read<std::uint8_t>(data, i));
    }
  }
}

void store_small(DataType dtype, std::byte* data, std::int64_t i, float value, bool saturate,
                 ScaleRounding rounding) {
  switch (dtype) {
    case DataType::kInt8:
      return write(data, i, nearest_integer<std::int8_t>(value));
    case DataType::kUint8:
      return write(data, i, nearest_integer<std::uint8_t>(value));
    case DataType::kInt16:
      return write(data, i, nearest_integer<std::int16_t>(value));
    case DataType::kUint16:
      return write(data, i, nearest_integer<std::uint16_t>(value));
    case DataType::kInt32:
      return write(data, i, nearest_integer<std::int32_t>(value));
    case DataType::kFloat32:
      return write(data, i, value);
    case DataType::kFloat16:
      return write(data, i, static_cast<std::uint16_t>(encode(kHalf, value, false)));
    case DataType::kBfloat16: {
      auto bits = std::bit_cast<std::uint32_t>(value);
      bits = std::isnan(value) ? 0x7FC00000U : bits + 0x7FFF + ((bits >> 16) & 1);
      return write(data, i, static_cast<std::uint16_t>(bits >> 16));
    }
    case DataType::kInt4:
    case DataType::kUint4:
    case DataType::kInt2:
    case DataType::kUint2: {
      const IntegerRange range = integer_range(dtype);
      const float whole = std::isnan(value) ? 0.0F : std::nearbyint(value);
      const int code = static_cast<int>(std::clamp(whole, range.low, range.high));
      return write_packed(data, i, size_bits(dtype), static_cast<std::uint32_t>(code));
    }
    case DataType::kFloat4E2M1:
      return write_packed(data, i, 4, encode(kE2M1, value, true));
    case DataType::kFloat8E8M0:
      return write(data, i, static_cast<std::uint8_t>(encode_scale(value, saturate, rounding)));
    default: {
      const Format* format = format_of(dtype);
      if (format == nullptr) return;
      return write(data, i, static_cast<std::uint8_t>(encode(*format, value, saturate)));
    }
  }
}

}  // namespace onnxgrad::ops
