"""Block devices: loop devices over image files."""
