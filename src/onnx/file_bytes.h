#ifndef ONNXGRAD_ONNX_FILE_BYTES_H_
#define ONNXGRAD_ONNX_FILE_BYTES_H_

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace onnxgrad::onnx_io {

/// The bytes of a model's file, in memory. The data of a tensor begins at any byte, which depends
/// on the lengths of names. So that a large model is in memory once, the import moves large tensors
/// that are not aligned a few bytes to the front; whole() has them at their positions in the file.
/// Immutable, shareable once the import is done.
class FileBytes {
 public:
  /// Takes over `size` bytes that nothing else reads.
  FileBytes(std::shared_ptr<char> memory, std::size_t size);
  /// A file that `write` makes from the bytes of `base`, whenever they are asked for: its large
  /// tensors stay in the memory of `base`.
  FileBytes(std::shared_ptr<const FileBytes> base,
            std::function<std::string(std::string_view)> write);

  /// Size of the memory.
  std::size_t size() const { return size_; }
  /// The bytes of the file; valid as long as the result. It is a copy if a tensor has been moved,
  /// or the file is made from another.
  std::shared_ptr<const std::string_view> whole() const;
  /// The memory: the bytes of the file until a tensor is moved.
  std::string_view memory() const { return {memory_.get(), size_}; }

  /// Moves, during the import, `data`, the contents of a length-delimited field, to the nearest
  /// multiple of `alignment` in front of it, over the bytes of the field's tag and length, and
  /// returns the new address; nullptr if they are too few, or `data` is elsewhere or small.
  char* align(std::string_view data, std::size_t alignment);

 private:
  struct Move {
    std::size_t offset = 0;  ///< offset of the data in the file
    std::size_t size = 0;
    std::string overwritten = {};  ///< overwritten bytes before it
  };
  std::shared_ptr<char> memory_;
  std::size_t size_ = 0;
  std::vector<Move> moves_;
  std::shared_ptr<const FileBytes> base_ = {};  // of a file made from another
  std::function<std::string(std::string_view)> write_ = {};
};

}  // namespace onnxgrad::onnx_io

#endif  // ONNXGRAD_ONNX_FILE_BYTES_H_
