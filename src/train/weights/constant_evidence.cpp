#include "train/weights/constant_evidence.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <numbers>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace onnxgrad::train {
namespace {

constexpr double kTolerance = 1e-4;  // for formulas computed in float32

bool is_near(double a, double b, double scale) { return std::abs(a - b) <= kTolerance * scale; }

/// At most two different numbers of a tensor.
struct TwoValues {
  double first = 0;
  std::optional<double> second = {};
};

// nullopt: there are three.
template <class T>
std::optional<TwoValues> find_two_values(std::span<const T> numbers) {
  TwoValues found{.first = static_cast<double>(numbers.front())};
  for (const T element : numbers) {
    const auto number = static_cast<double>(element);
    if (number == found.first) continue;
    if (!found.second) found.second = number;
    if (number != *found.second) return std::nullopt;
  }
  return found;
}

// Zeros and one other number, or something infinite: what masks positions. Of a large tensor the
// first and last rows are enough: a mask has such numbers there, and all layers of a large model
// would otherwise be read only for this.
template <class T>
bool is_mask(std::span<const T> numbers) {
  constexpr std::size_t kEnd = std::size_t{1} << 17;
  constexpr std::size_t kFewest = 4;
  if (const auto two = find_two_values(numbers); two && two->second) {
    return numbers.size() >= kFewest && (two->first == 0 || *two->second == 0);
  }
  const auto hides = [](T number) {
    return std::isinf(number) || static_cast<double>(number) <= -1e9;
  };
  const std::size_t end = std::min(numbers.size(), kEnd);
  return std::ranges::any_of(numbers.first(end), hides) ||
         std::ranges::any_of(numbers.last(end), hides);
}

// v[i, j, ...] = a + b i + c j + ..., with f applied to v.
template <class T, class Function>
bool is_linear_in_place(std::span<const T> numbers, const Dims& dims, const Function& f) {
  const double first = f(numbers[0]);
  std::vector<double> steps(dims.rank());
  std::size_t stride = 1;
  double largest = std::abs(first);
  bool changes = false;  // along an axis of three: any two numbers have a distance
  for (std::size_t axis = dims.rank(); axis-- > 0;) {
    if (dims[axis] > 1) steps[axis] = f(numbers[stride]) - first;
    changes = changes || (steps[axis] != 0 && dims[axis] > 2);
    largest += std::abs(steps[axis]) * static_cast<double>(dims[axis] - 1);
    stride *= static_cast<std::size_t>(dims[axis]);
  }
  if (!changes || !std::isfinite(largest)) return false;
  std::vector<std::int64_t> place(dims.rank(), 0);
  for (const T number : numbers) {
    double expected = first;
    for (std::size_t axis = 0; axis < place.size(); ++axis) {
      expected += steps[axis] * static_cast<double>(place[axis]);
    }
    if (!is_near(f(number), expected, largest)) return false;
    for (std::size_t axis = place.size(); axis-- > 0;) {
      if (++place[axis] < dims[axis]) break;
      place[axis] = 0;
    }
  }
  return true;
}

// Rows whose slope changes at most once, as that of distances to a position.
template <class T>
bool is_bent_once(std::span<const T> numbers, const Dims& dims) {
  constexpr std::size_t kFewest = 4;
  const auto columns = static_cast<std::size_t>(dims.rank() < 2 ? 0 : dims[dims.rank() - 1]);
  if (columns < kFewest || numbers.size() == columns) return false;
  bool changes = false;
  for (std::size_t start = 0; start < numbers.size(); start += columns) {
    const auto row = numbers.subspan(start, columns);
    int bends = 0;
    for (std::size_t i = 1; i < columns; ++i) {
      const auto step = static_cast<double>(row[i]) - static_cast<double>(row[i - 1]);
      changes = changes || step != 0;
      if (i == 1) continue;
      const auto before = static_cast<double>(row[i - 1]) - static_cast<double>(row[i - 2]);
      const double scale = std::abs(static_cast<double>(row[i])) + std::abs(step);
      if (!is_near(step, before, scale) && ++bends > 1) return false;
    }
  }
  return changes;
}

// linspace, arange, grids of coordinates; powers of one number: frequencies, slopes.
template <class T>
bool is_spaced(std::span<const T> numbers, const Dims& dims) {
  constexpr std::size_t kFewest = 3;
  if (numbers.size() < kFewest) return false;
  if (is_linear_in_place(numbers, dims, [](T number) { return static_cast<double>(number); })) {
    return true;
  }
  if (is_bent_once(numbers, dims)) return true;
  const double sign = numbers[0] < 0 ? -1 : 1;
  return is_linear_in_place(
      numbers, dims, [sign](T number) { return std::log(sign * static_cast<double>(number)); });
}

// Tables [.., T, D] of sines and cosines of positions: pairs (2i, 2i + 1) or (i, i + D/2) of a row
// are on the unit circle; or all are cosines (sines), each twice, with ones (zeros) at position 0.
template <class T>
class Waves {
 public:
  Waves(std::span<const T> numbers, std::size_t columns) : numbers_(numbers), columns_(columns) {}

  bool match() const {
    if (columns_ < 2 || columns_ % 2 != 0 || numbers_.size() < 2 * columns_) return false;
    for (const bool neighbours : {true, false}) {
      if (all_pairs(neighbours,
                    [](double a, double b) { return is_near((a * a) + (b * b), 1, 10); })) {
        return true;
      }
    }
    const auto first = numbers_.first(columns_);
    const T start = first[0];
    if (std::ranges::any_of(first, [start](T number) { return number != start; })) return false;
    if (start != 0 && start != 1) return false;
    const auto alike = [](double a, double b) { return a == b && std::abs(a) <= 1; };
    const bool changes =
        std::ranges::any_of(numbers_, [start](T number) { return number != start; });
    return changes && (all_pairs(true, alike) || all_pairs(false, alike));
  }

 private:
  template <class Test>
  bool all_pairs(bool neighbours, const Test& test) const {
    const std::size_t half = columns_ / 2;
    for (std::size_t row = 0; row < numbers_.size(); row += columns_) {
      for (std::size_t i = 0; i < half; ++i) {
        const std::size_t a = row + (neighbours ? 2 * i : i);
        const std::size_t b = neighbours ? a + 1 : a + half;
        if (!test(static_cast<double>(numbers_[a]), static_cast<double>(numbers_[b]))) return false;
      }
    }
    return true;
  }

  std::span<const T> numbers_;
  std::size_t columns_;
};

template <class T>
std::string_view formula_of(std::span<const T> numbers, const Dims& dims) {
  if (is_mask(numbers)) return "a mask";
  if (is_spaced(numbers, dims)) return "evenly spaced numbers";
  if (dims.rank() >= 2 &&
      Waves<T>(numbers, static_cast<std::size_t>(dims[dims.rank() - 1])).match()) {
    return "sines and cosines";
  }
  return "";
}

template <class T>
bool are_own_values(std::span<const T> numbers, const Dims& dims) {
  if (const auto two = find_two_values(numbers)) {
    return two->second && two->first != 0 && *two->second != 0;
  }
  if (dims.rank() < 2 || dims[0] < 2) return true;
  const std::size_t columns = numbers.size() / static_cast<std::size_t>(dims[0]);
  for (std::size_t i = columns; i < numbers.size(); ++i) {
    if (numbers[i] != numbers[i - columns]) return true;
  }
  return false;
}

// `use` for float or double numbers; those of other floating types are converted.
template <class Use>
auto with_numbers(const Tensor& tensor, const Use& use) {
  if (tensor.dtype() == DataType::kFloat64) return use(tensor.data<double>());
  if (tensor.dtype() == DataType::kFloat32) return use(tensor.data<float>());
  const Tensor converted = tensor.cast(DataType::kFloat32);
  return use(converted.data<float>());
}

// True if `number` has at most `digits` decimal digits.
bool is_short(double number, int digits, double tolerance = 2e-7) {
  const double magnitude = std::floor(std::log10(std::abs(number)));
  const double scaled = std::abs(number) * std::pow(10, digits - 1 - magnitude);
  return std::abs(scaled - std::round(scaled)) <= tolerance * scaled;
}

bool is_decimal(char c) { return c >= '0' && c <= '9'; }

// "val_12" and "val_1_2" without their numbers: "val".
std::string_view without_numbers(std::string_view name) {
  while (true) {
    std::size_t end = name.size();
    while (end > 0 && is_decimal(name[end - 1])) --end;
    if (end == name.size() || end < 2 || name[end - 1] != '_') return name;
    name = name.substr(0, end - 1);
  }
}

bool is_any(std::string_view name, std::span<const std::string_view> words) {
  return std::ranges::find(words, name) != words.end();
}

// skl2onnx: "Ad_Addcst", "Di_Divcst1".
bool is_sklearn_constant(std::string_view name) {
  while (!name.empty() && is_decimal(name.back())) name.remove_suffix(1);
  return name.ends_with("cst") && name.size() > 5 && name[2] == '_';
}

// The parts of "layer.0.running_mean" and "model/norm/moving_mean/ReadVariableOp:0".
std::vector<std::string_view> parts_of(std::string_view name) {
  std::vector<std::string_view> parts;
  while (!name.empty()) {
    const std::size_t end = std::min(name.find_first_of("./:"), name.size());
    parts.push_back(name.substr(0, end));
    name.remove_prefix(std::min(end + 1, name.size()));
  }
  return parts;
}

}  // namespace

std::string_view formula_behind(const Tensor& numbers) {
  if (numbers.num_elements() < 2) return "";
  return with_numbers(numbers, [&](auto elements) { return formula_of(elements, numbers.dims()); });
}

bool is_formula_number(double number) {
  if (number == 0 || !std::isfinite(number) || std::abs(number) >= 1e4) return true;
  constexpr int kDigits = 4;
  const double magnitude = std::abs(number);
  const std::array<double, 8> candidates{magnitude,
                                         magnitude * magnitude,
                                         1 / magnitude,
                                         1 / (magnitude * magnitude),
                                         magnitude / std::numbers::pi,
                                         magnitude * magnitude * std::numbers::pi,
                                         magnitude / std::numbers::ln2,
                                         magnitude / std::numbers::ln10};
  // 0.044715, of the tanh form of GELU, has five digits.
  return is_short(magnitude, 5, 6e-8) ||
         std::ranges::any_of(candidates, [](double one) { return is_short(one, kDigits); });
}

bool has_own_values(const Tensor& numbers) {
  if (numbers.num_elements() == 0) return false;
  if (numbers.num_elements() == 1) return !is_formula_number(numbers.to_doubles().front());
  return with_numbers(numbers,
                      [&](auto elements) { return are_own_values(elements, numbers.dims()); });
}

bool is_all(const Tensor& numbers, double number) {
  return with_numbers(numbers, [number](auto elements) {
    return std::ranges::all_of(
        elements, [number](auto element) { return static_cast<double>(element) == number; });
  });
}

bool are_all_equal(const Tensor& numbers) {
  return with_numbers(numbers, [](auto elements) {
    return std::ranges::all_of(elements, [&](auto element) { return element == elements[0]; });
  });
}

bool is_epsilon(std::string_view name, double number) {
  constexpr double kLargest = 1e-3;
  const bool is_small = number > 0 && number <= kLargest && is_formula_number(number);
  return is_small && (name.ends_with("eps") || name.ends_with("epsilon"));
}

bool has_constant_name(std::string_view name) {
  static constexpr std::array<std::string_view, 13> kWords{"val",
                                                           "const",
                                                           "constant",
                                                           "Constant",
                                                           "Const",
                                                           "scalar_tensor",
                                                           "lifted_tensor",
                                                           "_lifted_tensor_constant",
                                                           "_tensor_constant",
                                                           "tensor_constant",
                                                           "lift_fresh_copy",
                                                           "scalar_tensor_default",
                                                           "clone"};
  if (std::ranges::all_of(name, is_decimal)) return true;
  for (const std::string_view start : {"onnx::", "/", "ortshared_", "const_fold_opt"}) {
    if (name.starts_with(start)) return true;
  }
  for (const std::string_view end : {"/x:0", "/y:0", "/Const:0"}) {
    if (name.ends_with(end)) return true;
  }
  if (is_sklearn_constant(name)) return true;
  if (name.ends_with("_cast")) name.remove_suffix(5);
  std::string_view word = name;  // "_tensor_constant0"
  while (!word.empty() && is_decimal(word.back())) word.remove_suffix(1);
  return is_any(without_numbers(name), kWords) || is_any(word, kWords);
}

std::string_view role_in_name(std::string_view name) {
  static constexpr std::array<std::string_view, 5> kStatistics{
      "running_mean", "running_var", "moving_mean", "moving_var", "moving_variance"};
  for (const std::string_view part : parts_of(name)) {
    if (is_any(part, kStatistics)) return "running statistics";
    if (part.ends_with("mask")) return "a mask";
    if (part.ends_with("inv_freq")) return "frequencies";
  }
  return "";
}

bool is_operator_name(std::string_view name) {
  static constexpr std::array<std::string_view, 16> kOperators{
      "add", "sub",  "mul",   "div",        "neg", "exp",  "log",     "pow",
      "abs", "sqrt", "rsqrt", "reciprocal", "sum", "mean", "truediv", "_to_copy"};
  return is_any(without_numbers(name), kOperators);
}

}  // namespace onnxgrad::train
