#ifndef ONNXGRAD_OPDEF_RANDOM_STREAM_H_
#define ONNXGRAD_OPDEF_RANDOM_STREAM_H_

#include <string>
#include <string_view>

#include "ir/graph.h"

namespace onnxgrad::opdef {

/// Names the stream of random numbers that `node` draws from: its first output's name, or what
/// draw_like() noted.
std::string_view random_stream(const ir::Node& node);

/// Makes `node` draw from the stream of this name; noted in its metadata.
void set_random_stream(ir::Node& node, std::string stream);

/// Makes `copy` draw what `node` draws in the same step. It is noted in the node's metadata, which
/// is written to files; runtimes other than this one draw other numbers there.
void draw_like(const ir::Node& node, ir::Node& copy);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_RANDOM_STREAM_H_
