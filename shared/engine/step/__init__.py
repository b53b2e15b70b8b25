"""One step on the device: its batch, the model, the sampling."""
