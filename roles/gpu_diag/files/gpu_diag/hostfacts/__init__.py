"""What the host says about itself: parsers without I/O, and the small shell that feeds them."""
