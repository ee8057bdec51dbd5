#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "api/derivative_graph.h"
#include "onnxgrad/error.h"
#include "onnxgrad/gradient.h"

// Derivatives other than the gradient, each from one or two reverse sweeps.

namespace onnxgrad {
namespace {

using api::DerivativeGraph;
using ir::GraphBuilder;
using ir::Value;

api::DerivativeNames names_of(const DerivativeOptions& options) {
  return {.wrt = options.wrt,
          .outputs = options.outputs,
          .stop_gradient = options.stop_gradient,
          .keep_outputs = options.keep_outputs};
}

void report_zeros(const DerivativeOptions& options, const std::vector<Value*>& values,
                  const autodiff::ZeroGradients& zeros) {
  for (std::size_t i = 0; options.zeros != nullptr && i < values.size(); ++i) {
    if (zeros.is_zero[i]) options.zeros->push_back(values[i]->name);
  }
}

void check_scalars(const std::vector<Value*>& outputs, std::string_view function) {
  for (const Value* output : outputs) {
    if (!output->type.has_rank()) continue;
    const bool is_scalar = std::ranges::all_of(*output->type.shape, [](const ir::Dim& dim) {
      return dim.is_static() && dim.value() == 1;
    });
    if (is_scalar) continue;
    throw ModelError({.what = std::string(function) + ": output '" + output->name + "' is " +
                              output->type.to_string() + ", expected a single element",
                      .where = {.value = output->name},
                      .hint = "Add a loss with add_loss(), sum the output, or name a scalar with "
                              "outputs=."});
  }
}

// One row of a Hessian at a time: the gradient of <dy/dx, v> for unit vectors v.
class HessianRows {
 public:
  HessianRows(DerivativeGraph& d, Value* x, Value* gradient)
      : d_(d), g_(d.g()), x_(x), gradient_(gradient) {}

  // A block for each of wrt().
  std::vector<Value*> run() {
    count_ = x_->type.static_dims() ? g_.int_scalar(x_->type.fixed_dims().num_elements())
                                    : g_.size_of(x_);
    positions_ = g_.op("Range", {g_.int_scalar(0), count_, g_.int_scalar(1)});
    const auto dims = x_->type.static_dims();
    const bool is_scan = dims && dims->num_elements() > 0;
    const ir::GraphPtr body = write_body(is_scan);
    std::vector<Value*> rows;
    if (!nonzero_.empty()) {
      rows = is_scan ? g_.ops("Scan", {positions_}, nonzero_.size(),
                              {{.name = "body", .value = body},
                               {.name = "num_scan_inputs", .value = std::int64_t{1}}})
                     : g_.ops("Loop", {count_, g_.constant(Tensor::scalar(true))}, nonzero_.size(),
                              {{.name = "body", .value = body}});
    }
    std::vector<Value*> blocks;
    for (std::size_t k = 0; k < d_.wrt().size(); ++k) {
      const auto row = std::ranges::find(nonzero_, k);
      blocks.push_back(row == nonzero_.end()
                           ? zeros(d_.wrt()[k])
                           : g_.reshape(rows[static_cast<std::size_t>(row - nonzero_.begin())],
                                        shape_with(d_.wrt()[k])));
    }
    return blocks;
  }

  Value* zeros(Value* other) { return g_.expand(g_.scalar_like(x_, 0), shape_with(other)); }

 private:
  Value* shape_with(Value* other) { return g_.concat({g_.shape_of(x_), g_.shape_of(other)}, 0); }

  ir::GraphPtr write_body(bool is_scan) {
    const std::string name = g_.graph().names().unique(x_->name + "_hessian_row");
    return g_.subgraph(name, [&](GraphBuilder& inner) {
      const ir::Type number = ir::Type::tensor(DataType::kInt64, Dims{});
      Value* const position = inner.graph().add_input("position", number);
      std::vector<Value*> outputs;
      if (!is_scan) {
        const ir::Type flag = ir::Type::tensor(DataType::kBool, Dims{});
        outputs.push_back(inner.identity(inner.graph().add_input("condition", flag)));
      }
      Value* const is_here = inner.equal(positions_, position);
      Value* const unit = inner.reshape(inner.cast(is_here, x_->dtype()), inner.shape_of(x_));
      unit->type = x_->type;
      autodiff::ZeroGradients zeros;
      const auto row =
          d_.vjp_inside(inner, std::span(&gradient_, 1), std::span(&unit, 1), d_.wrt(), &zeros);
      for (std::size_t k = 0; k < row.size(); ++k) {
        if (zeros.is_zero[k]) continue;
        nonzero_.push_back(k);
        // Separate values: runtimes stack a value once, however many outputs it is.
        outputs.push_back(inner.identity(row[k]));
      }
      return outputs;
    });
  }

  DerivativeGraph& d_;
  GraphBuilder& g_;
  Value* x_;
  Value* gradient_;  // by x_
  Value* count_ = nullptr;
  Value* positions_ = nullptr;
  std::vector<std::size_t> nonzero_;  // indices in wrt() that the rows belong to
};

}  // namespace

Model vjp(const Model& model, const DerivativeOptions& options) {
  return gradient(model, {.wrt = options.wrt,
                          .outputs = options.outputs,
                          .keep_outputs = options.keep_outputs,
                          .stop_gradient = options.stop_gradient,
                          .write = options.write,
                          .zeros = options.zeros});
}

Model jvp(const Model& model, const DerivativeOptions& options) {
  DerivativeGraph d(model, names_of(options));
  d.g().set_scope("jvp");
  const auto cotangents = d.add_inputs_like(d.outputs(), "_cotangent");
  const auto tangents = d.add_inputs_like(d.wrt(), "_tangent");
  const auto transposed = d.vjp(d.outputs(), cotangents, d.wrt());
  autodiff::ZeroGradients zeros;
  const auto products = d.vjp(transposed, tangents, cotangents, &zeros);
  report_zeros(options, d.outputs(), zeros);
  for (std::size_t i = 0; i < products.size(); ++i) {
    d.add_output(products[i], d.outputs()[i]->name + "_tangent");
  }
  d.g().set_scope("jvp");
  for (std::size_t i = 0; i < products.size(); ++i) d.close_input(cotangents[i], d.outputs()[i]);
  return std::move(d).finish(options.write);
}

Model hvp(const Model& model, const DerivativeOptions& options) {
  DerivativeGraph d(model, names_of(options));
  check_scalars(d.outputs(), "hvp");
  d.g().set_scope("gradient");
  const auto gradients = d.gradient_of_sum();
  const auto tangents = d.add_inputs_like(d.wrt(), "_tangent");
  d.g().set_scope("hvp");
  autodiff::ZeroGradients zeros;
  const auto products = d.vjp(gradients, tangents, d.wrt(), &zeros);
  report_zeros(options, d.wrt(), zeros);
  for (std::size_t i = 0; i < products.size(); ++i) {
    d.add_output(products[i], d.wrt()[i]->name + "_hvp");
  }
  return std::move(d).finish(options.write);
}

Model hessian(const Model& model, const DerivativeOptions& options) {
  DerivativeGraph d(model, names_of(options));
  check_scalars(d.outputs(), "hessian");
  d.g().set_scope("gradient");
  const auto gradients = d.gradient_of_sum();
  std::vector<std::vector<Value*>> blocks;
  for (std::size_t j = 0; j < gradients.size(); ++j) {
    d.g().set_scope("hessian");
    blocks.push_back(HessianRows(d, d.wrt()[j], gradients[j]).run());
  }
  for (std::size_t j = 0; j < blocks.size(); ++j) {
    for (std::size_t k = 0; k < blocks.size(); ++k) {
      d.add_output(blocks[j][k], d.wrt()[j]->name + "_" + d.wrt()[k]->name + "_hessian");
    }
  }
  return std::move(d).finish(options.write);
}

}  // namespace onnxgrad
