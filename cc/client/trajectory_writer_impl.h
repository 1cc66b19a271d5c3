// Makes the TrajectoryWriter of cc/api over a Transport.
#ifndef REVERB_TF_CC_CLIENT_TRAJECTORY_WRITER_IMPL_H_
#define REVERB_TF_CC_CLIENT_TRAJECTORY_WRITER_IMPL_H_

#include <memory>
#include <string>

#include "cc/api/trajectory_writer.h"
#include "cc/client/item_sender.h"
#include "cc/client/table_cache.h"
#include "cc/client/transport.h"

namespace reverb_tf {

// `address` is for texts. With options.validate_items the tables' signatures are
// taken from `cache`, which the caller has filled. INVALID_ARGUMENT for bad options.
// `sender`, if not null, gets the writer's sender, to describe it from elsewhere.
Result<std::unique_ptr<TrajectoryWriter>> MakeTrajectoryWriter(
    std::shared_ptr<Transport> transport, std::shared_ptr<TableCache> cache,
    std::string address, const TrajectoryWriterOptions& options,
    std::weak_ptr<ItemSender>* sender = nullptr);

}  // namespace reverb_tf

#endif  // REVERB_TF_CC_CLIENT_TRAJECTORY_WRITER_IMPL_H_
