#include "vectors/amx.h"

#if defined(BATON_HAS_AMX)

#include <sys/syscall.h>
#include <unistd.h>

namespace baton {

bool may_use_amx() {
  constexpr int kAskForState = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA
  static const bool may = syscall(SYS_arch_prctl, kAskForState, kTileData) == 0;
  return may;
}

}  // namespace baton
#endif
