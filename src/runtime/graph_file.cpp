#include "runtime/graph_file.h"

#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

#include "ir/pointer_map.h"

namespace onnxgrad::runtime {
namespace {

constexpr std::int64_t kMaxStored = std::int64_t{1} << 20;  // bytes of a constant that is not ours
constexpr std::uint64_t kAbsent = ~std::uint64_t{0};

/// Alternatives of an AttributeValue that have a form as bytes.
enum class AttributeKind : std::uint8_t {
  kInt,
  kFloat,
  kString,
  kInts,
  kFloats,
  kStrings,
  kTensor
};

/// Where a value comes from.
enum class Source : std::uint8_t { kNode, kState, kFeed, kStored, kOfProgram };

class ByteWriter {
 public:
  void number(std::uint64_t value) { raw(&value, sizeof value); }
  void integer(std::int64_t value) { number(static_cast<std::uint64_t>(value)); }
  template <class E>
    requires std::is_enum_v<E>
  void kind(E value) {
    number(static_cast<std::uint64_t>(value));
  }
  void real(double value) { raw(&value, sizeof value); }
  void text(std::string_view value) {
    number(value.size());
    bytes_.append(value);
  }
  template <class T, class Write>
  void list(const std::vector<T>& values, const Write& write) {
    number(values.size());
    for (const T& value : values) write(value);
  }
  void dims(const Dims& dims) {
    number(dims.rank());
    for (const std::int64_t dim : dims) integer(dim);
  }
  void raw(const void* data, std::size_t size) {
    bytes_.append(static_cast<const char*>(data), size);
  }
  void tensor(const Tensor& value) {
    kind(value.dtype());
    dims(value.dims());
    raw(value.raw(), static_cast<std::size_t>(value.size_bytes()));
  }
  std::string& bytes() { return bytes_; }

 private:
  std::string bytes_;
};

/// Thrown by ByteReader.
struct NotOurs {};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : rest_(bytes) {}

  std::uint64_t number() {
    std::uint64_t value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  std::int64_t integer() { return static_cast<std::int64_t>(number()); }
  double real() {
    double value = 0;
    std::memcpy(&value, take(sizeof value).data(), sizeof value);
    return value;
  }
  template <class E>
  E kind(E last) {
    const std::uint64_t value = number();
    if (value > static_cast<std::uint64_t>(last)) throw NotOurs();
    return static_cast<E>(value);
  }
  DataType number_type() {
    const auto dtype = kind(DataType::kInt2);
    if (dtype == DataType::kUndefined || dtype == DataType::kString) throw NotOurs();
    return dtype;
  }
  std::string text() { return std::string(take(size())); }
  /// Of things that take at least a byte each.
  std::size_t size() {
    const std::uint64_t value = number();
    if (value > rest_.size()) throw NotOurs();
    return static_cast<std::size_t>(value);
  }
  template <class Read>
  auto list(const Read& read) {
    std::vector<std::decay_t<decltype(read())>> values(size());
    for (auto& value : values) value = read();
    return values;
  }
  Dims dims() {
    return Dims(list([this] { return integer(); }));
  }
  Tensor tensor() {
    const DataType dtype = number_type();
    const Dims shape = dims();
    const std::string_view data = take(static_cast<std::size_t>(shape.size_bytes(dtype)));
    Tensor value = Tensor::empty(dtype, shape);
    if (!data.empty()) std::memcpy(value.mutable_raw(), data.data(), data.size());
    return value;
  }
  bool is_at_end() const { return rest_.empty(); }

 private:
  std::string_view take(std::size_t size) {
    if (size > rest_.size()) throw NotOurs();
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::string_view rest_;
};

bool has_bytes(const Tensor& tensor) {
  return tensor.is_defined() && tensor.dtype() != DataType::kString;
}

// False: this attribute has no form.
bool write_attribute(const ir::AttributeValue& value, ByteWriter& out) {
  const auto integer = [&](std::int64_t i) { out.integer(i); };
  const auto real = [&](float f) { out.real(f); };
  const auto text = [&](const std::string& s) { out.text(s); };
  if (const auto* i = std::get_if<std::int64_t>(&value)) {
    out.kind(AttributeKind::kInt);
    integer(*i);
  } else if (const auto* f = std::get_if<float>(&value)) {
    out.kind(AttributeKind::kFloat);
    real(*f);
  } else if (const auto* s = std::get_if<std::string>(&value)) {
    out.kind(AttributeKind::kString);
    text(*s);
  } else if (const auto* ints = std::get_if<std::vector<std::int64_t>>(&value)) {
    out.kind(AttributeKind::kInts);
    out.list(*ints, integer);
  } else if (const auto* floats = std::get_if<std::vector<float>>(&value)) {
    out.kind(AttributeKind::kFloats);
    out.list(*floats, real);
  } else if (const auto* texts = std::get_if<std::vector<std::string>>(&value)) {
    out.kind(AttributeKind::kStrings);
    out.list(*texts, text);
  } else if (const auto* tensor = std::get_if<Tensor>(&value);
             tensor != nullptr && has_bytes(*tensor)) {
    out.kind(AttributeKind::kTensor);
    out.tensor(*tensor);
  } else {
    return false;
  }
  return true;
}

ir::AttributeValue read_attribute(ByteReader& in) {
  const auto integer = [&] { return in.integer(); };
  const auto real = [&] { return static_cast<float>(in.real()); };
  const auto text = [&] { return in.text(); };
  switch (in.kind(AttributeKind::kTensor)) {
    case AttributeKind::kInt:
      return {integer()};
    case AttributeKind::kFloat:
      return {real()};
    case AttributeKind::kString:
      return {text()};
    case AttributeKind::kInts:
      return {in.list(integer)};
    case AttributeKind::kFloats:
      return {in.list(real)};
    case AttributeKind::kStrings:
      return {in.list(text)};
    case AttributeKind::kTensor:
      return {in.tensor()};
  }
  throw NotOurs();
}

class GraphWriter {
 public:
  GraphWriter(const ir::Graph& graph, const GraphBinding& binding, const Program& program)
      : graph_(graph), binding_(binding), numbers_(2 * graph.nodes.size()) {
    const std::vector<ir::Value*>& ours = program.model.graph->initializers;
    for (std::size_t i = 0; i < ours.size(); ++i) {
      if (ours[i]->initializer.size_bytes() > 0) of_program_[ours[i]->initializer.raw()] = i;
    }
  }

  // False: something has no form.
  bool write(const Recomputed& recomputed) {
    for (const ir::Value* input : graph_.inputs) {
      if (!write_value(input)) return false;
    }
    ByteWriter nodes;
    for (const ir::Node* node : graph_.nodes) {
      if (!write_node(*node, nodes)) return false;
    }
    ByteWriter ends;
    ends.list(graph_.outputs, [&](const ir::Value* value) { write_number(value, ends); });
    ends.number(binding_.updates.size());
    for (const StateUpdate& update : binding_.updates) {
      write_number(update.input, ends);
      write_number(update.value, ends);
    }
    ends.list(binding_.output_blocks, [&](std::size_t block) { ends.number(block); });
    ends.integer(recomputed.kernels);
    ends.integer(recomputed.values);
    ends.integer(recomputed.bytes);
    ends.real(recomputed.flops);
    if (!is_complete_) return false;
    result_.text(graph_.name);
    result_.number(num_values_);
    result_.bytes() += values_.bytes();
    result_.number(graph_.nodes.size());
    result_.bytes() += nodes.bytes();
    result_.bytes() += ends.bytes();
    return true;
  }
  std::string take() { return std::move(result_.bytes()); }

 private:
  // Numbers are given in the order of the first mention.
  void write_number(const ir::Value* value, ByteWriter& out) {
    if (value == nullptr) {
      out.number(kAbsent);
      return;
    }
    if (!numbers_.contains(value) && !write_value(value)) is_complete_ = false;
    out.number(numbers_[value]);
  }

  bool write_value(const ir::Value* value) {
    const auto dims = value->type.static_dims();
    const bool is_tensor = value->type.is_tensor() && value->dtype() != DataType::kString;
    if (!is_tensor || !dims || value->graph != &graph_) return false;
    numbers_[value] = num_values_++;
    values_.text(value->name);
    values_.kind(value->dtype());
    values_.dims(*dims);
    if (const auto state = binding_.states.find(value); state != binding_.states.end()) {
      values_.kind(Source::kState);
      values_.number(state->second);
    } else if (const auto feed = binding_.feeds.find(value); feed != binding_.feeds.end()) {
      values_.kind(Source::kFeed);
      values_.number(feed->second);
    } else if (value->producer != nullptr) {
      values_.kind(Source::kNode);
    } else {
      return value->is_constant() && write_constant(value->initializer);
    }
    return true;
  }

  bool write_constant(const Tensor& tensor) {
    if (!has_bytes(tensor)) return false;
    if (const auto ours = of_program_.find(tensor.raw());
        ours != of_program_.end() && tensor.size_bytes() > 0) {
      values_.kind(Source::kOfProgram);
      values_.number(ours->second);
      return true;
    }
    if (tensor.size_bytes() > kMaxStored) return false;
    values_.kind(Source::kStored);
    values_.tensor(tensor);
    return true;
  }

  bool write_node(const ir::Node& node, ByteWriter& out) {
    out.text(node.name);
    out.text(node.domain);
    out.text(node.op_type);
    out.text(node.overload);
    const auto number = [&](const ir::Value* value) { write_number(value, out); };
    out.list(node.inputs, number);
    out.list(node.outputs, number);
    out.list(node.metadata, [&](const auto& entry) {
      out.text(entry.first);
      out.text(entry.second);
    });
    out.number(node.attributes.size());
    for (const ir::Attribute& attribute : node.attributes) {
      out.text(attribute.name);
      if (!write_attribute(attribute.value, out)) return false;
    }
    return true;
  }

  const ir::Graph& graph_;
  const GraphBinding& binding_;
  ir::PointerMap<ir::Value, std::uint64_t> numbers_;
  std::uint64_t num_values_ = 0;
  bool is_complete_ = true;
  std::unordered_map<const std::byte*, std::size_t> of_program_;
  ByteWriter values_;
  ByteWriter result_;
};

class GraphReader {
 public:
  GraphReader(std::string_view bytes, const Program& program) : in_(bytes), program_(program) {}

  PlannedGraph read() {
    result_.model = std::make_shared<ir::Model>();
    result_.model->opset_imports = program_.model.opset_imports;
    graph().name = in_.text();
    const std::size_t num_values = in_.size();
    for (std::size_t i = 0; i < num_values; ++i) read_value();
    const std::size_t num_nodes = in_.size();
    for (std::size_t i = 0; i < num_nodes; ++i) read_node();
    graph().outputs = in_.list([&] { return present(); });
    const std::size_t num_updates = in_.size();
    for (std::size_t i = 0; i < num_updates; ++i) {
      ir::Value* input = present();
      result_.binding.updates.push_back({.input = input, .value = present()});
    }
    result_.binding.output_blocks =
        in_.list([&] { return static_cast<std::size_t>(in_.number()); });
    result_.recomputed.kernels = in_.integer();
    result_.recomputed.values = in_.integer();
    result_.recomputed.bytes = in_.integer();
    result_.recomputed.flops = in_.real();
    if (!in_.is_at_end() || !is_sound()) throw NotOurs();
    return std::move(result_);
  }

 private:
  ir::Graph& graph() { return *result_.model->graph; }

  void read_value() {
    std::string name = in_.text();
    const DataType dtype = in_.number_type();
    const Dims dims = in_.dims();
    if (graph().find(name) != nullptr) throw NotOurs();
    ir::Value* value = graph().add_value(std::move(name), ir::Type::tensor(dtype, dims));
    values_.push_back(value);
    switch (in_.kind(Source::kOfProgram)) {
      case Source::kNode:
        break;
      case Source::kState:
        result_.binding.states.emplace(value, read_index(program_.inputs.size()));
        add_input(value);
        break;
      case Source::kFeed:
        result_.binding.feeds.emplace(value, read_index(program_.num_feeds));
        add_input(value);
        break;
      case Source::kStored:
        value->initializer = in_.tensor();
        add_constant(value, dtype, dims);
        break;
      case Source::kOfProgram: {
        const auto& ours = program_.model.graph->initializers;
        const Tensor& tensor = ours[read_index(ours.size())]->initializer;
        if (tensor.dtype() != dtype || tensor.num_elements() != dims.num_elements()) {
          throw NotOurs();
        }
        value->initializer = tensor.reshaped(dims);
        add_constant(value, dtype, dims);
        break;
      }
    }
  }

  std::size_t read_index(std::size_t count) {
    const std::uint64_t index = in_.number();
    if (index >= count) throw NotOurs();
    return static_cast<std::size_t>(index);
  }

  void add_input(ir::Value* value) {
    value->is_input = true;
    graph().inputs.push_back(value);
  }

  void add_constant(ir::Value* value, DataType dtype, const Dims& dims) {
    if (value->initializer.dtype() != dtype || value->initializer.dims() != dims) throw NotOurs();
    graph().initializers.push_back(value);
  }

  ir::Value* read_reference() {
    const std::uint64_t number = in_.number();
    if (number == kAbsent) return nullptr;
    if (number >= values_.size()) throw NotOurs();
    return values_[number];
  }

  ir::Value* present() {
    ir::Value* value = read_reference();
    if (value == nullptr) throw NotOurs();
    return value;
  }

  void read_node() {
    ir::Node* node = graph().add_bare_node();
    node->name = in_.text();
    node->domain = in_.text();
    node->op_type = in_.text();
    node->overload = in_.text();
    node->inputs = in_.list([&] { return read_reference(); });
    const auto outputs = in_.list([&] { return read_reference(); });
    node->outputs.resize(outputs.size(), nullptr);
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      if (outputs[i] == nullptr) continue;
      if (outputs[i]->producer != nullptr || outputs[i]->is_input || outputs[i]->is_initializer()) {
        throw NotOurs();
      }
      ir::Graph::set_output(node, i, outputs[i]);
    }
    node->metadata = in_.list([&] {
      std::string key = in_.text();
      return std::pair(std::move(key), in_.text());
    });
    const std::size_t num_attributes = in_.size();
    for (std::size_t i = 0; i < num_attributes; ++i) {
      std::string name = in_.text();
      node->attributes.push_back({.name = std::move(name), .value = read_attribute(in_)});
    }
  }

  // Every value has a source, and no value is read before it is computed.
  bool is_sound() {
    for (const ir::Value* value : values_) {
      if (value->producer == nullptr && !value->is_input && !value->is_initializer()) return false;
    }
    return ir::find_fault(graph()).empty();
  }

  ByteReader in_;
  const Program& program_;
  PlannedGraph result_;
  std::vector<ir::Value*> values_;
};

/// Everything about a graph, in an order that depends on it alone.
class Description {
 public:
  Description(const Program& program, const std::function<void(std::string_view)>& take)
      : program_(program), take_(take) {}

  void describe() {
    const ir::Graph& graph = *program_.model.graph;
    for (std::size_t i = 0; i < graph.inputs.size(); ++i) {
      const InputSource source = program_.inputs[i];
      out_.number(source.is_state ? 1 : 0);
      out_.number(source.index);
      if (source.is_state) states_.insert(graph.inputs[i]);
    }
    add(graph);
    for (const StateUpdate& update : program_.updates) {
      out_.number(number_of(update.input));
      out_.number(number_of(update.value));
    }
    out_.list(program_.output_blocks, [&](std::size_t block) { out_.number(block); });
    for (const ir::Function& function : program_.model.functions) {
      out_.text(function.domain);
      out_.text(function.name);
      out_.text(function.overload);
      out_.list(function.attribute_names, [&](const std::string& name) { out_.text(name); });
      for (const ir::Attribute& attribute : function.attribute_defaults) add(attribute);
      add(*function.body);
    }
    flush();
  }

 private:
  void add(const ir::Graph& graph) {
    out_.number(graph.inputs.size());
    for (const ir::Value* value : graph.inputs) add(value);
    for (const ir::Value* value : graph.initializers) add(value);
    out_.number(graph.nodes.size());
    for (const ir::Node* node : graph.nodes) {
      out_.text(node->name);
      out_.text(node->domain);
      out_.text(node->op_type);
      out_.text(node->overload);
      out_.list(node->inputs, [&](const ir::Value* value) { add(value); });
      out_.list(node->outputs, [&](const ir::Value* value) { add(value); });
      for (const auto& [key, value] : node->metadata) {
        out_.text(key);
        out_.text(value);
      }
      out_.number(node->attributes.size());
      for (const ir::Attribute& attribute : node->attributes) add(attribute);
    }
    out_.list(graph.outputs, [&](const ir::Value* value) { add(value); });
    if (out_.bytes().size() > (std::size_t{1} << 16)) flush();
  }

  void add(const ir::Attribute& attribute) {
    out_.text(attribute.name);
    if (const auto* graph = std::get_if<ir::GraphPtr>(&attribute.value)) {
      add(**graph);
    } else if (const auto* graphs = std::get_if<std::vector<ir::GraphPtr>>(&attribute.value)) {
      for (const ir::GraphPtr& one : *graphs) add(*one);
    } else if (const auto* tensor = std::get_if<Tensor>(&attribute.value)) {
      add(*tensor);
    } else if (const auto* reference = std::get_if<ir::AttributeRef>(&attribute.value)) {
      out_.text(reference->name);
    } else if (const auto* opaque = std::get_if<ir::OpaqueAttribute>(&attribute.value)) {
      out_.text(opaque->bytes);
    } else if (const auto* tensors = std::get_if<std::vector<Tensor>>(&attribute.value)) {
      for (const Tensor& one : *tensors) add(one);
    } else {
      write_attribute(attribute.value, out_);
    }
  }

  // The first time with all that is known of it.
  void add(const ir::Value* value) {
    const bool is_new = value != nullptr && !numbers_.contains(value);
    out_.number(number_of(value));
    if (!is_new) return;
    out_.text(value->name);
    out_.text(value->type.to_string());
    // A state's first value is not in the plan.
    if (value->is_initializer() && !states_.contains(value)) add(value->initializer);
  }

  void add(const Tensor& tensor) {
    out_.kind(tensor.dtype());
    out_.dims(tensor.dims());
    if (tensor.dtype() == DataType::kString) {
      for (const std::string& text : tensor.strings()) out_.text(text);
    } else if (tensor.is_defined()) {
      flush();
      take_({reinterpret_cast<const char*>(tensor.raw()),
             static_cast<std::size_t>(tensor.size_bytes())});
    }
  }

  std::uint64_t number_of(const ir::Value* value) {
    if (value == nullptr) return kAbsent;
    if (const std::uint64_t* known = numbers_.find(value)) return *known;
    const std::uint64_t next = numbers_.size();
    return numbers_[value] = next;
  }

  void flush() {
    take_(out_.bytes());
    out_.bytes().clear();
  }

  const Program& program_;
  const std::function<void(std::string_view)>& take_;
  ByteWriter out_;
  ir::PointerMap<ir::Value, std::uint64_t> numbers_;
  ir::PointerSet<ir::Value> states_;
};

}  // namespace

void describe_program(const Program& program,
                      const std::function<void(std::string_view bytes)>& take) {
  Description(program, take).describe();
}

std::optional<std::string> write_planned_graph(const ir::Graph& graph, const GraphBinding& binding,
                                               const Recomputed& recomputed,
                                               const Program& program) {
  GraphWriter writer(graph, binding, program);
  if (!writer.write(recomputed)) return std::nullopt;
  return writer.take();
}

std::optional<PlannedGraph> read_planned_graph(std::string_view bytes, const Program& program) {
  try {
    return GraphReader(bytes, program).read();
  } catch (const NotOurs&) {
    return std::nullopt;
  } catch (const Error&) {  // of impossible dimensions
    return std::nullopt;
  }
}

}  // namespace onnxgrad::runtime
