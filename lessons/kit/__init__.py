"""What lessons are made with: what shows, asks, checks, records and builds."""
