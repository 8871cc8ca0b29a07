"""Pictures of plans. Each module draws for one medium and imports what that medium needs."""
