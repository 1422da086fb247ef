#include "apps/eval/text_gather.h"

#include <span>

#include <nlohmann/json.hpp>

#include "megalith/train/gather.h"

namespace megalith::apps {

TextGather::TextGather(comm::World& world, std::vector<std::size_t> mine, TextPrinter& printer)
    : world_(world), printer_(printer) {
  for (const std::size_t text : mine) mine_.push_back({.text = text});
}

std::vector<TextGather::Piece> TextGather::new_pieces() {
  std::vector<Piece> pieces;
  for (Sent& sent : mine_) {
    const TextPrinter::Written& text = printer_.written(sent.text);
    if (text.text.size() == sent.bytes && text.slides == sent.slides && text.is_complete == sent.is_complete) continue;
    pieces.push_back({.text = sent.text,
                      .bytes = text.text.substr(sent.bytes),
                      .slides = text.slides - sent.slides,
                      .is_complete = text.is_complete,
                      .ending = text.ending,
                      .tokens = text.tokens});
    sent = {sent.text, text.text.size(), text.slides, text.is_complete};
  }
  return pieces;
}

std::vector<TextGather::Piece> TextGather::exchange(const std::vector<Piece>& own) const {
  auto list = nlohmann::json::array();
  for (const Piece& piece : own) {
    list.push_back({piece.text, nlohmann::json::binary({piece.bytes.begin(), piece.bytes.end()}), piece.slides,
                    piece.is_complete, static_cast<int>(piece.ending), piece.tokens});
  }
  std::vector<std::uint8_t> bytes;
  if (!own.empty()) bytes = nlohmann::json::to_cbor(list);
  std::vector<Piece> pieces;
  const std::vector<std::vector<std::byte>> everybody = train::gather_bytes(world_, std::as_bytes(std::span(bytes)));
  for (std::size_t rank = 1; rank < everybody.size(); ++rank) {
    if (everybody[rank].empty()) continue;
    const auto* const begin = reinterpret_cast<const std::uint8_t*>(everybody[rank].data());
    for (const nlohmann::json& piece : nlohmann::json::from_cbor(begin, begin + everybody[rank].size())) {
      const auto& text = piece.at(1).get_binary();
      pieces.push_back({.text = piece.at(0).get<std::size_t>(),
                        .bytes = {text.begin(), text.end()},
                        .slides = piece.at(2).get<Index>(),
                        .is_complete = piece.at(3).get<bool>(),
                        .ending = static_cast<eval::Ending>(piece.at(4).get<int>()),
                        .tokens = piece.at(5).get<Index>()});
    }
  }
  return pieces;
}

}  // namespace megalith::apps
