#include "cc/compress/snappy.h"

#include <snappy.h>

namespace reverb_tf {

std::string SnappyCompress(std::string_view raw) {
  std::string out;
  snappy::Compress(raw.data(), raw.size(), &out);
  return out;
}

bool SnappyUncompressedLength(std::string_view compressed, uint64_t* length) {
  size_t n = 0;
  if (!snappy::GetUncompressedLength(compressed.data(), compressed.size(), &n))
    return false;
  *length = n;
  return true;
}

bool SnappyIsValid(std::string_view compressed) {
  return snappy::IsValidCompressedBuffer(compressed.data(), compressed.size());
}

bool SnappyUncompress(std::string_view compressed, uint8_t* dest) {
  return snappy::RawUncompress(compressed.data(), compressed.size(),
                               reinterpret_cast<char*>(dest));
}

}  // namespace reverb_tf
