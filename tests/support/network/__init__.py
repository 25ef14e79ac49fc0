"""Networks that fail: connections whose packets vanish."""
