#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <utility>

#include "device/cpu/convert.h"
#include "device/cpu_options.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "ops/kernel_support.h"
#include "ops/quantize/small_types.h"

// Cast from and to the types that the element-wise kernel does not load and store: 4-bit and 8-bit
// floats, 2-bit and 4-bit integers; and from strings to numeric types. Casts to strings, which no
// plan holds, are separate calls.

namespace onnxgrad::ops::cast_cpu {
namespace {

struct CastData {
  DataType from = DataType::kUndefined;
  DataType to = DataType::kUndefined;
  bool saturate = true;
  ScaleRounding rounding = ScaleRounding::kUp;
  std::int64_t count = 0;
};

bool is_bit_integer(DataType dtype) {
  return dtype == DataType::kInt4 || dtype == DataType::kUint4 || dtype == DataType::kInt2 ||
         dtype == DataType::kUint2;
}

bool is_plain(DataType dtype) {
  return is_integer(dtype) || dtype == DataType::kBool || dtype == DataType::kFloat64;
}

double load_plain(DataType dtype, const std::byte* data, std::int64_t i) {
  switch (dtype) {
    case DataType::kFloat64:
      return reinterpret_cast<const double*>(data)[i];
    case DataType::kBool:
      return data[i] != std::byte{0} ? 1 : 0;
    case DataType::kInt64:
      return static_cast<double>(reinterpret_cast<const std::int64_t*>(data)[i]);
    case DataType::kUint64:
      return static_cast<double>(reinterpret_cast<const std::uint64_t*>(data)[i]);
    case DataType::kUint32:
      return reinterpret_cast<const std::uint32_t*>(data)[i];
    case DataType::kInt32:
      return reinterpret_cast<const std::int32_t*>(data)[i];
    default:
      return static_cast<double>(load_small(dtype, data, i));
  }
}

// Stores the value of a small type, which every integer type can represent; fractions are
// truncated.
void store_plain(DataType dtype, std::byte* data, std::int64_t i, double value) {
  switch (dtype) {
    case DataType::kFloat64:
      reinterpret_cast<double*>(data)[i] = value;
      return;
    case DataType::kBool:
      reinterpret_cast<bool*>(data)[i] = value != 0;
      return;
    case DataType::kInt64:
      reinterpret_cast<std::int64_t*>(data)[i] = static_cast<std::int64_t>(value);
      return;
    case DataType::kUint64:
      reinterpret_cast<std::uint64_t*>(data)[i] =
          static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
      return;
    case DataType::kUint32:
      reinterpret_cast<std::uint32_t*>(data)[i] =
          static_cast<std::uint32_t>(static_cast<std::int64_t>(value));
      return;
    case DataType::kInt32:
      reinterpret_cast<std::int32_t*>(data)[i] = static_cast<std::int32_t>(value);
      return;
    default: {
      // Integers wrap around, as those of wider types do.
      const auto whole = static_cast<std::int64_t>(value);
      const int bits = size_bits(dtype);
      const std::int64_t low = static_cast<std::int64_t>(integer_range(dtype).low);
      const std::int64_t mask = (std::int64_t{1} << bits) - 1;
      const std::int64_t wrapped = ((whole - low) & mask) + low;
      store_small(dtype, data, i, static_cast<float>(wrapped), true);
    }
  }
}

void run_cast(const CastData& cast, KernelArgs args) {
  for (std::int64_t i = 0; i < cast.count; ++i) {
    const double value = load_plain(cast.from, args[0], i);
    if (is_small_float(cast.to) || cast.to == DataType::kFloat16 ||
        cast.to == DataType::kBfloat16 || cast.to == DataType::kFloat32) {
      store_small(cast.to, args[1], i, static_cast<float>(value), cast.saturate, cast.rounding);
    } else if (std::isfinite(value)) {
      store_plain(cast.to, args[1], i, std::trunc(value));
    } else {
      store_plain(cast.to, args[1], i, cast.to == DataType::kFloat64 ? value : 0);
    }
  }
}

struct TextData {
  device::ConvertFn convert = nullptr;  // conversion from double, or from int64
  std::int64_t element_bytes = 0;
  std::int64_t count = 0;
  bool to_integer = false;
};

[[noreturn]] void refuse_text(const std::string& text) {
  throw DataError({.what = "Cast: '" + text.substr(0, 40) + "' is not a number",
                   .hint = "Give numbers in plain or scientific notation, INF or NaN."});
}

// Parses a number in plain or scientific notation, or INF or NaN in any case, with a sign.
double read_number(const std::string& text) {
  std::string_view rest = text;
  const bool is_negative = rest.starts_with('-');
  if (is_negative || rest.starts_with('+')) rest.remove_prefix(1);
  double number = 0;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  const bool is_whole = end == rest.data() + rest.size() && !rest.starts_with('-');
  if (!is_whole || error == std::errc::invalid_argument) refuse_text(text);
  if (error == std::errc::result_out_of_range) number = std::strtod(text.c_str(), nullptr);
  return is_negative && error == std::errc() ? -number : number;
}

std::int64_t read_integer(const std::string& text) {
  std::int64_t number = 0;
  const char* first = text.data() + (text.starts_with('+') ? 1 : 0);
  const char* last = text.data() + text.size();
  const auto [end, error] = std::from_chars(first, last, number);
  if (error == std::errc() && end == last) return number;
  const double fraction = std::trunc(read_number(text));
  if (!(std::fabs(fraction) < 0x1p63)) refuse_text(text);
  return static_cast<std::int64_t>(fraction);
}

void run_text_cast(const TextData& cast, KernelArgs args) {
  const auto* texts = args.at<std::string>(0);
  for (std::int64_t i = 0; i < cast.count; ++i) {
    std::byte* to = args[1] + i * cast.element_bytes;
    if (cast.to_integer) {
      const std::int64_t number = read_integer(texts[i]);
      cast.convert(to, &number, 1);
    } else {
      const double number = read_number(texts[i]);
      cast.convert(to, &number, 1);
    }
  }
}

KernelOffer offer_text_cast(const KernelRequest& request, DataType to) {
  const bool to_integer = is_integer(to);
  TextData data{
      .convert = device::find_conversion(device::isa_of(request),
                                         to_integer ? DataType::kInt64 : DataType::kFloat64, to),
      .element_bytes = size_bits(to) / 8,
      .count = request.inputs[0].dims.num_elements(),
      .to_integer = to_integer};
  if (data.convert == nullptr) return decline_dtype(request, to);
  KernelOffer offer = prepared<run_text_cast>(data, "texts");
  offer.kernel.checks = {{.input = 0}};
  return offer;
}

// Formats numbers as onnxruntime does: integers and booleans (1, 0) with all digits, floats of any
// type with at most 8 significant digits, NaN, INF and -INF.
std::string text_of(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-INF" : "INF";
  return fmt::format("{:.8g}", number);
}

std::vector<Tensor> run_write_texts(const DynamicCall& call) {
  const Tensor& x = call.inputs.at(0);
  const DataType from = x.dtype();
  if (from == DataType::kString) return {x};
  const bool is_number = is_small_float(from) || is_floating(from);
  std::vector<std::string> texts;
  texts.reserve(static_cast<std::size_t>(x.num_elements()));
  for (std::int64_t i = 0; i < x.num_elements(); ++i) {
    if (from == DataType::kInt64) {  // all digits, which a double cannot hold
      texts.push_back(fmt::format("{}", reinterpret_cast<const std::int64_t*>(x.raw())[i]));
    } else if (from == DataType::kUint64) {
      texts.push_back(fmt::format("{}", reinterpret_cast<const std::uint64_t*>(x.raw())[i]));
    } else {
      const double number = load_plain(from, x.raw(), i);
      texts.push_back(is_number ? text_of(number) : fmt::format("{:.0f}", number));
    }
  }
  return {Tensor::from_strings(std::move(texts), x.dims())};
}

KernelOffer offer_cast(const KernelRequest& request) {
  const DataType from = request.inputs[0].dtype;
  const DataType to = request.outputs[0].dtype;
  if (to == DataType::kString) return KernelOffer::decline("strings are in no plan");
  if (from == DataType::kString) return offer_text_cast(request, to);
  const auto is_own = [](DataType dtype) { return is_small_float(dtype) || is_bit_integer(dtype); };
  const auto is_known = [](DataType dtype) { return is_small_type(dtype) || is_plain(dtype); };
  if (!is_own(from) && !is_own(to)) return KernelOffer::decline("the element-wise kernel casts it");
  for (const DataType dtype : {from, to}) {
    if (!is_known(dtype)) return decline_dtype(request, dtype);
  }
  const ir::Node& node = request.node;
  CastData data{.from = from,
                .to = to,
                .saturate = node.int_attribute("saturate") != 0,
                .rounding = scale_rounding(node.string_attribute("round_mode")),
                .count = request.inputs[0].dims.num_elements()};
  return prepared<run_cast>(data, "one element at a time");
}

}  // namespace

void register_cast_cpu(opdef::KernelRegistry& registry) {
  registry.add("", "Cast", 0, offer_cast);
  registry.add_dynamic(ir::kFusedDomain, "Cast", run_write_texts);
}

}  // namespace onnxgrad::ops::cast_cpu
