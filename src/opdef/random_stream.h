#ifndef ONNXGRAD_OPDEF_RANDOM_STREAM_H_
#define ONNXGRAD_OPDEF_RANDOM_STREAM_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "ir/graph.h"

namespace onnxgrad::opdef {

/// Name of the random stream that `node` draws from: its first output's name, or that set by
/// draw_like().
std::string_view random_stream(const ir::Node& node);

/// Makes `node` draw from the stream of this name; stored in its metadata.
void set_random_stream(ir::Node& node, std::string stream);

/// Makes `copy` draw what `node` draws in the same step. Stored in the node's metadata, which
/// is written to files; other runtimes draw different numbers there.
void draw_like(const ir::Node& node, ir::Node& copy);

/// Sets the axis of the output of `node` that has the rows of a batch; -1: none. Each of several
/// workers then draws what one worker would draw for its rows. An axis that other axes were merged
/// into has the rows first. Stored in the metadata; draw_like() copies it.
void set_row_axis(ir::Node& node, std::int64_t axis);
std::int64_t row_axis(const ir::Node& node);

/// True after draw_like() or set_random_stream().
bool draws_like_another(const ir::Node& node);

}  // namespace onnxgrad::opdef

#endif  // ONNXGRAD_OPDEF_RANDOM_STREAM_H_
