#include "oracle/ops/yarn_rope.h"
