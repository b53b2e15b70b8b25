// How a product is split into tasks for the pool.
#pragma once

#include <algorithm>

#include "matrix/matrix.h"
#include "products/code_tiles.h"
#include "products/operands.h"
#include "products/piece_tiles.h"
#include "threads/pool.h"
#include "vectors/amx.h"

namespace baton {

inline int blocks_of(const Rows& rows) { return (rows.count + kTaskRows - 1) / kTaskRows; }

// The tasks of one product. Its panels are taken in runs: what a thread fetches ahead at the end of a panel is the
// next one of its run. A run is a part of what is left of all products, so that threads end at about the same time.
// Blocks of a panel are neighbours: it is read from memory once. A task of `code_tiles.h` takes all blocks.
template <class Element>
class Tasks {
 public:
  // behind: panels of the products that follow this one. whole: so many neighbouring panels are not taken apart; above
  // 1 only where `may_stay_whole`.
  Tasks(const Pool& pool, const Rows& rows, const Matrix& matrix, int behind, int whole = 1)
      : blocks_(blocks_of(rows)), panels_(matrix.num_panels()), streams_(streams_of(rows, matrix)) {
    const int parts = 2 * pool.width();
    while (blocks_ == 1 && num_runs_ < kMostRuns && first() < panels_) {
      const int start = first(), left = panels_ - start;
      starts_[++num_runs_] = start + std::clamp((left + behind) / parts, 1, left);
    }
    if (blocks_ > 1 && takes_panels_together(matrix))
      together_ = std::max(1, std::clamp(panels_ * blocks_ / (2 * parts), 1, kMostPanels) / whole) * whole;
    if (blocks_ > 1 && has_code_tiles<Element>(matrix)) {
      at_once_ = blocks_;
      together_ = std::clamp(panels_ / (2 * parts), 1, most_code_panels(matrix));
    }
    count_ = num_runs_ + (panels_ - first() + together_ - 1) / together_ * (blocks_ / at_once_);
  }

  int count() const { return count_; }

  // Whether the tasks of a product can have `whole` panels at least.
  static bool may_stay_whole(const Rows& rows, const Matrix& matrix, int whole) {
    return blocks_of(rows) > 1 && whole <= kMostPanels && takes_panels_together(matrix) &&
           !has_code_tiles<Element>(matrix);
  }

  // Calls body(panel, num_panels, block) for what task `task` takes.
  template <class Body>
  void take(int task, Body&& body) const {
    if (task < num_runs_) {
      const int end = starts_[task + 1];
      for (int panel = starts_[task]; panel < end; panel += streams_) body(panel, std::min(streams_, end - panel), 0);
      return;
    }
    const int own = (task - num_runs_) * at_once_;
    const int panel = first() + own / blocks_ * together_;
    for (int block = own % blocks_, end = block + at_once_; block < end; ++block)
      body(panel, std::min(together_, panels_ - panel), block);
  }

 private:
  static constexpr int kMostRuns = 64;

  static bool takes_panels_together([[maybe_unused]] const Matrix& matrix) {
#if defined(BATON_HAS_AMX)
    if (row_form(matrix) == RowForm::kPieces) return has_piece_tiles(matrix);
    const bool has_tiles =
        matrix.kind == Kind::kBFloat16 || matrix.kind == Kind::kInt8 || matrix.kind == Kind::kFloatParts;
    return has_tiles && may_use_amx();
#else
    return false;
#endif
  }

  // Panels of a run that are taken at once.
  static int streams_of(const Rows& rows, const Matrix& matrix) {
    const bool has_streams =
        matrix.kind == Kind::kFloat32 || matrix.kind == Kind::kBFloat16 || matrix.kind == Kind::kInt8;
    return rows.count == 1 && has_streams ? kStreams : 1;
  }

  // The first panel behind the runs.
  int first() const { return starts_[num_runs_]; }

  int blocks_;
  int panels_;
  int streams_;
  int together_ = 1;  // panels of a task behind the runs
  int at_once_ = 1;   // blocks of it
  int num_runs_ = 0;  // with several blocks none, nor without rows
  int count_;
  int starts_[kMostRuns + 1] = {};
};

}  // namespace baton
