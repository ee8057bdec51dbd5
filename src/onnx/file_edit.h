#ifndef ONNXGRAD_ONNX_FILE_EDIT_H_
#define ONNXGRAD_ONNX_FILE_EDIT_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ir/graph.h"
#include "onnx/wire.h"

// Search for messages in the bytes of a model, and replacement of some of these bytes.

namespace onnxgrad::onnx_io {

struct FileModel;

/// Runs with_weights() with a different limit for the bytes.
std::string with_weights_up_to(const FileModel& file, const ir::Model& working,
                               std::span<const std::pair<std::string, Tensor>> weights,
                               std::int64_t max_bytes, std::string_view note = {});

/// A length-delimited value: `size` bytes at `offset`, its length in the bytes before it.
struct MessagePlace {
  std::size_t prefix_offset = 0;
  std::size_t offset = 0;
  std::size_t size = 0;
};

/// A value and its enclosing messages, outermost first, itself last.
using PlacePath = std::vector<MessagePlace>;

/// Finds the tensors, the nodes and the attributes of a serialized ModelProto by name.
class FileIndex {
 public:
  /// The bytes must have been loaded (their nesting is bounded). Throws: ModelError.
  explicit FileIndex(std::string_view bytes);

  std::string_view bytes() const { return bytes_; }
  std::string_view text_at(const MessagePlace& place) const {
    return bytes_.substr(place.offset, place.size);
  }
  /// The TensorProto of an initializer; `scope` as from scope_of(). nullptr if there is none.
  const PlacePath* initializer(const std::string& scope, const std::string& name) const;
  /// The AttributeProto of the node whose first output is `output`.
  const PlacePath* attribute(const std::string& scope, const std::string& output,
                             const std::string& name) const;
  /// The NodeProto whose first output is `output`.
  const PlacePath* node(const std::string& scope, const std::string& output) const;
  /// Every TensorProto with external data.
  const std::vector<PlacePath>& external_tensors() const { return external_; }

  /// Name of the main graph (""), a function ("domain:name:overload") or an algorithm
  /// (algorithm_scope()), then the path inwards.
  static std::string scope_of(const std::string& function,
                              const std::vector<std::pair<std::string, std::string>>& path);

 private:
  enum class Kind : std::uint8_t { kInitializer, kAttribute, kNode };
  using Key = std::tuple<Kind, std::string, std::string, std::string>;

  void read_graph(const PlacePath& path, const std::string& scope);
  void read_node(const PlacePath& path, const std::string& scope);
  void read_attribute(const PlacePath& path, const std::string& scope, const std::string& output);
  void read_tensor(const PlacePath& path);
  PlacePath inner(const PlacePath& path, const WireReader& in) const;

  std::string_view bytes_;
  std::map<Key, PlacePath> places_;
  std::vector<PlacePath> external_;
};

/// Replaces byte ranges of a file; lengths of the messages that enclose a range that grows or
/// shrinks are rewritten. Ranges do not overlap.
class FileEdit {
 public:
  explicit FileEdit(std::string_view bytes) : bytes_(bytes) {}

  /// Replaces bytes [offset, offset + size) by `replacement`; `path` has the enclosing messages.
  void replace(const PlacePath& path, std::size_t offset, std::size_t size,
               std::string replacement);
  /// Replaces without a copy: `replacement` must live until apply() is done.
  void replace_by_view(const PlacePath& path, std::size_t offset, std::size_t size,
                       std::string_view replacement);
  /// Returns the edited bytes; allocates only the result.
  std::string apply() const;
  std::int64_t result_size() const;
  /// Passes the result piece by piece to `sink`.
  void write(const std::function<void(std::string_view)>& sink) const;

 private:
  struct Change {
    std::size_t size = 0;
    std::string_view replacement = {};
  };
  /// Returns changes_ and the changes of lengths, whose bytes `lengths` holds.
  std::map<std::size_t, Change> all_changes(std::deque<std::string>& lengths) const;

  std::string_view bytes_;
  std::deque<std::string> owned_;          // replacements held for changes_; addresses are stable
  std::map<std::size_t, Change> changes_;  // changes by offset
  // Enclosing messages by offset: place, depth.
  std::map<std::size_t, std::pair<MessagePlace, std::size_t>> around_;
};

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_FILE_EDIT_H_
