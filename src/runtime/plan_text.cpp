#include "runtime/plan_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>
#include <string>

#include "opdef/layout_order.h"

namespace onnxgrad::runtime {
namespace {

// Numbers of steps in the plan.
std::string text_of(const device::CallPlace& place, std::size_t first) {
  std::string text = fmt::format("stream {}", place.stream);
  const char* separator = " after ";
  for (const std::uint32_t other : place.waits) {
    text += fmt::format("{}{}", separator, first + other);
    separator = ", ";
  }
  return text;
}

}  // namespace

std::string describe_operands(const ir::Node& node, std::span<const Location> args,
                              const Layouts& layouts) {
  constexpr const char* kKinds[] = {"none", "arena", "state", "feed", "const", "block"};
  std::string text;
  text.reserve(64 * args.size());
  std::size_t arg = 0;
  const auto add = [&](const ir::Value* value) {
    const Location& at = args[arg++];
    if (value == nullptr) return;
    if (!text.empty() && text.back() != ' ') text += ", ";
    text += value->name;
    text += ' ';
    text += value->type.to_string();
    if (const opdef::Layout layout = layouts.of(value); !layout.is_plain()) {
      text += ' ';
      text += opdef::to_string(layout);
    }
    text += " @";
    text += kKinds[static_cast<int>(at.kind)];
    text += ' ';
    text += std::to_string(at.at);
  };
  for (const ir::Value* input : node.inputs) add(input);
  text += " -> ";
  for (const ir::Value* output : node.outputs) add(output);
  return text;
}

std::string Plan::to_text() const {
  std::string text = fmt::format("plan of {} kernels, {} thread{}, arena {} bytes\n", steps.size(),
                                 threads, threads == 1 ? "" : "s", arena_bytes);
  if (recomputed.kernels > 0) {
    text += fmt::format(
        "     {} kernels run again (names end in /again): {} values, {} bytes, {:.4g} FLOPs\n",
        recomputed.kernels, recomputed.values, recomputed.bytes, recomputed.flops);
  }
  const bool has_streams =
      std::ranges::any_of(steps, [](const PlanStep& step) { return step.place.stream > 0; });
  auto segment = segments.begin();
  for (std::size_t i = 0; i < steps.size(); ++i) {
    while (segment != segments.end() && segment->end <= i) ++segment;
    const PlanStep& step = steps[i];
    text +=
        fmt::format("{:4} {} [{}{}] {}: {}", i, step.op_type, step.is_on_host ? "on the CPU: " : "",
                    step.kernel.label, step.node, step.operands);
    if (step.followers > 0) {
      text += fmt::format(" (with {})", step.followers == 1
                                            ? std::to_string(i + 1)
                                            : fmt::format("{} to {}", i + 1, i + step.followers));
    }
    if (has_streams) text += fmt::format(" ({})", text_of(step.place, segment->begin));
    text += '\n';
  }
  for (const Segment& part : segments) {
    constexpr const char* kKinds[] = {"recordable", "submitted", "on the CPU"};
    std::int64_t bytes = 0;
    for (const Transfer& transfer : part.transfers) bytes += transfer.bytes;
    text += fmt::format("     segment {} to {}, {}, {} bytes copied{}\n", part.begin, part.end - 1,
                        kKinds[static_cast<int>(part.kind)], bytes,
                        part.reason.empty() ? "" : ": " + part.reason);
  }
  for (const Copy& copy : copies) {
    const bool is_commit = copy.to.kind == Location::Kind::kState;
    text += fmt::format("     {} {} bytes\n", is_commit ? "commit" : "preserve", copy.bytes);
  }
  return text;
}

}  // namespace onnxgrad::runtime
