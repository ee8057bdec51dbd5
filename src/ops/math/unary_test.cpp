#include <cmath>
#include <limits>

#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace unary {

struct Sample {
  std::string op;  // "Elu <alpha = 0.7>"
  double low;
  double high;
};

// Ranges where the operator is defined and smooth; kinks are tested separately.
const std::vector<Sample> kSamples = {
    {"Neg", -2, 2},
    {"Abs", 0.1, 2},
    {"Exp", -2, 2},
    {"Log", 0.2, 3},
    {"Sqrt", 0.2, 3},
    {"Reciprocal", 0.3, 3},
    {"Tanh", -3, 3},
    {"Sigmoid", -4, 4},
    {"Erf", -2, 2},
    {"Sin", -4, 4},
    {"Cos", -4, 4},
    {"Tan", -1.2, 1.2},
    {"Asin", -0.9, 0.9},
    {"Acos", -0.9, 0.9},
    {"Atan", -3, 3},
    {"Sinh", -2, 2},
    {"Cosh", -2, 2},
    {"Asinh", -3, 3},
    {"Acosh", 1.2, 4},
    {"Atanh", -0.9, 0.9},
    {"Softplus", -4, 4},
    {"Softsign", 0.1, 3},
    {"Relu", 0.1, 2},
    {"Sign", 0.1, 2},
    {"Floor", 0.1, 0.9},
    {"Ceil", 1.1, 1.9},
    {"Round", 0.6, 1.4},
    {"Identity", -2, 2},
    {"LeakyRelu", 0.1, 2},
    {"LeakyRelu <alpha = 0.3>", -2, -0.1},
    {"Elu", 0.1, 2},
    {"Elu <alpha = 0.7>", -3, -0.1},
    {"Selu", -3, -0.1},
    {"Selu <alpha = 1.5, gamma = 0.9>", 0.1, 2},
    {"HardSigmoid", -2, 2},
    {"HardSigmoid <alpha = 0.5, beta = 0.4>", -0.7, 1.1},
    {"HardSwish", -2.9, 2.9},
    {"HardSwish", -5, -3.1},
    {"HardSwish", 3.1, 5},
    {"Gelu", -3, 3},
    {"Gelu <approximate = \"none\">", -3, 3},
    {"Gelu <approximate = \"tanh\">", -3, 3},
};

// Returns a case name: the operator in lower case, with a number if it occurs several times.
std::string case_name(const std::string& op, std::size_t number, const std::string& what) {
  std::string name = op.substr(0, op.find(' '));
  for (char& c : name) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return name + "_" + what + "_" + std::to_string(number);
}

// Operators that are smooth on each side of zero, sampled on both sides.
const std::vector<std::string> kMirrored = {"Abs",  "Reciprocal", "Softsign", "Relu",
                                            "Sign", "Floor",      "Ceil",     "Round"};

void add_integer_cases(std::vector<OpCase>& cases) {
  for (const char* op : {"Neg", "Abs", "Sign", "Relu"}) {
    for (const DataType dtype : {DataType::kInt64, DataType::kInt32}) {
      cases.push_back({.name = case_name(op, 0, std::string(dtype_name(dtype))),
                       .model = std::string("y = ") + op + " (x)",
                       .inputs = {integers({3, 4}, -9, 9, dtype)},
                       .no_gradient = "integers"});
    }
  }
}

void add_predicates(std::vector<OpCase>& cases) {
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const CaseInput odd = values({1, -infinity, infinity, nan, 0, -2}, {2, 3});
  const std::vector<std::string> models = {
      "IsNaN",
      "IsInf",
      "IsInf <detect_negative = 0, detect_positive = 1>",
      "IsInf <detect_negative = 1, detect_positive = 0>",
      "IsInf <detect_negative = 0, detect_positive = 0>",
  };
  for (std::size_t i = 0; i < models.size(); ++i) {
    const std::string model = "y = " + models[i] + " (x)";
    cases.push_back({.name = case_name(models[i], i, "odd"),
                     .model = model,
                     .inputs = {odd},
                     .no_gradient = "bool output"});
    for (const Dims& dims : {Dims{}, Dims{0, 2}, Dims{1}}) {
      cases.push_back({.name = case_name(models[i], i, "size" + std::to_string(dims.rank())),
                       .model = model,
                       .inputs = {uniform(dims, -1, 1)},
                       .no_gradient = "bool output"});
    }
  }
  for (const Dims& dims : {Dims{}, Dims{0, 2}, Dims{1}, Dims{2, 3, 2}}) {
    cases.push_back({.name = "not_rank_" + std::to_string(dims.rank()),
                     .model = "y = Not (x)",
                     .inputs = {integers(dims, 0, 1, DataType::kBool)},
                     .no_gradient = "bool output"});
  }
}

// Values and the documented one-sided gradients at kinks and at extreme arguments.
void add_special_values(std::vector<OpCase>& cases) {
  const double infinity = std::numeric_limits<double>::infinity();
  const auto add = [&](const std::string& op, std::vector<double> x, std::vector<double> y) {
    const auto count = static_cast<std::int64_t>(x.size());
    cases.push_back({.name = case_name(op, cases.size(), "special"),
                     .model = "y = " + op + " (x)",
                     .inputs = {values(std::move(x), {count})},
                     .no_gradient = "not differentiable at these values",
                     .expected = {std::move(y)}});
  };
  add("Relu", {-1, 0, 2}, {0, 0, 2});
  add("Abs", {-1.5, 0, 2}, {1.5, 0, 2});
  add("Sign", {-1.5, 0, 2}, {-1, 0, 1});
  add("Round", {-2.5, -1.5, -0.5, 0.5, 1.5, 2.5}, {-2, -2, 0, 0, 2, 2});
  add("Floor", {-1.5, -1, 0, 1.5}, {-2, -1, 0, 1});
  add("Ceil", {-1.5, -1, 0, 1.5}, {-1, -1, 0, 2});
  add("Exp", {-infinity, 0, 800}, {0, 1, infinity});
  add("Sigmoid", {-1000, 0, 1000}, {0, 0.5, 1});
  add("Tanh", {-1000, 0, 1000}, {-1, 0, 1});
  add("Softplus", {-1000, 1000}, {0, 1000});
  add("Log", {0, 1, infinity}, {-infinity, 0, infinity});
  add("Sqrt", {0, 4, infinity}, {0, 2, infinity});
  add("Erf", {-30, 0, 30}, {-1, 0, 1});
  add("HardSigmoid", {-100, 0, 100}, {0, 0.5, 1});
  add("HardSwish", {-100, -3, -1.5, 0, 3, 100}, {0, 0, -0.375, 0, 3, 100});
}

}  // namespace unary

std::vector<OpCase> unary_cases() {
  std::vector<OpCase> cases;
  for (std::size_t i = 0; i < unary::kSamples.size(); ++i) {
    const auto& [op, low, high] = unary::kSamples[i];
    const std::string model = "y = " + op + " (x)";
    for (const Dims& dims : {Dims{3, 5}, Dims{}, Dims{0, 2, 2}, Dims{1}}) {
      cases.push_back({.name = unary::case_name(op, i, "rank" + std::to_string(dims.rank())),
                       .model = model,
                       .inputs = {uniform(dims, low, high)}});
    }
    const bool is_mirrored =
        std::find(unary::kMirrored.begin(), unary::kMirrored.end(), op) != unary::kMirrored.end();
    if (is_mirrored) {
      cases.push_back({.name = unary::case_name(op, i, "negative"),
                       .model = model,
                       .inputs = {uniform({7}, -high, -low)}});
    }
  }
  unary::add_integer_cases(cases);
  unary::add_predicates(cases);
  unary::add_special_values(cases);
  return cases;
}

std::vector<ErrorCase> unary_error_cases() {
  std::vector<ErrorCase> cases;
  // Every operator of the table refuses undeclared attributes and unsupported types.
  for (const char* op :
       {"Neg",  "Abs",   "Exp",         "Log",   "Sqrt",     "Reciprocal", "Tanh",      "Sigmoid",
        "Erf",  "Sin",   "Cos",         "Tan",   "Asin",     "Acos",       "Atan",      "Sinh",
        "Cosh", "Asinh", "Acosh",       "Atanh", "Softplus", "Softsign",   "Relu",      "HardSwish",
        "Sign", "Floor", "Ceil",        "Round", "IsNaN",    "IsInf",      "LeakyRelu", "Elu",
        "Selu", "Gelu",  "HardSigmoid", "Not"}) {
    const bool takes_bool = std::string_view(op) == "Not";
    const DataType good = takes_bool ? DataType::kBool : DataType::kUndefined;
    const DataType bad = takes_bool ? DataType::kInt64 : DataType::kBool;
    cases.push_back({.name = unary::case_name(op, 0, "attribute"),
                     .model = std::string("[odd] y = ") + op + " <nonsense = 1> (x)",
                     .inputs = {values({1, 1}, {2}, good)},
                     .error = "ModelError",
                     .fragments = {"odd", "nonsense"}});
    cases.push_back({.name = unary::case_name(op, 0, "type"),
                     .model = std::string("[odd] y = ") + op + " (x)",
                     .inputs = {values({1, 1}, {2}, bad)},
                     .error = "ModelError",
                     .fragments = {"odd", "x"}});
  }
  cases.push_back({.name = "gelu_choice",
                   .model = "[bent] y = Gelu <approximate = \"sin\"> (x)",
                   .inputs = {uniform({2}, -1, 1)},
                   .error = "ModelError",
                   .fragments = {"bent", "approximate", "tanh"}});
  cases.push_back({.name = "isinf_flag",
                   .model = "[flagged] y = IsInf <detect_positive = 2> (x)",
                   .inputs = {uniform({2}, -1, 1)},
                   .error = "ModelError",
                   .fragments = {"flagged", "detect_positive"}});
  cases.push_back({.name = "identity_attribute",
                   .model = "[same] y = Identity <to = 1> (x)",
                   .inputs = {uniform({2}, -1, 1)},
                   .error = "ModelError",
                   .fragments = {"same", "to"}});
  return cases;
}

}  // namespace onnxgrad::ops_test
