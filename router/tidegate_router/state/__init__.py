"""What is known of endpoints. Pure."""
