#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace optional {

const std::string kChoice = R"(
  wrapped = Optional (x)
  there = OptionalHasElement (wrapped)
  y = If (there) <
    then_branch = some () => ($T[2, 3] then_y) {
      held = OptionalGetElement (wrapped)
      then_y = Mul (held, held)
    },
    else_branch = none () => ($T[2, 3] else_y) { else_y = Neg (w) }>)";

}  // namespace optional

std::vector<OpCase> optional_cases() {
  return {
      {.name = "held",
       .model = optional::kChoice,
       .inputs = {uniform({2, 3}, -1, 1).named("x"), uniform({2, 3}, -1, 1).named("w")},
       .outputs = {"y"},
       .wrt = {"x"}},
      {.name = "plain",
       .model = R"(held = OptionalGetElement (x)
                   there = OptionalHasElement (x)
                   number = CastLike (there, held)
                   y = Mul (held, number))",
       .inputs = {uniform({0, 1}, -1, 1).named("x")}},
      {.name = "nothing",
       .model = R"(none = Optional <type : type_proto = seq(float[N])> ()
                   there = OptionalHasElement (none)
                   number = CastLike (there, x)
                   y = Add (x, number))",
       .inputs = {uniform({1, 2}, -1, 1).named("x")}},
      {.name = "no_rows",
       .model = R"(wrapped = Optional (x)
                   there = OptionalHasElement (wrapped)
                   held = OptionalGetElement (wrapped)
                   number = CastLike (there, held)
                   y = Mul (held, number))",
       .inputs = {uniform({0, 1}, -1, 1).named("x")}},
      {.name = "one",
       .model = R"(wrapped = Optional (x)
                   held = OptionalGetElement (wrapped)
                   y = Exp (held))",
       .inputs = {uniform({}, -1, 1).named("x")}},
  };
}

std::vector<ErrorCase> optional_error_cases() {
  return {
      {.name = "nothing",
       .model = R"(none = Optional <type : type_proto = float[N]> ()
                   there = OptionalHasElement (none)
                   [pick] held = OptionalGetElement (none)
                   y = Add (held, x))",
       .inputs = {uniform({2}, 0, 1).as(DataType::kFloat32).named("x")},
       .error = "DataError",
       .fragments = {"pick", "OptionalHasElement"}},
  };
}

}  // namespace onnxgrad::ops_test
