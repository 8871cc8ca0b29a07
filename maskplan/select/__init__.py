"""Selection: from scores of blocks to plans, with every rounding and every tie named."""
