#ifndef ONNXGRAD_TRAIN_CHECKPOINTS_SAFETENSORS_H_
#define ONNXGRAD_TRAIN_CHECKPOINTS_SAFETENSORS_H_

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"
#include "onnxgrad/model.h"

// Files in the safetensors format (https://github.com/huggingface/safetensors): eight bytes with
// the length of the header (unsigned, little-endian), the header as JSON, then the bytes of the
// tensors without gaps. The header is an object of
//   "<name>": {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]}   (from the header's
//   end)
//   "__metadata__": {"<key>": "<text>", ...}
// A bad file is refused before anything is allocated for it: see SafetensorsFile::open.

namespace onnxgrad::train {

/// Strings by key; sorted, so that equal contents yield equal bytes.
using SafetensorsMetadata = std::map<std::string, std::string>;

struct SafetensorsEntry {
  std::string name;
  DataType dtype = DataType::kUndefined;
  Dims dims = {};
  std::int64_t offset = 0;  ///< from the start of the file
};

/// A file whose header was read and checked.
class SafetensorsFile {
 public:
  /// Reads and checks the header. Throws: CheckpointError (cannot be read; the header is longer
  /// than 100 MB or than the file, is not JSON of this form, has duplicate names; an unknown type,
  /// more than 64 dimensions; shape and type that do not match the bytes; tensors that overlap,
  /// leave a gap or do not end where the file ends).
  static SafetensorsFile open(const std::string& path, base::PathOf origin = base::PathOf::kUser);

  const std::string& path() const { return file_.path(); }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  /// Entries in the order of their bytes.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  /// The eight bytes of the length and the header, as in the file.
  const std::string& head() const { return head_; }
  /// A copy of the tensor. Throws: CheckpointError (reading fails, a bool that is neither 0 nor 1),
  /// DeviceError (the memory budget).
  Tensor read(const SafetensorsEntry& entry) const;

 private:
  explicit SafetensorsFile(base::ReadableFile file) : file_(std::move(file)) {}
  void read_head();
  void place_entries();

  base::ReadableFile file_;
  std::string head_;
  SafetensorsMetadata metadata_;
  std::vector<SafetensorsEntry> entries_;
};

/// Sorts tensors into the order in which they are written: by decreasing element size, so
/// that each is aligned to it; otherwise the order is kept.
void sort_for_safetensors(NamedTensors& tensors);

/// The eight bytes of the length and the header of tensors in that order; its size is a multiple of
/// eight. Throws: CheckpointError (a type that the format does not have, a name that is not UTF-8,
/// is
/// is "__metadata__" or occurs twice).
std::string safetensors_head(const NamedTensors& tensors, const SafetensorsMetadata& metadata);

/// Writes the file with base::write_atomically. Throws: CheckpointError.
void write_safetensors(const std::string& path, const std::string& head,
                       const NamedTensors& tensors,
                       base::Existing existing = base::Existing::kReplace);

/// Throws an Error of base as CheckpointError.
[[noreturn]] void rethrow_as_checkpoint_error(const Error& error);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_CHECKPOINTS_SAFETENSORS_H_
