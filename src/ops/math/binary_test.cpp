#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace binary {

struct Shapes {
  std::string name;
  Dims a;
  Dims b;
};

const std::vector<Shapes> kShapes = {
    {"equal", {3, 4}, {3, 4}},
    {"row", {3, 4}, {4}},
    {"row_first", {4}, {3, 4}},
    {"column", {3, 4}, {3, 1}},
    {"column_first", {3, 1}, {3, 4}},
    {"both", {3, 1, 2}, {4, 1}},
    {"scalar", {2, 3}, {}},
    {"scalar_first", {}, {2, 3}},
    {"scalars", {}, {}},
    {"ones", {1}, {1, 1}},
    {"empty", {0, 3}, {3}},
    {"empty_by_one", {2, 1}, {2, 0}},
};

std::string lower(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

// Operands away from zero, so that quotients, powers and comparisons are smooth; the ranges of a
// and b differ.
OpCase floating(const std::string& op, const Shapes& shapes) {
  return {.name = lower(op.substr(0, op.find(' '))) + "_" + shapes.name,
          .model = "c = " + op + " (a, b)",
          .inputs = {uniform(shapes.a, 1.05, 2), uniform(shapes.b, 0.3, 0.95)}};
}

void add_comparisons(std::vector<OpCase>& cases) {
  for (const char* op : {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}) {
    for (const Shapes& shapes : kShapes) {
      OpCase one = floating(op, shapes);
      one.inputs = {integers(shapes.a, -1, 1), integers(shapes.b, -1, 1)};
      one.no_gradient = "bool output";
      cases.push_back(one);
    }
    cases.push_back({.name = lower(op) + "_float",
                     .model = std::string("c = ") + op + " (a, b)",
                     .inputs = {values({-1, 0, 2, 2}, {4}), values({0, 0, -2, 2}, {4})},
                     .no_gradient = "bool output"});
  }
  for (const char* op : {"And", "Or", "Xor"}) {
    for (const Shapes& shapes : kShapes) {
      OpCase one = floating(op, shapes);
      one.inputs = {integers(shapes.a, 0, 1, DataType::kBool),
                    integers(shapes.b, 0, 1, DataType::kBool)};
      one.no_gradient = "bool output";
      cases.push_back(one);
    }
  }
}

void add_integer_arithmetic(std::vector<OpCase>& cases) {
  for (const DataType dtype : {DataType::kInt64, DataType::kInt32}) {
    for (const std::string op : {"Add", "Sub", "Mul", "Div", "Mod", "Mod <fmod = 1>"}) {
      cases.push_back({.name = lower(op.substr(0, 3)) + std::to_string(op.size()) + "_" +
                               std::string(dtype_name(dtype)),
                       .model = "c = " + op + " (a, b)",
                       .inputs = {values({7, -7, 7, -7, 6, 0}, {6}, dtype),
                                  values({3, 3, -3, -3, 2, 5}, {6}, dtype)},
                       .no_gradient = "integers"});
    }
  }
}

void add_powers(std::vector<OpCase>& cases) {
  // Constant exponents that the rule handles specially, and integer ones.
  for (const double exponent : {0.0, 1.0, 2.0, 0.5, -1.5, 3.0}) {
    cases.push_back({.name = "pow_constant_" + std::to_string(cases.size()),
                     .model = "c = Pow (a, b)",
                     .inputs = {uniform({2, 3}, 0.5, 2), values({exponent}, {}).constant()}});
  }
  cases.push_back({.name = "pow_negative_base",
                   .model = "c = Pow (a, b)",
                   .inputs = {uniform({5}, -2, -0.5), values({3}, {}).constant()}});
  cases.push_back({.name = "pow_integer_exponents",
                   .model = "c = Pow (a, b)",
                   .inputs = {uniform({4}, -2, -0.5), values({0, 1, 2, 3}, {4}, DataType::kInt64)},
                   .wrt = {"a"}});
  cases.push_back({.name = "pow_of_zero",
                   .model = "c = Pow (a, b)",
                   .inputs = {values({0, 0, 0}, {3}), values({0, 1, 2}, {3})},
                   .wrt = {"a"},
                   .tolerance = 1e-5,
                   .tolerance_reason = "the second difference of x^2 at 0 is not small beside 0"});
  cases.push_back({.name = "pow_integer_base",
                   .model = "c = Pow (a, b)",
                   .inputs = {values({2, -3, 5}, {3}, DataType::kInt64),
                              values({3, 2, 0}, {3}, DataType::kInt64)},
                   .no_gradient = "integers"});
}

}  // namespace binary

std::vector<OpCase> binary_cases() {
  std::vector<OpCase> cases;
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Pow", "Mod <fmod = 1>"}) {
    for (const binary::Shapes& shapes : binary::kShapes) {
      cases.push_back(binary::floating(op, shapes));
    }
  }
  cases.push_back({.name = "mod_fmod_signs",
                   .model = "c = Mod <fmod = 1> (a, b)",
                   .inputs = {values({5.3, -5.3, 5.3, -5.3}, {4}), values({2, 2, -2, -2}, {4})}});
  // Mod of opset 28: a - b floor(a / b).
  cases.push_back({.name = "mod_floor",
                   .model = "c = Mod (a, b)",
                   .inputs = {values({-4.25, 4.25, -4.25, 4.25, 0.5, -0.5}, {6}),
                              values({2, 2, -2, -2, 3, 3}, {6})},
                   .expected = {{1.75, 0.25, -0.25, -1.75, 0.5, 2.5}}});
  cases.push_back({.name = "mod_floor_wide",
                   .model = "c = Mod (a, b)",
                   .inputs = {values({-4.3, 4.3}, {2, 1}), values({2.1, -2.1, 0.8}, {3})}});
  cases.push_back(
      {.name = "mod_plain",
       .model = "c = Mod <fmod = 0> (a, b)",
       .inputs = {integers({3, 4}, -9, 9), values({3, -4, 5, -7}, {4}, DataType::kInt64)},
       .no_gradient = "integers"});
  cases.push_back(
      {.name = "mul_same_value_twice", .model = "c = Mul (a, a)", .inputs = {uniform({3}, -2, 2)}});
  cases.push_back({.name = "div_same_value_twice",
                   .model = "c = Div (a, a)",
                   .inputs = {uniform({3}, 0.5, 2)}});
  binary::add_powers(cases);
  binary::add_comparisons(cases);
  binary::add_integer_arithmetic(cases);
  return cases;
}

std::vector<ErrorCase> binary_error_cases() {
  std::vector<ErrorCase> cases;
  for (const char* op : {"Add", "Sub", "Mul", "Div", "Pow", "Mod", "Equal", "Greater",
                         "GreaterOrEqual", "Less", "LessOrEqual", "And", "Or", "Xor"}) {
    const bool is_logic = std::string_view(op) == "And" || std::string_view(op) == "Or" ||
                          std::string_view(op) == "Xor";
    const bool is_mod = std::string_view(op) == "Mod";
    const DataType dtype = is_logic ? DataType::kBool
                           : is_mod ? DataType::kInt64
                                    : DataType::kUndefined;
    cases.push_back({.name = binary::lower(op) + "_shapes",
                     .model = std::string("[pair] c = ") + op + " (a, b)",
                     .inputs = {values({1, 1, 1}, {3}, dtype), values({1, 1}, {2}, dtype)},
                     .error = "ShapeError",
                     .fragments = {"pair", "[3]", "[2]"}});
  }
  cases.push_back({.name = "mod_flag",
                   .model = "[rest] c = Mod <fmod = 2> (a, b)",
                   .inputs = {integers({2}, 1, 5), integers({2}, 1, 5)},
                   .error = "ModelError",
                   .fragments = {"rest", "fmod"}});
  cases.push_back({.name = "add_types",
                   .model = "[sum] c = Add (a, b)",
                   .inputs = {uniform({2}, 0, 1), integers({2}, 0, 1)},
                   .error = "ModelError",
                   .fragments = {"sum"}});
  return cases;
}

}  // namespace onnxgrad::ops_test
