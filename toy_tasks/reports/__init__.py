"""What tasks print and draw: tables, charts, pictures of trees."""
