#pragma once
#include <vector>

#include "megalith/comm/world.h"

#include "apps/eval/text_printer.h"

namespace megalith::apps {

/// Sends the output of all copies of a model to the printer of rank 0, piece by piece.
class TextGather {
 public:
  /// `mine`: the texts whose pieces this rank sends. One rank per copy sends those of its copy; the others, and rank
  /// 0, send none. Keeps references.
  TextGather(comm::World& world, std::vector<std::size_t> mine, TextPrinter& printer);

  /// Sends the output since the last call. Calls slid(text) on rank 0 for each slide of another rank's text.
  /// Communication: train::gather_bytes(). Collective.
  template <class Slid>
  void round(Slid&& slid);

 private:
  /// A piece of a text.
  struct Piece {
    std::size_t text = 0;
    std::string bytes;
    Index slides = 0;
    bool is_complete = false;
    eval::Ending ending = eval::Ending::max_tokens;
    Index tokens = 0;  ///< of the whole text, once it is complete
  };
  std::vector<Piece> new_pieces();
  /// The pieces of all other ranks; empty except on rank 0.
  std::vector<Piece> exchange(const std::vector<Piece>& own) const;

  struct Sent {
    std::size_t text = 0;
    std::size_t bytes = 0;
    Index slides = 0;
    bool is_complete = false;
  };
  comm::World& world_;
  TextPrinter& printer_;
  std::vector<Sent> mine_;
};

template <class Slid>
void TextGather::round(Slid&& slid) {
  for (const Piece& piece : exchange(new_pieces())) {
    printer_.add(piece.text, piece.bytes);
    for (Index i = 0; i < piece.slides; ++i) slid(piece.text);
    if (piece.is_complete) printer_.end(piece.text, piece.ending, piece.tokens);
  }
}

}  // namespace megalith::apps
