#include "opdef/fused.h"

#include <string>
#include <vector>

#include "ir/builder.h"
#include "opdef/function_body.h"
#include "opdef/registry.h"

namespace onnxgrad::ops {
namespace {

using ir::Value;
using opdef::FunctionBody;
using opdef::UpdateRule;
using opdef::WeightUpdate;

// The formulas of opdef/fused.h as standard operators.
class Body {
 public:
  Body(std::string_view base_name, const WeightUpdate& update,
       const std::vector<ir::Attribute>& attributes)
      : update_(update), f_(base_name, update.key(), attributes) {
    gradient_ = f_.input("gradient");
    w_ = f_.input("w");
    m_ = f_.input("m");
    if (update.has_v()) v_ = f_.input("v");
    rate_ = f_.input("rate");
    if (update.has_epsilon()) epsilon_ = f_.input("epsilon");
    if (update.shrinks) shrink_ = f_.input("shrink");
  }

  ir::Function write() && {
    if (update_.decay != 0) gradient_ = f_.add(gradient_, scaled(w_, update_.decay));
    Value* start = shrink_ == nullptr ? w_ : f_.mul(w_, shrink_);
    if (update_.rule == UpdateRule::kVelocity || update_.rule == UpdateRule::kNesterovVelocity) {
      Value* move = f_.mul(rate_, gradient_);
      Value* m = f_.sub(scaled(m_, update_.beta1), move);
      Value* step =
          update_.rule == UpdateRule::kVelocity ? m : f_.sub(scaled(m, update_.beta1), move);
      return std::move(f_).finish({f_.add(start, step), m});
    }
    std::vector<Value*> results{nullptr};
    Value* direction = write_direction(results);
    results[0] = f_.sub(start, f_.mul(rate_, direction));
    return std::move(f_).finish(std::move(results));
  }

 private:
  // Appends m' and v'.
  Value* write_direction(std::vector<Value*>& results) {
    switch (update_.rule) {
      case UpdateRule::kAdam: {
        Value* m = average(m_, update_.beta1, gradient_, update_.share1);
        Value* v = average(v_, update_.beta2, square(), update_.share2);
        results.insert(results.end(), {m, v});
        return over_root(m, v);
      }
      case UpdateRule::kRoot: {
        Value* m = average(m_, update_.beta1, square(), update_.share1);
        results.push_back(m);
        return over_root(gradient_, m);
      }
      case UpdateRule::kLion:
        results.push_back(average(m_, update_.beta2, gradient_, update_.share2));
        return f_.op("Sign", {average(m_, update_.beta1, gradient_, update_.share1)});
      default: {
        Value* m = average(m_, update_.beta1, gradient_, 1);
        results.push_back(m);
        return update_.rule == UpdateRule::kNesterov ? f_.add(gradient_, scaled(m, update_.beta1))
                                                     : m;
      }
    }
  }

  Value* scaled(Value* x, double factor) {
    return factor == 1 ? x : f_.mul(x, f_.scalar_like(x, factor));
  }
  Value* average(Value* old, double beta, Value* x, double share) {
    return f_.add(scaled(old, beta), scaled(x, share));
  }
  Value* square() { return f_.mul(gradient_, gradient_); }
  Value* over_root(Value* x, Value* squares) {
    return f_.div(x, f_.add(f_.op("Sqrt", {squares}), epsilon_));
  }

  const WeightUpdate& update_;
  FunctionBody f_;
  Value* gradient_ = nullptr;
  Value* w_ = nullptr;
  Value* m_ = nullptr;
  Value* v_ = nullptr;
  Value* rate_ = nullptr;
  Value* epsilon_ = nullptr;
  Value* shrink_ = nullptr;
};

ir::Function update_body(std::string_view base_name, const std::vector<Value*>& /*inputs*/,
                         const std::vector<ir::Attribute>& attributes) {
  ir::Node node;
  node.attributes = attributes;
  const WeightUpdate update = WeightUpdate::read(node);
  return Body(base_name, update, attributes).write();
}

}  // namespace

void register_weight_update(opdef::OpRegistry& registry) {
  std::vector<std::string_view> rules;
  for (int i = 0; i < opdef::kNumUpdateRules; ++i) {
    rules.push_back(opdef::update_rule_name(static_cast<UpdateRule>(i)));
  }
  registry.add(
      {.domain = ir::kFunctionDomain,
       .op_type = opdef::kWeightUpdate,
       .attributes = {{.name = "rule",
                       .type = opdef::AttributeType::kString,
                       .required = true,
                       .choices = rules},
                      {.name = "factors", .type = opdef::AttributeType::kTensor, .required = true},
                      {.name = "shrinks", .min = 0, .max = 1}},
       .function_body = update_body});
}

}  // namespace onnxgrad::ops
