#include "train/checkpoints/checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/checksum.h"
#include "base/folder.h"
#include "onnxgrad/version.h"

namespace onnxgrad::train {
namespace {

constexpr std::int64_t kVersion = 1;
constexpr std::string_view kFormat = "onnxgrad-checkpoint";
constexpr std::string_view kChecksumPrefix = "checksum:";
// Prefix of an entry with begin and whole shape of a slot.
constexpr std::string_view kPartPrefix = "part:";
constexpr const char* kHeadChecksum = "header_checksum";
constexpr std::size_t kChecksumDigits = 32;

[[noreturn]] void refuse_checkpoint(const std::string& path, const std::string& what,
                                    const std::string& value = {},
                                    Hint hint = "The file was modified; use an older checkpoint.") {
  throw CheckpointError(
      {.what = what, .where = {.file = path, .value = value}, .hint = std::move(hint)});
}

std::span<const std::byte> bytes_of(const Tensor& tensor) {
  return {tensor.raw(), static_cast<std::size_t>(tensor.size_bytes())};
}

// Position of the digits of the head's own checksum. In JSON no other string can contain these
// bytes, since a quotation mark inside a string is written with a backslash.
std::optional<std::size_t> find_head_checksum(std::string_view head) {
  const std::string key = fmt::format(R"("{}":")", kHeadChecksum);
  const std::size_t found = head.find(key);
  if (found == std::string_view::npos) return std::nullopt;
  const std::size_t place = found + key.size();
  if (place + kChecksumDigits > head.size()) return std::nullopt;
  return place;
}

void check_format(const SafetensorsFile& file) {
  const auto text = [&](const char* key) {
    const auto found = file.metadata().find(key);
    return found == file.metadata().end() ? std::string() : found->second;
  };
  if (text("format") != kFormat) {
    refuse_checkpoint(file.path(), "this safetensors file is not a checkpoint of onnxgrad", {},
                      "Use set_weights to load the weights of other files into a model.");
  }
  const std::string least = text("min_reader");
  std::int64_t version = 0;
  const auto [end, error] = std::from_chars(least.data(), least.data() + least.size(), version);
  if (error != std::errc() || end != least.data() + least.size() || version < 1) {
    refuse_checkpoint(file.path(),
                      "the checkpoint's 'min_reader' is '" + least + "', expected a version");
  }
  if (version > kVersion) {
    refuse_checkpoint(
        file.path(),
        fmt::format("the checkpoint has format version {}, this onnxgrad {} reads up to {}",
                    version, onnxgrad::kVersion, kVersion),
        {}, "Use the onnxgrad that wrote it (" + text("onnxgrad") + ") or a newer one.");
  }
}

void check_head(const SafetensorsFile& file) {
  std::string head = file.head();
  const auto place = find_head_checksum(head);
  if (!place) refuse_checkpoint(file.path(), "the checkpoint has no checksum of its header");
  const std::string expected = head.substr(*place, kChecksumDigits);
  head.replace(*place, kChecksumDigits, kChecksumDigits, '0');
  if (base::checksum_hex(head) != expected) {
    refuse_checkpoint(file.path(), "the checkpoint's header has changed: its checksum differs", {},
                      "The file is damaged; use an older checkpoint.");
  }
}

}  // namespace

const Tensor* Checkpoint::find(std::string_view name) const {
  const auto found = std::ranges::find(tensors, name, &NamedTensor::name);
  return found == tensors.end() ? nullptr : &found->tensor;
}

void Checkpoint::set(std::string name, Tensor tensor) {
  tensors.push_back({.name = std::move(name), .tensor = std::move(tensor)});
}

void Checkpoint::set_part(const std::string& name, Tensor tensor, std::int64_t begin,
                          const Dims& whole) {
  metadata[std::string(kPartPrefix) + name] =
      fmt::format("{} {}", begin, fmt::join(whole.begin(), whole.end(), " "));
  set(name, std::move(tensor));
}

void Checkpoint::set_int(std::string_view name, std::int64_t value) {
  set(fmt::format("{}{}", kReservedPrefix, name), Tensor::scalar(value));
}

void Checkpoint::set_double(std::string_view name, double value) {
  set(fmt::format("{}{}", kReservedPrefix, name), Tensor::scalar(value));
}

namespace {

template <class T>
std::vector<T> numbers(const Checkpoint& checkpoint, std::string_view name, std::size_t rank) {
  const std::string full = fmt::format("{}{}", kReservedPrefix, name);
  const Tensor* tensor = checkpoint.find(full);
  if (tensor == nullptr)
    refuse_checkpoint(checkpoint.path, "the checkpoint lacks '" + full + "'", full);
  if (tensor->dtype() != dtype_of<T>() || tensor->dims().rank() != rank) {
    refuse_checkpoint(
        checkpoint.path,
        fmt::format("'{}' is {}{}, expected {} of rank {}", full, dtype_name(tensor->dtype()),
                    tensor->dims().to_string(), dtype_name(dtype_of<T>()), rank),
        full);
  }
  const auto data = tensor->data<T>();
  return {data.begin(), data.end()};
}

}  // namespace

std::int64_t Checkpoint::get_int(std::string_view name) const {
  return numbers<std::int64_t>(*this, name, 0).front();
}

double Checkpoint::get_double(std::string_view name) const {
  return numbers<double>(*this, name, 0).front();
}

std::vector<double> Checkpoint::get_doubles(std::string_view name) const {
  return numbers<double>(*this, name, 1);
}

std::vector<std::int64_t> Checkpoint::get_ints(std::string_view name) const {
  return numbers<std::int64_t>(*this, name, 1);
}

std::int64_t checkpoint_bytes(const Checkpoint& checkpoint) {
  std::int64_t bytes = 0;
  for (const NamedTensor& entry : checkpoint.tensors) {
    bytes += entry.tensor.size_bytes() + 4 * static_cast<std::int64_t>(entry.name.size()) + 200;
  }
  return bytes;
}

void write_checkpoint(const std::string& path, Checkpoint& checkpoint, base::Existing existing) {
  sort_for_safetensors(checkpoint.tensors);
  SafetensorsMetadata& metadata = checkpoint.metadata;
  metadata["format"] = kFormat;
  metadata["version"] = std::to_string(kVersion);
  metadata["min_reader"] = std::to_string(kVersion);
  metadata["onnxgrad"] = onnxgrad::kVersion;
  metadata[kHeadChecksum] = std::string(kChecksumDigits, '0');
  for (const NamedTensor& entry : checkpoint.tensors) {
    metadata[std::string(kChecksumPrefix) + entry.name] =
        base::checksum_hex(bytes_of(entry.tensor));
  }
  std::string head = safetensors_head(checkpoint.tensors, metadata);
  const auto place = find_head_checksum(head);
  head.replace(place.value(), kChecksumDigits, base::checksum_hex(head));
  write_safetensors(path, head, checkpoint.tensors, existing);
}

namespace {

constexpr const char* kWorkers = "workers";
constexpr const char* kStep = "step";
constexpr std::string_view kPartMark = ".worker-";
constexpr std::string_view kFileSuffix = ".safetensors";
constexpr int kMostWorkers = 1 << 20;

// One file.
Checkpoint read_file(const std::string& path, base::PathOf origin) {
  const SafetensorsFile file = SafetensorsFile::open(path, origin);
  check_format(file);
  check_head(file);
  Checkpoint checkpoint{.metadata = file.metadata(), .path = path};
  for (const SafetensorsEntry& entry : file.entries()) {
    const auto expected = file.metadata().find(std::string(kChecksumPrefix) + entry.name);
    if (expected == file.metadata().end()) {
      refuse_checkpoint(path, "the checkpoint has no checksum of '" + entry.name + "'", entry.name);
    }
    Tensor tensor = file.read(entry);
    if (base::checksum_hex(bytes_of(tensor)) != expected->second) {
      refuse_checkpoint(path,
                        "the numbers of '" + entry.name + "' have changed: their checksum differs",
                        entry.name, "The file is damaged; use an older checkpoint.");
    }
    checkpoint.set(entry.name, std::move(tensor));
  }
  return checkpoint;
}

// True for names of optimizer slots, also in the copy of the best epoch.
bool is_slot(const std::string& name) {
  return name.starts_with(fmt::format("{}state/", kReservedPrefix)) ||
         name.starts_with(fmt::format("{}best/", kReservedPrefix));
}

std::string stem_of(const std::string& path) {
  return path.ends_with(kFileSuffix) ? path.substr(0, path.size() - kFileSuffix.size()) : path;
}

// Number of workers that wrote the checkpoint.
int workers_of(const Checkpoint& checkpoint) {
  const auto found = checkpoint.metadata.find(kWorkers);
  if (found == checkpoint.metadata.end()) return 1;
  int workers = 0;
  const char* const end = found->second.data() + found->second.size();
  const auto [last, error] = std::from_chars(found->second.data(), end, workers);
  if (error != std::errc() || last != end || workers < 1 || workers > kMostWorkers) {
    refuse_checkpoint(checkpoint.path,
                      fmt::format("the checkpoint is of '{}' workers", found->second));
  }
  return workers;
}

Checkpoint read_part(const Checkpoint& whole, int worker, int workers) {
  Checkpoint part = read_file(part_path(whole.path, worker, workers), base::PathOf::kOwn);
  const auto step = whole.metadata.find(kStep);
  const auto of_part = part.metadata.find(kStep);
  const bool is_same = step != whole.metadata.end() && of_part != part.metadata.end() &&
                       step->second == of_part->second;
  if (!is_same) refuse_checkpoint(part.path, "the part is of another step than its checkpoint");
  return part;
}

}  // namespace

std::string part_path(const std::string& path, int worker, int workers) {
  return fmt::format("{}{}{}-of-{}{}", stem_of(path), kPartMark, worker, workers, kFileSuffix);
}

void set_workers(Checkpoint& checkpoint, int workers) {
  checkpoint.metadata[kWorkers] = std::to_string(workers);
}

std::vector<std::string> part_names(const std::string& folder, const std::string& name) {
  std::vector<std::string> names = base::list_files(folder);
  const std::string start = stem_of(name) + std::string(kPartMark);
  std::erase_if(names, [&](const std::string& other) { return !other.starts_with(start); });
  return names;
}

namespace {

bool is_part(const Checkpoint& checkpoint, const std::string& name) {
  return checkpoint.metadata.contains(std::string(kPartPrefix) + name);
}

/// Slots of which each worker has some elements.
class JoinedSlots {
 public:
  void add(const Checkpoint& part, const NamedTensor& entry) {
    const auto numbers = numbers_of(part, entry.name);
    const Dims whole(std::vector(numbers.begin() + 1, numbers.end()));
    const Tensor& value = entry.tensor;
    Joined& joined = slots_[entry.name];
    if (!joined.tensor.is_defined()) joined.tensor = Tensor::zeros(value.dtype(), whole);
    const std::int64_t begin = numbers.front();
    const bool fits = joined.tensor.dtype() == value.dtype() && joined.tensor.dims() == whole &&
                      begin >= 0 && begin <= whole.num_elements() - value.num_elements();
    if (!fits) refuse(part, entry.name);
    joined.num_known += value.num_elements();
    std::memcpy(static_cast<std::byte*>(joined.tensor.mutable_raw()) +
                    Dims{begin}.size_bytes(value.dtype()),
                value.raw(), static_cast<std::size_t>(value.size_bytes()));
  }

  /// Throws: CheckpointError (elements that no worker has).
  void add_to(Checkpoint& checkpoint) {
    for (auto& [name, joined] : slots_) {
      if (joined.num_known != joined.tensor.num_elements()) refuse(checkpoint, name);
      checkpoint.set(name, std::move(joined.tensor));
      checkpoint.metadata.erase(std::string(kPartPrefix) + name);
    }
  }

 private:
  struct Joined {
    Tensor tensor = {};
    std::int64_t num_known = 0;
  };

  [[noreturn]] static void refuse(const Checkpoint& checkpoint, const std::string& name) {
    refuse_checkpoint(checkpoint.path, "the parts of '" + name + "' are not one whole", name);
  }

  static std::vector<std::int64_t> numbers_of(const Checkpoint& part, const std::string& name) {
    std::string_view text = part.metadata.at(std::string(kPartPrefix) + name);
    std::vector<std::int64_t> numbers;
    while (!text.empty()) {
      std::int64_t number = 0;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
      if (error != std::errc() || number < 0 || numbers.size() > Dims::kMaxRank) refuse(part, name);
      numbers.push_back(number);
      text.remove_prefix(static_cast<std::size_t>(end - text.data()));
      if (text.starts_with(' ')) text.remove_prefix(1);
    }
    if (numbers.empty()) refuse(part, name);
    return numbers;
  }

  std::map<std::string, Joined> slots_;
};

}  // namespace

Checkpoint read_checkpoint(const std::string& path, base::PathOf origin) {
  Checkpoint checkpoint = read_file(path, origin);
  const int workers = workers_of(checkpoint);
  if (workers == 1) return checkpoint;
  JoinedSlots joined;
  std::erase_if(checkpoint.tensors, [&](const NamedTensor& entry) {
    return is_part(checkpoint, entry.name);  // the first worker's part has it too
  });
  std::unordered_set<std::string> known;
  for (const NamedTensor& entry : checkpoint.tensors) known.insert(entry.name);
  for (int worker = 0; worker < workers; ++worker) {
    Checkpoint part = read_part(checkpoint, worker, workers);
    for (NamedTensor& entry : part.tensors) {
      if (!is_slot(entry.name)) continue;
      if (is_part(part, entry.name)) {
        joined.add(part, entry);
      } else if (known.insert(entry.name).second) {
        checkpoint.tensors.push_back(std::move(entry));
      }
    }
  }
  joined.add_to(checkpoint);
  return checkpoint;
}

bool take_part(Checkpoint& checkpoint, int worker, int workers) {
  if (workers == 1) return false;
  if (!checkpoint.metadata.contains(kWorkers) || workers_of(checkpoint) != workers) return false;
  std::unordered_map<std::string, std::size_t> numbers;
  for (std::size_t i = 0; i < checkpoint.tensors.size(); ++i) {
    numbers.emplace(checkpoint.tensors[i].name, i);
  }
  Checkpoint part = read_part(checkpoint, worker, workers);
  for (NamedTensor& entry : part.tensors) {
    if (is_part(part, entry.name)) continue;
    const auto found = numbers.find(entry.name);
    if (found == numbers.end()) {
      checkpoint.tensors.push_back(std::move(entry));
    } else {
      checkpoint.tensors[found->second] = std::move(entry);
    }
  }
  return true;
}

namespace {

constexpr std::string_view kWeightSection = "weight/";
constexpr std::string_view kStateSection = "state/";

// The rest of a name after the reserved prefix and the section.
std::optional<std::string> name_in(std::string_view section, std::string_view stored) {
  if (!stored.starts_with(kReservedPrefix)) return std::nullopt;
  stored.remove_prefix(kReservedPrefix.size());
  if (!stored.starts_with(section)) return std::nullopt;
  return std::string(stored.substr(section.size()));
}

std::optional<std::string> weight_of(std::string_view stored) {
  if (!stored.starts_with(kReservedPrefix)) return std::string(stored);
  return name_in(kWeightSection, stored);
}

}  // namespace

std::string stored_state_name(const std::string& state_name, bool is_weight) {
  const bool is_free = !state_name.starts_with(kReservedPrefix) && state_name != "__metadata__";
  if (is_weight && is_free) return state_name;
  return fmt::format("{}{}{}", kReservedPrefix, is_weight ? kWeightSection : kStateSection,
                     state_name);
}

std::optional<std::string> state_of(std::string_view stored_name) {
  const auto weight = weight_of(stored_name);
  return weight ? weight : name_in(kStateSection, stored_name);
}

NamedTensors read_weights(const std::string& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  NamedTensors weights;
  if (file.metadata().contains("format") && file.metadata().at("format") == kFormat) {
    for (NamedTensor& entry : read_checkpoint(path).tensors) {
      if (auto name = weight_of(entry.name)) {
        weights.push_back({.name = *std::move(name), .tensor = std::move(entry.tensor)});
      }
    }
    return weights;
  }
  for (const SafetensorsEntry& entry : file.entries()) {
    weights.push_back({.name = entry.name, .tensor = file.read(entry)});
  }
  return weights;
}

}  // namespace onnxgrad::train
