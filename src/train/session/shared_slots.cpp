#include "train/session/shared_slots.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "base/check.h"
#include "train/optimizers/optimizers.h"

namespace onnxgrad::train {
namespace {

// The part of a slot that this worker has: elements of a tensor of shape `whole`.
struct SlotPart {
  Dims whole = {};
  std::int64_t begin = 0;
};

/// States as bytes, one after another: the name, the type, where it begins in the whole, its shape
/// and that of the whole, the elements.
class PackedSlots {
 public:
  void add(const std::string& name, const Tensor& value, const SlotPart& part) {
    add_number(std::ssize(name));
    add_bytes(std::as_bytes(std::span(name)));
    add_number(static_cast<std::int64_t>(value.dtype()));
    add_number(part.begin);
    add_dims(value.dims());
    add_dims(part.whole);
    add_bytes({value.raw(), static_cast<std::size_t>(value.size_bytes())});
  }
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void add_number(std::int64_t number) { add_bytes(std::as_bytes(std::span(&number, 1))); }
  void add_dims(const Dims& dims) {
    add_number(static_cast<std::int64_t>(dims.rank()));
    for (const std::int64_t dim : dims) add_number(dim);
  }
  void add_bytes(std::span<const std::byte> more) {
    bytes_.insert(bytes_.end(), more.begin(), more.end());
  }

  std::vector<std::byte> bytes_;
};

/// Reads what PackedSlots wrote.
class SlotReader {
 public:
  explicit SlotReader(std::span<const std::byte> bytes) : rest_(bytes) {}

  bool is_done() const { return rest_.empty(); }
  /// Joins the next state with what is known of it.
  void read_into(std::map<std::string, Tensor>& whole) {
    const auto name = take(static_cast<std::size_t>(take_number()));
    const auto dtype = static_cast<DataType>(take_number());
    const std::int64_t begin = take_number();
    const Dims own = take_dims();
    const Dims all = take_dims();
    Tensor& joined = whole[{reinterpret_cast<const char*>(name.data()), name.size()}];
    if (!joined.is_defined()) joined = Tensor::zeros(dtype, all);
    ONNXGRAD_ASSERT(joined.dtype() == dtype && joined.dims() == all);
    const auto elements = take(static_cast<std::size_t>(own.size_bytes(dtype)));
    std::memcpy(static_cast<std::byte*>(joined.mutable_raw()) + Dims{begin}.size_bytes(dtype),
                elements.data(), elements.size());
  }

 private:
  std::span<const std::byte> take(std::size_t count) {
    ONNXGRAD_ASSERT(count <= rest_.size());
    const auto taken = rest_.first(count);
    rest_ = rest_.subspan(count);
    return taken;
  }
  std::int64_t take_number() {
    std::int64_t number = 0;
    std::memcpy(&number, take(sizeof number).data(), sizeof number);
    return number;
  }
  Dims take_dims() {
    std::vector<std::int64_t> dims(static_cast<std::size_t>(take_number()));
    for (std::int64_t& dim : dims) dim = take_number();
    return Dims(dims);
  }

  std::span<const std::byte> rest_;
};

std::vector<WeightInfo>::const_iterator find_weight(const std::vector<WeightInfo>& weights,
                                                    std::string_view name) {
  return std::ranges::find(weights, name, &WeightInfo::name);
}

bool is_weight(const StepGraph& graph, std::string_view state) {
  const auto weights = graph.state_weights();
  return find_weight(weights, state) != weights.end();
}

// The part of a state that this worker has; nullopt: all of it. `value`: the state in a step of
// this graph.
std::optional<SlotPart> part_of_slot(const StepGraph& graph, std::string_view state,
                                     const Tensor& value) {
  if (graph.owners.empty() || is_accumulated(state) || is_weight(graph, state)) return {};
  const auto weights = graph.state_weights();
  const auto weight = find_weight(weights, weight_of_slot(state));
  if (weight == weights.end()) return {};
  const auto owners = graph.owners.find(weight->name);
  if (owners == graph.owners.end()) return {};
  const auto rank = static_cast<std::size_t>(graph.rank);
  const std::int64_t begin = owners->second.at(rank);
  const std::int64_t count = owners->second.at(rank + 1) - begin;
  const bool is_part = count < weight->dims.num_elements() && value.dims() == Dims{count};
  if (!is_part) return {};  // all of it, or one number for the weight
  return SlotPart{.whole = weight->dims, .begin = begin};
}

}  // namespace

bool is_elsewhere(const StepGraph& graph, std::string_view state) {
  if (graph.owners.empty() || is_weight(graph, state)) return false;
  if (state == kStepCount) return true;  // only workers that update something have it
  const auto owners = graph.owners.find(std::string(weight_of_slot(state)));
  if (owners == graph.owners.end()) return false;
  const auto rank = static_cast<std::size_t>(graph.rank);
  return owners->second.at(rank) == owners->second.at(rank + 1);
}

void add_state(Checkpoint& checkpoint, const StepGraph& graph, std::string_view state,
               const std::string& stored, const Tensor& value) {
  if (const auto part = part_of_slot(graph, state, value)) {
    checkpoint.set_part(stored, value, part->begin, part->whole);
  } else {
    checkpoint.set(stored, value);
  }
}

Tensor own_part(const StepGraph& graph, std::string_view state, const Tensor& stored,
                const Tensor& value) {
  const auto part = part_of_slot(graph, state, value);
  if (!part || stored.dims() != part->whole) return stored;
  Tensor taken = Tensor::empty(stored.dtype(), value.dims());
  std::memcpy(taken.mutable_raw(), stored.raw() + Dims{part->begin}.size_bytes(stored.dtype()),
              static_cast<std::size_t>(taken.size_bytes()));
  return taken;
}

void move_slots(StepRunner& to, const StepRunner& from) {
  PackedSlots mine;
  for (const NamedTensor& state : from.state().read()) {
    if (is_accumulated(state.name) || is_weight(from.graph(), state.name)) continue;
    const auto part = part_of_slot(from.graph(), state.name, state.tensor);
    mine.add(state.name, state.tensor,
             part.value_or(SlotPart{.whole = state.tensor.dims(), .begin = 0}));
  }
  std::map<std::string, Tensor> whole;
  for (const auto& bytes : to.workers().gather(mine.bytes())) {
    SlotReader reader(bytes);
    while (!reader.is_done()) reader.read_into(whole);
  }
  const NamedTensors states = to.state().read();
  for (std::size_t i = 0; i < states.size(); ++i) {
    const auto& [name, value] = states[i];
    const auto known = whole.find(name);
    if (known == whole.end()) continue;
    to.executor().set_state(i, own_part(to.graph(), name, known->second, value));
  }
}

}  // namespace onnxgrad::train
