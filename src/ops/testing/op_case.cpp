#include "ops/testing/op_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <random>
#include <stdexcept>

namespace onnxgrad::ops_test {
namespace op_case_detail {

struct BodyNames {
  std::vector<std::string> free;          // names that no node produces, in order of appearance
  std::vector<std::string> last_outputs;  // outputs of the last statement
};

std::vector<std::string> split_names(std::string_view text) {
  std::vector<std::string> names;
  std::string current;
  const auto flush = [&] {
    if (!current.empty()) names.push_back(current);
    current.clear();
  };
  for (const char c : text) {
    if (c == ',')
      flush();
    else if (!std::isspace(static_cast<unsigned char>(c)))
      current.push_back(c);
  }
  flush();
  return names;
}

BodyNames scan_body(const std::string& body) {
  const std::string plain = mask_attributes(body);
  BodyNames found;
  std::vector<std::string> produced;
  std::size_t position = 0;
  while (true) {
    const std::size_t open = plain.find('(', position);
    const std::size_t close = plain.find(')', position);
    if (open == std::string::npos || close == std::string::npos) break;
    const std::string head = plain.substr(position, open - position);
    for (std::string& name : split_names(plain.substr(open + 1, close - open - 1))) {
      const bool is_known =
          std::find(produced.begin(), produced.end(), name) != produced.end() ||
          std::find(found.free.begin(), found.free.end(), name) != found.free.end();
      if (!is_known) found.free.push_back(std::move(name));
    }
    found.last_outputs = split_names(head.substr(0, head.find('=')));
    produced.insert(produced.end(), found.last_outputs.begin(), found.last_outputs.end());
    position = close + 1;
  }
  return found;
}

DataType input_dtype(const CaseInput& input, DataType floating_type) {
  return input.dtype == DataType::kUndefined ? floating_type : input.dtype;
}

// Returns the name of a type in ONNX's text syntax.
std::string text_dtype(DataType dtype) {
  if (dtype == DataType::kFloat32) return "float";
  if (dtype == DataType::kFloat64) return "double";
  return std::string(dtype_name(dtype));
}

std::string type_text(const CaseInput& input, const std::string& name, const CaseVariant& variant) {
  std::string text = text_dtype(input_dtype(input, variant.dtype));
  if (input.dims.rank() == 0) return text;
  text += '[';
  for (std::size_t axis = 0; axis < input.dims.rank(); ++axis) {
    if (axis > 0) text += ", ";
    text += variant.symbolic && !input.is_constant ? fmt::format("{}_{}", name, axis)
                                                   : std::to_string(input.dims[axis]);
  }
  return text + "]";
}

std::string replace_all(std::string text, std::string_view from, std::string_view to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
    at += to.size();
  }
  return text;
}

// Own generator, so that every standard library yields the same random numbers.
double unit_uniform(std::mt19937_64& engine) {
  return static_cast<double>(engine() >> 11) * 0x1p-53;
}

std::vector<double> draw(const CaseInput& input, std::uint64_t seed) {
  const bool is_under_test = input.dtype == DataType::kUndefined;
  const auto rounded = [](double x) { return static_cast<double>(static_cast<float>(x)); };
  if (input.source == CaseInput::Source::kValues) {
    std::vector<double> numbers = input.numbers;
    if (is_under_test) std::ranges::transform(numbers, numbers.begin(), rounded);
    return numbers;
  }
  std::mt19937_64 engine(seed);
  std::vector<double> drawn(static_cast<std::size_t>(input.dims.num_elements()));
  for (double& number : drawn) {
    const double unit = unit_uniform(engine);
    if (input.source == CaseInput::Source::kUniform) {
      number = input.low + (input.high - input.low) * unit;
    } else if (input.source == CaseInput::Source::kIntegers) {
      number = input.low + std::floor((input.high - input.low + 1) * unit);
    } else {  // Box and Muller, 1958
      number = input.high * std::sqrt(-2 * std::log1p(-unit)) *
               std::cos(2 * std::numbers::pi * unit_uniform(engine));
    }
    if (input.source != CaseInput::Source::kIntegers) {
      number = rounded(number);
    }
  }
  return drawn;
}

std::uint64_t hash_name(std::string_view text) {  // Fowler, Noll and Vo's FNV-1a
  std::uint64_t hash = 14695981039346656037u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 1099511628211u;
  return hash;
}

std::string number_text(double number, DataType dtype) {
  if (dtype == DataType::kFloat32 || dtype == DataType::kFloat64) {
    return fmt::format("{:.17g}", number);
  }
  return std::to_string(static_cast<std::int64_t>(number));
}

}  // namespace op_case_detail

std::string mask_attributes(const std::string& body) {
  std::string plain;
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < body.size(); ++i) {
    const char c = body[i];
    plain.push_back(' ');
    if (in_string) {
      if (c == '\\') {
        ++i;
        plain.push_back(' ');
      } else if (c == '"') {
        in_string = false;
      }
      continue;
    }
    // The ">" of "=>" in a subgraph's signature closes nothing.
    const bool is_arrow = c == '>' && i > 0 && body[i - 1] == '=';
    if (c == '"') {
      in_string = true;
    } else if (c == '<' || c == '[' || c == '{') {
      ++depth;
    } else if ((c == '>' && !is_arrow) || c == ']' || c == '}') {
      --depth;
    } else if (depth == 0) {
      plain.back() = c;
    }
  }
  return plain;
}

CaseInput CaseInput::as(DataType wanted) const {
  CaseInput copy = *this;
  copy.dtype = wanted;
  return copy;
}

CaseInput CaseInput::named(std::string wanted) const {
  CaseInput copy = *this;
  copy.name = std::move(wanted);
  return copy;
}

CaseInput CaseInput::constant() const {
  CaseInput copy = *this;
  copy.is_constant = true;
  return copy;
}

CaseInput CaseInput::fed() const {
  CaseInput copy = *this;
  copy.is_constant = false;
  return copy;
}

CaseInput uniform(Dims dims, double low, double high) {
  return {.dims = std::move(dims), .low = low, .high = high};
}

CaseInput normal(Dims dims, double deviation) {
  return {.dims = std::move(dims), .source = CaseInput::Source::kNormal, .high = deviation};
}

CaseInput integers(Dims dims, std::int64_t low, std::int64_t high, DataType dtype) {
  return {.dims = std::move(dims),
          .source = CaseInput::Source::kIntegers,
          .dtype = dtype,
          .low = static_cast<double>(low),
          .high = static_cast<double>(high)};
}

CaseInput values(std::vector<double> numbers, Dims dims, DataType dtype) {
  if (static_cast<std::int64_t>(numbers.size()) != dims.num_elements()) {
    throw std::logic_error(
        fmt::format("{} numbers for shape {}", numbers.size(), dims.to_string()));
  }
  return {.dims = std::move(dims),
          .source = CaseInput::Source::kValues,
          .dtype = dtype,
          .numbers = std::move(numbers)};
}

CaseInput ints(const std::vector<std::int64_t>& numbers) {
  return values(std::vector<double>(numbers.begin(), numbers.end()),
                Dims{static_cast<std::int64_t>(numbers.size())}, DataType::kInt64)
      .constant();
}

CaseInput int_scalar(std::int64_t number) {
  return values({static_cast<double>(number)}, Dims{}, DataType::kInt64).constant();
}

std::vector<std::string> input_names(const OpCase& op_case) {
  const std::vector<std::string> free = op_case_detail::scan_body(op_case.model).free;
  std::vector<std::string> names;
  std::size_t next = 0;
  for (const CaseInput& input : op_case.inputs) {
    if (input.name.empty() && next == free.size()) {
      throw std::logic_error("case '" + op_case.name + "' has more inputs than its model reads");
    }
    names.push_back(input.name.empty() ? free[next] : input.name);
    if (next < free.size() && names.back() == free[next]) ++next;
  }
  return names;
}

std::vector<std::string> output_names(const OpCase& op_case) {
  if (!op_case.outputs.empty()) return op_case.outputs;
  return op_case_detail::scan_body(op_case.model).last_outputs;
}

Tensor make_input(const OpCase& op_case, std::size_t index, DataType floating_type) {
  const CaseInput& input = op_case.inputs.at(index);
  const std::uint64_t seed = op_case_detail::hash_name(op_case.name) + index;
  const std::vector<double> numbers = op_case_detail::draw(input, seed);
  const DataType dtype = op_case_detail::input_dtype(input, floating_type);
  if (dtype == DataType::kInt64) {  // not through double: 2^63 - 1 saturates instead of wrapping
    std::vector<std::int64_t> exact;
    for (const double number : numbers) {
      exact.push_back(number >= 0x1p63 ? std::numeric_limits<std::int64_t>::max()
                                       : static_cast<std::int64_t>(number));
    }
    return Tensor::from(exact, input.dims);
  }
  return Tensor::from(numbers, input.dims).cast(dtype);
}

std::string model_text(const OpCase& op_case, const CaseVariant& variant) {
  using namespace op_case_detail;
  const std::vector<std::string> names = input_names(op_case);
  std::string formal;
  std::string initializers;
  for (std::size_t i = 0; i < op_case.inputs.size(); ++i) {
    const CaseInput& input = op_case.inputs[i];
    std::string& list = input.is_constant ? initializers : formal;
    if (!list.empty()) list += ", ";
    list += type_text(input, names[i], variant) + " " + names[i];
    if (!input.is_constant) continue;
    const DataType dtype = input_dtype(input, variant.dtype);
    const Tensor tensor = make_input(op_case, i, variant.dtype);
    std::vector<std::string> numbers;
    if (dtype == DataType::kInt64) {
      for (const std::int64_t number : tensor.to_int64s()) {
        numbers.push_back(std::to_string(number));
      }
    } else {
      for (const double number : tensor.to_doubles()) numbers.push_back(number_text(number, dtype));
    }
    list += fmt::format(" = {{{}}}", fmt::join(numbers, ", "));
  }
  std::string opsets = "\"\" : 26";
  for (const auto& [domain, version] : op_case.domains) {
    opsets += fmt::format(", \"{}\" : {}", domain, version);
  }
  const std::string number = std::to_string(static_cast<int>(variant.dtype));
  const std::string body =
      replace_all(replace_all(op_case.model, "$T", text_dtype(variant.dtype)), "$D", number);
  return fmt::format("<ir_version: 10, opset_import: [{}]>\ncase ({}) => ({}){} {{\n{}\n}}\n{}",
                     opsets, formal, fmt::join(output_names(op_case), ", "),
                     initializers.empty() ? "" : " <" + initializers + ">", body,
                     op_case.functions);
}

OpCase as_op_case(const ErrorCase& error_case) {
  return {.name = error_case.name,
          .model = error_case.model,
          .inputs = error_case.inputs,
          .no_gradient = "refused",
          .domains = error_case.domains};
}

ErrorCase as_error_case(OpCase op_case, std::string error, std::vector<std::string> fragments) {
  fragments.emplace_back("head");
  return {.name = std::move(op_case.name),
          .model = "[head] " + op_case.model,
          .inputs = std::move(op_case.inputs),
          .error = std::move(error),
          .fragments = std::move(fragments),
          .domains = std::move(op_case.domains)};
}

OpCase contrib_call(std::string name, const std::string& call, std::vector<CaseInput> inputs) {
  return {.name = std::move(name),
          .model = "y = com.microsoft." + call,
          .inputs = std::move(inputs),
          .domains = {{"com.microsoft", 1}}};
}

ErrorCase contrib_refused(std::string name, const std::string& call, std::vector<CaseInput> inputs,
                          std::string error, std::string fragment) {
  return as_error_case(contrib_call(std::move(name), call, std::move(inputs)), std::move(error),
                       {std::move(fragment)});
}

OpCase ml_call(std::string name, const std::string& call, std::vector<CaseInput> inputs,
               std::string no_gradient) {
  return {.name = std::move(name),
          .model = "y = ai.onnx.ml." + call,
          .inputs = std::move(inputs),
          .no_gradient = std::move(no_gradient),
          .domains = {{"ai.onnx.ml", 5}}};
}

ErrorCase ml_refused(std::string name, const std::string& call, std::vector<CaseInput> inputs,
                     std::string error, std::string fragment) {
  return as_error_case(ml_call(std::move(name), call, std::move(inputs)), std::move(error),
                       {std::move(fragment)});
}

}  // namespace onnxgrad::ops_test
