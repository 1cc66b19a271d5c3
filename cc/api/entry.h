// The one symbol that libreverb.so exports.
#ifndef REVERB_TF_CC_API_ENTRY_H_
#define REVERB_TF_CC_API_ENTRY_H_

#include <memory>
#include <string>
#include <vector>

#include "cc/api/client.h"
#include "cc/api/server.h"
#include "cc/api/structured_writer.h"
#include "cc/base/logging.h"

namespace reverb_tf {

// Grows with every change of a header that crosses the boundary.
inline constexpr int kReverbApiVersion = 1;

class ReverbApi {
 public:
  virtual ~ReverbApi() = default;
  virtual int version() const = 0;
  // Reads the signature's leaves from its structured_value. INVALID_ARGUMENT as
  // Signature::Parse and TableConfig::Validate().
  virtual Result<std::shared_ptr<ReverbTable>> MakeTable(TableConfig config) const = 0;
  // INVALID_ARGUMENT, FAILED_PRECONDITION (a table is served elsewhere),
  // ALREADY_EXISTS (the address is in use). On an error nothing stays bound.
  virtual Result<std::unique_ptr<ReverbServer>> MakeServer(
      const ServerOptions& options,
      const std::vector<std::shared_ptr<ReverbTable>>& tables) const = 0;
  virtual Result<std::unique_ptr<ReverbClient>> MakeClient(
      const ClientOptions& options) const = 0;
  // A serialised StructuredWriterConfig (cc/rpc/patterns.proto). INVALID_ARGUMENT: bytes
  // that don't parse, a bad table name, node or priority.
  virtual Result<StructuredConfig> DecodeStructuredConfig(
      const std::string& bytes) const = 0;
  // INVALID_ARGUMENT naming the position of a bad config.
  virtual Result<std::unique_ptr<PatternEvaluator>> MakePatternEvaluator(
      std::vector<StructuredConfig> configs) const = 0;
  // The lines of libreverb; see base/logging.h.
  virtual void SetLogSink(LogSink sink) const = 0;
  // Versions of what it was built with, one "name: version" a line.
  virtual std::string BuildInfo() const = 0;
};

}  // namespace reverb_tf

// Null if `version` isn't the library's.
extern "C" const reverb_tf::ReverbApi* reverb_tf_api(int version);

#endif  // REVERB_TF_CC_API_ENTRY_H_
