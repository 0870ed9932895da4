"""What tasks learn from: files, downloads, and made-up data."""
