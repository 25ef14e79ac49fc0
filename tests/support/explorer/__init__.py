"""Small controllers, right and wrong, on which the explorer is tried."""
