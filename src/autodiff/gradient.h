#ifndef ONNXGRAD_AUTODIFF_GRADIENT_H_
#define ONNXGRAD_AUTODIFF_GRADIENT_H_

#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ir/builder.h"
#include "opdef/custom_gradients.h"
#include "opdef/registry.h"

namespace onnxgrad::autodiff {

/// A node on a path from a value in wrt to the output that has no gradient there.
struct MissingGradient {
  std::string op_type;
  std::string node;    ///< name of the node, or
  std::string output;  ///< name of its first output
  int input = 0;
  std::string reason;
};

/// Every such node, in graph order; empty: the gradient can be built.
std::vector<MissingGradient> find_missing_gradients(const ir::Model& model,
                                                    const opdef::OpRegistry& registry,
                                                    std::span<ir::Value* const> outputs,
                                                    std::span<ir::Value* const> wrt,
                                                    const opdef::CustomGradients* custom = nullptr);

/// Gradients that a sweep found to be zero everywhere.
struct ZeroGradients {
  std::vector<bool> is_zero;          ///< for each value in wrt
  std::vector<const ir::Node*> ends;  ///< nodes with a zero slope on the path to these
};

/// The nodes that a sweep appends, each with the node whose rule wrote it; nullptr: none did.
using Origins = std::unordered_map<const ir::Node*, const ir::Node*>;

/// Appends to g.graph() the vector-Jacobian product of `outputs` with `seeds` (same shapes) and
/// returns d(sum_i <seeds_i, outputs_i>)/d(wrt_j) for each j, with the shape and dtype of wrt_j;
/// zeros where nothing depends on it. Reverse-mode accumulation over the nodes between wrt and
/// outputs (Griewank and Walther, Evaluating Derivatives, 2008, chapter 3). Throws: GradientError
/// naming every node that has no rule (see find_missing_gradients). `zeros` receives what is zero
/// whatever the values are. `custom`: rules that come before those of the registry.
std::vector<ir::Value*> add_vjp(ir::GraphBuilder& g, const opdef::OpRegistry& registry,
                                std::span<ir::Value* const> outputs,
                                std::span<ir::Value* const> seeds, std::span<ir::Value* const> wrt,
                                ZeroGradients* zeros = nullptr,
                                const opdef::CustomGradients* custom = nullptr,
                                Origins* origins = nullptr);

/// Appends the VJP to g.graph(), a subgraph of a future node of `primal`: the new nodes capture
/// values of `primal`, and rules may still add outputs to its nodes.
std::vector<ir::Value*> add_vjp_inside(ir::GraphBuilder& g, ir::Graph& primal,
                                       const opdef::OpRegistry& registry,
                                       std::span<ir::Value* const> outputs,
                                       std::span<ir::Value* const> seeds,
                                       std::span<ir::Value* const> wrt,
                                       ZeroGradients* zeros = nullptr,
                                       const opdef::CustomGradients* custom = nullptr);

}  // namespace onnxgrad::autodiff

#endif  // ONNXGRAD_AUTODIFF_GRADIENT_H_
