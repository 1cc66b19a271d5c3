// A fuzz target: peers' messages, however malformed, through the codecs into real
// sessions over a real store, and servers' messages through the client's decoders.
#ifndef REVERB_TF_CC_RPC_CODEC_FUZZ_H_
#define REVERB_TF_CC_RPC_CODEC_FUZZ_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace reverb_tf {

// An input is a list of events, each a head, a varint length and so many bytes of a
// message (fewer if the input ends). The head's low 4 bits are the kind, the next 2 the
// stream, the upper 2 how the message is cut into slices.
enum class FuzzKind : uint8_t {
  // To the server.
  kInsertRequest,
  kSampleRequest,
  kMutateRequest,
  kResetRequest,
  // The server writes what it has; what it wrote must be readable.
  kTake,
  kCloseStreams,
  // To a client.
  kInsertReply,
  kSampleReply,
  kForeignSampleReply,
  kServerInfo,
  kCount,
};

// Streams 0 and 1 are those of peers of this project, 2 and 3 of foreign ones.
inline constexpr int kNumFuzzStreams = 4;
inline constexpr bool IsForeignStream(int stream) { return stream >= 2; }

inline constexpr const char* kFuzzTables[] = {"queue",  "uniform", "prioritized",
                                              "signed", "bytes",   "heap"};

void AppendFuzzEvent(FuzzKind kind, int stream, int slicing, std::string_view message,
                     std::string* input);

// How far the inputs of this process got.
struct FuzzCounts {
  int64_t inserted = 0;
  int64_t refused = 0;
  int64_t sampled = 0;   // and read again as the client does
  int64_t received = 0;  // samples out of messages to a client
  int64_t ended = 0;     // streams ended by an error
};
const FuzzCounts& GetFuzzCounts();

}  // namespace reverb_tf

// Runs one input; aborts if an invariant of the store breaks. What libFuzzer calls.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

#endif  // REVERB_TF_CC_RPC_CODEC_FUZZ_H_
