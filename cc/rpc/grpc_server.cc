#include "cc/rpc/grpc_server.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "cc/base/mutex.h"
#include "cc/rpc/grpc_service.h"

namespace reverb_tf {
namespace {

constexpr char kUnixPrefix[] = "unix:";

bool IsUnix(const std::string& host) { return host.rfind(kUnixPrefix, 0) == 0; }

// A plain socket's word on whether the address is free: gRPC binds what it can of
// several addresses and would take over the socket file of a living server.
bool PortIsTaken(int family, int port) {
  const int fd = socket(family, SOCK_STREAM, 0);
  if (fd < 0) return false;
  const int on = 1;
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_storage address{};
  socklen_t size = 0;
  if (family == AF_INET) {
    auto* a = reinterpret_cast<sockaddr_in*>(&address);
    a->sin_family = AF_INET;
    a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    a->sin_port = htons(static_cast<uint16_t>(port));
    size = sizeof *a;
  } else {
    auto* a = reinterpret_cast<sockaddr_in6*>(&address);
    a->sin6_family = AF_INET6;
    a->sin6_addr = in6addr_loopback;
    a->sin6_port = htons(static_cast<uint16_t>(port));
    size = sizeof *a;
  }
  const bool taken =
      bind(fd, reinterpret_cast<sockaddr*>(&address), size) != 0 && errno == EADDRINUSE;
  close(fd);
  return taken;
}

bool SocketIsServed(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) return false;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
  const bool served =
      connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  close(fd);
  return served;
}

std::string BindAddress(const std::string& host, int port) {
  if (IsUnix(host)) return host;
  const bool bare_v6 = host.find(':') != std::string::npos && host[0] != '[';
  return (bare_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Status InUse(const std::string& address) {
  return AlreadyExistsError("address " + address +
                            " is in use; choose another port, or 0 for a free one");
}

class Server : public GrpcServer {
 public:
  Server(std::string host, std::shared_ptr<Service> service)
      : host_(std::move(host)), service_(MakeGrpcService(std::move(service))) {}
  ~Server() override { Stop(Duration::zero()); }

  Status Start(int port) {
    const std::string address = BindAddress(host_, port);
    if (IsUnix(host_)) {
      if (SocketIsServed(host_.substr(sizeof kUnixPrefix - 1))) return InUse(address);
    } else if (port != 0 && (PortIsTaken(AF_INET, port) ||
                             (host_ == "localhost" && PortIsTaken(AF_INET6, port)))) {
      return InUse(address);
    }
    grpc::ServerBuilder builder;
    builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(service_.get());
    builder.SetMaxReceiveMessageSize(-1);
    builder.SetMaxSendMessageSize(-1);
    builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
    // A peer that vanished without a word is noticed within a minute.
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 30'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                               5'000);
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
    server_ = builder.BuildAndStart();
    if (!server_) {
      return InvalidArgumentError("address " + address +
                                  " cannot be bound: is the host one of this machine's?");
    }
    if (IsUnix(host_)) port_ = 0;
    return OkStatus();
  }

  int port() const override { return port_; }

  std::vector<std::string> addresses() const override {
    if (IsUnix(host_)) return {host_};
    const std::string port = ":" + std::to_string(port_);
    std::vector<std::string> all;
    const bool everywhere = host_ == "0.0.0.0" || host_ == "::" || host_ == "[::]";
    if (host_ != "localhost") all.push_back(BindAddress(host_, port_));
    if (host_ == "localhost" || everywhere) {
      for (const char* name : {"localhost", "127.0.0.1", "[::1]"})
        all.push_back(name + port);
    } else if (host_ == "127.0.0.1" || host_ == "::1" || host_ == "[::1]") {
      all.push_back("localhost" + port);
    }
    return all;
  }

  void Stop(Duration grace) override {
    MutexLock lock(&mu_);
    if (!server_ || stopped_) return;
    stopped_ = true;
    // Shutdown lets streams run until the deadline, then cancels them.
    server_->Shutdown(std::chrono::system_clock::now() +
                      std::chrono::duration_cast<std::chrono::system_clock::duration>(
                          grace + std::chrono::milliseconds(100)));
    server_->Wait();
    server_.reset();
  }

 private:
  const std::string host_;
  const std::unique_ptr<grpc::Service> service_;
  int port_ = 0;
  Mutex mu_;
  bool stopped_ GUARDED_BY(mu_) = false;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace

Result<std::unique_ptr<GrpcServer>> GrpcServer::Start(const std::string& host, int port,
                                                      std::shared_ptr<Service> service) {
  auto server = std::make_unique<Server>(host, std::move(service));
  RTF_RETURN_IF_ERROR(server->Start(port));
  return std::unique_ptr<GrpcServer>(std::move(server));
}

}  // namespace reverb_tf
