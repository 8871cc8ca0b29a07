"""Plans made ready for kernels: legal tiles, merged walks, padded lists, schedules."""
