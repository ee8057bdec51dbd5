#include "train/data/targets.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/parts.h"
#include "onnxgrad/data_files.h"
#include "runtime/finite.h"
#include "train/data/number_text.h"
#include "train/losses/losses.h"

namespace onnxgrad::train {
namespace {

// Position of the first infinite number or NaN from `begin` to `end`, or `end`. Blocks are scanned
// without a branch per number.
std::int64_t first_non_finite_between(const Tensor& value, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kBlock = 4096;
  const DataType dtype = value.dtype();
  const std::int64_t bytes = Dims{1}.size_bytes(dtype);
  const auto is_finite = [&](std::int64_t first, std::int64_t size) {
    return runtime::all_finite(dtype, value.raw() + first * bytes, size);
  };
  for (std::int64_t block = begin; block < end; block += kBlock) {
    const std::int64_t size = std::min(kBlock, end - block);
    if (is_finite(block, size)) continue;
    std::int64_t bad = block;
    while (is_finite(bad, 1)) ++bad;
    return bad;
  }
  return end;
}

// Index of the first element of a tensor that is not finite, or -1.
std::int64_t first_non_finite(const Tensor& value, int threads) {
  const std::int64_t count = value.num_elements();
  const std::int64_t bytes = Dims{1}.size_bytes(value.dtype());
  std::atomic<std::int64_t> first = count;
  base::in_parts(count * bytes, threads, [&](std::int64_t begin, std::int64_t end) {
    const std::int64_t bad = first_non_finite_between(value, begin / bytes, end / bytes);
    if (bad == end / bytes) return;
    for (std::int64_t seen = first; bad < seen;) {
      if (first.compare_exchange_weak(seen, bad)) return;
    }
  });
  return first < count ? first.load() : -1;
}

// "<array> has <what> in <row and column><reason>".
[[noreturn]] void refuse_target(const ArrayPlace& place, const Dims& dims, std::int64_t element,
                                const std::string& what, const std::string& reason, Hint hint) {
  throw DataError({.what = fmt::format("{} has {} in {}{}", place.subject, what,
                                       place.element(dims, element), reason),
                   .where = place.where(),
                   .hint = std::move(hint)});
}

// Strings where numbers are expected: the first one that is not a number.
[[noreturn]] void refuse_texts(const ArrayPlace& place, const Tensor& value, DataType wanted) {
  const auto texts = value.strings();
  double number = 0;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].empty() && parse_number(texts[i], number)) continue;
    if (texts[i].empty()) {
      refuse_target(place, value.dims(), static_cast<std::int64_t>(i), "an empty string", "",
                    "Fill such cells with numbers, or remove their rows.");
    }
    refuse_target(place, value.dims(), static_cast<std::int64_t>(i), in_quotes(texts[i]),
                  ", which is not a number", number_hint(texts[i]));
  }
  throw DataError(
      {.what = fmt::format("{} has strings, expected {}", place.subject, dtype_name(wanted)),
       .where = place.where(),
       .hint = fmt::format("Convert it to {}.", dtype_name(wanted))});
}

// "NaN"; for rows that are lines of a file, also what it means there.
std::string non_finite_text(const ArrayPlace& place, double number) {
  if (!std::isnan(number)) return "an infinite number";
  const bool has_lines = place.origin != nullptr && place.origin->line_of;
  return has_lines ? "NaN or an empty cell" : "NaN";
}

// Whether converting a value to the type would change it beyond rounding.
template <class To>
bool is_lost(double value) {
  if constexpr (std::is_floating_point_v<To>) {
    return std::isfinite(value) && std::abs(value) > std::numeric_limits<To>::max();
  } else {
    constexpr auto kLow = static_cast<double>(std::numeric_limits<To>::min());
    constexpr auto kHigh = static_cast<double>(std::numeric_limits<To>::max());
    const bool holds = value >= kLow && value <= kHigh && value == std::floor(value);
    return !holds;  // true for NaN
  }
}

bool is_lost_in(DataType dtype, double value) {
  switch (dtype) {
    case DataType::kFloat32:
      return is_lost<float>(value);
    case DataType::kFloat64:
      return false;
    case DataType::kFloat16:
      return std::isfinite(value) && std::abs(value) >= 65520;  // rounds to infinity
    case DataType::kBfloat16:
      return std::isfinite(value) && std::abs(value) >= 0x1.FFp127;
    case DataType::kInt8:
      return is_lost<std::int8_t>(value);
    case DataType::kInt16:
      return is_lost<std::int16_t>(value);
    case DataType::kInt32:
      return is_lost<std::int32_t>(value);
    case DataType::kInt64:
      return is_lost<std::int64_t>(value);
    case DataType::kUint8:
      return is_lost<std::uint8_t>(value);
    case DataType::kUint16:
      return is_lost<std::uint16_t>(value);
    case DataType::kUint32:
      return is_lost<std::uint32_t>(value);
    case DataType::kUint64:
      return is_lost<std::uint64_t>(value);
    case DataType::kBool:
      return value != 0 && value != 1;
    default:
      return true;
  }
}

std::string class_list_text(const LossInfo& loss) {
  if (!loss.classes.is_defined()) return fmt::format("0 to {}", loss.num_classes - 1);
  std::vector<std::string> names;
  if (loss.classes.dtype() == DataType::kString) {
    for (const std::string& name : loss.classes.strings()) names.push_back(name);
  } else {
    for (const std::int64_t label : loss.classes.data<std::int64_t>()) {
      names.push_back(std::to_string(label));
    }
  }
  return base::quote_list(names);
}

[[noreturn]] void unknown_label(const LossInfo& loss, const std::string& label,
                                const ArrayPlace& place, const Tensor& labels, std::size_t i) {
  const std::string position = place.element(labels.dims(), static_cast<std::int64_t>(i));
  throw DataError(
      {.what = fmt::format("label {} in {} is not one of the model's classes", label, position),
       .where = place.where(),
       .detail = "Classes: " + class_list_text(loss) + ".",
       .hint = "Remove or rename such rows, or give the model other classes with replace_head()."});
}

std::vector<std::int64_t> numbers_of_strings(const LossInfo& loss, const Tensor& labels,
                                             const ArrayPlace& place) {
  if (loss.classes.dtype() != DataType::kString) {
    const std::string first =
        labels.strings().empty() ? "" : in_quotes(labels.strings()[0]) + " in ";
    throw DataError({.what = fmt::format("labels are strings ({}{}), but the model's classes are "
                                         "numbers",
                                         first, place.element(labels.dims(), 0)),
                     .where = place.where(),
                     .detail = "Classes: " + class_list_text(loss) + ".",
                     .hint = "Give the labels as numbers, as in the model's list of classes."});
  }
  std::unordered_map<std::string_view, std::int64_t> numbers;
  for (const std::string& name : loss.classes.strings()) {
    numbers.emplace(name, static_cast<std::int64_t>(numbers.size()));
  }
  std::vector<std::int64_t> result;
  result.reserve(labels.strings().size());
  for (const std::string& label : labels.strings()) {
    const auto found = numbers.find(label);
    if (found == numbers.end()) unknown_label(loss, in_quotes(label), place, labels, result.size());
    result.push_back(found->second);
  }
  return result;
}

// Fractional numbers are not classes: the loss, or the target, is the wrong one.
std::vector<std::int64_t> whole_numbers(const LossInfo& loss, const Tensor& labels,
                                        const ArrayPlace& place) {
  if (can_take_fractions(loss) && has_fractions(labels)) {
    throw DataError({.what = "the targets are fractions, but '" + loss.scores +
                             "' is compared with class numbers",
                     .where = place.where(),
                     .hint = "Give 0 and 1, or loss='binary_cross_entropy:soft_targets=true'."});
  }
  if (is_floating(labels.dtype())) {
    check_finite(place, labels);
    const auto numbers = labels.to_doubles();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (!is_lost<std::int64_t>(numbers[i])) continue;
      refuse_target(
          place, labels.dims(), static_cast<std::int64_t>(i), fmt::format("{}", numbers[i]),
          fmt::format(", but the loss ({} on '{}') takes class labels", describe(loss.function),
                      loss.scores),
          fmt::format("Give a column of classes{}; to predict numbers, train a model that outputs "
                      "them, with loss='squared_error'.",
                      loss.num_classes > 0 ? " (" + class_list_text(loss) + ")" : ""));
    }
  }
  return convert_numbers(place, labels, DataType::kInt64).to_int64s();
}

std::vector<std::int64_t> numbers_of_integers(const LossInfo& loss, const Tensor& labels,
                                              const ArrayPlace& place) {
  std::vector<std::int64_t> result = whole_numbers(loss, labels, place);
  if (!loss.classes.is_defined()) return result;
  if (loss.classes.dtype() == DataType::kString) {
    throw DataError({.what = "labels are numbers, but the model's classes are strings",
                     .where = place.where(),
                     .detail = "Classes: " + class_list_text(loss) + ".",
                     .hint = "Give the labels as strings, spelled like the classes."});
  }
  const auto ignored = ignored_class(loss.function);
  std::unordered_map<std::int64_t, std::int64_t> numbers;
  for (const std::int64_t label : loss.classes.data<std::int64_t>()) {
    numbers.emplace(label, static_cast<std::int64_t>(numbers.size()));
  }
  for (std::size_t row = 0; row < result.size(); ++row) {
    const auto found = numbers.find(result[row]);
    if (found == numbers.end() && result[row] == ignored) continue;
    if (found == numbers.end()) {
      unknown_label(loss, std::to_string(result[row]), place, labels, row);
    }
    result[row] = found->second;
  }
  return result;
}

// "[N]", or the shape of the scores without the class axis.
std::string wanted_labels(const LossInfo& loss, std::size_t rank, const Dims& dims) {
  if (rank == 1) return fmt::format("one label per row [{}]", dims.rank() > 0 ? dims[0] : 0);
  return fmt::format("{} axes: those of '{}' without the classes", rank, loss.scores);
}

// The shape of class numbers: the declared rank, a trailing 1 dropped.
Dims label_dims(const LossInfo& loss, const Dims& dims, const ArrayPlace& place) {
  const std::size_t rank = loss.target.shape ? loss.target.shape->size() : 1;
  if (dims.rank() == rank) return dims;
  if (dims.rank() == rank + 1 && dims[rank] == 1) {
    return Dims(std::vector<std::int64_t>(dims.begin(), dims.end() - 1));
  }
  throw DataError({.what = fmt::format("labels have shape {}, expected {}", dims.to_string(),
                                       wanted_labels(loss, rank, dims)),
                   .where = place.where(),
                   .hint = std::holds_alternative<SoftmaxCrossEntropy>(loss.function)
                               ? "Give class labels; one-hot rows or probabilities need "
                                 "loss='softmax_cross_entropy:one_hot=true'."
                               : "Give class labels, not one-hot rows."});
}

Dims quantity_dims(const LossInfo& loss, const Dims& dims, const ArrayPlace& place) {
  if (!loss.target.shape || dims.rank() == 0) return dims;
  const auto& declared = *loss.target.shape;
  std::vector<std::int64_t> wanted{dims[0]};
  std::int64_t columns = 1;
  for (std::size_t axis = 1; axis < declared.size(); ++axis) {
    if (!declared[axis].is_fixed()) return dims;  // the plan checks it against the scores
    wanted.push_back(declared[axis].value);
    columns *= declared[axis].value;
  }
  const std::int64_t given = dims.product(1, dims.rank());
  if (given != columns) {
    throw DataError({.what = fmt::format("{} has {} column{}, but '{}' has {}", place.subject,
                                         given, given == 1 ? "" : "s", loss.scores, columns),
                     .where = place.where(),
                     .hint = columns > 1 && given == 1
                                 ? "For class labels give loss='softmax_cross_entropy'."
                                 : "Give a target with that many columns, or apply the loss to an "
                                   "output with as many columns as the target."});
  }
  return Dims(std::move(wanted));
}

// Calls use(numbers) with the elements in a type that holds them.
template <class Use>
auto with_target_numbers(const Tensor& target, const Use& use) {
  if (target.dtype() == DataType::kFloat32) return use(target.data<float>());
  if (target.dtype() == DataType::kInt64) return use(target.data<std::int64_t>());
  const Tensor wide = target.cast(DataType::kFloat64);
  return use(wide.data<double>());
}

/// The elements along one axis: [before, size, after].
struct Fibres {
  std::int64_t before = 1;
  std::int64_t size = 1;
  std::int64_t after = 1;

  Fibres(const Dims& dims, std::size_t axis)
      : before(dims.product(0, axis)),
        size(dims[axis]),
        after(dims.product(axis + 1, dims.rank())) {}
  std::size_t count() const { return static_cast<std::size_t>(before * after); }
  std::size_t at(std::size_t fibre, std::int64_t i) const {
    const auto inner = static_cast<std::size_t>(after);
    return (((fibre / inner) * static_cast<std::size_t>(size)) + static_cast<std::size_t>(i)) *
               inner +
           fibre % inner;
  }
};

// The position of the only 1 among zeros; -1: there is another number, none or several.
template <class Numbers>
std::int64_t only_one(const Numbers& numbers, const Fibres& fibres, std::size_t fibre) {
  std::int64_t found = -1;
  for (std::int64_t i = 0; i < fibres.size; ++i) {
    const auto number = numbers[fibres.at(fibre, i)];
    if (number == 0) continue;
    if (number != 1 || found >= 0) return -1;
    found = i;
  }
  return found;
}

bool is_one_hot(const Tensor& target, std::size_t axis) {
  const Fibres fibres(target.dims(), axis);
  return with_target_numbers(target, [&](auto numbers) {
    for (std::size_t fibre = 0; fibre < fibres.count(); ++fibre) {
      if (only_one(numbers, fibres, fibre) < 0) return false;
    }
    return true;
  });
}

// Whether targets of classes are given in the rank of the scores.
bool has_one_hot_rank(const LossInfo& loss, const Tensor& target) {
  return loss.one_hot_targets && loss.class_axis && loss.target.shape &&
         target.dims().rank() == loss.target.shape->size() + 1 &&
         target.dims()[static_cast<std::size_t>(*loss.class_axis)] != 1 &&
         target.dtype() != DataType::kString;
}

Tensor numbers_of_one_hot(const LossInfo& loss, const Tensor& target, const ArrayPlace& place) {
  const auto axis = static_cast<std::size_t>(*loss.class_axis);
  const Fibres fibres(target.dims(), axis);
  if (loss.num_classes != 0 && fibres.size != loss.num_classes) {
    throw DataError({.what = fmt::format("one-hot targets have shape {}, but '{}' has {} classes",
                                         target.dims().to_string(), loss.scores, loss.num_classes),
                     .where = place.where(),
                     .hint = "Give a column for each class."});
  }
  std::vector<std::int64_t> classes(fibres.count());
  with_target_numbers(target, [&](auto numbers) {
    for (std::size_t fibre = 0; fibre < classes.size(); ++fibre) {
      classes[fibre] = only_one(numbers, fibres, fibre);
      if (classes[fibre] >= 0) continue;
      throw DataError(
          {.what = fmt::format(
               "target {} is not a single 1 among zeros, as the first ones are",
               place.element(target.dims(), static_cast<std::int64_t>(fibres.at(fibre, 0)))),
           .where = place.where(),
           .detail = "The automatic loss is a softmax cross-entropy of classes for those.",
           .hint =
               "For several classes per row give loss='binary_cross_entropy', for probabilities "
               "loss='softmax_cross_entropy:one_hot=true', for quantities "
               "loss='squared_error'."});
    }
  });
  std::vector<std::int64_t> dims(target.dims().begin(), target.dims().end());
  dims.erase(dims.begin() + static_cast<std::ptrdiff_t>(axis));
  return Tensor::from(classes, Dims(std::move(dims)));
}

/// The numbers that a target may contain.
struct TargetRange {
  double maximum = std::numeric_limits<double>::infinity();
  std::string_view wanted = {};  ///< empty: any number
};

TargetRange range_of(const LossFunction& function) {
  const bool is_probability = std::holds_alternative<SoftmaxCrossEntropy>(function) ||
                              std::holds_alternative<BinaryCrossEntropy>(function) ||
                              std::holds_alternative<LogLoss>(function) ||
                              std::holds_alternative<KlDivergence>(function);
  if (is_probability) return {.maximum = 1, .wanted = "from 0 to 1"};
  if (std::holds_alternative<Poisson>(function)) return {.wanted = "of at least 0"};
  return {};
}

}  // namespace

void check_range(const LossInfo& loss, const Tensor& target, const ArrayPlace& place) {
  const TargetRange range = range_of(loss.function);
  if (range.wanted.empty()) return;
  const auto check = [&](auto numbers) {
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (numbers[i] >= 0 && numbers[i] <= range.maximum) continue;
      refuse_target(place, target.dims(), static_cast<std::int64_t>(i),
                    fmt::format("{}", numbers[i]), "",
                    fmt::format("Targets of a {} must be numbers {}.", describe(loss.function),
                                range.wanted));
    }
  };
  if (target.dtype() == DataType::kFloat32) return check(target.data<float>());
  if (target.dtype() == DataType::kFloat64) return check(target.data<double>());
  check(target.to_doubles());
}

Tensor convert_numbers(const ArrayPlace& place, const Tensor& value, DataType dtype) {
  if (value.dtype() == dtype) return value;
  if (value.dtype() == DataType::kString) refuse_texts(place, value, dtype);
  if (dtype == DataType::kString) {
    throw DataError({.what = fmt::format("{} is {}, expected {}", place.subject,
                                         dtype_name(value.dtype()), dtype_name(dtype)),
                     .where = place.where(),
                     .hint = "Give texts."});
  }
  // Every number of these types is in the range of our floating types, float16 excepted.
  const bool always_fits =
      is_floating(dtype) && dtype != DataType::kFloat16 && !is_floating(value.dtype());
  const bool widens = value.dtype() == DataType::kFloat32 && dtype == DataType::kFloat64;
  if (!always_fits && !widens) {
    const auto numbers = value.to_doubles();
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      if (is_floating(dtype) ? is_lost_in(dtype, numbers[i])
                             : !std::isfinite(numbers[i]) || is_lost_in(dtype, numbers[i])) {
        refuse_target(
            place, value.dims(), static_cast<std::int64_t>(i), fmt::format("{}", numbers[i]),
            fmt::format(", which {} cannot represent", dtype_name(dtype)),
            fmt::format("The model reads {}: give numbers in its range.", dtype_name(dtype)));
      }
    }
  }
  return value.cast(dtype);
}

void check_finite(const ArrayPlace& place, const Tensor& value, bool can_be_allowed, int threads) {
  if (!is_floating(value.dtype())) return;
  const std::int64_t bad = first_non_finite(value, threads);
  if (bad < 0) return;
  const auto at = static_cast<std::size_t>(bad);
  const double number = value.dtype() == DataType::kFloat32   ? value.data<float>()[at]
                        : value.dtype() == DataType::kFloat64 ? value.data<double>()[at]
                                                              : value.to_doubles()[at];
  refuse_target(place, value.dims(), bad, non_finite_text(place, number), "",
                can_be_allowed ? "Remove or fill such rows, or give allow_nan=True."
                               : "Remove or fill such rows.");
}

Tensor encode_target(const LossInfo& loss, const Tensor& given, const ArrayPlace& place) {
  const Tensor labels =
      has_one_hot_rank(loss, given) ? numbers_of_one_hot(loss, given, place) : given;
  if (!loss.is_classifier) {
    check_finite(place, labels);
    const Tensor numbers = convert_numbers(place, labels, loss.target.dtype);
    Tensor target = numbers.reshaped(quantity_dims(loss, labels.dims(), place));
    check_range(loss, target, place);
    return target;
  }
  const Dims dims = label_dims(loss, labels.dims(), place);
  const Tensor target =
      Tensor::from(labels.dtype() == DataType::kString ? numbers_of_strings(loss, labels, place)
                                                       : numbers_of_integers(loss, labels, place),
                   dims);
  check_class_numbers(loss, target, place);
  return target;
}

Tensor class_numbers(const LossInfo& loss, const Tensor& given) {
  const ArrayPlace place = loss.target.name;
  const Tensor numbers =
      has_one_hot_rank(loss, given) ? numbers_of_one_hot(loss, given, place) : given;
  return Tensor::from(whole_numbers(loss, numbers, place), label_dims(loss, numbers.dims(), place));
}

const LossInfo* find_target(const LossInfo& loss, const std::string& port) {
  if (port.empty()) return nullptr;
  if (loss.target.name == port) return &loss;
  for (const LossInfo& other : loss.others) {
    if (other.target.name == port) return &other;
  }
  return nullptr;
}

const LossInfo& find_loss_on(const LossInfo& loss, const std::string& output) {
  const auto is_on = [&](const LossInfo& one) {
    return one.output == output || one.scores == output;
  };
  if (is_on(loss)) return loss;
  std::vector<std::string> names{loss.output};
  for (const LossInfo& other : loss.others) {
    if (is_on(other)) return other;
    names.push_back(other.output);
  }
  throw DataError({.what = "there is no loss on '" + output + "'",
                   .where = {.value = output},
                   .detail = "Losses are on " + base::quote_list(names) + ".",
                   .hint = base::nearest_or(output, names)});
}

bool can_take_fractions(const LossInfo& loss) {
  return loss.is_classifier && (std::holds_alternative<BinaryCrossEntropy>(loss.function) ||
                                std::holds_alternative<LogLoss>(loss.function));
}

bool has_fractions(const Tensor& labels) {
  if (!is_floating(labels.dtype())) return false;
  const auto numbers = labels.to_doubles();
  return std::ranges::any_of(
      numbers, [](double number) { return std::isfinite(number) && number != std::floor(number); });
}

bool needs_fitting(const LossInfo& loss, const Tensor& labels) {
  if (labels.dtype() == DataType::kString) return false;
  if (!loss.is_classifier && !has_soft_targets(loss.function)) return false;
  const bool has_other_rank =
      loss.target.shape && labels.dims().rank() != loss.target.shape->size();
  return has_other_rank || labels.dtype() != loss.target.dtype;
}

Tensor fit_labels(const LossInfo& loss, const Tensor& labels) {
  if (!needs_fitting(loss, labels)) return labels;
  if (!loss.is_classifier) return encode_target(loss, labels);
  return class_numbers(loss, labels);
}

bool has_plain_columns(const LossInfo& loss) {
  const auto& shape = loss.target.shape;
  if (!std::holds_alternative<SquaredError>(loss.function) || !shape || shape->size() < 2) {
    return false;
  }
  return !shape->back().is_fixed() || shape->back().value > 1 || shape->size() > 2;
}

bool target_asks_for_classes(const LossInfo& loss, const Tensor& target) {
  if (!std::holds_alternative<SquaredError>(loss.function)) return false;
  if (!target.is_defined() || is_floating(target.dtype()) || target.dims().rank() == 0)
    return false;
  const auto& shape = loss.target.shape;
  if (!shape || shape->size() < 2) return false;
  if (shape->size() > 2) return target.dims().rank() + 1 == shape->size();  // [B, T] of [B, T, C]
  const bool many_columns = shape->back().is_fixed() && shape->back().value > 1;
  return many_columns && target.dims().product(1, target.dims().rank()) == 1;
}

std::optional<std::int64_t> one_hot_axis(const LossInfo& loss, const Tensor& target) {
  const auto& shape = loss.target.shape;
  const bool has_numbers =
      target.is_defined() && target.dtype() != DataType::kString && target.num_elements() > 0;
  if (!std::holds_alternative<SquaredError>(loss.function) || !shape || !has_numbers ||
      target.dims().rank() != shape->size()) {
    return std::nullopt;
  }
  std::optional<std::int64_t> found;
  for (std::size_t axis = 1; axis < shape->size(); ++axis) {
    const std::int64_t size = target.dims()[axis];
    const bool fits = !(*shape)[axis].is_fixed() || (*shape)[axis].value == size;
    if (!fits || size < 2 || !is_one_hot(target, axis)) continue;
    if (found) return std::nullopt;
    found = static_cast<std::int64_t>(axis);
  }
  return found;
}

void check_class_numbers(const LossInfo& loss, const Tensor& target, const ArrayPlace& place) {
  if (!loss.is_classifier || loss.num_classes == 0) return;
  if (loss.may_be_values) return;
  const auto ignored = ignored_class(loss.function);
  const auto numbers = target.data<std::int64_t>();
  for (std::size_t row = 0; row < numbers.size(); ++row) {
    if (numbers[row] >= 0 && numbers[row] < loss.num_classes) continue;
    if (numbers[row] == ignored) continue;
    const bool from_one =
        numbers[row] == loss.num_classes && *std::ranges::min_element(numbers) > 0;
    throw DataError(
        {.what = fmt::format("class number {} in {} is not in 0 to {}", numbers[row],
                             place.element(target.dims(), static_cast<std::int64_t>(row)),
                             loss.num_classes - 1),
         .where = place.where(),
         .hint = from_one ? "Classes are counted from 0: subtract 1."
                          : "Remove such rows, or give the model more classes with "
                            "replace_head(); they are counted from 0."});
  }
}

}  // namespace onnxgrad::train
