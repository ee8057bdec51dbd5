#ifndef ONNXGRAD_TRAIN_DATA_BYTE_STREAM_H_
#define ONNXGRAD_TRAIN_DATA_BYTE_STREAM_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/files.h"

namespace onnxgrad::train {

/// The bytes of a file, or of a member of an archive.
class ByteStream {
 public:
  virtual ~ByteStream() = default;
  virtual std::int64_t size_bytes() const = 0;
  /// Whether reading backwards costs no more than reading on.
  virtual bool has_random_access() const = 0;
  /// Fills `out` from `offset`. Throws: Error (the bytes are not there).
  virtual void read(std::int64_t offset, std::span<std::byte> out) = 0;
};

/// A part of a file. Throws: DataError (it does not lie inside the file).
std::unique_ptr<ByteStream> file_part(std::shared_ptr<const base::ReadableFile> file,
                                      std::int64_t offset, std::int64_t bytes);

/// A member of a zip archive.
struct ZipMember {
  std::string name;
  bool is_deflated = false;
  std::int64_t offset = 0;        ///< of its local header
  std::int64_t stored_bytes = 0;  ///< in the file
  std::int64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

/// The members of an archive, by its central directory (PKWARE's APPNOTE, with zip64). Names are
/// only compared, never opened. Throws: DataError (no archive, parts that lie outside the file,
/// encryption, another compression than deflate).
std::vector<ZipMember> list_zip(const base::ReadableFile& file);

/// The bytes of a member, unpacked piece by piece: a pass over it takes 64 KiB, however large it
/// says to be. Throws: DataError (a broken header). Its read() throws DataError where the packed
/// bytes are broken, give fewer bytes than declared, or at their end another checksum.
std::unique_ptr<ByteStream> open_zip_member(std::shared_ptr<const base::ReadableFile> file,
                                            const ZipMember& member);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_BYTE_STREAM_H_
