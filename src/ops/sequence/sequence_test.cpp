#include "ops/testing/op_case.h"

namespace onnxgrad::ops_test {
namespace sequence {

// A decoder's list: each iteration appends what it computed.
const std::string kCollected = R"(
  none = SequenceEmpty <dtype = $D> ()
  last, rows = Loop <body = step (int64 i, bool c, $T[2, 3] h, seq($T[]) list)
      => (bool c1, $T[2, 3] next, seq($T[]) longer) {
    c1 = Identity (c)
    product = MatMul (h, w)
    next = Tanh (product)
    longer = SequenceInsert (list, next)
  }> (count, , x, none)
  y = ConcatFromSequence <axis = @> (rows)
  z = Mul (last, last))";

// Runs over the rows of a tensor as a scripted loop does.
const std::string kRows = R"(
  list = SplitToSequence <axis = 1, keepdims = 0> (x)
  count = SequenceLength (list)
  sum = Loop <body = step (int64 i, bool c, $T[2] s) => (bool c1, $T[2] next) {
    c1 = Identity (c)
    row = SequenceAt (list, i)
    square = Mul (row, row)
    decayed = Mul (s, w)
    next = Add (square, decayed)
  }> (count, , s0))";

// A list that an iteration appends to and reads: its last element and one at a computed place.
const std::string kRead = R"(
  list = SequenceConstruct (a, b)
  all = Loop <body = step (int64 i, bool c, seq($T[]) s) => (bool d, seq($T[]) t) {
    d = Identity (c)
    last = SequenceAt (s, minus_one)
    other = SequenceAt (s, i)
    product = Mul (last, other)
    next = Sin (product)
    t = SequenceInsert (s, next)
  }> (count, , list)
  y = ConcatFromSequence <axis = 0> (all))";

// Its first element goes, and comes back at the end, changed.
const std::string kTurned = R"(
  list = SplitToSequence <axis = 0, keepdims = 0> (x)
  all = Loop <body = step (int64 i, bool c, seq($T[]) s) => (bool d, seq($T[]) t) {
    d = Identity (c)
    first = SequenceAt (s, zero)
    rest = SequenceErase (s, zero)
    scaled = Mul (first, w)
    next = Tanh (scaled)
    t = SequenceInsert (rest, next)
  }> (count, , list)
  y = ConcatFromSequence <axis = 0, new_axis = 1> (all))";

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  for (std::size_t at = text.find(from); at != std::string::npos; at = text.find(from, at)) {
    text.replace(at, from.size(), to);
  }
  return text;
}

CaseInput pair_of_rows(const std::string& name) { return uniform({2, 3}, -1, 1).named(name); }

}  // namespace sequence

std::vector<OpCase> sequence_cases() {
  using namespace sequence;  // NOLINT(google-build-using-namespace): this file's own
  std::vector<OpCase> cases = {
      {.name = "at",
       .model = R"(s = SequenceConstruct (a, b)
                   first = SequenceAt (s, zero)
                   last = SequenceAt (s, minus_one)
                   y = MatMul (first, last))",
       .inputs = {pair_of_rows("a"), uniform({3, 2}, -1, 1).named("b"), int_scalar(0).named("zero"),
                  int_scalar(-1).named("minus_one")}},
      {.name = "at_computed",
       .model = R"(s = SequenceConstruct (a, b, a)
                   y = SequenceAt (s, i))",
       .inputs = {pair_of_rows("a"), pair_of_rows("b"), integers({}, 1, 1).named("i")},
       .static_only = "elements of different symbols need not have one shape"},
      {.name = "insert_and_erase",
       .model = R"(s = SequenceConstruct (a, b)
                   longer = SequenceInsert (s, c, one)
                   longest = SequenceInsert (longer, d)
                   without_b = SequenceErase (longest, two)
                   without_d = SequenceErase (without_b)
                   n = SequenceLength (without_d)
                   y = ConcatFromSequence <axis = 0> (without_b)
                   number = CastLike (n, y)
                   z = Mul (y, number))",
       .inputs = {pair_of_rows("a"), pair_of_rows("b"), uniform({1, 3}, -1, 1).named("c"),
                  pair_of_rows("d"), int_scalar(1).named("one"), int_scalar(2).named("two")},
       .outputs = {"z"},
       .static_only = "the columns of different inputs need not agree"},
      {.name = "stack",
       .model = R"(s = SequenceConstruct (a, b, a)
                   y = ConcatFromSequence <axis = -1, new_axis = 1> (s))",
       .inputs = {pair_of_rows("a"), pair_of_rows("b")},
       .static_only = "elements of different symbols need not have one shape"},
      {.name = "from_nothing",
       .model = R"(none = SequenceEmpty <dtype = 11> ()
                   size = SequenceLength (none)
                   double_a = Cast <to = 11> (a)
                   s = SequenceInsert (none, double_a)
                   y = SequenceAt (s, zero)
                   number = CastLike (size, y)
                   z = Add (y, number))",
       .inputs = {pair_of_rows("a"), int_scalar(0).named("zero")},
       .outputs = {"z"}},
      {.name = "no_rows",
       .model = R"(s = SequenceConstruct (a, b)
                   y = ConcatFromSequence <axis = 0, new_axis = 0> (s))",
       .inputs = {uniform({0, 3}, -1, 1).named("a"), pair_of_rows("b")},
       .static_only = "the columns of different inputs need not agree"},
      {.name = "insert_no_rows",
       .model = R"(s = SequenceConstruct (a)
                   longer = SequenceInsert (s, b)
                   y = ConcatFromSequence <axis = 0> (longer))",
       .inputs = {uniform({1, 3}, -1, 1).named("a"), uniform({0, 3}, -1, 1).named("b")},
       .static_only = "the columns of different inputs need not agree"},
      {.name = "split_no_rows",
       .model = R"(s = SplitToSequence <axis = 1> (x)
                   first = SequenceAt (s, zero)
                   y = Exp (first))",
       .inputs = {uniform({0, 1}, -1, 1).named("x"), int_scalar(0).named("zero")}},
      {.name = "split_equal",
       .model = R"(s = SplitToSequence (x, size)
                   last = SequenceAt (s, two)
                   y = Exp (last))",
       .inputs = {uniform({5, 2}, -1, 1).named("x"), int_scalar(2).named("size"),
                  int_scalar(2).named("two")}},
      {.name = "split_sizes",
       .model = R"(s = SplitToSequence <axis = -1> (x, sizes)
                   first = SequenceAt (s, zero)
                   last = SequenceAt (s, two)
                   y = MatMul (first, last))",
       .inputs = {uniform({2, 2, 5}, -1, 1).named("x"), ints({2, 1, 2}).named("sizes"),
                  int_scalar(0).named("zero"), int_scalar(2).named("two")}},
      {.name = "split_from_end",
       .model = R"(s = SplitToSequence <axis = 1> (x, size)
                   n = SequenceLength (s)
                   part = SequenceAt (s, i)
                   number = CastLike (n, part)
                   y = Mul (part, number))",
       .inputs = {uniform({2, 5}, -1, 1).named("x"), int_scalar(2).named("size"),
                  integers({}, -2, -2).named("i")},
       .outputs = {"y"}},
      {.name = "split_rows",
       .model = R"(s = SplitToSequence <keepdims = 1> (x)
                   row = SequenceAt (s, two)
                   y = Exp (row))",
       .inputs = {uniform({4, 2}, -1, 1).named("x"), int_scalar(2).named("two")}},
      {.name = "map",
       .model = R"(s = SequenceConstruct (a, b)
                   t = SequenceMap <body = scale ($T[R, C] e, $T[] factor) => ($T[R, C] scaled) {
                     squares = Mul (e, e)
                     scaled = Mul (squares, factor)
                   }> (s, f)
                   y = ConcatFromSequence <axis = 0> (t))",
       .inputs = {pair_of_rows("a"), uniform({1, 3}, -1, 1).named("b"),
                  uniform({}, 1, 2).named("f")},
       .static_only = "the columns of different inputs need not agree"},
      {.name = "rows_of_a_loop",
       .model = kRows,
       .inputs = {uniform({2, 4}, -1, 1).named("x"), uniform({2}, -1, 1).named("w"),
                  uniform({2}, -1, 1).named("s0")},
       .outputs = {"sum"}},
  };
  for (const std::int64_t count : {3, 0}) {
    const std::string suffix = count == 0 ? "_no_iterations" : "";
    cases.push_back(
        {.name = "read_in_a_loop" + suffix,
         .model = kRead,
         .inputs = {pair_of_rows("a"), pair_of_rows("b"), integers({}, count, count).named("count"),
                    int_scalar(-1).named("minus_one")},
         .static_only = "the columns of different inputs need not agree"});
    cases.push_back(
        {.name = "changed_in_a_loop" + suffix,
         .model = kTurned,
         .inputs = {uniform({2, 3}, -1, 1).named("x"), uniform({3}, -1, 1).named("w"),
                    integers({}, count, count).named("count"), int_scalar(0).named("zero")}});
  }
  for (const bool new_axis : {true, false}) {
    for (const bool first : {true, false}) {
      const std::string axis = first ? "0" : "-1";
      cases.push_back(
          {.name = std::string(new_axis ? "stacked" : "joined") + (first ? "_first" : "_last"),
           .model = replaced(kCollected, "@", axis + ", new_axis = " + (new_axis ? "1" : "0")),
           .inputs = {pair_of_rows("x"), uniform({3, 3}, -1, 1).named("w"),
                      integers({}, 3, 3).named("count")},
           .outputs = {"y", "z"}});
    }
  }
  return cases;
}

std::vector<ErrorCase> sequence_error_cases() {
  return {
      {.name = "position",
       .model = R"(s = SequenceConstruct (a, a)
                   [pick] y = SequenceAt (s, i))",
       .inputs = {uniform({2}, 0, 1).as(DataType::kFloat32).named("a"), int_scalar(2).named("i")},
       .error = "DataError",
       .fragments = {"pick", "position 2", "2 elements"}},
      {.name = "map_of_another_body",
       .model = R"(s = SequenceConstruct (a, a)
                   [each] t = SequenceMap <body = copy (float[N] e) => (float[N] c) {
                     c = Identity (e)
                   }> (s, a)
                   y = ConcatFromSequence <axis = 0> (t))",
       .inputs = {uniform({2}, 0, 1).as(DataType::kFloat32).named("a")},
       .error = "ModelError",
       .fragments = {"each", "1 inputs", "expected 2"}},
  };
}

}  // namespace onnxgrad::ops_test
