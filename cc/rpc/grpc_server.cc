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

// A plain socket bound to the loopback address of a family; closed at the end.
class LoopbackSocket {
 public:
  // Port 0: the system picks.
  LoopbackSocket(int family, int port) : fd_(socket(family, SOCK_STREAM, 0)) {
    if (fd_ < 0) return;
    // Listeners that set this too (gRPC's do) can bind the port while we hold it.
    const int on = 1;
    setsockopt(fd_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_storage address{};
    socklen_t size = sizeof(sockaddr_in);
    if (family == AF_INET) {
      auto* a = reinterpret_cast<sockaddr_in*>(&address);
      a->sin_family = AF_INET;
      a->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      a->sin_port = htons(static_cast<uint16_t>(port));
    } else {
      auto* a = reinterpret_cast<sockaddr_in6*>(&address);
      a->sin6_family = AF_INET6;
      a->sin6_addr = in6addr_loopback;
      a->sin6_port = htons(static_cast<uint16_t>(port));
      size = sizeof *a;
    }
    error_ = bind(fd_, reinterpret_cast<sockaddr*>(&address), size) == 0 ? 0 : errno;
    size = sizeof address;
    if (error_ != 0) return;
    getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(family == AF_INET ? reinterpret_cast<sockaddr_in*>(&address)->sin_port
                                    : reinterpret_cast<sockaddr_in6*>(&address)->sin6_port);
  }
  ~LoopbackSocket() {
    if (fd_ >= 0) close(fd_);
  }
  LoopbackSocket(const LoopbackSocket&) = delete;
  LoopbackSocket& operator=(const LoopbackSocket&) = delete;

  int port() const { return port_; }
  bool is_taken() const { return error_ == EADDRINUSE; }
  bool is_bound() const { return port_ != 0; }

 private:
  const int fd_;
  int error_ = 0;
  int port_ = 0;
};

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

Status CannotBind(const std::string& address) {
  return InvalidArgumentError("address " + address +
                              " cannot be bound: is the host one of this machine's?");
}

class Server : public GrpcServer {
 public:
  Server(std::string host, std::shared_ptr<Service> service)
      : host_(std::move(host)), service_(MakeGrpcService(std::move(service))) {}
  ~Server() override { Stop(Duration::zero()); }

  Status Start(int port) {
    if (host_ == "localhost") return StartOnLoopback(port);
    const std::string address = BindAddress(host_, port);
    const bool taken = IsUnix(host_)
                           ? SocketIsServed(host_.substr(sizeof kUnixPrefix - 1))
                           : port != 0 && LoopbackSocket(AF_INET, port).is_taken();
    if (taken) return InUse(address);
    if (!Listen({address})) return CannotBind(address);
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
  // One port for both families, or for IPv4 where there is no other. gRPC would be
  // content with one of several addresses of a name, so each is listened on by itself.
  Status StartOnLoopback(int port) {
    constexpr int kTries = 20;
    const bool has_v6 = LoopbackSocket(AF_INET6, 0).is_bound();
    for (int i = 0; i < kTries; ++i) {
      const LoopbackSocket held(AF_INET, port);
      if (!held.is_bound()) break;
      const std::string number = std::to_string(held.port());
      std::vector<std::string> addresses = {"127.0.0.1:" + number};
      if (has_v6) addresses.push_back("[::1]:" + number);
      if (Listen(addresses)) return OkStatus();
      if (port != 0) break;
    }
    const std::string address = BindAddress(host_, port);
    const bool taken = port != 0 && (LoopbackSocket(AF_INET, port).is_taken() ||
                                     LoopbackSocket(AF_INET6, port).is_taken());
    return taken ? InUse(address) : CannotBind(address);
  }

  // Serves on all of the addresses; false (and on none) if one can't be had.
  bool Listen(const std::vector<std::string>& addresses) {
    grpc::ServerBuilder builder;
    for (const std::string& address : addresses) {
      builder.AddListeningPort(address, grpc::InsecureServerCredentials(), &port_);
    }
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
    return server_ != nullptr;
  }

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
