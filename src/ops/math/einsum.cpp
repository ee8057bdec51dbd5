#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "onnxgrad/error.h"
#include "opdef/registry.h"
#include "ops/rules.h"

// Einsum is rewritten as matrix products when a model is loaded: diagonals of repeated letters are
// taken, letters that only one operand has are summed, then two operands at a time are contracted:
// by a matrix product if a sum runs over letters of both, else by an element-wise product. It needs
// neither a kernel nor a rule, and every contraction runs as fast as MatMul.
//
// A term is a list of letters, one per axis. An ellipsis stands for letters of its own, which
// broadcast; they are counted from the last axis that it covers.

namespace onnxgrad::ops::einsum_op {
namespace {

using Letter = int;
using Term = std::vector<Letter>;

constexpr Letter kFirstOfEllipsis = 1000;  // its last axis; one less per axis to the front
constexpr Letter kEllipsis = -1;           // before its rank is known

struct Operand {
  Value* value = nullptr;
  Term term;
};

struct Equation {
  std::vector<Term> inputs;
  Term output;
};

[[noreturn]] void refuse(const Node& node, const std::string& what) {
  throw ModelError(
      {.what = what + " in equation '" + node.string_attribute("equation") + "'",
       .where = {.node = node.name, .op_type = node.op_type},
       .hint = "Give each input one term, with a letter per axis; '...' stands for any number."});
}

bool contains(const Term& term, Letter letter) { return std::ranges::count(term, letter) > 0; }

// Parses a term; onnx/node_rules checks the characters when a model is loaded.
Term read_term(std::string_view text) {
  Term term;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '.') {
      term.push_back(kEllipsis);
      i += 2;
    } else {
      term.push_back(static_cast<unsigned char>(text[i]));
    }
  }
  return term;
}

// Returns the output term if "->" is absent: the ellipsis, then the letters that occur once, upper
// case first.
Term implicit_output(const std::vector<Term>& inputs) {
  std::multiset<Letter> letters;
  for (const Term& term : inputs) letters.insert(term.begin(), term.end());
  Term output;
  if (letters.contains(kEllipsis)) output.push_back(kEllipsis);
  for (const Letter letter : letters) {
    if (letter != kEllipsis && letters.count(letter) == 1) output.push_back(letter);
  }
  return output;
}

Equation read_equation(const Node& node) {
  std::string text = node.string_attribute("equation");
  std::erase(text, ' ');
  const std::size_t arrow = text.find("->");
  Equation equation;
  std::string_view terms = std::string_view(text).substr(0, arrow);
  for (std::size_t first = 0; first <= terms.size();) {
    const std::size_t end = std::min(terms.find(',', first), terms.size());
    equation.inputs.push_back(read_term(terms.substr(first, end - first)));
    first = end + 1;
  }
  if (equation.inputs.size() != node.inputs.size()) {
    refuse(node, std::to_string(equation.inputs.size()) + " terms for " +
                     std::to_string(node.inputs.size()) + " inputs");
  }
  equation.output = arrow == std::string::npos
                        ? implicit_output(equation.inputs)
                        : read_term(std::string_view(text).substr(arrow + 2));
  return equation;
}

Term with_ellipsis(const Term& term, std::size_t count) {
  Term result;
  for (const Letter letter : term) {
    if (letter != kEllipsis) {
      result.push_back(letter);
    } else {
      for (std::size_t i = count; i > 0; --i) {
        result.push_back(kFirstOfEllipsis - static_cast<Letter>(i) + 1);
      }
    }
  }
  return result;
}

// Gives each ellipsis its letters. Returns false if the rank of an operand with an ellipsis is not
// known.
bool expand_ellipses(const Node& node, Equation& equation) {
  std::size_t longest = 0;
  for (std::size_t i = 0; i < equation.inputs.size(); ++i) {
    Term& term = equation.inputs[i];
    const auto rank = known_rank(node.input(i));
    if (!rank) {
      if (contains(term, kEllipsis)) return false;
      continue;
    }
    const std::size_t letters = term.size() - (contains(term, kEllipsis) ? 1 : 0);
    if (*rank < letters || (*rank > letters && letters == term.size())) {
      refuse(node, "term " + std::to_string(i) + " of " + std::to_string(letters) +
                       " letters for an input of rank " + std::to_string(*rank));
    }
    longest = std::max(longest, *rank - letters);
    term = with_ellipsis(term, *rank - letters);
  }
  equation.output = with_ellipsis(equation.output, longest);
  return true;
}

// Returns the product of the sizes of axes [first, last), int64 [1]: a constant if all are known.
Value* product_of_dims(GraphBuilder& g, Value* x, std::size_t first, std::size_t last) {
  std::int64_t known = 1;
  Value* product = nullptr;
  for (std::size_t axis = first; axis < last; ++axis) {
    if (const auto dim = known_dim(x, static_cast<std::int64_t>(axis))) {
      known *= *dim;
      continue;
    }
    Value* dim = dim_value(g, x, static_cast<std::int64_t>(axis));
    product = product == nullptr ? dim : g.mul(product, dim);
  }
  if (product == nullptr) return g.ints({known});
  return known == 1 ? product : g.mul(product, g.ints({known}));
}

// Reshapes to the concatenation of `parts`, int64 [n] values; the shape is constant if all are.
Value* reshape_to(GraphBuilder& g, Value* x, const std::vector<Value*>& parts) {
  std::vector<std::int64_t> dims;
  for (const Value* part : parts) {
    const auto numbers = constant_ints(part);
    if (!numbers) return g.reshape(x, parts.size() == 1 ? parts[0] : g.concat(parts, 0));
    dims.insert(dims.end(), numbers->begin(), numbers->end());
  }
  return g.reshape(x, g.ints(dims));
}

class Contraction {
 public:
  Contraction(GraphBuilder& g, Equation equation) : g_(g), output_(std::move(equation.output)) {}

  Value* run(std::vector<Operand> operands);

 private:
  Operand without_repeats(Operand x);
  Operand summed(Operand x, const std::vector<Operand>& others);
  Operand permuted(Operand x, const Term& term);
  Operand contract(Operand a, Operand b, const std::vector<Operand>& others);
  Operand matrix_product(const Operand& a, const Operand& b, const Term& batch, const Term& sum);
  Operand elementwise_product(const Operand& a, const Operand& b, const Term& sum);
  Value* merged(const Operand& x, std::size_t batch, std::size_t middle, std::size_t last);
  std::pair<std::size_t, std::size_t> next_pair(const std::vector<Operand>& operands) const;
  bool is_needed(Letter letter, const std::vector<Operand>& others) const;
  Term in_output_order(Term term) const;

  GraphBuilder& g_;
  Term output_;
};

bool Contraction::is_needed(Letter letter, const std::vector<Operand>& others) const {
  return contains(output_, letter) ||
         std::ranges::any_of(others, [&](const Operand& x) { return contains(x.term, letter); });
}

// Sorts the letters of the output in their order there, then the others.
Term Contraction::in_output_order(Term term) const {
  std::ranges::stable_sort(term, {}, [&](Letter letter) {
    return std::ranges::find(output_, letter) - output_.begin();
  });
  return term;
}

Operand Contraction::permuted(Operand x, const Term& term) {
  if (x.term == term) return x;
  std::vector<std::int64_t> perm;
  for (const Letter letter : term) {
    perm.push_back(std::ranges::find(x.term, letter) - x.term.begin());
  }
  return {g_.transpose(x.value, perm), term};
}

// Takes the diagonal of x[..., i, i]: both axes are moved to the end and merged into one of n * n
// elements, of which every (n + 1)-th is taken.
Operand Contraction::without_repeats(Operand x) {
  for (std::size_t i = 0; i < x.term.size(); ++i) {
    const auto again =
        std::find(x.term.begin() + static_cast<std::ptrdiff_t>(i) + 1, x.term.end(), x.term[i]);
    if (again == x.term.end()) continue;
    const auto j = static_cast<std::size_t>(again - x.term.begin());
    Term rest;
    std::vector<std::int64_t> perm;
    for (std::size_t axis = 0; axis < x.term.size(); ++axis) {
      if (axis == i || axis == j) continue;
      rest.push_back(x.term[axis]);
      perm.push_back(static_cast<std::int64_t>(axis));
    }
    perm.insert(perm.end(), {static_cast<std::int64_t>(i), static_cast<std::int64_t>(j)});
    Value* matrices = g_.transpose(x.value, perm);
    Value* n = product_of_dims(g_, matrices, rest.size(), rest.size() + 1);
    std::vector<Value*> shape;
    for (std::size_t axis = 0; axis < rest.size(); ++axis) {
      shape.push_back(product_of_dims(g_, matrices, axis, axis + 1));
    }
    // Throws at run time if the two sizes differ, since a reshape keeps the number of elements.
    shape.push_back(g_.mul(n, n));
    if (const auto number = constant_ints(n))
      shape.back() = g_.ints({number->front() * number->front()});
    Value* flat = reshape_to(g_, matrices, shape);
    // One list of indices for all matrices: the gradient is then added in place.
    Value* places = g_.mul(range_value(g_, g_.ints({0}), n), g_.add(n, g_.ints({1})));
    shape.back() = n;
    places = g_.expand(places, shape.size() == 1 ? n : g_.concat(shape, 0));
    const auto axis = static_cast<std::int64_t>(rest.size());
    rest.push_back(x.term[i]);
    return without_repeats(
        {g_.op("GatherElements", {flat, places}, {{"axis", axis}}), std::move(rest)});
  }
  return x;
}

// Sums `x` over the letters that neither `others` nor the output have.
Operand Contraction::summed(Operand x, const std::vector<Operand>& others) {
  std::vector<std::int64_t> axes;
  Term rest;
  for (std::size_t axis = 0; axis < x.term.size(); ++axis) {
    if (is_needed(x.term[axis], others))
      rest.push_back(x.term[axis]);
    else
      axes.push_back(static_cast<std::int64_t>(axis));
  }
  if (axes.empty()) return x;
  return {g_.reduce_sum(x.value, axes, /*keepdims=*/false), std::move(rest)};
}

// Merges the axes of each of the last two groups of x [batch..., middle..., last...] into one.
Value* Contraction::merged(const Operand& x, std::size_t batch, std::size_t middle,
                           std::size_t last) {
  if (middle == 1 && last == 1) return x.value;
  std::vector<Value*> shape;
  for (std::size_t axis = 0; axis < batch; ++axis) {
    shape.push_back(product_of_dims(g_, x.value, axis, axis + 1));
  }
  shape.push_back(product_of_dims(g_, x.value, batch, batch + middle));
  shape.push_back(product_of_dims(g_, x.value, batch + middle, batch + middle + last));
  return reshape_to(g_, x.value, shape);
}

// Multiplies [batch..., own of a..., sum...] by [batch..., sum..., own of b...].
Operand Contraction::matrix_product(const Operand& a, const Operand& b, const Term& batch,
                                    const Term& sum) {
  const auto own = [&](const Operand& x) {
    Term term;
    for (const Letter letter : x.term) {
      if (!contains(batch, letter) && !contains(sum, letter)) term.push_back(letter);
    }
    return in_output_order(std::move(term));
  };
  const auto joined = [](const Term& x, const Term& y, const Term& z) {
    Term term = x;
    term.insert(term.end(), y.begin(), y.end());
    term.insert(term.end(), z.begin(), z.end());
    return term;
  };
  const Term own_a = own(a);
  const Term own_b = own(b);
  const Operand left = permuted(a, joined(batch, own_a, sum));
  const Operand right = permuted(b, joined(batch, sum, own_b));
  const Term term = joined(batch, own_a, own_b);
  // MatMul takes any number of rows without a reshape, and vectors; but onnxruntime 1.31 computes
  // wrong results where it fuses a Transpose into a product with a vector.
  const bool has_vector = own_a.empty() || own_b.empty();
  const bool is_plain = left.value == a.value && right.value == b.value;
  if (batch.empty() && sum.size() == 1 && own_b.size() <= 1 && (is_plain || !has_vector)) {
    return {g_.matmul(left.value, right.value), term};
  }
  Value* x = merged(left, batch.size(), own_a.size(), sum.size());
  Value* y = merged(right, batch.size(), sum.size(), own_b.size());
  Value* product = g_.matmul(x, y);
  if (own_a.size() == 1 && own_b.size() == 1) return {product, term};
  std::vector<Value*> shape;
  for (std::size_t axis = 0; axis < batch.size(); ++axis) {
    shape.push_back(product_of_dims(g_, product, axis, axis + 1));
  }
  for (std::size_t i = 0; i < own_a.size(); ++i) {
    shape.push_back(product_of_dims(g_, left.value, batch.size() + i, batch.size() + i + 1));
  }
  for (std::size_t i = 0; i < own_b.size(); ++i) {
    const std::size_t axis = batch.size() + sum.size() + i;
    shape.push_back(product_of_dims(g_, right.value, axis, axis + 1));
  }
  return {reshape_to(g_, product, shape), term};
}

Operand Contraction::elementwise_product(const Operand& a, const Operand& b, const Term& sum) {
  Term term;
  for (const Operand* x : {&a, &b}) {
    for (const Letter letter : x->term) {
      if (!contains(term, letter) && !contains(sum, letter)) term.push_back(letter);
    }
  }
  term = in_output_order(std::move(term));
  const std::size_t kept = term.size();
  term.insert(term.end(), sum.begin(), sum.end());
  const auto aligned = [&](const Operand& x) {
    Term own;
    std::vector<std::int64_t> absent;
    for (std::size_t axis = 0; axis < term.size(); ++axis) {
      if (contains(x.term, term[axis]))
        own.push_back(term[axis]);
      else
        absent.push_back(static_cast<std::int64_t>(axis));
    }
    return g_.unsqueeze(permuted(x, own).value, absent);
  };
  Value* product = g_.mul(aligned(a), aligned(b));
  if (!sum.empty()) {
    std::vector<std::int64_t> axes;
    for (std::size_t i = kept; i < term.size(); ++i) axes.push_back(static_cast<std::int64_t>(i));
    product = g_.reduce_sum(product, axes, /*keepdims=*/false);
    term.resize(kept);
  }
  return {product, std::move(term)};
}

Operand Contraction::contract(Operand a, Operand b, const std::vector<Operand>& others) {
  Term batch;
  Term sum;
  bool is_broadcast_sum = false;
  std::size_t own = 0;
  for (const Letter letter : a.term) {
    if (!contains(b.term, letter)) {
      ++own;
    } else if (is_needed(letter, others)) {
      batch.push_back(letter);
    } else {
      sum.push_back(letter);
      is_broadcast_sum = is_broadcast_sum || letter > kFirstOfEllipsis - 100;
    }
  }
  own += b.term.size() - batch.size() - sum.size();
  batch = in_output_order(std::move(batch));
  if (sum.empty() || own == 0 || is_broadcast_sum) return elementwise_product(a, b, sum);
  // The operand whose letters come first in the output provides the rows. A vector goes to the side
  // that avoids a transposition of the other operand.
  // the other one need not be transposed.
  const auto own_letters = [&](const Operand& x) {
    return x.term.size() - batch.size() - sum.size();
  };
  if (own_letters(a) == 0 || own_letters(b) == 0) {
    const Operand& matrix = own_letters(a) == 0 ? b : a;
    const bool is_right = matrix.term[batch.size()] == sum.front();
    if (is_right != (own_letters(a) == 0)) std::swap(a, b);
    return matrix_product(a, b, batch, sum);
  }
  const auto first_place = [&](const Operand& x) {
    std::size_t place = output_.size();
    for (const Letter letter : x.term) {
      if (contains(batch, letter) || contains(sum, letter)) continue;
      const auto at =
          static_cast<std::size_t>(std::ranges::find(output_, letter) - output_.begin());
      place = std::min(place, at);
    }
    return place;
  };
  if (first_place(b) < first_place(a)) std::swap(a, b);
  return matrix_product(a, b, batch, sum);
}

// Returns the two operands with the smallest product, as far as sizes are known.
std::pair<std::size_t, std::size_t> Contraction::next_pair(
    const std::vector<Operand>& operands) const {
  std::pair<std::size_t, std::size_t> best{0, 1};
  if (operands.size() == 2) return best;
  double least = -1;
  for (std::size_t i = 0; i < operands.size(); ++i) {
    for (std::size_t j = i + 1; j < operands.size(); ++j) {
      std::vector<Operand> others = operands;
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(j));
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      std::set<Letter> seen;
      double size = 1;
      for (const Operand* x : {&operands[i], &operands[j]}) {
        for (std::size_t axis = 0; axis < x->term.size(); ++axis) {
          const Letter letter = x->term[axis];
          if (!is_needed(letter, others) || !seen.insert(letter).second) continue;
          const auto dim = known_dim(x->value, static_cast<std::int64_t>(axis));
          size *= static_cast<double>(dim.value_or(64));  // assumed size
        }
      }
      if (least < 0 || size < least) {
        least = size;
        best = {i, j};
      }
    }
  }
  return best;
}

Value* Contraction::run(std::vector<Operand> operands) {
  const auto simplified = [&](std::vector<Operand>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const Operand x = std::move(all[i]);
      all.erase(all.begin() + static_cast<std::ptrdiff_t>(i));
      Operand simple = summed(without_repeats(x), all);
      all.insert(all.begin() + static_cast<std::ptrdiff_t>(i), std::move(simple));
    }
  };
  simplified(operands);
  while (operands.size() > 1) {
    const auto [i, j] = next_pair(operands);
    Operand b = std::move(operands[j]);
    operands.erase(operands.begin() + static_cast<std::ptrdiff_t>(j));
    Operand a = std::move(operands[i]);
    operands.erase(operands.begin() + static_cast<std::ptrdiff_t>(i));
    operands.insert(operands.begin() + static_cast<std::ptrdiff_t>(i), contract(a, b, operands));
  }
  return permuted(operands[0], output_).value;
}

bool is_product_type(DataType dtype) {
  return is_floating(dtype) || dtype == DataType::kInt32 || dtype == DataType::kInt64;
}

// Integer types that MatMul and ReduceSum lack are computed as int64, whose low bits they are.
std::optional<std::vector<Value*>> lower_einsum(const Node& node, GraphBuilder& g) {
  Equation equation = read_equation(node);
  const DataType dtype = node.input(0)->dtype();
  if (dtype == DataType::kUndefined || !expand_ellipses(node, equation)) return std::nullopt;
  std::vector<Operand> operands;
  for (std::size_t i = 0; i < node.inputs.size(); ++i) {
    Value* x = node.input(i);
    if (!is_product_type(dtype)) x = g.cast(x, DataType::kInt64);
    operands.push_back({x, equation.inputs[i]});
  }
  Value* y = Contraction(g, std::move(equation)).run(std::move(operands));
  if (!is_product_type(dtype)) y = g.cast(y, dtype);
  const bool is_input = std::ranges::count(node.inputs, y) > 0;
  return std::vector<Value*>{is_input ? g.identity(y) : y};
}

}  // namespace

void register_einsum(opdef::OpRegistry& registry) {
  registry.add(
      {.op_type = "Einsum",
       .since_version = 12,
       .attributes = {{.name = "equation", .type = AttributeType::kString, .required = true}},
       .lower = lower_einsum});
}

}  // namespace onnxgrad::ops::einsum_op
