"""Plans from plans: set algebra, transpose, reblocking, cropping, heads and shards."""
