#include "cc/rpc/grpc_transport.h"

#include <gtest/gtest.h>

#include <memory>

namespace reverb_tf {
namespace {

// gRPC joins its callback threads with the last channel of a process, so that no such
// thread may be the one that drops it. Nothing listens here, since a server of this process
// would keep the threads.
TEST(GrpcTransport, MayGoWhileItsCallsAreOpen) {
  for (int round = 0; round < 1000; ++round) {
    std::shared_ptr<Transport> transport = MakeGrpcTransport("localhost:1");
    std::unique_ptr<Call> info = transport->GetServerInfo([](const Result<ServerInfo>&) {});
    std::unique_ptr<SampleStream> samples = transport->OpenSample([] {});
    std::unique_ptr<InsertStream> inserts = transport->OpenInsert([] {});
  }
}

}  // namespace
}  // namespace reverb_tf
