#ifndef ONNXGRAD_RUNTIME_KERNEL_SELECTION_H_
#define ONNXGRAD_RUNTIME_KERNEL_SELECTION_H_

#include <optional>
#include <span>
#include <string>

#include "ir/graph.h"
#include "onnxgrad/error.h"
#include "opdef/kernel.h"
#include "runtime/engine.h"

namespace onnxgrad::runtime {

/// The request for a node whose values all have static shapes; constants are those of the graph. It
/// refers to the options of `engine`. `bodies`: for a node with subgraphs in its closed form.
opdef::KernelRequest make_request(const Engine& engine, const ir::Node& node, int threads,
                                  const opdef::BodyCompiler* bodies = nullptr);

/// The first offer that accepts the request; nullopt if none does. `reasons`, if given, collects
/// the reasons of those that decline.
std::optional<opdef::PreparedKernel> select_kernel(const opdef::KernelRegistry& kernels,
                                                   const opdef::KernelRequest& request,
                                                   std::string* reasons = nullptr);

/// A kernel, and whether the CPU runs it for another device.
struct SelectedKernel {
  opdef::PreparedKernel kernel;
  bool is_on_host = false;
};

/// Whether a node has operands that only the memory of the host can hold: texts.
bool has_texts(const ir::Node& node);

/// The kernel of a plan: of the device of `engine`, or else of the CPU, which also runs what only
/// the host can hold.
std::optional<SelectedKernel> select_kernel(const Engine& engine,
                                            const opdef::KernelRequest& request,
                                            std::string* reasons = nullptr);

/// Rough time of a kernel on one thread, in ns, from `opdef::PreparedKernel::flops` if the kernel
/// has any; otherwise from the bytes of operands, which may stand for much or little work.
double estimate_ns(const opdef::KernelRequest& request, const opdef::PreparedKernel& kernel);

/// Throws UnsupportedOperatorError naming node, operator and the reasons of the offers.
[[noreturn]] void throw_no_kernel(const ir::Node& node, const std::string& reasons);

/// Names those nodes that `values`, of the main graph of `model`, depend on whose operator no
/// kernel, expression, lowering or function can compute, whatever its types, and such nodes of
/// their subgraphs and of the functions that they call. nullopt: there is none.
std::optional<Problem> find_unsupported(const ir::Model& model, const Engine& engine,
                                        std::span<const ir::Value* const> values);

}  // namespace onnxgrad::runtime

#endif  // ONNXGRAD_RUNTIME_KERNEL_SELECTION_H_
