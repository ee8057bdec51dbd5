#include "train/weights/normalizations.h"

#include "ir/pattern.h"
#include "train/tools/engine.h"

namespace onnxgrad::train {
namespace {

using ir::anything;
using ir::in_any_order;
using ir::number;
using ir::one_of;
using ir::op;
using ir::Pattern;

Pattern normalized() {
  const Pattern average = op("ReduceMean", {});
  // mean, mean + epsilon, max(mean, epsilon)
  const Pattern mean = one_of({in_any_order("Add", average, anything()),
                               in_any_order("Max", average, anything()), average});
  const Pattern root = one_of({op("Sqrt", {mean}), op("Pow", {mean, number(0.5)})});
  // sqrt(mean + epsilon), possibly with the epsilon outside the root.
  const Pattern deviation = one_of({in_any_order("Add", root, anything()), root});
  const Pattern inverse = one_of({op("Reciprocal", {deviation}), op("Div", {number(1), deviation}),
                                  op("Pow", {mean, number(-0.5)})});
  return one_of({op("InstanceNormalization", {}), op("Div", {anything(), deviation}),
                 in_any_order("Mul", inverse, anything())});
}

}  // namespace

bool is_normalized(const ir::Value* value) {
  static const Pattern kNormalized = normalized();
  static const ir::NodeTest kPasses = builtin_engine().ops.passing(opdef::Passage::kPermuted);
  return ir::match(kNormalized, value, kPasses) != nullptr;
}

}  // namespace onnxgrad::train
