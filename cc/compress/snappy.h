// Snappy's raw (unframed) block format, as the protocol uses it.
#ifndef REVERB_TF_CC_COMPRESS_SNAPPY_H_
#define REVERB_TF_CC_COMPRESS_SNAPPY_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace reverb_tf {

std::string SnappyCompress(std::string_view raw);
// The length that `compressed` claims to decode to; false if its header is bad.
bool SnappyUncompressedLength(std::string_view compressed, uint64_t* length);
// True if `compressed` decodes without error; touches every byte, writes none.
bool SnappyIsValid(std::string_view compressed);
// Decodes into `dest`, which has room for SnappyUncompressedLength() bytes.
bool SnappyUncompress(std::string_view compressed, uint8_t* dest);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_COMPRESS_SNAPPY_H_
