#include "oracle/ops/mla.h"
