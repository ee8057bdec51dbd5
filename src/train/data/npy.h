#ifndef ONNXGRAD_TRAIN_DATA_NPY_H_
#define ONNXGRAD_TRAIN_DATA_NPY_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "onnxgrad/tensor.h"
#include "train/data/byte_stream.h"

namespace onnxgrad::train {

/// The content of the header of an .npy file (NumPy's format 1.0 to 3.0).
struct NpyHeader {
  DataType dtype = DataType::kUndefined;
  std::int64_t item_bytes = 0;     ///< in the file
  bool is_big_endian = false;      ///< for types with more than one byte
  bool is_unicode = false;         ///< Unicode: item_bytes / 4 code points; else bytes
  bool is_one_number = false;      ///< an array of rank 0; `dims` is then {1}
  bool is_by_columns = false;      ///< Fortran order, where that is another order
  std::vector<std::int64_t> dims;  ///< dims[0] counts rows
  std::int64_t data_offset = 0;
  std::int64_t row_bytes = 0;
};

/// Reads the header with a dedicated parser for the literals it may contain, and compares the
/// shape with the size of `bytes`. `name` is for messages. Throws: DataError (not .npy, objects
/// (pickles), records, more elements than bytes).
NpyHeader read_npy_header(ByteStream& bytes, const std::string& file, const std::string& name);

enum class NpyUse {
  kRows,   ///< read() may be called for some rows at a time; throws DataError for Fortran order
  kWhole,  ///< read() is called for all rows
};

/// Rows of an array in a file.
class NpyArray {
 public:
  NpyArray(std::unique_ptr<ByteStream> bytes, const std::string& file, std::string name,
           NpyUse use = NpyUse::kRows);
  const std::string& name() const { return name_; }
  std::int64_t rows() const { return header_.dims.front(); }
  std::int64_t row_bytes() const { return header_.row_bytes; }
  bool has_random_access() const { return bytes_->has_random_access(); }
  /// [count, ...] from row `first` on. Throws: DataError.
  Tensor read(std::int64_t first, std::int64_t count);

 private:
  Tensor texts(std::int64_t first, std::int64_t count);
  void read_rows(std::int64_t first, std::int64_t count, std::span<std::byte> out);
  Dims dims_of(std::int64_t count) const;

  std::unique_ptr<ByteStream> bytes_;
  std::string name_;
  NpyHeader header_;
};

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_NPY_H_
