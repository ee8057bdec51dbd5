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
  /// Whether reading backwards costs no more than reading forwards.
  virtual bool has_random_access() const = 0;
  /// Fills `out` from `offset`. Throws: Error (the bytes do not exist).
  virtual void read(std::int64_t offset, std::span<std::byte> out) = 0;
};

/// A part of a file. Throws: DataError (it is not inside the file).
std::unique_ptr<ByteStream> file_part(std::shared_ptr<const base::ReadableFile> file,
                                      std::int64_t offset, std::int64_t bytes);

/// A member of a zip archive.
struct ZipMember {
  std::string name;
  bool is_deflated = false;
  std::int64_t offset = 0;        ///< offset of its local header
  std::int64_t stored_bytes = 0;  ///< in the file
  std::int64_t bytes = 0;
  std::uint32_t crc32 = 0;
};

/// The members of an archive, from its central directory (PKWARE's APPNOTE, with zip64). Names are
/// only compared, never opened. Throws: DataError (not an archive, parts outside the file,
/// encryption, compression other than deflate).
std::vector<ZipMember> list_zip(const base::ReadableFile& file);

/// The bytes of a member, decompressed piece by piece: a pass over it takes 64 KiB, whatever its
/// declared size. Throws: DataError (a corrupt header, a size that so many compressed bytes cannot
/// have). Its read() throws DataError if the
/// compressed bytes are corrupt, yield fewer bytes than declared, or have a different checksum.
std::unique_ptr<ByteStream> open_zip_member(std::shared_ptr<const base::ReadableFile> file,
                                            const ZipMember& member);
/// Compares the checksum of a member that is not compressed, which reading a part of it does not.
/// Throws: DataError.
void check_stored_member(const std::shared_ptr<const base::ReadableFile>& file,
                         const ZipMember& member);

}  // namespace onnxgrad::train

#endif  // ONNXGRAD_TRAIN_DATA_BYTE_STREAM_H_
