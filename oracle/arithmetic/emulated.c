#include "oracle/arithmetic/emulated.h"
