"""Tables, charts, and pictures of trees."""
