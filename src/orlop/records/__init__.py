"""The shape of all we persist or show; pure."""
