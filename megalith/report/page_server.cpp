#include "megalith/report/page_server.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <utility>
#include <vector>

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "megalith/base/clock.h"
#include "megalith/base/error.h"
#include "megalith/base/str.h"

namespace megalith::apps {
namespace {

constexpr std::size_t kMaxRequest = 8192, kMaxConnections = 64;
constexpr double kMaxSeconds = 10;
constexpr int kPollMs = 200;

constexpr std::pair<int, std::string_view> kReasons[] = {{200, "OK"},
                                                         {304, "Not Modified"},
                                                         {400, "Bad Request"},
                                                         {404, "Not Found"},
                                                         {405, "Method Not Allowed"},
                                                         {421, "Misdirected Request"},
                                                         {431, "Request Header Fields Too Large"},
                                                         {500, "Internal Server Error"}};

std::string_view reason_of(int status) {
  const auto* found = std::ranges::find(kReasons, status, &std::pair<int, std::string_view>::first);
  return found == std::end(kReasons) ? "" : found->second;
}

enum class Body : std::uint8_t { sent, left_out };

std::string http_text(const PageAnswer& answer, Body body) {
  std::string text = str("HTTP/1.1 ", answer.status, ' ', reason_of(answer.status), "\r\nContent-Type: ", answer.type,
                         "\r\nContent-Length: ", answer.body.size(),
                         "\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\nConnection: close\r\n");
  if (!answer.tag.empty()) text += str("ETag: ", answer.tag, "\r\n");
  if (answer.status == 405) text += "Allow: GET, HEAD\r\n";
  text += "\r\n";
  if (body == Body::sent) text += answer.body;
  return text;
}

PageAnswer refused(int status, std::string_view why) { return {.status = status, .body = str(why, '\n')}; }

bool is_equal_but_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

/// The value of a header field, without blanks around it; empty if there is none.
std::string_view field(std::string_view head, std::string_view name) {
  while (!head.empty()) {
    const std::size_t end = head.find("\r\n");
    const std::string_view line = head.substr(0, end);
    head.remove_prefix(end == std::string_view::npos ? head.size() : end + 2);
    const std::size_t colon = line.find(':');
    if (colon == std::string_view::npos || !is_equal_but_case(line.substr(0, colon), name)) continue;
    std::string_view value = line.substr(colon + 1);
    const auto is_blank = [](char c) { return c == ' ' || c == '\t'; };
    while (!value.empty() && is_blank(value.front())) value.remove_prefix(1);
    while (!value.empty() && is_blank(value.back())) value.remove_suffix(1);
    return value;
  }
  return {};
}

/// "127.0.0.1:8000" -> "127.0.0.1"; "[::1]:8000" -> "[::1]".
std::string_view without_port(std::string_view host) {
  const std::size_t colon = host.rfind(':');
  return colon == std::string_view::npos || host.ends_with(']') ? host : host.substr(0, colon);
}

bool is_loopback_name(std::string_view host) {
  return host == "127.0.0.1" || host == "[::1]" || is_equal_but_case(host, "localhost");
}

/// One request on its way in, then its answer on its way out.
struct Connection {
  int socket;
  double deadline_s;
  std::string in = {}, out = {};
  bool is_over = false;

  void read(const PageServer::Answer& answer) {
    std::array<char, 4096> buffer;
    const ssize_t got = ::recv(socket, buffer.data(), buffer.size(), 0);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got <= 0) {
      is_over = true;
      return;
    }
    in.append(buffer.data(), static_cast<std::size_t>(got));
    const std::size_t end = in.find("\r\n\r\n");
    if (end != std::string::npos)
      out = http_answer(std::string_view(in).substr(0, end + 4), answer);
    else if (in.size() > kMaxRequest)
      out = http_text(refused(431, "a request has at most 8 KiB"), Body::sent);
  }
  void write() {
    const ssize_t sent = ::send(socket, out.data(), out.size(), MSG_NOSIGNAL);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (sent > 0) out.erase(0, static_cast<std::size_t>(sent));
    is_over = sent < 0 || out.empty();
  }
};

union SocketAddress {
  sockaddr any;
  sockaddr_in v4;
  sockaddr_in6 v6;
};

int listen_on(LoopbackAddress& address) {
  const bool is_v6 = address.host == "::1";
  SocketAddress to;
  std::memset(&to, 0, sizeof to);
  socklen_t size = is_v6 ? sizeof to.v6 : sizeof to.v4;
  if (is_v6) {
    to.v6 = {.sin6_family = AF_INET6,
             .sin6_port = htons(address.port),
             .sin6_flowinfo = 0,
             .sin6_addr = in6addr_loopback,
             .sin6_scope_id = 0};
  } else {
    to.v4.sin_family = AF_INET;
    to.v4.sin_port = htons(address.port);
    to.v4.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  }
  const int socket = ::socket(to.any.sa_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  if (socket >= 0) ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (socket < 0 || ::bind(socket, &to.any, size) != 0 || ::listen(socket, 16) != 0 ||
      ::getsockname(socket, &to.any, &size) != 0) {
    const int error = errno;
    if (socket >= 0) ::close(socket);
    throw ConfigError(str("--serve = ", address.text(), ": cannot listen there: ", std::strerror(error),
                          error == EADDRINUSE
                              ? "; another program has this port: choose another one, or 0 for a free one"
                          : error == EACCES ? "; choose a port from 1024, or 0 for a free one"
                                            : ""));
  }
  address.port = ntohs(is_v6 ? to.v6.sin6_port : to.v4.sin_port);
  return socket;
}

}  // namespace

std::string LoopbackAddress::text() const { return str(host == "::1" ? "[::1]" : host, ':', port); }

LoopbackAddress parse_loopback(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  const std::string_view host = colon == std::string_view::npos ? text : text.substr(0, colon);
  const std::string_view digits = colon == std::string_view::npos ? "" : text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (!is_loopback_name(host)) {
    throw ConfigError(
        str("--serve = ", text,
            ": must be 127.0.0.1:PORT (or localhost, or [::1]): runs are shown to this machine only; from "
            "another one, `ssh -L 8000:127.0.0.1:PORT HOST` and open http://127.0.0.1:8000/"));
  }
  if (error != std::errc() || end != digits.data() + digits.size() || digits.empty())
    throw ConfigError(str("--serve = ", text, ": must end with a port from 0 to 65535, as in 127.0.0.1:8000"));
  return {.host = host == "[::1]" ? "::1" : "127.0.0.1", .port = port};
}

std::string http_answer(std::string_view request, const PageServer::Answer& answer) {
  const std::size_t line_end = request.find("\r\n");
  const std::string_view line = request.substr(0, line_end);
  const std::string_view head = line_end == std::string_view::npos ? "" : request.substr(line_end + 2);
  const std::size_t first = line.find(' '), second = line.rfind(' ');
  if (first == std::string_view::npos || second == first || !line.substr(second + 1).starts_with("HTTP/1."))
    return http_text(refused(400, "not a request of HTTP/1.1"), Body::sent);
  const std::string_view method = line.substr(0, first);
  std::string_view path = line.substr(first + 1, second - first - 1);
  path = path.substr(0, path.find('?'));
  const Body body = method == "HEAD" ? Body::left_out : Body::sent;
  if (method != "GET" && method != "HEAD") return http_text(refused(405, "GET and HEAD only"), body);
  if (!path.starts_with('/')) return http_text(refused(400, "a path begins with /"), body);
  if (!is_loopback_name(without_port(field(head, "Host"))))
    return http_text(refused(421, "this server answers to 127.0.0.1, localhost and [::1] only"), body);
  PageAnswer page;
  try {
    page = answer(path);
  } catch (const std::exception& error) {  // of a file that cannot be read now
    page = refused(500, error.what());
  }
  if (!page.tag.empty() && field(head, "If-None-Match") == page.tag) {
    page.status = 304;
    page.body.clear();
  }
  return http_text(page, body);
}

PageServer::PageServer(LoopbackAddress address, Answer answer)
    : address_(std::move(address)), answer_(std::move(answer)), listener_(listen_on(address_)) {}

PageServer::~PageServer() { ::close(listener_); }

void PageServer::serve(const std::atomic<bool>& stop) {
  std::vector<Connection> open;
  while (!stop) {
    std::vector<pollfd> waits = {
        {.fd = listener_, .events = static_cast<short>(open.size() < kMaxConnections ? POLLIN : 0), .revents = 0}};
    for (const Connection& one : open)
      waits.push_back(
          {.fd = one.socket, .events = static_cast<short>(one.out.empty() ? POLLIN : POLLOUT), .revents = 0});
    if (::poll(waits.data(), waits.size(), kPollMs) < 0 && errno != EINTR)
      throw IoError(str("--serve: poll: ", std::strerror(errno)));
    for (std::size_t i = 0; i < open.size(); ++i) {
      const short events = waits[i + 1].revents;
      if ((events & POLLOUT) != 0)
        open[i].write();
      else if (events != 0)
        open[i].read(answer_);
    }
    if ((waits[0].revents & POLLIN) != 0) {
      const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
      if (socket >= 0) open.push_back({.socket = socket, .deadline_s = monotonic_s() + kMaxSeconds});
    }
    std::erase_if(open, [](const Connection& one) {
      const bool ends = one.is_over || monotonic_s() > one.deadline_s;
      if (ends) ::close(one.socket);
      return ends;
    });
  }
  for (const Connection& one : open) ::close(one.socket);
}

}  // namespace megalith::apps
