#include "onnx/file_edit.h"

#include <fmt/format.h>
#include <onnx/onnx_pb.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "onnx/training_info.h"

namespace onnxgrad::onnx_io {

FileIndex::FileIndex(std::string_view bytes) : bytes_(bytes) {
  const PlacePath whole;
  std::size_t num_algorithms = 0;
  for (WireReader in(bytes); in.next();) {
    if (in.field() == onnx::ModelProto::kGraphFieldNumber) {
      read_graph(inner(whole, in), scope_of("", {}));
    } else if (in.field() == onnx::ModelProto::kTrainingInfoFieldNumber) {
      const std::string scope = algorithm_scope(num_algorithms++);
      const PlacePath path = inner(whole, in);
      for (WireReader part(in.bytes()); part.next();) {
        if (part.field() == onnx::TrainingInfoProto::kAlgorithmFieldNumber) {
          read_graph(inner(path, part), scope);
        }
      }
    } else if (in.field() == onnx::ModelProto::kFunctionsFieldNumber) {
      using Field = onnx::FunctionProto;
      std::string domain;
      std::string name;
      std::string overload;
      for (WireReader part(in.bytes()); part.next();) {
        if (part.field() == Field::kDomainFieldNumber) domain = part.bytes();
        if (part.field() == Field::kNameFieldNumber) name = part.bytes();
        if (part.field() == Field::kOverloadFieldNumber) overload = part.bytes();
      }
      const PlacePath path = inner(whole, in);
      const std::string scope = scope_of(fmt::format("{}:{}:{}", domain, name, overload), {});
      for (WireReader part(in.bytes()); part.next();) {
        if (part.field() == Field::kNodeFieldNumber) read_node(inner(path, part), scope);
      }
    }
  }
}

std::string FileIndex::scope_of(const std::string& function,
                                const std::vector<std::pair<std::string, std::string>>& path) {
  std::string scope = function;
  for (const auto& [output, attribute] : path) {
    scope += '\x1f';
    scope += output;
    scope += '\x1f';
    scope += attribute;
  }
  return scope;
}

PlacePath FileIndex::inner(const PlacePath& path, const WireReader& in) const {
  PlacePath result = path;
  result.push_back(
      {.prefix_offset = static_cast<std::size_t>(in.length_prefix().data() - bytes_.data()),
       .offset = static_cast<std::size_t>(in.bytes().data() - bytes_.data()),
       .size = in.bytes().size()});
  return result;
}

void FileIndex::read_graph(const PlacePath& path, const std::string& scope) {
  using Field = onnx::GraphProto;
  for (WireReader in(text_at(path.back())); in.next();) {
    if (in.field() == Field::kNodeFieldNumber) {
      read_node(inner(path, in), scope);
    } else if (in.field() == Field::kInitializerFieldNumber) {
      const PlacePath tensor = inner(path, in);
      read_tensor(tensor);
      for (WireReader part(in.bytes()); part.next();) {
        if (part.field() != onnx::TensorProto::kNameFieldNumber) continue;
        places_[{Kind::kInitializer, scope, std::string(part.bytes()), ""}] = tensor;
      }
    }
  }
}

void FileIndex::read_node(const PlacePath& path, const std::string& scope) {
  using Field = onnx::NodeProto;
  std::string output;
  for (WireReader in(text_at(path.back())); in.next();) {
    if (in.field() == Field::kOutputFieldNumber && output.empty()) output = in.bytes();
  }
  if (!output.empty()) places_.emplace(Key{Kind::kNode, scope, output, ""}, path);
  for (WireReader in(text_at(path.back())); in.next();) {
    if (in.field() == Field::kAttributeFieldNumber) read_attribute(inner(path, in), scope, output);
  }
}

void FileIndex::read_attribute(const PlacePath& path, const std::string& scope,
                               const std::string& output) {
  using Field = onnx::AttributeProto;
  std::string name;
  for (WireReader in(text_at(path.back())); in.next();) {
    if (in.field() == Field::kNameFieldNumber) name = in.bytes();
  }
  places_.emplace(Key{Kind::kAttribute, scope, output, name}, path);
  for (WireReader in(text_at(path.back())); in.next();) {
    if (in.field() == Field::kTFieldNumber || in.field() == Field::kTensorsFieldNumber) {
      read_tensor(inner(path, in));
    } else if (in.field() == Field::kGFieldNumber || in.field() == Field::kGraphsFieldNumber) {
      read_graph(inner(path, in), fmt::format("{}\x1f{}\x1f{}", scope, output, name));
    }
  }
}

void FileIndex::read_tensor(const PlacePath& path) {
  using Field = onnx::TensorProto;
  for (WireReader in(text_at(path.back())); in.next();) {
    if (in.field() == Field::kDataLocationFieldNumber &&
        in.int32() == onnx::TensorProto::EXTERNAL) {
      external_.push_back(path);
    }
  }
}

const PlacePath* FileIndex::initializer(const std::string& scope, const std::string& name) const {
  const auto found = places_.find({Kind::kInitializer, scope, name, ""});
  return found == places_.end() ? nullptr : &found->second;
}

const PlacePath* FileIndex::attribute(const std::string& scope, const std::string& output,
                                      const std::string& name) const {
  const auto found = places_.find({Kind::kAttribute, scope, output, name});
  return found == places_.end() ? nullptr : &found->second;
}

const PlacePath* FileIndex::node(const std::string& scope, const std::string& output) const {
  const auto found = places_.find({Kind::kNode, scope, output, ""});
  return found == places_.end() ? nullptr : &found->second;
}

void FileEdit::replace(const PlacePath& path, std::size_t offset, std::size_t size,
                       std::string replacement) {
  owned_.push_back(std::move(replacement));
  replace_by_view(path, offset, size, owned_.back());
}

void FileEdit::replace_by_view(const PlacePath& path, std::size_t offset, std::size_t size,
                               std::string_view replacement) {
  for (std::size_t depth = 0; depth < path.size(); ++depth) {
    around_.emplace(path[depth].offset, std::pair(path[depth], depth));
  }
  changes_[offset] = {.size = size, .replacement = replacement};
}

std::map<std::size_t, FileEdit::Change> FileEdit::all_changes(
    std::deque<std::string>& lengths) const {
  std::map<std::size_t, Change> all = changes_;
  // Innermost messages first: their new lengths change the sizes of enclosing ones.
  std::vector<std::pair<MessagePlace, std::size_t>> messages;
  for (const auto& [offset, message] : around_) messages.push_back(message);
  std::ranges::sort(messages, std::greater<>(), [](const auto& m) { return m.second; });
  for (const auto& [place, depth] : messages) {
    std::ptrdiff_t growth = 0;
    const auto end = all.lower_bound(place.offset + place.size);
    for (auto change = all.lower_bound(place.offset); change != end; ++change) {
      growth += static_cast<std::ptrdiff_t>(change->second.replacement.size()) -
                static_cast<std::ptrdiff_t>(change->second.size);
    }
    if (growth == 0) continue;
    const auto new_size = static_cast<std::ptrdiff_t>(place.size) + growth;
    lengths.push_back(WireWriter::encode_varint(static_cast<std::uint64_t>(new_size)));
    all[place.prefix_offset] = {.size = place.offset - place.prefix_offset,
                                .replacement = lengths.back()};
  }
  return all;
}

std::int64_t FileEdit::result_size() const {
  std::deque<std::string> lengths;
  auto size = std::ssize(bytes_);
  for (const auto& [offset, change] : all_changes(lengths)) {
    size += std::ssize(change.replacement) - static_cast<std::ptrdiff_t>(change.size);
  }
  return size;
}

void FileEdit::write(const std::function<void(std::string_view)>& sink) const {
  std::deque<std::string> lengths;
  std::size_t position = 0;
  for (const auto& [offset, change] : all_changes(lengths)) {
    ONNXGRAD_ASSERT(offset >= position);
    sink(bytes_.substr(position, offset - position));
    sink(change.replacement);
    position = offset + change.size;
  }
  sink(bytes_.substr(position));
}

std::string FileEdit::apply() const {
  std::string result;
  result.reserve(static_cast<std::size_t>(result_size()));
  write([&result](std::string_view piece) { result += piece; });
  return result;
}

}  // namespace onnxgrad::onnx_io
