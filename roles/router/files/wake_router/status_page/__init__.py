"""What the admin listener shows beside orders: the status page, past events, evidence, and further gauges."""
