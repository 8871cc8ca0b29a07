"""Plans made and lowered on a GPU: no waiting for the device, memory fixed by the shapes."""
