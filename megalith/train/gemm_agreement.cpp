#include "megalith/train/gemm_agreement.h"

#include <string>
#include <vector>

#include "megalith/base/str.h"
#include "megalith/train/gather.h"

namespace megalith::train {
namespace {

/// The products of all ranks, on rank 0; nothing elsewhere.
std::vector<ops::GemmTable> gather_tables(comm::World& world, const ops::GemmTable& mine) {
  const std::string text = ops::gemm_table_text(mine);
  std::vector<ops::GemmTable> tables;
  for (const std::vector<std::byte>& bytes : gather_bytes(world, std::as_bytes(std::span(text)))) {
    const std::string_view theirs(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    tables.push_back(ops::parse_gemm_table(theirs, str("products of rank ", tables.size())));
  }
  return tables;
}

/// What stands against one table for all ranks; empty when nothing does.
std::string difference(const std::vector<ops::GemmTable>& tables) {
  for (std::size_t rank = 1; rank < tables.size(); ++rank) {
    if (tables[rank].platform == tables[0].platform) continue;
    return str("rank 0 computes on ", tables[0].platform.text(), ", rank ", rank, " on ", tables[rank].platform.text(),
               ": every rank chooses the algorithms of its products for itself, and the next job may choose others; "
               "train.gemm = \"heuristic\" needs no choice");
  }
  return {};
}

}  // namespace

ops::GemmChoices agree_on_gemms(comm::World& world, ops::GemmChooser& chooser, std::span<const ops::KnownGemms> known,
                                std::span<std::byte> scratch) {
  const bool first = world.rank() == 0;
  ops::GemmTable wanted = chooser.current();
  const std::vector<ops::GemmTable> tables = gather_tables(world, wanted);
  const std::string apart = share_text(world, first ? difference(tables) : std::string());
  ops::GemmChoices choices;
  if (!apart.empty()) {
    choices = ops::choose_gemms(chooser, wanted, first ? known : std::span<const ops::KnownGemms>(), scratch);
    choices.warnings.push_back(apart);
  } else {
    if (first) {
      for (const ops::GemmTable& table : tables) wanted.products.insert(table.products.begin(), table.products.end());
      choices = ops::choose_gemms(chooser, wanted, known, scratch);
    }
    const std::string text = share_text(world, first ? ops::gemm_table_text(choices.table) : std::string());
    choices.table = ops::parse_gemm_table(text, "GEMM algorithms of rank 0");
  }
  chooser.use(choices.table);
  return choices;
}

}  // namespace megalith::train
