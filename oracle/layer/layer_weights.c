#include "oracle/layer/deepseek_stack.h"
