// Makes the StructuredWriter of cc/api over a TrajectoryWriter.
#ifndef REVERB_TF_CC_CLIENT_STRUCTURED_WRITER_IMPL_H_
#define REVERB_TF_CC_CLIENT_STRUCTURED_WRITER_IMPL_H_

#include <memory>
#include <string>
#include <vector>

#include "cc/api/structured_writer.h"
#include "cc/client/item_sender.h"
#include "cc/client/table_cache.h"
#include "cc/client/transport.h"

namespace reverb_tf {

// As MakeTrajectoryWriter. With options.validate_items `cache` is asked for the
// configs' tables, hence `wait`. INVALID_ARGUMENT naming the config's position: as
// MakePatternEvaluator; an unknown table; a pattern or a priority that the table
// doesn't take; and, for a step_spec that isn't what the patterns refer to, without.
Result<std::unique_ptr<StructuredWriter>> MakeStructuredWriter(
    std::shared_ptr<Transport> transport, std::shared_ptr<TableCache> cache,
    std::string address, std::vector<StructuredConfig> configs,
    const StructuredWriterOptions& options, const WaitOptions& wait,
    std::weak_ptr<ItemSender>* sender = nullptr);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_STRUCTURED_WRITER_IMPL_H_
